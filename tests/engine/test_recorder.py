"""The ring of ticks, and the trace that viewers open."""

from __future__ import annotations

import json
from typing import Any

import pytest

from engine.ledger import MemoryTruth
from engine.recorder import Stages, TickRecord, TickRecorder, chrome_trace, recent

PHASES = {"X": {"ts", "dur"}, "C": {"ts"}, "i": {"ts", "s"}, "M": set()}
"""What each kind of event must have beside a name, a process and arguments."""


def record(number: int, **changes: Any) -> TickRecord:
    values: dict[str, Any] = {
        "number": number,
        "start": 100.0 + number / 100,
        "stages": Stages(5, 20, 30, 8000, 40, 10),
        "rows": 3,
        "tokens": 18,
        "sampled": 2,
        "admitted": (),
        "ended": (),
        "preempted": (),
        "waiting": 4,
        "memory": MemoryTruth(total=160, used=50, reserved=20, internal=10, cached=32, free=48),
    }
    return TickRecord(**values | changes)


def events(*records: TickRecord) -> list[dict[str, Any]]:
    """What a viewer reads."""
    trace = json.loads(json.dumps(chrome_trace(records)))
    assert set(trace) == {"traceEvents", "displayTimeUnit"}
    assert trace["displayTimeUnit"] in ("ms", "ns")
    read: list[dict[str, Any]] = trace["traceEvents"]
    for event in read:
        assert {"ph", "name", "pid", "args"} | PHASES[event["ph"]] <= set(event)
        assert isinstance(event["args"], dict)
        assert isinstance(event["pid"], int)
        assert event["ph"] == "C" or isinstance(event["tid"], int)
        assert all(event[key] >= 0 for key in ("ts", "dur") if key in event)
    return read


def of(read: list[dict[str, Any]], phase: str, name: str) -> list[dict[str, Any]]:
    return [event for event in read if event["ph"] == phase and event["name"] == name]


def test_the_ring_keeps_the_last_ticks():
    recorder = TickRecorder(3)
    for number in range(5):
        recorder.add(record(number))
    assert [each.number for each in recorder.records()] == [2, 3, 4]


def test_ticks_are_given_from_a_number_on():
    recorder = TickRecorder(5)
    for number in range(1, 9):
        recorder.add(record(number))
    assert [each.number for each in recorder.since(6, most=10)] == [7, 8]
    assert [each.number for each in recorder.since(0, most=3)] == [6, 7, 8]
    assert recorder.since(8, most=3) == []


def test_the_last_seconds_are_summed_up():
    ticks = [record(number, start=100.0 + number, rows=number) for number in range(10)]
    last = recent(ticks, now=110.0, seconds=4.0)
    assert (last.ticks, last.sampled_per_s, last.computed_per_s) == (4, 2 * 4 / 4, 18 * 4 / 4)
    assert (last.mean_rows, last.mean_ms, last.stages) == (7.5, 8.105, record(0).stages)


def test_a_ring_that_is_shorter_than_that_gives_the_rates_of_its_own_time():
    ticks = [record(number, start=100.0 + number) for number in range(10)]
    assert recent(ticks, now=110.0, seconds=60.0).sampled_per_s == 2 * 10 / 10


def test_an_idle_engine_has_no_rates():
    assert recent([record(0)], now=500.0, seconds=5.0).sampled_per_s == 0
    assert recent([], now=500.0, seconds=5.0).ticks == 0


def test_a_trace_of_nothing_is_a_trace():
    assert {event["ph"] for event in events()} == {"M"}


def test_tracks_have_names():
    read = events(record(0))
    named = {e["tid"]: e["args"]["name"] for e in of(read, "M", "thread_name")}
    assert set(named.values()) == {"ticks", "sequences"}
    assert {event["tid"] for event in read if event["ph"] in "Xi"} <= set(named)
    assert of(read, "M", "process_name")[0]["args"] == {"name": "tickwire"}


def test_a_tick_spans_its_stages_which_follow_each_other():
    read = events(record(7))
    (tick,) = of(read, "X", "tick")
    assert tick["ts"] == pytest.approx(100.07e6)
    assert tick["dur"] == 8105
    assert tick["args"] == {"tick": 7, "rows": 3, "tokens": 18, "sampled": 2}
    stages = [event for event in read if event["ph"] == "X" and event is not tick]
    assert [each["name"] for each in stages] == [
        "commands", "schedule", "build", "execute", "apply", "publish"
    ]  # fmt: skip
    at = tick["ts"]
    for stage in stages:
        assert stage["ts"] == pytest.approx(at)
        assert stage["tid"] == tick["tid"]
        at += stage["dur"]
    assert at == pytest.approx(tick["ts"] + tick["dur"])


def test_sequences_enter_leave_and_give_way_inside_the_tick():
    read = events(record(0, admitted=("a", "b"), ended=("c",), preempted=("d",)))
    (tick,) = of(read, "X", "tick")
    (execute,) = of(read, "X", "execute")
    found = {e["args"]["sequence"]: (e["name"], e["ts"]) for e in read if e["ph"] == "i"}
    assert {each: name for each, (name, _) in found.items()} == {
        "a": "admitted", "b": "admitted", "c": "ended", "d": "preempted"
    }  # fmt: skip
    assert found["a"][1] < execute["ts"] < found["c"][1] <= tick["ts"] + tick["dur"]


def test_ids_are_cut_short():
    ids = ("0123456789abcdef0123456789abcdef", "fedcba9876543210fedcba9876543210#2")
    read = events(record(0, admitted=ids))
    assert [e["args"]["sequence"] for e in of(read, "i", "admitted")] == ["01234567", "fedcba98#2"]


def test_counters_show_the_memory_the_batch_and_the_queue():
    read = events(record(0))
    assert of(read, "C", "kv slots")[0]["args"] == {
        "used": 50, "reserved": 20, "internal": 10, "cached": 32, "free": 48
    }  # fmt: skip
    assert of(read, "C", "batch")[0]["args"] == {"rows": 3}
    assert of(read, "C", "tokens")[0]["args"] == {"tokens": 18}
    assert of(read, "C", "queue")[0]["args"] == {"waiting": 4}
