"""The README's examples, run in order against the fake server."""

from __future__ import annotations

import ast
import asyncio
import inspect
import re
import types
from pathlib import Path

import pytest

from tickwire_client.testing import FakeServer

PACKAGE = Path(__file__).parents[1]
README = (PACKAGE / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


async def test_every_example_runs(capsys: pytest.CaptureFixture[str]) -> None:
    assert len(BLOCKS) > 5
    names: dict[str, object] = {}
    async with asyncio.timeout(20.0), FakeServer() as server:
        for number, block in enumerate(BLOCKS):
            if "long story" in block:
                server.say("Once upon", " a time", " there was", pause_after=2)
            source = block.replace("http://127.0.0.1:8000", server.url)
            code = compile(source, f"example {number}", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
            running = types.FunctionType(code, names)()
            if inspect.iscoroutine(running):
                await running
    output = capsys.readouterr().out
    assert output.startswith("You said: What is a paged KV cache?")
    assert "Status.CANCELLED" in output
    assert "You said: In three words, please." in output
    assert output.count("You said: Are you there?") == 1


def test_the_tree_that_is_drawn_is_the_one_there_is() -> None:
    from tickwire_client import errors

    drawn = re.findall(r"^    ([| `-]*)(\w+)", errors.__doc__ or "", re.MULTILINE)
    path: list[str] = []
    for indent, name in drawn:
        depth = len(indent) // 4
        path[depth:] = [name]
        kind = getattr(errors, name)
        assert kind.__bases__[0].__name__ == (path[depth - 1] if depth else "Exception")
    kinds = {
        name
        for name, kind in vars(errors).items()
        if isinstance(kind, type) and kind.__module__ == errors.__name__
    }
    assert kinds == {name for _, name in drawn}
