"""A model without weights, for driving the engine tick by tick.

Its next token is a pure function of everything that stands in KV memory *as read back through the block
table*: a wrong block, a stale slot, a mixed-up row or a missing token changes the text from there on.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from engine.batch import Batch, StepOutput
from engine.blocks import BLOCK_SIZE
from engine.config import EngineConfig
from engine.detokenizer import Vocabulary
from engine.engine import Engine
from engine.request import Event, FinishedEvent, Request, TokenEvent
from engine.sampling import SamplingParams
from tests import oracle

EOS = 0
ALPHABET = "abcdefghijklmnopqrstuvwxyz ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789,.:;"
POISON = -1


def fake_vocabulary() -> Vocabulary:
    """Id 0 is the end token, the others are one letter each."""
    return Vocabulary(token_bytes=(b"", *(c.encode() for c in ALPHABET)), eos_ids=frozenset({EOS}))


def fake_ids(text: str) -> tuple[int, ...]:
    return tuple(ALPHABET.index(c) + 1 for c in text)


def next_token(context: list[int], never_ends: bool = True) -> int:
    """What the fake model says after `context`: the oracle that tests compare with."""
    state = 0x811C9DC5
    for token in context:
        state = ((state ^ token) * 0x01000193) & 0xFFFFFFFF
    low = 1 if never_ends else 0
    return low + (state >> 7) % (len(ALPHABET) + 1 - low)


def logits_after(context: Sequence[int]) -> NDArray[np.float32]:
    """[V] what the sampling fake model finds after `context`."""
    dice = np.random.default_rng(np.array(context, dtype=np.uint32))
    return dice.normal(scale=2.0, size=len(ALPHABET) + 1).astype(np.float32)


def continuation(prompt: tuple[int, ...], count: int, never_ends: bool = True) -> list[int]:
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(next_token(tokens, never_ends))
        if tokens[-1] == EOS:
            break
    return tokens[len(prompt) :]


class FakeRunner:
    """Implements `engine.engine.Runner`. Freed slots keep their old content, as real memory does."""

    def __init__(self, num_blocks: int, never_ends: bool = True) -> None:
        self.slots = np.full(num_blocks * BLOCK_SIZE, POISON, dtype=np.int64)
        self.positions = np.full(num_blocks * BLOCK_SIZE, POISON, dtype=np.int64)
        self.never_ends = never_ends
        self.batches: list[Batch] = []
        self.during: Callable[[], None] = lambda: None
        """Called in the middle of a forward pass."""
        self.script: Callable[[list[int]], int] | None = None
        """Overrides the next token; is given the context as read from KV memory."""

    def execute(self, batch: Batch) -> StepOutput:
        self.batches.append(batch)
        if len(set(batch.slots.tolist())) != len(batch.slots):
            raise RuntimeError("two tokens were given the same slot")
        for source, target in (batch.copies[:, :, None] * BLOCK_SIZE + np.arange(BLOCK_SIZE)).tolist():
            self.slots[target] = self.slots[source]
            self.positions[target] = self.positions[source]
        self.slots[batch.slots] = batch.token_ids
        self.positions[batch.slots] = batch.positions
        self.during()
        ends = batch.query_start[1:].tolist()
        return self._choose([self._context(batch, ends.index(t + 1)) for t in batch.sampled.tolist()], batch)

    def reset(self) -> None:
        self.slots[:] = POISON
        self.positions[:] = POISON

    def _choose(self, contexts: list[list[int]], batch: Batch) -> StepOutput:
        choose = self.script or (lambda context: next_token(context, self.never_ends))
        return StepOutput(np.array([choose(context) for context in contexts], dtype=np.int64), None)

    def _context(self, batch: Batch, sequence: int) -> list[int]:
        """A sequence's tokens, as they stand in KV memory."""
        places = np.arange(int(batch.context_lens[sequence]))
        slots = (
            batch.block_tables[sequence, places // BLOCK_SIZE].astype(np.int64) * BLOCK_SIZE
            + places % BLOCK_SIZE
        )
        if (self.positions[slots] != places).any():
            raise RuntimeError("KV memory read through the block table is not this sequence's")
        context: list[int] = self.slots[slots].tolist()
        return context


class SamplingRunner(FakeRunner):
    """Its logits are a pure function of the context; by the oracle, it samples from them as a batch says."""

    def _choose(self, contexts: list[list[int]], batch: Batch) -> StepOutput:
        if not contexts:
            return StepOutput(np.empty(0, dtype=np.int64), None)
        return oracle.sample_batch(np.stack([logits_after(context) for context in contexts]), batch)


class Recorder:
    """Collects what the engine publishes."""

    def __init__(self) -> None:
        self.ticks: list[list[Event]] = []
        self._of: defaultdict[str, list[Event]] = defaultdict(list)

    def __call__(self, events: list[Event]) -> None:
        self.ticks.append(events)
        for event in events:
            self._of[event.request_id].append(event)

    def events(self, request_id: str) -> list[Event]:
        return list(self._of.get(request_id, ()))  # what was told so far, not what is told later

    def text(self, request_id: str) -> str:
        return "".join(e.text for e in self.events(request_id) if isinstance(e, TokenEvent))

    def finished(self, request_id: str) -> FinishedEvent:
        """The terminal event: there must be one, and it must be the last."""
        *before, last = self.events(request_id)
        if not isinstance(last, FinishedEvent) or any(isinstance(e, FinishedEvent) for e in before):
            raise AssertionError(
                f"{request_id}: expected exactly one finished event, at the end: {self.events(request_id)}"
            )
        return last

    def has_finished(self, request_id: str) -> bool:
        return any(isinstance(e, FinishedEvent) for e in self.events(request_id))


def make_request(
    request_id: str, prompt: tuple[int, ...] | str, sampling: SamplingParams | None = None, **params: object
) -> Request:
    ids = fake_ids(prompt) if isinstance(prompt, str) else prompt
    return Request(request_id, ids, sampling or SamplingParams(temperature=0, **params), arrival=0.0)  # type: ignore[arg-type]


def make_engine(
    *, num_blocks: int = 64, max_model_len: int | None = None, never_ends: bool = True, **config: int
) -> tuple[Engine, FakeRunner, Recorder]:
    """An engine over the fake model, not started: drive it with `tick()`."""
    runner, recorder = FakeRunner(num_blocks, never_ends), Recorder()
    sizes = EngineConfig(num_blocks, max_model_len or num_blocks * BLOCK_SIZE, **config)
    return Engine(runner, fake_vocabulary(), sizes, recorder), runner, recorder


def run_until_idle(engine: Engine, most: int = 10_000) -> int:
    """Ticks until there is nothing to compute; returns how many ticks computed something."""
    for ticks in range(most):
        if not engine.tick():
            return ticks
    raise AssertionError(f"still busy after {most} ticks")


def expect_short_answers(engine: Engine) -> None:
    """Teaches the engine that answers have one token, so that it lets in more than will fit and has to
    preempt."""
    for i in range(200):
        engine.submit(make_request(f"teacher{i}", "a", max_tokens=1))
        engine.tick()
