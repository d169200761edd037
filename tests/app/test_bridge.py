"""The bridge, with an engine driven tick by tick and a loop that only notes what it is given."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from structlog.testing import capture_logs

from app.bridge import Bridge
from app.metrics import Metrics
from engine.config import EngineConfig
from engine.engine import Engine
from engine.request import ContextLengthExceeded, EngineStopped, FinishReason
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

    def start(self, **sampling: Any) -> Any:
        return self.bridge.start(PROMPT, SamplingParams(**({"temperature": 0} | sampling)), arrival=0.0)


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


def test_a_cancel_ends_the_stream_in_the_next_tick() -> None:
    setup = Setup()
    stream, other = setup.start(), setup.start(max_tokens=5)
    setup.engine.tick()
    setup.bridge.cancel(stream)
    setup.engine.tick()
    setup.loop.run()
    assert stream.end.reason is FinishReason.ABORT
    assert stream.cancelled
    assert stream.text == letters(1)
    run_until_idle(setup.engine)
    setup.loop.run()
    assert other.text == letters(5)
    setup.bridge.cancel(other)  # it has ended: nothing happens
    assert not other.cancelled


def test_a_stream_that_is_cut_was_not_cancelled_by_its_client() -> None:
    setup = Setup()
    stream = setup.start()
    setup.bridge.cut_all()
    setup.engine.tick()
    setup.loop.run()
    assert stream.end.reason is FinishReason.ABORT
    assert not stream.cancelled


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
        stream = setup.bridge.start(PROMPT, SamplingParams(temperature=0, max_tokens=4), 0.0, user="alice")
        run_until_idle(setup.engine)
        setup.loop.run()
    (line,) = logs
    assert line["event"] == "response_finished"
    assert line["request_id"] == stream.request_id
    assert line["finish_reason"] == "length"
    assert (line["prompt_tokens"], line["output_tokens"], line["preemptions"]) == (len(PROMPT), 4, 0)
    assert line["user"] == "alice"
    assert 0 < line["queue_ms"] <= line["ttft_ms"] <= line["total_ms"]
    assert line["tokens_per_s"] > 0
    assert stream.text not in str(line)


def test_after_the_loop_is_closed_nothing_is_handed_over() -> None:
    setup = Setup()
    setup.start()
    setup.loop.closed = True
    setup.engine.shutdown()
    assert setup.loop.calls == []
