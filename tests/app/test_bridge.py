"""The bridge, with an engine driven tick by tick and a loop that only notes what it is given."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from structlog.testing import capture_logs

from app.bridge import Bridge
from app.metrics import Metrics
from app.streams import Answer, Cut
from engine.config import EngineConfig
from engine.engine import Engine
from engine.request import ContextLengthExceeded, EngineStopped, FinishReason, Request
from engine.sampling import SamplingParams
from tests.fakes import FakeRunner, continuation, fake_ids, fake_vocabulary, run_until_idle

PROMPT = fake_ids("secret prompt")


class Loop:
    def __init__(self) -> None:
        self.calls: list[tuple[Callable[..., None], tuple[Any, ...]]] = []
        self.closed = False

    def call_soon_threadsafe(self, callback: Callable[..., None], *args: Any) -> None:
        self.calls.append((callback, args))

    def is_closed(self) -> bool:
        return self.closed

    def run(self) -> None:
        calls, self.calls = self.calls, []
        for callback, args in calls:
            callback(*args)


class Setup:
    def __init__(self) -> None:
        self.loop = Loop()
        self.metrics = Metrics()
        self.bridge = Bridge(self.metrics)
        self.runner = FakeRunner(64)
        config = EngineConfig(num_blocks=64, max_model_len=512)
        self.engine = Engine(self.runner, fake_vocabulary(), config, self.bridge.publish)
        self.bridge.attach(self.engine)
        self.bridge.run_on(self.loop)  # type: ignore[arg-type]
        self.num_started = 0

    def begin(self, answer: Answer, user: str | None = None, **sampling: Any) -> None:
        params = SamplingParams(**({"temperature": 0, "n": len(answer.streams)} | sampling))
        self.bridge.start(answer, Request(answer.request_id, PROMPT, params, answer.arrival), user)

    def answer(self, n: int = 1, **sampling: Any) -> Answer:
        self.num_started += 1
        answer = Answer(f"{self.num_started}", arrival=0.0, created=1, n=n)
        self.begin(answer, **sampling)
        return answer

    def start(self, **sampling: Any) -> Any:
        return self.answer(**sampling).streams[0]


def letters(count: int) -> str:
    return b"".join(fake_vocabulary().token_bytes[i] for i in continuation(PROMPT, count)).decode()


def test_each_tick_crosses_once_whatever_it_brings() -> None:
    setup = Setup()
    streams = [setup.start(max_tokens=3) for _ in range(5)]
    for tick in range(1, 4):
        setup.engine.tick()
        assert len(setup.loop.calls) == 1, f"tick {tick}"
        setup.loop.run()
        assert [stream.text for stream in streams] == [letters(tick)] * 5
    assert {stream.end.reason for stream in streams} == {FinishReason.LENGTH}
    assert setup.bridge.num_open == 0


def test_readers_are_woken_after_all_of_a_tick_is_there() -> None:
    setup = Setup()
    streams = [setup.start(max_tokens=1) for _ in range(2)]
    seen: list[bool] = []
    for stream in streams:
        stream.listen(lambda: seen.append(all(stream.end for stream in streams)))
    setup.engine.tick()
    setup.loop.run()
    assert seen == [False, False, True, True]


def test_a_cancel_ends_the_answer_in_the_next_tick() -> None:
    setup = Setup()
    answer, other = setup.answer(), setup.answer(max_tokens=5)
    setup.engine.tick()
    setup.bridge.cancel(answer)
    setup.engine.tick()
    setup.loop.run()
    assert answer.ends[0].reason is FinishReason.ABORT
    assert answer.cut is Cut.CANCELLED
    assert answer.streams[0].text == letters(1)
    run_until_idle(setup.engine)
    setup.loop.run()
    assert other.streams[0].text == letters(5)
    setup.bridge.cancel(other)  # it has ended: nothing happens
    assert other.cut is None


def test_an_answer_that_is_cut_was_not_cancelled_by_its_client() -> None:
    setup = Setup()
    answer = setup.answer()
    setup.bridge.cut_all()
    setup.engine.tick()
    setup.loop.run()
    assert answer.ends[0].reason is FinishReason.ABORT
    assert answer.cut is None


def test_an_answer_that_was_cancelled_before_it_began_never_begins() -> None:
    setup = Setup()
    answer = Answer("1", arrival=0.0, created=1)
    setup.bridge.cancel(answer)
    setup.begin(answer)
    assert not setup.engine.tick()
    assert setup.bridge.num_open == 0


def test_a_cancel_while_the_engine_is_being_told_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """The abort comes first then, and means nothing to the engine."""
    setup = Setup()
    answer = Answer("1", arrival=0.0, created=1)
    submit = setup.engine.submit

    def slow_submit(request: Request) -> None:
        setup.bridge.cancel(answer)
        setup.engine.tick()
        submit(request)

    monkeypatch.setattr(setup.engine, "submit", slow_submit)
    setup.begin(answer)
    run_until_idle(setup.engine)
    setup.loop.run()
    assert answer.ends[0].reason is FinishReason.ABORT
    assert setup.bridge.num_open == 0


def test_what_the_engine_refuses_leaves_no_stream_behind() -> None:
    setup = Setup()
    with pytest.raises(ContextLengthExceeded):
        setup.start(max_tokens=1000)
    setup.engine.shutdown()
    with pytest.raises(EngineStopped):
        setup.start()
    assert setup.bridge.num_open == 0


def test_held_back_text_is_no_token() -> None:
    """At the end of an answer the engine may release text without having sampled anything."""
    setup = Setup()
    text = letters(4)
    stream = setup.start(max_tokens=4, stop=(text[2:4] + "never",))
    run_until_idle(setup.engine)
    setup.loop.run()
    assert stream.text == text
    exposition = setup.metrics.exposition().decode()
    assert "tickwire:generation_tokens_total 4.0" in exposition
    assert "tickwire:inter_token_latency_seconds_count 3.0" in exposition


def test_one_line_is_logged_per_response_and_none_of_its_words() -> None:
    setup = Setup()
    with capture_logs() as logs:
        answer = Answer("1", arrival=0.0, created=1)
        setup.begin(answer, user="alice", max_tokens=4)
        run_until_idle(setup.engine)
        setup.loop.run()
    (line,) = logs
    assert line["event"] == "response_finished"
    assert (line["request_id"], line["choice"]) == (answer.request_id, 0)
    assert line["finish_reason"] == "length"
    assert (line["prompt_tokens"], line["output_tokens"], line["preemptions"]) == (len(PROMPT), 4, 0)
    assert line["user"] == "alice"
    assert 0 < line["queue_ms"] <= line["ttft_ms"] <= line["total_ms"]
    assert line["tokens_per_s"] > 0
    assert answer.streams[0].text not in str(line)


def test_after_the_loop_is_closed_nothing_is_handed_over() -> None:
    setup = Setup()
    setup.start()
    setup.loop.closed = True
    setup.engine.shutdown()
    assert setup.loop.calls == []
