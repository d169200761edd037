"""Every log line is one JSON object, whoever writes it and whatever it says."""

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def lines_of(program: str) -> list[dict]:
    program = "import logging, threading, warnings\nfrom app.logs import configure, get_logger\n" + program
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, check=True, timeout=60
    )
    assert done.stdout == b""
    text = done.stderr.decode()
    # Not one character that steers a terminal, or that some reader takes for a line's end.
    assert text.isascii() or all(char.isprintable() for char in text.replace("\n", ""))
    assert text.splitlines() == text.removesuffix("\n").split("\n")
    return [json.loads(line) for line in text.splitlines()]


def test_a_line_has_event_level_time_and_what_was_given():
    (line,) = lines_of('configure("info"); get_logger().info("response", tokens=3, reason="stop")')
    assert line.pop("timestamp").endswith("Z")
    assert line == {"event": "response", "level": "info", "tokens": 3, "reason": "stop"}


def test_a_logger_may_be_got_before_the_configuration():
    (line,) = lines_of('log = get_logger(); configure("warning"); log.info("no"); log.warning("yes")')
    assert line["event"] == "yes"


def test_the_standard_library_writes_the_same_lines_at_its_level():
    program = """
configure("info")
logging.getLogger("uvicorn.error").info("started %s", 1)
logging.getLogger("uvicorn.error").debug("hidden")
logging.getLogger("uvicorn").log(5, "hidden")
logging.getLogger("uvicorn").log(25, "between")
logging.getLogger("engine.engine").info("tick")
logging.getLogger("numba.core").info("hidden")
logging.getLogger("asyncio").warning("slow")
warnings.warn("old")
"""
    lines = lines_of(program)
    assert [(line["logger"], line["level"]) for line in lines] == [
        ("uvicorn.error", "info"),
        ("uvicorn", "info"),
        ("engine.engine", "info"),
        ("asyncio", "warning"),
        ("py.warnings", "warning"),
    ]
    assert lines[0]["event"] == "started 1"
    assert "UserWarning: old" in lines[4]["event"]


def test_text_cannot_break_or_forge_a_line():
    hostile = 'a\n{"event": "forged"}\r\x1b[2J\x7f\x9b\x85\u2028\u2029\ud800 é'
    program = f'configure("info"); log = get_logger(); log.info({hostile!r}, text={hostile!r})'
    program += f'; log.info("fine", text={hostile.replace(chr(0xD800), "")!r})'
    first, second = lines_of(program)
    assert first["event"] == first["text"] == hostile
    assert second["text"] == hostile.replace("\ud800", "")


def test_values_that_json_lacks_do_not_raise():
    program = (
        'configure("info"); get_logger().info("odd", big=2**90, set={1}, inner={2: 3}, nan=float("nan"))'
    )
    (line,) = lines_of(program)
    assert (line["event"], line["set"], line["inner"]) == ("odd", "{1}", "{2: 3}")
    assert int(line["big"]) == 2**90


def test_an_error_has_its_frames_but_no_local_variables():
    program = """
configure("info")
def fail(prompt):
    raise RuntimeError("broken")
for log in (get_logger(), logging.getLogger("asyncio")):
    try:
        fail("my secret question")
    except RuntimeError:
        log.exception("failed")
"""
    for line in lines_of(program):
        (error,) = line["exception"]
        assert (error["exc_type"], error["exc_value"]) == ("RuntimeError", "broken")
        assert error["frames"][-1]["name"] == "fail"
        assert "secret question" not in json.dumps(line)


def test_threads_do_not_mix_their_lines():
    program = """
configure("info")
def work(who):
    for number in range(200):
        get_logger().info("x" * 500, who=who, number=number)
        logging.getLogger("engine").info("y" * 500)
threads = [threading.Thread(target=work, args=(who,)) for who in range(4)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
"""
    assert len(lines_of(program)) == 4 * 200 * 2
