"""What the package is made of: what it imports, and that each module says what it knows."""

from __future__ import annotations

import ast
import sys
import tomllib
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1]
SOURCES = sorted(PACKAGE.glob("src/tickwire_client/*.py"))
SHELL = {"client.py", "chat.py", "testing.py"}
"""The only ones that know of tasks."""


def imported(path: Path) -> set[str]:
    """The first names of all modules that a file imports."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.module, "imports are absolute"
            names.add(node.module)
    return {name.split(".")[0] for name in names}


def test_it_needs_what_it_declares_and_nothing_else() -> None:
    project = tomllib.loads((PACKAGE / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    declared = {requirement.split(">")[0] for requirement in project["dependencies"]}
    needed = set().union(*map(imported, SOURCES)) - set(sys.stdlib_module_names) - {"tickwire_client"}
    assert needed == declared == {"websockets", "orjson"}


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.stem)
def test_what_decides_knows_no_socket(path: Path) -> None:
    if path.name not in SHELL:
        assert imported(path).isdisjoint({"asyncio", "websockets", "socket", "time", "threading"})


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.stem)
def test_every_module_says_what_it_knows(path: Path) -> None:
    said = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
    assert said
    assert path.name == "__init__.py" or "Knows: " in said
