"""Schemathesis against the server, each in a process of its own: whatever is sent, the answer is one that the
OpenAPI document has, and none is the server's fault.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from tests.clients.environments import environment
from tests.clients.serving import PATIENCE, serving

HERE = Path(__file__).parent


def test_no_request_brings_an_answer_that_is_not_documented(tmp_path: Path) -> None:
    python = environment("schemathesis", ["schemathesis>=4.32,<5"])
    with serving(max_model_len=256, tick_s=0) as server:
        url = server.base_url.removesuffix("/v1")
        done = subprocess.run(
            [
                *(python, "-m", "schemathesis.cli", "--config-file", HERE / "schemathesis.toml"),
                *("run", f"{url}/openapi.json"),
            ],
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(HERE)},
        )
        metrics = server.metrics()
    assert done.returncode == 0, done.stdout
    assert "Stateful" in done.stdout, done.stdout
    # Nothing that it asked for, and nobody waits for any more, is still computed.
    assert metrics["tickwire:num_requests_running"] == metrics["tickwire:num_requests_waiting"] == 0
