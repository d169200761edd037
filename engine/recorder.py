"""The last ticks, and their picture as a Chrome trace.

Knows: what a tick did, in numbers and ids, and the trace event format that chrome://tracing and Perfetto
open. Does not know: clocks (it is told the times), tokens, text, who looks at it.

The format: https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU, the object form
with complete events ("X", nested by their times), counters ("C"), instants ("i") and metadata ("M").
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from engine.ledger import MemoryTruth
from engine.snapshot import short_id


class Stages(NamedTuple):
    """Microseconds that each stage of a tick took, in the order in which they follow each other."""

    commands: float
    schedule: float
    build: float
    execute: float
    apply: float
    """With the commands that came during the forward pass."""
    publish: float


@dataclass(frozen=True, slots=True)
class TickRecord:
    number: int
    start: float
    """`time.monotonic()` seconds."""
    stages: Stages
    rows: int
    """Sequences in the batch."""
    tokens: int
    """Tokens computed, over all of them."""
    sampled: int
    """New tokens."""
    admitted: tuple[str, ...]
    """Ids of sequences, as are the next two."""
    ended: tuple[str, ...]
    preempted: tuple[str, ...]
    waiting: int
    """Sequences in the queue after it."""
    memory: MemoryTruth
    """After it."""


class TickRecorder:
    """A ring of the last `size` ticks."""

    def __init__(self, size: int) -> None:
        self._ring: deque[TickRecord] = deque(maxlen=size)

    def add(self, record: TickRecord) -> None:
        self._ring.append(record)

    def records(self) -> list[TickRecord]:
        """Oldest first. May be called from any thread: a deque is copied in one piece."""
        return list(self._ring.copy())

    def since(self, number: int, most: int) -> list[TickRecord]:
        """Of the ticks behind tick `number` the last `most`, oldest first. From any thread, as above."""
        return [record for record in self.records()[-most:] if record.number > number]


@dataclass(frozen=True, slots=True)
class Recent:
    """What the ticks of the last seconds come to."""

    ticks: int
    sampled_per_s: float
    computed_per_s: float
    mean_rows: float
    mean_ms: float
    """Of a tick, all stages together."""
    stages: Stages
    """Means, in microseconds."""


def recent(records: list[TickRecord], now: float, seconds: float) -> Recent:
    """Of the ticks that began in the last `seconds` before `now` (`time.monotonic()`). If the ring is shorter
    than that, the rates are those over the ring's time."""
    last = [record for record in records if record.start >= now - seconds]
    count = len(last)
    if not count:
        return Recent(0, 0.0, 0.0, 0.0, 0.0, Stages(0, 0, 0, 0, 0, 0))
    span = max(now - last[0].start, 1e-6) if count == len(records) else seconds
    stages = Stages(*(sum(times) / count for times in zip(*(r.stages for r in last), strict=True)))
    return Recent(
        ticks=count,
        sampled_per_s=sum(r.sampled for r in last) / span,
        computed_per_s=sum(r.tokens for r in last) / span,
        mean_rows=sum(r.rows for r in last) / count,
        mean_ms=sum(stages) / 1000,
        stages=stages,
    )


PROCESS = 1
TICKS, SEQUENCES = 1, 2
"""Thread numbers: what the viewers draw as tracks."""


def chrome_trace(records: Iterable[TickRecord]) -> dict[str, Any]:
    """The ticks as a JSON object for chrome://tracing or ui.perfetto.dev. Times are microseconds of the
    monotonic clock."""
    events = [
        _name("process_name", TICKS, "tickwire"),
        _name("thread_name", TICKS, "ticks"),
        _name("thread_name", SEQUENCES, "sequences"),
    ]
    for record in records:
        events += _slices(record)
        events += _instants(record)
        events += _counters(record)
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def _name(kind: str, thread: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": kind, "pid": PROCESS, "tid": thread, "args": {"name": name}}


def _slices(record: TickRecord) -> Iterator[dict[str, Any]]:
    """The tick, and inside it its stages one behind the other."""
    counts = {"tick": record.number, "rows": record.rows, "tokens": record.tokens, "sampled": record.sampled}
    at = _start(record)
    yield _slice("tick", at, sum(record.stages), counts)
    for stage, duration in record.stages._asdict().items():
        yield _slice(stage, at, duration, {})
        at += duration


def _slice(name: str, at: float, duration: float, args: dict[str, int]) -> dict[str, Any]:
    return {
        "ph": "X", "name": name, "cat": "engine", "pid": PROCESS, "tid": TICKS, "ts": at, "dur": duration,
        "args": args,
    }  # fmt: skip


def _instants(record: TickRecord) -> Iterator[dict[str, Any]]:
    """Sequences enter and give way when the tick is scheduled, and end when it is done."""
    scheduled = _start(record) + record.stages.commands + record.stages.schedule
    done = _start(record) + sum(record.stages)
    for name, at, ids in (
        ("admitted", scheduled, record.admitted),
        ("preempted", scheduled, record.preempted),
        ("ended", done, record.ended),
    ):
        for each in ids:
            yield {
                "ph": "i", "name": name, "cat": "engine", "pid": PROCESS, "tid": SEQUENCES, "ts": at,
                "s": "t", "args": {"sequence": short_id(each)},
            }  # fmt: skip


def _counters(record: TickRecord) -> Iterator[dict[str, Any]]:
    slots = asdict(record.memory)
    del slots["total"]
    at = _start(record) + sum(record.stages)
    for name, series in (
        ("kv slots", slots),
        ("batch", {"rows": record.rows}),
        ("tokens", {"tokens": record.tokens}),
        ("queue", {"waiting": record.waiting}),
    ):
        yield {"ph": "C", "name": name, "pid": PROCESS, "ts": at, "args": series}


def _start(record: TickRecord) -> float:
    return record.start * 1e6
