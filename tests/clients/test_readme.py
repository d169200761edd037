"""What the README shows of the OpenAI SDK does what it says."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests.app.harness import MODEL
from tests.clients.environments import environment
from tests.clients.serving import PATIENCE, ROOT, serving

PROGRAMS = re.findall(r"^```python\n(.*?)^```", (ROOT / "README.md").read_text(encoding="utf-8"), re.M | re.S)


@pytest.fixture(scope="module")
def sdk() -> Path:
    return environment("openai", ["openai[realtime]>=3.57"])


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_program_of_the_readme_runs_and_prints_an_answer(sdk: Path, program: str) -> None:
    with serving(never_ends=False, tick_s=0) as server:
        program = program.replace("http://127.0.0.1:8000/v1", server.base_url)
        program = program.replace("SmolLM2-135M-Instruct", MODEL)
        done = subprocess.run(
            [sdk, "-c", program], capture_output=True, text=True, timeout=PATIENCE, check=False
        )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
