"""A journal of the scheduler's calls as a file: written while a server runs, read back to be replayed.

Knows: JSON lines, and when a file is long enough. Does not know: what the entries mean.

The first line has the format's version and the engine's configuration, each other line one entry. A journal
that was cut off, by its bound or by a crash, can be replayed as far as it goes.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
from pydantic import TypeAdapter, ValidationError

from app.logs import get_logger
from engine.config import EngineConfig
from engine.replay import Added, Advanced, Entry, Finished, Forgotten, Planned

log = get_logger()

VERSION = 1
MOST_BYTES = 1024**3

_KINDS: dict[str, TypeAdapter[Any]] = {
    kind.__name__.lower(): TypeAdapter(kind) for kind in (Added, Planned, Advanced, Finished, Forgotten)
}


class JournalError(ValueError):
    """The file cannot be read as a journal; the message says why."""


class JournalWriter:
    """Writes entries as they come. Belongs to the engine's thread, and `close` to whoever has joined it.

    A file that cannot be written to any more, or has `most_bytes`, gets nothing more, and that is logged: a
    server does not fail because of its journal.

    Raises:
        OSError: the file cannot be opened.
    """

    def __init__(self, path: Path, config: EngineConfig, most_bytes: int = MOST_BYTES) -> None:
        self._path = path
        self._left = most_bytes
        self._file = path.open("wb")
        self._write({"tickwire_journal": VERSION, "config": config})

    def add(self, entry: Entry) -> None:
        if self._left > 0:
            self._write({type(entry).__name__.lower(): entry})

    def close(self) -> None:
        self._left = 0
        try:
            self._file.close()
        except OSError as error:
            self._stop(str(error))

    def _write(self, line: object) -> None:
        text = orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE)
        self._left -= len(text)
        if self._left <= 0:
            self._stop("it is long enough")
            return
        try:
            self._file.write(text)
        except OSError as error:
            self._stop(str(error))

    def _stop(self, why: str) -> None:
        self._left = 0
        log.warning("journal_ended", path=str(self._path), why=why)


class Journal:
    """A journal's file: its configuration, and by iteration its entries.

    Raises:
        JournalError: the file cannot be read, or is no journal; also while iterating.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lines = self._read()
        try:
            first = orjson.loads(next(self._lines, b""))
            version, config = first["tickwire_journal"], first["config"]
        except (ValueError, KeyError, TypeError) as error:
            raise JournalError(f"{path} is no journal of Tickwire") from error
        if version != VERSION:
            raise JournalError(f"{path} has version {version}, allowed: {VERSION}")
        self.config: EngineConfig = _parsed(TypeAdapter(EngineConfig), config, self._where(1))

    def __iter__(self) -> Iterator[Entry]:
        for number, line in enumerate(self._lines, start=2):
            where = self._where(number)
            try:
                ((kind, value),) = orjson.loads(line).items()
                adapter = _KINDS[kind]
            except (ValueError, KeyError, AttributeError) as error:
                raise JournalError(f"{where} is no entry of a journal: {error!r}") from error
            entry: Entry = _parsed(adapter, value, where)
            yield entry

    def _read(self) -> Iterator[bytes]:
        """The whole lines: the writer may have been stopped in the middle of one."""
        try:
            with self._path.open("rb") as file:
                for line in file:
                    if line.endswith(b"\n"):
                        yield line
        except OSError as error:
            raise JournalError(f"cannot read {self._path}: {error.strerror}") from error

    def _where(self, number: int) -> str:
        return f"{self._path}, line {number},"


def _parsed(adapter: TypeAdapter[Any], value: object, where: str) -> Any:
    try:
        return adapter.validate_python(value)
    except ValidationError as error:
        first = error.errors()[0]
        raise JournalError(
            f"{where} {'.'.join(map(str, first['loc']))}: got {first['input']!r}, {first['msg']}"
        ) from error
