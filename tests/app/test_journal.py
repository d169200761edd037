"""A journal's file: what was written is read back, and what is no journal is told apart."""

from __future__ import annotations

from pathlib import Path

import pytest

from app.cli import main
from app.journal import Journal, JournalError, JournalWriter
from engine.config import Admission, Chaos, EngineConfig
from engine.replay import Added, Advanced, Entry, Finished, Forgotten, Planned, Row
from engine.request import Priority

CONFIG = EngineConfig(
    num_blocks=8, max_model_len=64, admission=Admission.STATIC, chaos=Chaos(slow_tick_ms=0.5)
)
ADDED = Added(prompt=20, max_output=4, session="ab", priority=Priority.BATCH, source=None, hashes=("00ff",))
ENTRIES: list[Entry] = [
    ADDED,
    Planned(scheduled=((0, 20),), admitted=(0,), copies=((3, 4),)),
    Advanced((Row(0, 20, 1, ()), Row(1, 1, 0, ("0a",)))),
    Finished(0, is_own_end=True, is_sound=False),
    Forgotten(),
]
ONE_TICK: list[Entry] = [ADDED, Planned(scheduled=((0, 20),), admitted=(0,))]


def written(path: Path, entries: list[Entry], **options: int) -> Path:
    writer = JournalWriter(path / "journal", CONFIG, **options)
    for entry in entries:
        writer.add(entry)
    writer.close()
    return path / "journal"


def test_what_was_written_is_read_back(tmp_path):
    journal = Journal(written(tmp_path, ENTRIES))
    assert journal.config == CONFIG
    assert list(journal) == ENTRIES


def test_a_journal_ends_when_it_is_long_enough(tmp_path):
    path = written(tmp_path, [Forgotten()] * 1000, most_bytes=1000)
    assert path.stat().st_size < 1000
    read = list(Journal(path))
    assert read == [Forgotten()] * len(read)
    assert 10 < len(read) < 100


def test_a_line_that_was_not_finished_does_not_count(tmp_path):
    path = written(tmp_path, ENTRIES)
    path.write_bytes(path.read_bytes()[:-3])
    assert list(Journal(path)) == ENTRIES[:-1]


def test_a_journal_that_cannot_be_written_does_not_hurt():
    writer = JournalWriter(Path("/dev/full"), CONFIG)
    for _ in range(10_000):  # more than a buffer
        writer.add(Forgotten())
    writer.close()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is no journal of Tickwire"),
        (b"hello\n", "is no journal of Tickwire"),
        (b"[1]\n", "is no journal of Tickwire"),
        (b'{"tickwire_journal":2,"config":{}}\n', "has version 2, allowed: 1"),
        (b'{"tickwire_journal":1,"config":{}}\n', "line 1, num_blocks: got {}"),
    ],
)
def test_what_is_no_journal_is_refused(tmp_path, content, message):
    path = tmp_path / "journal"
    path.write_bytes(content)
    with pytest.raises(JournalError) as caught:
        Journal(path)
    assert message in str(caught.value)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b"7\n", "line 2, is no entry"),
        (b'{"sung":{}}\n', "line 2, is no entry"),
        (b'{"finished":{"sequence":"x","is_own_end":true,"is_sound":true}}\n', "line 2, sequence: got 'x'"),
    ],
)
def test_a_line_that_is_no_entry_is_named(tmp_path, line, message):
    path = written(tmp_path, [])
    path.write_bytes(path.read_bytes() + line)
    with pytest.raises(JournalError, match=message):
        list(Journal(path))


def test_the_command_says_that_the_plans_are_the_same(tmp_path, capsys):
    assert main(["replay", str(written(tmp_path, ONE_TICK))]) == 0
    assert capsys.readouterr().out == "1 ticks, the same plans\n"


def test_the_command_says_what_differs(tmp_path, capsys):
    entries = [ADDED, Planned(scheduled=((0, 19),), admitted=(0,))]
    assert main(["replay", str(written(tmp_path, entries))]) == 1
    said = capsys.readouterr().err
    assert "tickwire: tick 1 is planned otherwise: scheduled: then ((0, 19),), now ((0, 20),)" in said


@pytest.mark.parametrize("content", [b"hello\n", None])
def test_the_command_refuses_what_is_no_journal(tmp_path, capsys, content):
    path = tmp_path / "journal"
    if content is not None:
        path.write_bytes(content)
    assert main(["replay", str(path)]) == 1
    assert str(path) in capsys.readouterr().err
