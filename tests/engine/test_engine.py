"""The engine driven tick by tick over the fake model: what a tick promises."""

import threading
import time

import numpy as np
import pytest

from engine.batch import Batch, StepOutput
from engine.config import EngineConfig
from engine.engine import Engine
from engine.request import (
    ContextLengthExceeded,
    EngineStopped,
    FinishedEvent,
    FinishReason,
    TokenEvent,
)
from engine.sampling import SamplingParams
from tests.fakes import (
    ALPHABET,
    EOS,
    FakeRunner,
    Recorder,
    continuation,
    expect_short_answers,
    fake_ids,
    fake_vocabulary,
    make_engine,
    make_request,
    run_until_idle,
)


def text_of(tokens: list[int]) -> str:
    return "".join(ALPHABET[t - 1] for t in tokens if t != EOS)


def alone(prompt: str, count: int) -> str:
    return text_of(continuation(fake_ids(prompt), count))


def free(engine: Engine) -> int:
    return engine.stats().num_free_blocks


def test_an_answer_streams_one_token_per_tick_and_ends_once() -> None:
    engine, _, recorder = make_engine()
    engine.submit(make_request("a", "hello", max_tokens=3))
    assert run_until_idle(engine) == 3
    tokens = [e for e in recorder.events("a") if isinstance(e, TokenEvent)]
    assert [e.num_output_tokens for e in tokens] == [1, 2, 3]
    assert recorder.text("a") == alone("hello", 3)
    end = recorder.finished("a")
    assert (end.reason, end.num_prompt_tokens, end.num_output_tokens) == (FinishReason.LENGTH, 5, 3)


def test_max_tokens_1_gives_exactly_one_token_of_text() -> None:
    engine, _, recorder = make_engine()
    engine.submit(make_request("a", "hello", max_tokens=1))
    run_until_idle(engine)
    assert recorder.text("a") == alone("hello", 1)
    assert len(recorder.events("a")) == 2


def test_a_finished_sequence_is_free_in_the_same_tick_and_the_next_in_line_runs_in_the_next() -> None:
    engine, _, recorder = make_engine(max_num_seqs=1)
    engine.submit(make_request("first", "hello", max_tokens=2))
    engine.submit(make_request("second", "world", max_tokens=2))
    engine.tick()
    assert free(engine) == engine.config.num_blocks - 1
    engine.tick()
    assert recorder.has_finished("first")
    assert free(engine) == engine.config.num_blocks
    assert not recorder.events("second")
    engine.tick()
    assert recorder.text("second") == alone("world", 1)


def test_a_queued_request_enters_on_the_memory_freed_a_tick_ago() -> None:
    engine, _, recorder = make_engine(num_blocks=4)
    engine.submit(make_request("first", "x" * 40, max_tokens=1))
    engine.submit(make_request("second", "y" * 40, max_tokens=1))
    engine.tick()
    assert recorder.has_finished("first")
    assert not recorder.events("second")
    engine.tick()
    assert recorder.text("second") == alone("y" * 40, 1)


