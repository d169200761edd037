"""The command itself: a process that loads the default model, serves it and ends well."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
from pathlib import Path
from urllib.request import Request, urlopen

import pytest

from app.cli import main

ROOT = Path(__file__).resolve().parents[2]


def serve(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "app.cli", "serve", *arguments],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_it_serves_the_default_model_until_it_is_told_to_stop(
    default_model_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    journal = tmp_path / "journal"
    process = serve(
        "--port", "0", "--kv-cache-tokens", "4096", "--served-model-name", "mine", "--record", str(journal)
    )  # fmt: skip
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("Tickwire is ready: http://127.0.0.1:"), process.communicate()
        url = line.split()[-1]
        with urlopen(f"{url}readyz", timeout=60) as response:
            assert response.status == 200
        messages = [{"role": "user", "content": "What is the capital of France?"}]
        body = {"model": "mine", "messages": messages, "temperature": 0, "max_tokens": 20}
        request = Request(f"{url}v1/chat/completions", json.dumps(body).encode())
        with urlopen(request, timeout=60) as response:
            answer = json.load(response)
        assert "Paris" in answer["choices"][0]["message"]["content"]
        process.send_signal(signal.SIGTERM)
        _, logs = process.communicate(timeout=60)
    finally:
        process.kill()
        process.communicate()
    assert process.returncode == 0
    events = [json.loads(line)["event"] for line in logs.splitlines()]
    assert events.count("response_finished") == 1
    assert "Paris" not in logs
    assert "capital" not in logs
    assert "capital" not in journal.read_text()
    assert main(["replay", str(journal)]) == 0
    assert " ticks, the same plans" in capsys.readouterr().out


@pytest.mark.parametrize(
    "arguments",
    [
        ("--port", "taken"),
        ("--max-model-len", "100000", "--port", "0"),
        ("--model", "/nowhere/at/all", "--port", "0"),
        ("--record", "/nowhere/at/all", "--port", "0"),
    ],
)
def test_what_cannot_work_is_said_in_one_line(arguments: tuple[str, ...], default_model_dir: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        process = serve(*(port if each == "taken" else each for each in arguments))
        out, err = process.communicate(timeout=120)
    assert process.returncode != 0
    assert out == ""
    assert "Traceback" not in err
    named = {"taken": port, "100000": "max_model_len", "/nowhere/at/all": "/nowhere/at/all"}[
        next(each for each in arguments if each in ("taken", "100000", "/nowhere/at/all"))
    ]
    assert named in err.splitlines()[-1]
