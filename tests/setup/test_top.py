"""`tickwire top`: the picture, and what it says where there is nothing to draw."""

from __future__ import annotations

import http.server
import json
import os
import pty
import select
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from app.top import TopError, debug_address, picture, top

ROOT = Path(__file__).parents[2]
PATIENCE_S = 30
"""After this long without what it waits for, a test fails. No passing test waits for it."""


def snapshot(**changes: Any) -> dict[str, Any]:
    arm = {"slots": 192, "running": 3, "waiting": 17, "missed": 0, "ticks": 400, "used": 1, "allocated": 4}
    running = [
        {
            "id": f"0000000{row}", "row": row, "prompt_tokens": 20 + row, "output_tokens": 5,
            "computed_tokens": 24 + row, "blocks": 2, "session": "abcd", "preemptions": 0,
            "is_padding": False,
        }
        for row in (2, 0, 1)
    ]  # fmt: skip
    return {
        "model": "fake-model",
        "config": {"max_num_seqs": 8, "admission": "paged"},
        "stats": {
            "running": 3, "waiting": 12, "preemptions": 1, "ticks": 100, "restarts": 0, "hit_tokens": 30,
            "queried_tokens": 120, "failure": None,
        },
        "recent": {"sampled_per_s": 123.4, "computed_per_s": 200.0, "mean_ms": 8.1},
        "memory": {"total": 400, "used": 200, "reserved": 40, "internal": 20, "cached": 40, "free": 100},
        "memory_over_ticks": {
            "ticks": 100, "used": 960, "reserved": 30, "internal": 10, "external": 0,
        },
        "shadow": {"static": arm, "reserve_max": arm, "reserve_pow2": arm},
        "blocks": {"map": "#" * 13 + "+" * 2 + "c" * 3 + "." * 7, "legend": {"#": "full", ".": "free"}},
        "running": running,
        "waiting": [{"session": "abcd", "count": 9}, {"session": "ef01", "count": 3}],
    } | changes  # fmt: skip


def line_with(text: str, lines: list[str]) -> str:
    (line,) = [line for line in lines if text in line]
    return line


@pytest.mark.parametrize(("width", "height"), [(80, 24), (20, 10), (200, 60), (40, 1)])
@pytest.mark.parametrize("num_blocks", [1, 25, 100_000])
@pytest.mark.parametrize("rows", [0, 3, 500])
def test_the_picture_fits_the_terminal(width: int, height: int, num_blocks: int, rows: int) -> None:
    one = snapshot()
    crowded = snapshot(
        blocks={"map": "#" * num_blocks, "legend": one["blocks"]["legend"]},
        running=[one["running"][0] | {"row": row} for row in range(rows)],
        waiting=one["waiting"] * rows,
    )
    lines = picture(crowded, width, height)
    assert 0 < len(lines) <= height
    assert max(map(len, lines)) <= width


def test_the_picture_tells_the_numbers() -> None:
    lines = picture(snapshot(), 120, 40)
    assert "fake-model" in lines[0]
    assert line_with("tokens/s", lines).startswith("123.4 tokens/s")
    assert "3 of 8 rows  12 waiting" in line_with("rows  ", lines[:4])
    assert "prefix hits 25.0% of 120 prompt tokens" in line_with("prefix hits", lines)
    assert "# used 50.0%  - reserved 10.0%  x lost 5.0%  c cached 10.0%  . free 25.0%" in lines
    assert "used 96.0%  reserved 3.0%  lost inside 1.0%  lost outside 0.0%" in line_with("over all", lines)


def test_the_bar_is_as_long_as_the_shares() -> None:
    lines = picture(snapshot(), 80, 40)
    assert "#" * 40 + "-" * 8 + "x" * 4 + "c" * 8 + "." * 20 in lines


def test_what_the_others_would_have_taken_stands_beside_what_runs() -> None:
    lines = picture(snapshot(), 120, 40)
    assert line_with("this (paged)", lines).split()[2:] == ["260", "3", "12", "100", "96.0%"]
    for policy in ("static", "reserve_max", "reserve_pow2"):
        assert line_with(policy, lines).split() == [policy, "192", "3", "17", "400", "25.0%"]


def test_a_policy_that_has_brought_nothing_to_an_end_has_no_share() -> None:
    arms = {"static": snapshot()["shadow"]["static"] | {"used": 0, "allocated": 0}}
    assert line_with("static", picture(snapshot(shadow=arms), 120, 40)).split()[-1] == "-"


def test_each_block_is_a_character() -> None:
    lines = picture(snapshot(), 20, 40)
    at = lines.index("#" * 13 + "+" * 2 + "c" * 3 + "." * 2)
    assert lines[at + 1] == "....."


def test_where_blocks_are_too_many_a_character_is_the_most_frequent_of_several() -> None:
    blocks = {"map": "##." * 500 + "..#" * 500, "legend": {"#": "full", ".": "free"}}
    lines = picture(snapshot(blocks=blocks), 60, 24)
    assert "3000 blocks, 17 a character:" in line_with("a character", lines)
    drawn = "".join(line for line in lines if line and set(line) <= {"#", "."})
    assert len(drawn) == 177
    assert drawn[:88] == "#" * 88
    assert drawn[-88:] == "." * 88