def test_decodes_advance_in_every_tick_while_a_long_prompt_prefills() -> None:
    engine, runner, recorder = make_engine(token_budget=40, prefill_chunk=32)
    for i in range(4):
        engine.submit(make_request(f"reader{i}", f"hello {i}", max_tokens=40))
    engine.tick()
    engine.submit(make_request("long", "z" * 500, max_tokens=2))
    prefill_ticks = 0
    while not recorder.events("long"):
        before = [len(recorder.events(f"reader{i}")) for i in range(4)]
        engine.tick()
        assert [len(recorder.events(f"reader{i}")) for i in range(4)] == [n + 1 for n in before]
        assert max(np.diff(runner.batches[-1].query_start)) <= 32
        prefill_ticks += 1
    assert prefill_ticks == -(-500 // 32)
    run_until_idle(engine)
    assert recorder.text("long") == alone("z" * 500, 2)


def test_a_newcomers_prompt_runs_in_the_same_forward_pass_as_the_others_decodes() -> None:
    engine, runner, _ = make_engine()
    engine.submit(make_request("a", "hello", max_tokens=9))
    engine.tick()
    engine.submit(make_request("b", "a longer prompt", max_tokens=9))
    engine.tick()
    assert np.diff(runner.batches[-1].query_start).tolist() == [1, 15]
    assert len(runner.batches[-1].sampled) == 2


def test_blocks_are_taken_strictly_on_demand() -> None:
    engine, _, _ = make_engine()
    total = engine.config.num_blocks
    engine.submit(make_request("a", "x" * 15, max_tokens=40))
    held = []
    for _ in range(35):
        engine.tick()
        held.append(total - free(engine))
    # The token sampled in tick i stands at position 15 + i, but is stored only when tick i + 1 computes it.
    assert held == [-(-(15 + tick) // 16) for tick in range(35)]


def test_the_text_does_not_depend_on_company_chunks_or_preemption() -> None:
    prompts = {f"r{i}": f"prompt {i} " * (i % 7 + 1) for i in range(24)}
    for sizes in (
        {"num_blocks": 400},
        {"num_blocks": 400, "prefill_chunk": 5, "token_budget": 33},
        {"num_blocks": 14, "prefill_chunk": 32},
    ):
        engine, _, recorder = make_engine(**sizes)
        expect_short_answers(engine)
        for name, prompt in prompts.items():
            engine.submit(make_request(name, prompt, max_tokens=50 + len(name)))
        run_until_idle(engine)
        engine.scheduler.check()
        assert (engine.stats().num_preemptions > 0) == (sizes["num_blocks"] == 14)
        for name, prompt in prompts.items():
            assert recorder.text(name) == alone(prompt, 50 + len(name))
            assert recorder.finished(name).reason is FinishReason.LENGTH


def test_out_of_blocks_the_newest_is_preempted_and_comes_back_first() -> None:
    engine, _, recorder = make_engine(num_blocks=5, max_model_len=64)
    expect_short_answers(engine)
    engine.submit(make_request("old", "o" * 30, max_tokens=30))
    engine.tick()
    engine.submit(make_request("new", "n" * 14, max_tokens=30))
    engine.tick()
    engine.submit(make_request("later", "l" * 3, max_tokens=2))
    while not engine.stats().num_preemptions:
        engine.tick()
    assert list(engine.scheduler.running) == ["old"]
    assert "new" in engine.scheduler.waiting
    assert "later" in engine.scheduler.waiting
    assert engine.scheduler.waiting.select().id == "new"
    run_until_idle(engine)
    assert recorder.finished("new").num_preemptions >= 1
    for name, prompt, count in (("old", "o" * 30, 30), ("new", "n" * 14, 30), ("later", "l" * 3, 2)):
        assert recorder.text(name) == alone(prompt, count)


def test_nobody_is_admitted_in_a_tick_that_preempted() -> None:
    engine, _, _ = make_engine(num_blocks=4, max_model_len=64)
    expect_short_answers(engine)
    engine.submit(make_request("old", "o" * 15, max_tokens=40))
    engine.submit(make_request("new", "n" * 15, max_tokens=40))
    engine.tick()
    engine.submit(make_request("tiny", "t", max_tokens=1))
    while not engine.stats().num_preemptions:
        running = set(engine.scheduler.running)
        engine.tick()
    assert set(engine.scheduler.running) < running


@pytest.mark.parametrize("state", ["queued", "prefilling", "decoding", "preempted", "not taken up yet"])
def test_cancel_frees_everything_within_one_tick_in_every_state(state: str) -> None:
    engine, _, recorder = make_engine(num_blocks=6, prefill_chunk=16, max_num_seqs=2)
    if state == "preempted":
        expect_short_answers(engine)
        engine.submit(make_request("old", "o" * 40, max_tokens=50))
        engine.tick()
        engine.submit(make_request("victim", "v" * 20, max_tokens=50))
        while "victim" not in engine.scheduler.waiting or not engine.stats().num_preemptions:
            engine.tick()
        held = sum(len(s.blocks) for s in engine.scheduler.running.values())
    elif state == "queued":
        for name in ("old", "older"):
            engine.submit(make_request(name, "o", max_tokens=50))
        engine.submit(make_request("victim", "v", max_tokens=50))
        engine.tick()
        assert "victim" in engine.scheduler.waiting
        held = 2
    elif state == "not taken up yet":
        engine.submit(make_request("victim", "v", max_tokens=50))
        held = 0
    else:
        engine.submit(make_request("victim", "v" * 40, max_tokens=50))
        for _ in range(1 if state == "prefilling" else 5):
            engine.tick()
        assert bool(recorder.events("victim")) == (state == "decoding")
        held = 0
    before = len(recorder.events("victim"))
    engine.abort("victim")
    engine.tick()
    assert [type(e) for e in recorder.events("victim")[before:]] == [FinishedEvent]
    assert recorder.finished("victim").reason is FinishReason.ABORT
    assert engine.config.num_blocks - free(engine) == held
    engine.scheduler.check()
    run_until_idle(engine)
    assert free(engine) == engine.config.num_blocks


def test_whoever_leaves_during_the_forward_pass_gets_no_token_and_disturbs_nobody() -> None:
    engine, runner, recorder = make_engine()
    engine.submit(make_request("a", "hello", max_tokens=5))
    engine.submit(make_request("b", "world", max_tokens=5))
    engine.tick()
    runner.during = lambda: engine.abort("a")
    engine.tick()
    runner.during = lambda: None
    assert recorder.text("a") == alone("hello", 1)
    assert recorder.finished("a").reason is FinishReason.ABORT
    run_until_idle(engine)
    assert recorder.text("b") == alone("world", 5)


def test_a_cancel_that_crosses_the_end_changes_nothing() -> None:
    engine, _, recorder = make_engine()
    engine.submit(make_request("a", "hello", max_tokens=1))
    engine.tick()
    engine.abort("a")
    engine.abort("never existed")
    engine.tick()
    assert recorder.finished("a").reason is FinishReason.LENGTH


def test_the_end_token_ends_and_gives_no_text() -> None:
    engine, runner, recorder = make_engine()
    runner.script = lambda context: EOS if len(context) == 7 else 1
    engine.submit(make_request("a", "hello"))
    run_until_idle(engine)
    assert recorder.text("a") == "aa"
    end = recorder.finished("a")
    assert (end.reason, end.stop, end.num_output_tokens) == (FinishReason.STOP, None, 3)


def test_the_end_token_as_the_last_permitted_one_is_a_stop() -> None:
    engine, runner, recorder = make_engine()
    runner.script = lambda context: EOS if len(context) == 6 else 1
    engine.submit(make_request("a", "hello", max_tokens=2))
    run_until_idle(engine)
    assert recorder.finished("a").reason is FinishReason.STOP


def test_stop_ids_end_and_are_named() -> None:
    engine, runner, recorder = make_engine()
    runner.script = lambda context: len(context) - 3
    engine.submit(make_request("a", "hello", stop_token_ids=(4,)))
    run_until_idle(engine)
    assert recorder.text("a") == "bc"
    assert (recorder.finished("a").reason, recorder.finished("a").stop) == (FinishReason.STOP, 4)


def test_a_stop_string_over_tokens_is_cut_off_and_its_start_never_shown() -> None:
    engine, runner, recorder = make_engine()
    runner.script = lambda context: len(context)
    engine.submit(make_request("a", "a", stop=("defg",)))
    run_until_idle(engine)
    assert recorder.text("a") == "abc"
    assert all("d" not in e.text for e in recorder.events("a") if isinstance(e, TokenEvent))
    assert (recorder.finished("a").reason, recorder.finished("a").stop) == (FinishReason.STOP, "defg")
    assert free(engine) == engine.config.num_blocks


def test_held_text_is_released_by_the_end_and_by_a_cancel() -> None:
    for ending, reason in (("length", FinishReason.LENGTH), ("cancel", FinishReason.ABORT)):
        engine, runner, recorder = make_engine()
        runner.script = lambda context: len(context)
        engine.submit(make_request("a", "a", stop=("cdefg",), max_tokens=4 if ending == "length" else 9))
        for _ in range(4):
            engine.tick()
        if ending == "cancel":
            assert recorder.text("a") == "ab"
            engine.abort("a")
            engine.tick()
        assert recorder.text("a") == "abcd"
        assert recorder.finished("a").reason is reason
        assert recorder.finished("a").num_output_tokens == 4


def test_an_answer_without_a_limit_ends_when_the_context_is_full() -> None:
    for context in (31, 32, 33):
        engine, _, recorder = make_engine(num_blocks=4, max_model_len=context)
        engine.submit(make_request("a", "hello"))
        run_until_idle(engine)
        end = recorder.finished("a")
        assert (end.reason, end.num_prompt_tokens + end.num_output_tokens) == (FinishReason.LENGTH, context)


@pytest.mark.parametrize(
    ("prompt", "max_tokens", "fits"),
    [
        (31, None, True),
        (32, None, False),
        (33, None, False),
        (320, None, False),
        (20, 12, True),
        (20, 13, False),
    ],
)
def test_what_can_never_fit_is_refused_at_submit_with_the_numbers(
    prompt: int, max_tokens: int | None, fits: bool
) -> None:
    engine, _, recorder = make_engine(num_blocks=2)
    request = make_request("a", "x" * prompt, max_tokens=max_tokens)
    if fits:
        engine.submit(request)
        run_until_idle(engine)
        assert recorder.finished("a").num_output_tokens == (max_tokens or 32 - prompt)
    else:
        with pytest.raises(ContextLengthExceeded, match=f" {prompt} tokens.*length is 32 ") as refused:
            engine.submit(request)
        assert (refused.value.prompt_tokens, refused.value.max_tokens, refused.value.context) == (
            prompt,
            max_tokens,
            32,
        )
        assert not engine.tick()
        assert not recorder.ticks


@pytest.mark.parametrize("prompt", [(), (-1,), (1, len(fake_vocabulary().token_bytes))])
def test_a_prompt_that_is_no_prompt_is_refused(prompt: tuple[int, ...]) -> None:
    engine, _, _ = make_engine()
    with pytest.raises(ValueError, match="prompt: "):
        engine.submit(make_request("a", prompt))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", -0.1),
        ("temperature", 2.01),
        ("temperature", float("nan")),
        ("top_p", 0),
        ("top_p", 1.01),
        ("top_k", -1),
        ("min_p", 1.5),
        ("seed", 2**63),
        ("max_tokens", 0),
        ("stop", ("",)),
        ("stop_token_ids", (-1,)),
    ],
)
def test_sampling_parameters_out_of_range_are_named(field: str, value: object) -> None:
    with pytest.raises(ValueError, match=rf"^{field}: got .*, allowed: "):
        SamplingParams(**{field: value})  # type: ignore[arg-type]


def test_logits_that_are_not_numbers_end_that_sequence_alone() -> None:
    engine, runner, recorder = make_engine()
    runner.script = lambda context: -1 if context[0] == 1 and len(context) > 6 else 2
    engine.submit(make_request("bad", "abcde", max_tokens=9))
    engine.submit(make_request("good", "bbbbb", max_tokens=9))
    run_until_idle(engine)
    assert (recorder.finished("bad").reason, recorder.text("bad")) == (FinishReason.ERROR, "bb")
    assert recorder.text("good") == "b" * 9


def test_each_event_is_published_once_per_tick() -> None:
    engine, _, recorder = make_engine()
    for i in range(5):
        engine.submit(make_request(f"r{i}", "hello", max_tokens=3))
    run_until_idle(engine)
    assert [len(events) for events in recorder.ticks] == [5, 5, 10]


def test_seedless_requests_get_seeds_of_their_own_and_seeded_ones_keep_theirs() -> None:
    engine, runner, _ = make_engine()
    engine.submit(make_request("a", "hello", SamplingParams(seed=-7)))
    engine.submit(
        make_request("b", "hello", SamplingParams(temperature=0.5, top_p=0.25, top_k=3, min_p=0.125))
    )
    engine.submit(make_request("c", "hello", SamplingParams()))
    engine.tick()
    sampling = runner.batches[0].sampling
    assert sampling.seed[0] == -7
    assert len(set(sampling.seed.tolist())) == 3
    assert sampling.temperature.tolist() == [1, 0.5, 1]
    assert (sampling.top_p[1], sampling.top_k[1], sampling.min_p[1]) == (0.25, 3, 0.125)
    assert sampling.position.tolist() == [5, 5, 5]
    engine.tick()
    assert runner.batches[1].sampling.position.tolist() == [6, 6, 6]


class TestThread:
    """The same engine with its own thread."""

    def started(self) -> tuple[Engine, FakeRunner, Recorder, threading.Event]:
        recorder, ended = Recorder(), threading.Event()

        def publish(events: list) -> None:  # type: ignore[type-arg]
            recorder(events)
            if any(isinstance(e, FinishedEvent) for e in events):
                ended.set()

        runner = FakeRunner(64)
        engine = Engine(runner, fake_vocabulary(), EngineConfig(64, 1024), publish)
        engine.start()
        return engine, runner, recorder, ended

    def test_runs_and_shuts_down(self) -> None:
        engine, _, recorder, ended = self.started()
        engine.submit(make_request("a", "hello", max_tokens=20))
        assert ended.wait(20)
        assert recorder.text("a") == alone("hello", 20)
        engine.shutdown()
        with pytest.raises(EngineStopped, match="shut down"):
            engine.submit(make_request("b", "hello"))

    def test_shutdown_ends_what_runs_and_what_waits(self) -> None:
        engine, runner, recorder, _ = self.started()
        reached, go_on = threading.Event(), threading.Event()

        def pause() -> None:
            reached.set()
            go_on.wait(20)

        runner.during = pause
        engine.submit(make_request("running", "hello"))
        assert reached.wait(20)
        engine.submit(make_request("waiting", "world"))
        closer = threading.Thread(target=engine.shutdown)
        closer.start()
        go_on.set()
        closer.join(20)
        for name in ("running", "waiting"):
            assert recorder.finished(name).reason is FinishReason.ABORT
        assert free(engine) == 64

    def test_a_second_fault_ends_every_stream_and_refuses_the_next_request(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        engine, runner, recorder, ended = self.started()

        class DeviceFault(Exception):
            pass

        def fault() -> None:
            if engine.stats().num_restarts:
                engine.submit(make_request("arrives last", "world"))
            else:
                engine.submit(make_request("waits", "world"))
            raise DeviceFault("the device is gone")

        runner.during = fault
        engine.submit(make_request("a", "hello"))
        assert ended.wait(20)
        engine._thread.join(20)
        for name in ("a", "waits", "arrives last"):
            assert recorder.finished(name).reason is FinishReason.ERROR
        assert "the device is gone" in (engine.stats().failure or "")
        assert "DeviceFault: the device is gone" in caplog.text
        with pytest.raises(EngineStopped, match="the device is gone"):
            engine.submit(make_request("b", "hello"))

    def test_an_idle_engine_burns_no_cpu(self) -> None:
        """The thread blocks on its inbox: its own CPU clock stands still while the process lives on."""
        engine, _, _, ended = self.started()
        engine.submit(make_request("a", "hello", max_tokens=2))
        assert ended.wait(20)
        clock = time.pthread_getcpuclockid(engine._thread.ident)  # type: ignore[arg-type]

        def cpu_time_while_others_work() -> float:
            before = time.clock_gettime(clock)
            for _ in range(50):
                sum(range(20_000))
            return time.clock_gettime(clock) - before

        # The thread may still be on its way back to waiting; a polling one would never stand still.
        assert 0 in (cpu_time_while_others_work() for _ in range(20))
        assert engine.stats().num_ticks == 2
        engine.shutdown()


def test_token_budget_below_the_rows_is_refused() -> None:
    with pytest.raises(ValueError, match=r"token_budget: got 3, allowed: at least max_num_seqs \(4\)"):
        EngineConfig(8, 64, max_num_seqs=4, token_budget=3)
    with pytest.raises(ValueError, match="max_model_len: got 129, allowed: 2 to 128"):
        EngineConfig(8, 129)


def test_the_fake_model_notices_a_wrong_block() -> None:
    """The oracle itself: reading another sequence's memory changes the text or raises."""

    class Mixed(FakeRunner):
        def execute(self, batch: Batch) -> StepOutput:
            if len(batch.context_lens) == 2:
                batch.block_tables[:] = batch.block_tables[::-1].copy()
            return super().execute(batch)

    recorder = Recorder()
    engine = Engine(Mixed(64), fake_vocabulary(), EngineConfig(64, 1024), recorder)
    engine.submit(make_request("a", "hello", max_tokens=4))
    engine.submit(make_request("b", "world", max_tokens=4))
    run_until_idle(engine)
    assert recorder.text("a") != alone("hello", 4)


def test_decodes_come_before_older_prompts_in_the_budget() -> None:
    engine, _, recorder = make_engine(num_blocks=128, max_num_seqs=4, token_budget=20, prefill_chunk=16)
    engine.submit(make_request("long", "x" * 300, max_tokens=2))
    engine.submit(make_request("reader", "hi", max_tokens=60))
    engine.tick()
    engine.submit(make_request("longer", "y" * 300, max_tokens=2))
    while not recorder.has_finished("longer"):
        before = len(recorder.events("reader"))
        engine.tick()
        assert len(recorder.events("reader")) > before or recorder.has_finished("reader")


def test_timings_are_in_order_and_absent_where_it_never_came_that_far() -> None:
    engine, _, recorder = make_engine(max_num_seqs=1)
    engine.submit(make_request("a", "hello", max_tokens=3))
    engine.submit(make_request("queued", "hello", max_tokens=3))
    engine.tick()
    engine.abort("queued")
    run_until_idle(engine)
    timings = recorder.finished("a").timings
    assert timings.admitted is not None
    assert timings.first_token is not None
    assert timings.arrival < timings.admitted <= timings.first_token <= timings.finished
    assert recorder.finished("queued").timings.admitted is None
    assert recorder.finished("queued").timings.first_token is None
