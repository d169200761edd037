"""Random life of the whole engine over the fake model: requests of several answers and several sessions,
forks, aborts at any moment, forced preemptions, faults of the device, rows without numbers, tiny pools, every
admission policy. After every step the books agree, every text is the text of the same request alone, and
nothing is left over at the end."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import replace

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from engine.blocks import BLOCK_SIZE
from engine.config import Admission, Chaos
from engine.engine import MAX_RESTARTS
from engine.request import FinishedEvent, FinishReason, Priority, Status, TokenEvent
from engine.sampling import SamplingParams
from tests.fakes import EOS, continuation, fake_vocabulary, make_engine, make_request

VOCABULARY = fake_vocabulary()
TOKENS = [t for t in range(len(VOCABULARY.token_bytes)) if t != EOS]
SHARED = tuple(TOKENS[5:21]) * 3
"""What many prompts begin with."""


PICKS = st.integers(0, 999)


def picked(names: Iterable[str], pick: int) -> str:
    in_order = sorted(names)
    return in_order[pick % len(in_order)]


class EngineMachine(RuleBasedStateMachine):
    @initialize(
        num_blocks=st.integers(4, 14),
        rows=st.integers(1, 5),
        extra=st.integers(0, 40),
        chunk=st.integers(1, 40),
        admission=st.sampled_from([*[Admission.PAGED] * 4, *Admission]),
        chunked=st.sampled_from([True, True, True, False]),
        cache=st.booleans(),
        preempt_every=st.sampled_from([0, 0, 1, 2, 5]),
        short=st.booleans(),
    )
    def begin(
        self,
        num_blocks: int,
        rows: int,
        extra: int,
        chunk: int,
        admission: Admission,
        chunked: bool,
        cache: bool,
        preempt_every: int,
        short: bool,
    ) -> None:
        context = num_blocks * BLOCK_SIZE // (1 if admission is Admission.PAGED else 2)
        self.engine, self.runner, self.recorder = make_engine(
            num_blocks=num_blocks,
            max_model_len=context,
            max_num_seqs=rows,
            token_budget=rows + extra,
            prefill_chunk=chunk,
            never_ends=False,
            admission=admission,
            chunked_prefill=chunked,
            prefix_cache=cache,
            chaos=Chaos(preempt_every=preempt_every),
            turn_tokens=64,
        )
        if short:
            # It believes that answers are short, lets in too many, and has to preempt.
            for _ in range(200):
                self.engine.scheduler.expect(1)
        self.requests: dict[str, tuple[tuple[int, ...], SamplingParams]] = {}
        self.forks: dict[str, str] = {}
        self.aborted: set[str] = set()
        self.excused: set[str] = set()
        """Ended by a fault."""

    @rule(
        shared=st.integers(0, len(SHARED)),
        own=st.integers(1, 30),
        wanted=st.integers(1, 60),
        n=st.sampled_from([1, 1, 1, 2, 3]),
        session=st.sampled_from("abc"),
        salt=st.sampled_from(["", "", "x"]),
        priority=st.sampled_from([Priority.INTERACTIVE, Priority.BATCH]),
    )
    def submit(
        self, shared: int, own: int, wanted: int, n: int, session: str, salt: str, priority: Priority
    ) -> None:
        name, context = f"r{len(self.requests)}", self.engine.config.max_model_len
        prompt = (SHARED[:shared] + (TOKENS[len(self.requests) % len(TOKENS)],) * own)[: context - 1]
        sampling = SamplingParams(temperature=0, max_tokens=min(wanted, context - len(prompt)), n=n)
        self.requests[name] = prompt, sampling
        request = make_request(name, prompt, sampling)
        self.engine.submit(replace(request, session=session, cache_salt=salt, priority=priority))

    @rule(pick=PICKS, wanted=st.integers(1, 30))
    def fork(self, pick: int, wanted: int) -> None:
        """Continue one that may be running, waiting, preempted or long gone."""
        if not self.requests:
            return
        parent = picked(self.requests, pick)
        name = f"f{len(self.requests)}"
        sampling = SamplingParams(temperature=0, max_tokens=wanted)
        self.requests[name] = (), sampling
        self.forks[name] = parent
        self.engine.fork(parent, make_request(name, (), sampling))

    @rule(pick=PICKS)
    def abort(self, pick: int) -> None:
        if self.requests:
            self.abort_now(picked(self.requests, pick))

    def abort_now(self, name: str) -> None:
        self.aborted.add(name)
        self.engine.abort(name)

    def all_who_wait_leave(self) -> None:
        running = {s.request.id for s in self.engine.scheduler.running.values()}
        for name in self.requests:
            if name not in running:
                self.abort_now(name)

    @rule()
    def tick(self) -> None:
        self.engine.tick()

    @rule(count=st.integers(2, 20))
    def many_ticks(self, count: int) -> None:
        for _ in range(count):
            self.engine.tick()
            self.books_agree()

    @rule(pick=PICKS)
    def someone_leaves_during_the_forward_pass(self, pick: int) -> None:
        running = {s.request.id for s in self.engine.scheduler.running.values()}
        if not running:
            return
        name = picked(running, pick)
        self.runner.during = lambda: self.abort_now(name)
        before = self.engine.stats().num_ticks
        self.engine.tick()
        self.runner.during = lambda: None
        if self.engine.stats().num_ticks > before:
            assert all(live.sequence.request.id != name for live in self.engine._lives.live.values())

    @rule()
    def the_device_fails(self) -> None:
        if self.engine.stats().num_restarts == MAX_RESTARTS:
            return

        def fault() -> None:
            self.runner.during = lambda: None
            self.excused |= set(self.engine.scheduler.running)
            raise RuntimeError("the device is gone")

        self.runner.during = fault
        self.engine.tick()
        self.runner.during = lambda: None

    @rule(pick=PICKS)
    def a_row_has_no_numbers(self, pick: int) -> None:
        running = self.engine.scheduler.running
        if not running:
            return
        victim = running[picked(running, pick)]
        tokens = list(victim.tokens)
        script, never_ends = self.runner.script, self.runner.never_ends

        def broken(context: list[int]) -> int:
            # Others that hold the very same tokens get the same.
            if context == tokens:
                self.excused |= {s.id for s in self.engine.scheduler.running.values() if s.tokens == tokens}
                return -1
            return continuation(tuple(context), 1, never_ends)[0]

        self.runner.script = broken
        self.engine.tick()
        self.runner.script = script

    @invariant()
    def books_agree(self) -> None:
        if not hasattr(self, "engine"):
            return
        scheduler, config = self.engine.scheduler, self.engine.config
        scheduler.check()
        assert len(scheduler.running) + len(scheduler.padding) <= config.max_num_seqs
        for sequence in scheduler.running.values():
            assert sequence.status is Status.RUNNING
            assert sequence.num_computed < sequence.num_tokens
            assert len(sequence.blocks) * BLOCK_SIZE >= sequence.num_computed
            if config.admission is Admission.PAGED:  # strictly on demand
                assert (len(sequence.blocks) - 1) * BLOCK_SIZE < max(sequence.num_computed, 1)
        truth = self.engine.stats().memory
        parts = (truth.used, truth.reserved, truth.internal, truth.cached, truth.free)
        assert sum(parts) == truth.total
        assert min(parts) >= 0
        if self.runner.batches:
            batch = self.runner.batches.pop()
            self.runner.batches.clear()
            if config.chunked_prefill:
                padding = config.max_num_seqs if config.admission is Admission.STATIC else 0
                assert len(batch.token_ids) <= config.token_budget + padding
        if not self.engine._lives.live:
            assert scheduler.pool.num_free == scheduler.pool.num_blocks

    def teardown(self) -> None:
        if not hasattr(self, "engine"):
            return
        # Preempted in every tick, an answer costs its whole prompt, in chunks, for each token.
        for _ in range(200_000):
            if not self.engine.tick():
                break
            self.books_agree()
        scheduler, stats = self.engine.scheduler, self.engine.stats()
        assert not self.engine._lives.live
        assert not self.engine._lives._by_request
        assert not scheduler._computing
        assert self.engine._places.num_taken == 0
        assert (stats.num_running, stats.num_waiting) == (0, 0)
        assert scheduler.pool.num_free == scheduler.pool.num_blocks
        assert stats.memory.used == stats.memory.reserved == stats.memory.internal == 0
        for name, (prompt, sampling) in self.requests.items():
            for choice in range(sampling.n):
                self.check_answer(name, choice, prompt, sampling)

    def check_answer(self, name: str, choice: int, prompt: tuple[int, ...], sampling: SamplingParams) -> None:
        events = [e for e in self.recorder.events(name) if e.choice == choice]
        *told, end = events
        assert isinstance(end, FinishedEvent)
        assert all(isinstance(e, TokenEvent) for e in told)
        text = "".join(e.text for e in told if isinstance(e, TokenEvent))
        if end.reason is FinishReason.ERROR:
            has_fault = {name, f"{name}#{choice}"} & self.excused
            assert has_fault or (name in self.forks and not told)
            return
        if name in self.forks:
            prompt = self.prompt_of_fork(name, end.num_prompt_tokens)
        alone = continuation(prompt, sampling.max_tokens or 0, never_ends=False)
        expected = b"".join(VOCABULARY.token_bytes[t] for t in alone).decode()
        if end.reason is FinishReason.ABORT:
            assert name in self.aborted
            assert expected.startswith(text)
        else:
            assert text == expected
            assert end.num_output_tokens == len(alone)
            assert end.reason is (FinishReason.STOP if alone[-1] == EOS else FinishReason.LENGTH)

    def prompt_of_fork(self, name: str, length: int) -> tuple[int, ...]:
        """The beginning of so many tokens of what the parent would have said, had it not ended."""
        parent = self.forks[name]
        prompt = self.requests[parent][0]
        if parent in self.forks:
            prompt = self.prompt_of_fork(parent, self.recorder_prompt_length(parent))
        return (*prompt, *continuation(prompt, length, never_ends=False))[:length]

    def recorder_prompt_length(self, name: str) -> int:
        return next(e for e in self.recorder.events(name) if isinstance(e, FinishedEvent)).num_prompt_tokens


EngineMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=100)
TestEngineMachine = EngineMachine.TestCase

LIVES, STEPS = 400, 250


def test_a_hundred_thousand_steps_of_random_lives() -> None:
    """The machine's own moves, drawn without hypothesis: it is better at finding small lives, this at long
    ones, and many."""
    preempted = shared = restarted = 0
    for seed in range(LIVES):
        life, dice = EngineMachine(), random.Random(seed)
        admission = dice.choice([Admission.PAGED] * 4 + list(Admission))
        life.begin(
            num_blocks=dice.randint(4, 14),
            rows=dice.randint(1, 5),
            extra=dice.randint(0, 40),
            chunk=dice.randint(4, 40),
            admission=admission,
            chunked=dice.random() < 0.75,
            cache=dice.random() < 0.5,
            preempt_every=dice.choice([0, 0, 1, 2, 5]),
            short=dice.random() < 0.5,
        )
        for _ in range(STEPS):
            one_move(life, dice)
            life.books_agree()
        # The rest is told without forced preemptions, and every other time without those who still wait:
        # they took most of the time, and hypothesis has them to the end.
        life.engine.scheduler.config = replace(life.engine.config, chaos=Chaos())
        if seed % 2:
            life.all_who_wait_leave()
        life.teardown()
        stats = life.engine.stats()
        preempted += stats.num_preemptions
        shared += stats.num_hit_tokens
        restarted += stats.num_restarts
    assert min(preempted, shared, restarted) > LIVES // 2


def one_move(life: EngineMachine, dice: random.Random) -> None:
    pick = dice.randrange(1000)
    match dice.choices(range(7), weights=[25, 8, 10, 45, 6, 1, 5])[0]:
        case 0:
            life.submit(
                shared=dice.randint(0, len(SHARED)),
                own=dice.randint(1, 30),
                wanted=dice.randint(1, 60),
                n=dice.choice([1, 1, 1, 2, 3]),
                session=dice.choice("abc"),
                salt=dice.choice(["", "", "x"]),
                priority=dice.choice(list(Priority)),
            )
        case 1:
            life.fork(pick=pick, wanted=dice.randint(1, 30))
        case 2:
            life.abort(pick=pick)
        case 3:
            life.tick()
        case 4:
            life.someone_leaves_during_the_forward_pass(pick=pick)
        case 5:
            life.the_device_fails()
        case 6:
            life.a_row_has_no_numbers(pick=pick)
