"""The house's order: app -> engine -> kernels, and the pure parts stay pure.

Imports inside functions count as well: they only postpone the moment at which the order is broken.
"""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCES = sorted(path for folder in ("app", "engine", "kernels") for path in (ROOT / folder).rglob("*.py"))

MAY_IMPORT = {"app": {"app", "engine"}, "engine": {"engine", "kernels"}, "kernels": {"kernels"}}
HOUSES = {"app", "engine", "kernels", "tests", "benchmarks", "sdk", "static"}

TESTING = {"pytest", "hypothesis", "unittest", "playwright"}
NETWORK = {
    "asyncio", "socket", "socketserver", "ssl", "select", "selectors", "http", "httptools",
    "starlette", "uvicorn", "uvloop", "websockets", "anyio",
}  # fmt: skip
TENSORS = {"torch", "numba", "triton", "transformers", "safetensors", "kernels"}

PURE = [
    f"engine/{name}.py"
    for name in (
        "admission", "answer", "batch", "blocks", "config", "detokenizer", "edits", "expectation", "ledger",
        "prefix", "recorder", "replay", "request", "sampling", "scheduler", "shadow", "snapshot", "turns",
        "waiting",
    )
]  # fmt: skip
PROTOCOL = sorted(
    str(path.relative_to(ROOT))
    for folder in ("protocol", "spec")
    for path in (ROOT / "app" / folder).glob("*.py")
)
FORBIDDEN = {
    **dict.fromkeys(PURE, NETWORK | TENSORS),
    **dict.fromkeys(PROTOCOL, NETWORK | TENSORS),
    "app/streams.py": (NETWORK | TENSORS) - {"asyncio"},
}


def imported(source: str, package: str) -> set[str]:
    """The full names of all modules that a source imports; `package` is what its dots start from."""
    names = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level:
            start = package.split(".")[: len(package.split(".")) - node.level + 1]
            names.add(".".join([*start, *([node.module] if node.module else [])]))
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module)
    return names


def roots(path: Path) -> set[str]:
    package = ".".join(path.relative_to(ROOT).parent.parts)
    return {name.split(".")[0] for name in imported(path.read_text(encoding="utf-8"), package)}


def test_every_kind_of_import_is_seen():
    source = "import a.b, c\nfrom d.e import f\ndef g():\n    from . import h\n    from ..i import j\n"
    assert imported(source, "x.y") == {"a.b", "c", "d.e", "x.y", "x.i"}


def test_there_is_something_to_look_at():
    assert {path.relative_to(ROOT).parts[0] for path in SOURCES} == set(MAY_IMPORT)
    assert set(FORBIDDEN) <= {str(path.relative_to(ROOT)) for path in SOURCES}


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_run_one_way(path):
    house = path.relative_to(ROOT).parts[0]
    assert roots(path) & HOUSES <= MAY_IMPORT[house]


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_the_product_knows_no_tests(path):
    assert roots(path).isdisjoint(TESTING)
    assert "fakerunner" not in path.read_text(encoding="utf-8").lower()


@pytest.mark.parametrize(
    "path", [path for path in SOURCES if path.relative_to(ROOT).parts[0] != "app"], ids=lambda path: path.stem
)
def test_engine_and_kernels_know_no_network(path):
    assert roots(path).isdisjoint(NETWORK)


@pytest.mark.parametrize("name", FORBIDDEN)
def test_pure_files_import_no_torch_and_no_network(name):
    assert roots(ROOT / name).isdisjoint(FORBIDDEN[name])


@pytest.mark.parametrize("names", [PURE, PROTOCOL, ["app/streams.py"]], ids=["engine", "protocol", "streams"])
def test_importing_pure_files_loads_no_torch(names):
    """What they import must be as pure as they are."""
    modules = [name.removesuffix(".py").removesuffix("/__init__").replace("/", ".") for name in names]
    program = f"import sys, {', '.join(modules)}\nprint(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    loaded = {name.split(".")[0] for name in done.stdout.split()}
    assert loaded.isdisjoint({"torch", "numba", "transformers", "starlette", "uvicorn", "websockets"})


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_module_says_what_it_knows(path):
    tree = ast.parse(path.read_text(encoding="utf-8"))
    assert not tree.body or ast.get_docstring(tree)
