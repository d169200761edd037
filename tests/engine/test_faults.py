"""Things that go wrong: who is hurt, and who is not."""

from __future__ import annotations

import pytest

from engine.answer import Answer
from engine.config import Chaos
from engine.request import FinishReason, Sequence
from tests.engine.test_engine import alone
from tests.fakes import (
    FakeRunner,
    make_engine,
    make_request,
    run_until_idle,
)


class DeviceFault(Exception):
    pass


def fail_once(runner: FakeRunner) -> None:
    def fault() -> None:
        runner.during = lambda: None
        raise DeviceFault("the device is gone")

    runner.during = fault


def test_a_device_fault_ends_those_who_run_and_keeps_those_who_wait() -> None:
    engine, runner, recorder = make_engine(max_num_seqs=2)
    for name in ("a", "b", "c", "d"):
        engine.submit(make_request(name, f"hello {name}", max_tokens=8))
    for _ in range(3):
        engine.tick()
    fail_once(runner)
    engine.tick()
    for name in ("a", "b"):
        assert recorder.finished(name).reason is FinishReason.ERROR
        assert recorder.text(name) == alone(f"hello {name}", 3)
    assert (runner.slots == -1).all()
    assert engine.stats().memory.used == 0
    assert engine.stats().failure is None
    run_until_idle(engine)
    for name in ("c", "d"):
        assert recorder.text(name) == alone(f"hello {name}", 8)
    assert engine.stats().num_restarts == 1
    assert engine.stats().num_free_blocks == engine.config.num_blocks


def test_after_a_fault_nothing_that_was_computed_before_is_believed() -> None:
    engine, runner, recorder = make_engine()
    engine.submit(make_request("before", "the same long prompt " * 4, max_tokens=2))
    run_until_idle(engine)
    engine.submit(make_request("unlucky", "x", max_tokens=2))
    fail_once(runner)
    engine.tick()
    engine.submit(make_request("after", "the same long prompt " * 4, max_tokens=2))
    run_until_idle(engine)
    assert recorder.text("after") == alone("the same long prompt " * 4, 2)
    assert recorder.finished("after").num_cached_tokens == 0


def test_readiness_is_red_while_the_engine_restarts() -> None:
    engine, runner, _ = make_engine()
    seen: list[str | None] = []
    reset = runner.reset
    runner.reset = lambda: (seen.append(engine.stats().failure), reset())[1]  # type: ignore[method-assign]
    engine.submit(make_request("a", "hello"))
    fail_once(runner)
    engine.tick()
    assert "DeviceFault: the device is gone" in (seen[0] or "")
    assert engine.stats().failure is None


def test_a_reset_that_fails_is_the_end() -> None:
    engine, runner, _ = make_engine()

    def broken() -> None:
        raise DeviceFault("no memory left")

    runner.reset = broken  # type: ignore[method-assign]
    engine.submit(make_request("a", "hello"))
    fail_once(runner)
    with pytest.raises(DeviceFault, match="no memory left"):
        engine.tick()


def test_what_a_sequence_without_numbers_computed_is_not_shared() -> None:
    engine, runner, recorder = make_engine(prefill_chunk=32)
    prompt = "a prompt of more than two blocks, it has forty eight"
    runner.script = lambda context: -1 if len(context) < 60 else 2
    engine.submit(make_request("bad", prompt, max_tokens=3))
    run_until_idle(engine)
    assert recorder.finished("bad").reason is FinishReason.ERROR
    runner.script = None
    engine.submit(make_request("good", prompt, max_tokens=3))
    run_until_idle(engine)
    assert recorder.finished("good").num_cached_tokens == 0
    assert recorder.text("good") == alone(prompt, 3)


def test_a_row_without_any_token_to_choose_ends_alone_and_says_why() -> None:
    engine, runner, recorder = make_engine()
    runner.script = lambda context: -2 if context[0] == 1 else 2
    engine.submit(make_request("none", "abc", max_tokens=3))
    engine.submit(make_request("some", "bbc", max_tokens=3))
    run_until_idle(engine)
    assert "leave no token" in (recorder.finished("none").error or "")
    assert recorder.text("some") == "bbb"


def test_a_request_that_cannot_be_prepared_ends_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, _, recorder = make_engine()
    enter = engine._batches.enter

    def pick(sequence: Sequence) -> None:
        if sequence.id == "broken":
            raise RuntimeError("no such thing")
        enter(sequence)

    monkeypatch.setattr(engine._batches, "enter", pick)
    for name in ("a", "broken", "b"):
        engine.submit(make_request(name, "hello", max_tokens=3))
    run_until_idle(engine)
    assert recorder.finished("broken").reason is FinishReason.ERROR
    assert "no such thing" not in (recorder.finished("broken").error or "")
    for name in ("a", "b"):
        assert recorder.text(name) == alone("hello", 3)
    engine.scheduler.check()
    assert engine.stats().num_free_blocks == engine.config.num_blocks


def test_an_answer_that_cannot_be_written_ends_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, _, recorder = make_engine()
    push = Answer.push

    def pick(self: Answer, token: int, count: int, logprob: object) -> object:
        if count == 2 and self is engine._lives.live["broken"].answer:
            raise UnicodeError("no such character")
        return push(self, token, count, logprob)  # type: ignore[arg-type]

    monkeypatch.setattr(Answer, "push", pick)
    for name in ("a", "broken"):
        engine.submit(make_request(name, "hello", max_tokens=3))
    run_until_idle(engine)
    assert recorder.finished("broken").reason is FinishReason.ERROR
    assert recorder.text("a") == alone("hello", 3)
    engine.scheduler.check()


@pytest.mark.parametrize("every", [1, 2, 3, 7])
def test_forced_preemptions_change_no_answer(every: int) -> None:
    engine, _, recorder = make_engine(num_blocks=40, prefill_chunk=8, chaos=Chaos(preempt_every=every))
    prompts = {f"r{i}": f"prompt {i} " * (i % 7 + 1) for i in range(12)}
    for name, prompt in prompts.items():
        engine.submit(make_request(name, prompt, max_tokens=20))
    run_until_idle(engine)
    assert engine.stats().num_preemptions >= 5
    for name, prompt in prompts.items():
        assert recorder.text(name) == alone(prompt, 20)
    assert engine.stats().num_free_blocks == engine.config.num_blocks


def test_slow_ticks_change_no_answer() -> None:
    engine, _, recorder = make_engine(chaos=Chaos(slow_tick_ms=0.01))
    engine.submit(make_request("a", "hello", max_tokens=5))
    run_until_idle(engine)
    assert recorder.text("a") == alone("hello", 5)
