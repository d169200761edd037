"""The queue is bounded, for all and for each session; whoever is refused is told when to come again; and
requests have deadlines. Time is a number that the test sets."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from engine.config import EngineConfig
from engine.engine import Engine
from engine.request import ContextLengthExceeded, FinishReason, QueueFull
from engine.sampling import SamplingParams
from tests.engine.test_engine import alone
from tests.fakes import FakeRunner, Recorder, fake_vocabulary, make_request, run_until_idle


class Timed:
    """An engine of one row and its clock."""

    def __init__(self, **config: Any) -> None:
        self.now = 100.0
        self.recorder = Recorder()
        sizes = EngineConfig(64, 1024, **{"max_num_seqs": 1} | config)
        self.engine = Engine(FakeRunner(64), fake_vocabulary(), sizes, self.recorder, clock=lambda: self.now)

    def submit(self, name: str, count: int = 5, **fields: Any) -> None:
        request = make_request(name, "hello", max_tokens=count)
        self.engine.submit(replace(request, arrival=self.now, **fields))

    def pass_ticks(self, count: int, seconds: float = 1.0) -> None:
        for _ in range(count):
            self.now += seconds
            self.engine.tick()


def test_a_full_queue_refuses_and_nothing_is_lost() -> None:
    timed = Timed(max_queue=3)
    for i in range(3):
        timed.submit(f"r{i}", session=f"s{i}")
    with pytest.raises(
        QueueFull, match="3 requests of all sessions together wait already, allowed: 3"
    ) as full:
        timed.submit("too many")
    assert not full.value.of_session
    timed.engine.tick()
    timed.submit("now there is a place")
    run_until_idle(timed.engine)
    for name in ("r0", "r1", "r2", "now there is a place"):
        assert timed.recorder.text(name) == alone("hello", 5)
    assert not timed.recorder.events("too many")


def test_one_sessions_flood_leaves_places_for_others() -> None:
    timed = Timed(max_queue=10, max_queue_per_session=4)
    for i in range(4):
        timed.submit(f"flood{i}", session="flood")
    with pytest.raises(QueueFull, match="4 requests of this session") as full:
        timed.submit("flood4", session="flood")
    assert full.value.of_session
    timed.submit("other", session="other")
    run_until_idle(timed.engine)
    assert timed.recorder.has_finished("other")


def test_the_answers_of_one_request_each_take_a_place() -> None:
    timed = Timed(max_queue=3)
    with pytest.raises(ValueError, match=r"^n: got 4, allowed: at most 3"):
        timed.engine.submit(make_request("r", "hello", SamplingParams(max_tokens=1, n=4)))
    timed.engine.submit(make_request("r", "hello", SamplingParams(max_tokens=1, n=2)))
    with pytest.raises(QueueFull):
        timed.engine.submit(make_request("s", "hello", SamplingParams(max_tokens=1, n=2)))
    run_until_idle(timed.engine)
    assert timed.engine._places.num_taken == 0


def test_retry_after_is_when_there_will_be_a_place_at_the_measured_rate() -> None:
    timed = Timed(max_queue=4)
    for i in range(4):
        timed.submit(f"r{i}", count=5, session=f"s{i}")
    # An answer takes five ticks of two seconds, so a place becomes free every ten.
    timed.pass_ticks(11, seconds=2.0)
    for i in range(3):
        timed.submit(f"more{i}", count=5, session=f"m{i}")
    with pytest.raises(QueueFull) as full:
        timed.submit("later")
    assert full.value.retry_after == pytest.approx(10)
    timed.pass_ticks(1 + round(full.value.retry_after / 2), seconds=2.0)
    timed.submit("later")


def test_a_stall_makes_the_rate_lower() -> None:
    timed = Timed(max_queue=2)
    for i in range(2):
        timed.submit(f"r{i}", session=f"s{i}")
    timed.pass_ticks(6)
    for i in range(2):
        timed.engine.tick()
        timed.submit(f"more{i}", session=f"m{i}") if i == 0 else None
    timed.submit("fills", session="f")
    waits = []
    for _ in range(2):
        with pytest.raises(QueueFull) as full:
            timed.submit("later")
        waits.append(full.value.retry_after)
        timed.now += 100
    assert waits[1] > waits[0] + 20


@pytest.mark.parametrize("ending", ["abort", "deadline", "shutdown"])
def test_who_leaves_the_queue_gives_up_the_place(ending: str) -> None:
    timed = Timed(max_queue=2)
    timed.submit("runs", count=100)
    timed.engine.tick()
    for i in range(2):
        timed.submit(f"waits{i}", max_queue_ms=1000.0)
    if ending == "abort":
        for i in range(2):
            timed.engine.abort(f"waits{i}")
        timed.engine.tick()
    elif ending == "deadline":
        timed.pass_ticks(1, seconds=1.5)
    else:
        timed.engine.shutdown()
    assert timed.engine._places.num_taken == 0


def test_a_queue_deadline_ends_who_still_waits_and_not_who_was_admitted() -> None:
    timed = Timed()
    timed.submit("runs", count=10, max_queue_ms=1500.0)
    timed.submit("waits", count=3, max_queue_ms=1500.0)
    timed.pass_ticks(1)
    assert not timed.recorder.events("waits")
    timed.pass_ticks(1)
    end = timed.recorder.finished("waits")
    assert (end.reason, end.stop, end.num_output_tokens) == (FinishReason.TIMEOUT, "max_queue_ms", 0)
    run_until_idle(timed.engine)
    assert timed.recorder.finished("runs").reason is FinishReason.LENGTH


def test_a_time_limit_ends_an_answer_in_the_middle_and_keeps_what_was_said() -> None:
    timed = Timed()
    timed.submit("a", count=50, max_time_ms=4500.0)
    timed.pass_ticks(10)
    end = timed.recorder.finished("a")
    assert (end.reason, end.stop) == (FinishReason.TIMEOUT, "max_time_ms")
    assert timed.recorder.text("a") == alone("hello", 4)
    assert timed.engine.stats().num_free_blocks == 64


def test_nothing_is_queued_when_a_request_is_refused_for_another_reason() -> None:
    timed = Timed(max_queue=1)
    with pytest.raises(ContextLengthExceeded):
        timed.submit("too long", count=5000)
    with pytest.raises(ValueError, match=r"^logit_bias: got the token id 9999, allowed: 0 to "):
        timed.engine.submit(make_request("bias", "hello", SamplingParams(logit_bias=((9999, 1.0),))))
    timed.submit("fits")
    run_until_idle(timed.engine)
    assert timed.recorder.has_finished("fits")


def test_the_shadow_of_other_policies_rests_when_the_engine_does() -> None:
    timed = Timed()
    timed.submit("a", count=50, max_time_ms=4500.0)
    timed.pass_ticks(10)
    assert all(arm.running == arm.waiting == arm.slots == 0 for arm in timed.engine.stats().shadow.values())