def test_rows_are_in_their_order_and_the_queue_stands_beside_them() -> None:
    lines = picture(snapshot(), 120, 40)
    first = next(i for i, line in enumerate(lines) if line.split()[:2] == ["0", "00000000"])
    assert lines[first].split() == ["0", "00000000", "20", "5", "24", "2", "abcd", "abcd", "9"]
    assert [lines[first + i].split()[0] for i in range(3)] == ["0", "1", "2"]


def test_what_does_not_fit_is_counted() -> None:
    rows = [snapshot()["running"][0] | {"row": row} for row in range(100)]
    lines = picture(snapshot(running=rows), 80, 30)
    shown = sum("00000002" in line for line in lines)
    assert line_with(" more", lines).startswith(f"... {100 - shown} more")


def test_a_failure_is_told() -> None:
    stats = snapshot()["stats"] | {"failure": "the engine failed: OutOfMemory"}
    assert "FAILED: the engine failed: OutOfMemory" in picture(snapshot(stats=stats), 120, 40)[0]


def test_nothing_that_a_server_says_steers_the_terminal() -> None:
    lines = picture(snapshot(model="\x1b[2Jevil\nmodel"), 80, 40)
    assert not any(c < " " for line in lines for c in line)


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:8000", "http://127.0.0.1:8000/", "http://127.0.0.1:8000/debug/engine?x=1"]
)
def test_any_address_of_the_server_will_do(url: str) -> None:
    assert debug_address(url) == "http://127.0.0.1:8000/debug/engine"


@pytest.mark.parametrize("url", ["", "127.0.0.1:8000", "ws://a", "http://", "http://a:b", "http://a:0"])
def test_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(TopError, match=r"--url: got .*, allowed: an address like http://127.0.0.1:8000"):
        debug_address(url)


def test_without_a_server_it_says_how_to_start_one(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    assert top(f"http://127.0.0.1:{port}", once=True) == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert f"no server at http://127.0.0.1:{port}/debug/engine" in said.err
    assert "start one with: tickwire serve" in said.err


@pytest.fixture
def server() -> Iterator[http.server.HTTPServer]:
    """Answers what `content` holds, with `status`."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            served.asked += 1
            self.send_response(served.status)
            self.end_headers()
            self.wfile.write(served.content)

        def log_message(self, *arguments: object) -> None:
            pass

    served: Any = http.server.HTTPServer(("127.0.0.1", 0), Handler)
    served.status, served.content, served.asked = 200, json.dumps(snapshot()).encode(), 0
    thread = threading.Thread(target=served.serve_forever, daemon=True)
    thread.start()
    yield served
    served.shutdown()
    thread.join()
    served.server_close()


def url(server: http.server.HTTPServer) -> str:
    return f"http://127.0.0.1:{server.server_port}"


def test_one_picture_is_printed(server: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert top(url(server), once=True) == 0
    said = capsys.readouterr()
    assert "fake-model" in said.out
    assert "\x1b" not in said.out


@pytest.mark.parametrize(
    ("status", "content", "says"),
    [
        (404, b"{}", "shows no engine: HTTP status 404"),
        (200, b"hello", "is no picture of an engine"),
        (200, b"[]", "is no picture of an engine"),
        (200, b"{}", "is no picture of an engine"),
    ],
)
def test_another_server_is_told_apart(
    server: Any, capsys: pytest.CaptureFixture[str], status: int, content: bytes, says: str
) -> None:
    server.status, server.content = status, content
    assert top(url(server), once=True) == 1
    assert says in capsys.readouterr().err


@pytest.mark.parametrize("key", [b"q", b"\x03"], ids=["q", "Ctrl-C"])
def test_it_leaves_the_terminal_as_it_was(server: Any, key: bytes) -> None:
    master, slave = pty.openpty()
    program = [sys.executable, "-m", "app.cli", "top", "--url", url(server)]
    # A session of its own, with the pseudo-terminal as its controlling one: so Ctrl-C is a signal.
    start = f"import os; os.login_tty(0); os.execv({program[0]!r}, {program!r})"
    process = subprocess.Popen(
        [sys.executable, "-c", start], cwd=ROOT, stdin=slave, stdout=slave, stderr=slave
    )
    os.close(slave)
    try:
        said = read_until(master, b"fake-model")
        os.write(master, key)
        said += read_until(master, b"\x1b[?1049l")
        assert process.wait(timeout=PATIENCE_S) == 0
    finally:
        process.kill()
        process.wait()
        os.close(master)
    assert said.index(b"\x1b[?1049h") < said.index(b"fake-model") < said.index(b"\x1b[?1049l")


def read_until(terminal: int, mark: bytes) -> bytes:
    said, last = b"", time.monotonic() + PATIENCE_S
    while mark not in said:
        # It draws without end, so that each wait alone would always end.
        readable, _, _ = select.select([terminal], [], [], max(0.0, last - time.monotonic()))
        assert readable, said
        said += os.read(terminal, 65536)
    return said
