"""The server as a process of its own over the fake model, and scripts of clients that are run against it.

Knows: processes. Does not know: which client, what it does.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue
from typing import Any
from urllib.request import urlopen

ROOT = Path(__file__).resolve().parents[2]
PATIENCE = 120.0
"""Seconds after which a client has failed. No test depends on how long anything takes."""


class ServerProcess:
    """`options` are those of `tests.clients.fake_server`."""

    def __init__(self, **options: Any) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.clients.fake_server", json.dumps(options)],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._lines: SimpleQueue[str] = SimpleQueue()
        # A server that nobody listens to would stop once the pipe is full.
        threading.Thread(target=self._listen, daemon=True).start()
        self.port: int = self.line()["port"]
        self.base_url = f"http://127.0.0.1:{self.port}/v1"

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(line)
        self._lines.put("")

    def line(self) -> dict[str, Any]:
        """The next thing that the server says of itself."""
        line: dict[str, Any] = json.loads(self._lines.get(timeout=PATIENCE))
        return line

    def metrics(self) -> dict[str, float]:
        with urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=20) as response:
            lines = response.read().decode().splitlines()
        samples = (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
        return {name: float(value) for name, value in samples}

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(timeout=30)
        finally:
            self.process.kill()
            self.process.wait()


@contextmanager
def serving(**options: Any) -> Iterator[ServerProcess]:
    server = ServerProcess(**options)
    try:
        yield server
    finally:
        server.stop()


def run_script(
    python: Path, script: str, *arguments: str, environ: Mapping[str, str] = os.environ
) -> dict[str, Any]:
    """What a script in this folder prints: one JSON object."""
    done = subprocess.run(
        [python, Path(__file__).with_name(script), *arguments],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
        env=dict(environ),
    )
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads(done.stdout)
    return result
