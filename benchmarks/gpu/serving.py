"""Part 4: the engine end to end, with as many streams as it has rows; each asks anew when its answer ends.

Knows: engines, requests of known lengths, the engine's recorder. Does not know: kernels, transformers.

Prompts are random tokens, all answers have the length that was asked for, and all choose greedily: the
baseline is given the same list. Rates are over the time from the first request to the last token. A tick's
host time is what its stages take beside `execute`.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.gpu.clock import Part
from benchmarks.gpu.shapes import Order, Scale
from engine.blocks import blocks_for
from engine.config import EngineConfig
from engine.detokenizer import Vocabulary
from engine.engine import Engine
from engine.recorder import Stages
from engine.request import Event, FinishedEvent, FinishReason, Request, TokenEvent
from engine.sampling import SamplingParams

FULL = 0.9
"""Of the rows: ticks with so many count for the figures of a tick."""


@dataclass(frozen=True)
class Load:
    rows: int
    requests: int
    shortest: int
    """Tokens, of a prompt and of an answer."""
    longest: int

    @property
    def context(self) -> int:
        return 2 * self.longest

    def orders(self, vocab_size: int) -> list[Order]:
        rng = random.Random(1)
        return [
            (
                rng.choices(range(1, vocab_size), k=rng.randint(self.shortest, self.longest)),
                rng.randint(self.shortest, self.longest),
            )
            for _ in range(self.requests)
        ]

    def config(self) -> EngineConfig:
        return EngineConfig(
            num_blocks=self.rows * blocks_for(self.context) + 1,
            max_model_len=self.context,
            max_num_seqs=self.rows,
            token_budget=2 * self.rows,
            prefill_chunk=self.longest,
            max_queue=self.requests,
            max_queue_per_session=self.requests,
            recorded_ticks=1 << 16,
        )


@dataclass(frozen=True)
class EngineFigures:
    tokens: int
    seconds: float
    requests: int
    ended: int
    ticks: int
    rows_per_tick: float
    tick_ms: float | None
    """Median over ticks with nearly all rows, as all that follow unless p99 or a share is said."""
    tick_p99_ms: float
    host_ms: float | None
    host_p99_ms: float
    host_share: float
    """Of the time of these ticks."""
    steps: int
    """Ticks of decodes alone. The others compute prompts as well."""
    step_ms: float | None
    mixed_ms: float | None
    stages_us: dict[str, float]

    @property
    def tokens_per_s(self) -> float:
        return self.tokens / self.seconds


def load_for(scale: Scale) -> Load:
    return Load(256, 512, 96, 160) if not scale.dry else Load(3, 4, 3, 5)


class Streams:
    """Counts tokens, and submits the next request for each answer that ended."""

    def __init__(self, orders: Iterator[Order], greedy: bool) -> None:
        self.tokens = self.ended = 0
        self.last = 0.0
        self._just_ended = 0
        self._orders = enumerate(orders)
        self._greedy = greedy

    def __call__(self, events: list[Event]) -> None:
        for event in events:
            if isinstance(event, TokenEvent):
                self.tokens += 1
            elif isinstance(event, FinishedEvent):
                if event.reason is not FinishReason.LENGTH:
                    raise RuntimeError(f"an answer ended with {event.reason}: {event.error}")
                self._just_ended += 1
        self.last = time.perf_counter()

    def follow(self, engine: Engine) -> None:
        """For each answer that has ended since it was last called."""
        count, self._just_ended = self._just_ended, 0
        self.ended += count
        self.begin(engine, count)

    def begin(self, engine: Engine, count: int) -> None:
        for number, (prompt, length) in islice(self._orders, count):
            chosen = {"temperature": 0.0} if self._greedy else {"temperature": 0.8, "top_p": 0.95}
            params = SamplingParams(max_tokens=length, ignore_eos=True, **chosen)
            engine.submit(Request(f"{number:032x}", tuple(prompt), params, arrival=time.monotonic()))


def serve(
    runner: Any, config: EngineConfig, orders: list[Order], vocab_size: int, part: Part, what: str,
    *, greedy: bool = True,
) -> EngineFigures:  # fmt: skip
    """Drives an engine, in this thread, until all is answered or the time is up."""
    streams = Streams(iter(orders), greedy)
    vocabulary = Vocabulary((b"x",) * vocab_size, frozenset())
    engine = Engine(runner, vocabulary, config, streams)
    start = time.perf_counter()
    streams.begin(engine, config.max_num_seqs)
    while streams.ended < len(orders) and part.allows(f"the rest of: {what}"):
        engine.tick()
        streams.follow(engine)
    seconds = streams.last - start
    records = engine.recorder.records()
    engine.shutdown()
    # When the last requests have begun, rows run empty, and a tick has less to do.
    full = [record for record in records if record.rows >= FULL * config.max_num_seqs] or records
    stages = np.array([record.stages for record in full])
    whole = stages.sum(axis=1)
    host = whole - stages[:, Stages._fields.index("execute")]
    is_step = np.array([record.tokens == record.sampled for record in full])
    return EngineFigures(
        tokens=streams.tokens,
        seconds=seconds,
        requests=len(orders),
        ended=streams.ended,
        ticks=len(records),
        rows_per_tick=float(np.mean([record.rows for record in records])),
        tick_ms=_median_ms(whole),
        tick_p99_ms=float(np.quantile(whole, 0.99)) / 1e3,
        host_ms=_median_ms(host),
        host_p99_ms=float(np.quantile(host, 0.99)) / 1e3,
        host_share=float(host.sum() / whole.sum()),
        steps=int(is_step.sum()),
        step_ms=_median_ms(whole[is_step]),
        mixed_ms=_median_ms(whole[~is_step]),
        stages_us=dict(zip(Stages._fields, map(float, np.median(stages, axis=0)), strict=True)),
    )


def _median_ms(microseconds: NDArray[np.float64]) -> float | None:
    return float(np.median(microseconds)) / 1e3 if len(microseconds) else None
