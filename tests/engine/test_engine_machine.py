"""Random life of the whole engine over the fake model: submits, aborts at any moment, forward passes in which
somebody leaves, tiny pools. After every step the books agree, and every text is the text of the same
request alone."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from engine.request import FinishReason, Status
from engine.sampling import SamplingParams
from tests.fakes import EOS, continuation, fake_vocabulary, make_engine, make_request

TOKENS = [t for t in range(len(fake_vocabulary().token_bytes)) if t != EOS]


class EngineMachine(RuleBasedStateMachine):
    @initialize(
        num_blocks=st.integers(4, 14),
        rows=st.integers(1, 5),
        extra=st.integers(0, 40),
        chunk=st.integers(1, 40),
    )
    def begin(self, num_blocks: int, rows: int, extra: int, chunk: int) -> None:
        self.engine, self.runner, self.recorder = make_engine(
            num_blocks=num_blocks,
            max_num_seqs=rows,
            token_budget=rows + extra,
            prefill_chunk=chunk,
            never_ends=False,
        )
        self.prompts: dict[str, tuple[int, ...]] = {}
        self.limits: dict[str, int] = {}
        self.aborted: set[str] = set()
        self.last_progress: dict[str, int] = {}

    @rule(length=st.integers(1, 60), wanted=st.integers(1, 60), filler=st.sampled_from(TOKENS))
    def submit(self, length: int, wanted: int, filler: int) -> None:
        name, context = f"r{len(self.prompts)}", self.engine.config.max_model_len
        length = min(length, context - 1)
        wanted = min(wanted, context - length)
        prompt = tuple([filler] * (length - 1) + [TOKENS[len(self.prompts) % len(TOKENS)]])
        self.prompts[name], self.limits[name] = prompt, wanted
        self.engine.submit(make_request(name, prompt, SamplingParams(temperature=0, max_tokens=wanted)))

    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        if self.prompts:
            self.abort_now(data.draw(st.sampled_from(sorted(self.prompts))))

    def abort_now(self, name: str) -> None:
        if not self.recorder.has_finished(name):
            self.aborted.add(name)
        self.engine.abort(name)

    @rule()
    def tick(self) -> None:
        self.engine.tick()

    @rule(count=st.integers(2, 20))
    def many_ticks(self, count: int) -> None:
        for _ in range(count):
            self.engine.tick()
            self.books_agree()

    @rule(data=st.data())
    def someone_leaves_during_the_forward_pass(self, data: st.DataObject) -> None:
        running = sorted(self.engine.scheduler.running)
        if not running:
            return
        name = data.draw(st.sampled_from(running))
        before = len(self.recorder.events(name))
        self.runner.during = lambda: self.abort_now(name)
        self.engine.tick()
        self.runner.during = lambda: None
        assert len(self.recorder.events(name)) == before + 1
        assert self.recorder.finished(name).reason is FinishReason.ABORT

    @invariant()
    def books_agree(self) -> None:
        if not hasattr(self, "engine"):
            return
        scheduler = self.engine.scheduler
        scheduler.check()
        assert len(scheduler.running) <= scheduler.limits.max_num_seqs
        for sequence in scheduler.running.values():
            assert sequence.status is Status.RUNNING
            assert sequence.num_computed < sequence.num_tokens
            assert len(sequence.blocks) * 16 >= sequence.num_computed
            assert (len(sequence.blocks) - 1) * 16 < max(sequence.num_computed, 1)  # strictly on demand
        if self.runner.batches:
            batch = self.runner.batches.pop()
            self.runner.batches.clear()
            assert len(batch.token_ids) <= scheduler.limits.token_budget
        if not scheduler.running and not scheduler.waiting:
            assert scheduler.pool.num_free == scheduler.pool.num_blocks

    def teardown(self) -> None:
        if not hasattr(self, "engine"):
            return
        for _ in range(20_000):
            if not self.engine.tick():
                break
            self.books_agree()
        assert self.engine.scheduler.pool.num_free == self.engine.scheduler.pool.num_blocks
        vocabulary = fake_vocabulary()
        for name, prompt in self.prompts.items():
            alone = continuation(prompt, self.limits[name], never_ends=False)
            text = b"".join(vocabulary.token_bytes[t] for t in alone).decode()
            end = self.recorder.finished(name)
            if end.reason is FinishReason.ABORT:
                assert name in self.aborted
                assert text.startswith(self.recorder.text(name))
            else:
                assert self.recorder.text(name) == text
                assert end.num_output_tokens == len(alone)
                assert end.reason is (FinishReason.STOP if alone[-1] == EOS else FinishReason.LENGTH)


EngineMachine.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestEngineMachine = EngineMachine.TestCase
