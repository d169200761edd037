"""What is asked of the engine: prompts, lengths of answers, and when each request comes.

Knows: distributions of lengths, Poisson arrivals, conversations. Does not know: engines, clocks, models.

Everything follows from a seed. Lengths, arrivals and token ids are drawn from streams of their own, so a
change of the rate changes no prompt. Answers have fixed lengths, so that whatever serves a workload makes
the same number of tokens for it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

Lengths = NDArray[np.int64]

CONTEXT = 2048
"""The context that the lengths below are meant for; for another one they shrink or grow in proportion."""

CUT = 1024
"""Most tokens of a prompt, and of an answer, in the ShareGPT-shaped workload."""

TURNS = 6
"""Of each chat."""

STREAM_TOKENS = 192
LONG_PROMPT = 1536


@dataclass(frozen=True, slots=True)
class Turn:
    """One request: everything said before, and `fresh`."""

    fresh: tuple[int, ...]
    output_tokens: int
    pause: float = 0.0
    """Time between the answer before and this turn."""


@dataclass(frozen=True, slots=True)
class Conversation:
    """Turns, each of which has to wait for the answer to the one before. Mostly there is just one."""

    start: float
    """When it begins, counted from the beginning of the run."""
    turns: tuple[Turn, ...]
    after_tokens: int = 0
    """And not before the run has given out so many tokens."""

    def prompt_lengths(self) -> list[int]:
        """Tokens of each turn's prompt, history included."""
        lengths, said = [], 0
        for turn in self.turns:
            lengths.append(said + len(turn.fresh))
            said = lengths[-1] + turn.output_tokens
        return lengths


@dataclass(frozen=True, slots=True)
class Workload:
    name: str
    title: str
    conversations: tuple[Conversation, ...]

    @property
    def num_requests(self) -> int:
        return sum(len(c.turns) for c in self.conversations)

    @property
    def output_tokens(self) -> int:
        return sum(turn.output_tokens for c in self.conversations for turn in c.turns)

    @property
    def prompt_tokens(self) -> int:
        return sum(sum(c.prompt_lengths()) for c in self.conversations)


@dataclass(frozen=True, slots=True)
class Order:
    """How a workload is to be made.

    Raises:
        ValueError: a number is not positive.
    """

    requests: int
    rate: float
    """Requests per unit of time; `math.inf`: all are there from the beginning."""
    vocabulary: int
    """Token ids are drawn from 0 to this, exclusively."""
    context: int = CONTEXT
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("requests", "rate", "vocabulary", "context"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name}: got {getattr(self, name)}, allowed: above 0")

    def stream(self, purpose: int) -> Generator:
        return np.random.default_rng([self.seed, purpose])

    def scaled(self, lengths: Lengths) -> Lengths:
        scaled: Lengths = np.maximum(1, np.rint(lengths * (self.context / CONTEXT)).astype(np.int64))
        return scaled


_LENGTHS, _STARTS, _TOKENS, _PAUSES = range(4)


def make(name: str, order: Order) -> Workload:
    """The workload called `name`, one of `WORKLOADS`.

    Raises:
        ValueError: there is none of this name, or the order does not suit it.
    """
    if name not in WORKLOADS:
        raise ValueError(f"workload: got {name!r}, allowed: {', '.join(WORKLOADS)}")
    title, build = WORKLOADS[name]
    return Workload(name, title, build(order))


def poisson_starts(generator: Generator, count: int, rate: float) -> list[float]:
    """Times of `count` arrivals that do not know of each other. As vLLM's benchmark does it, the gaps are
    stretched so that the last arrival is at `count / rate` to the digit: the offered rate is exact."""
    if math.isinf(rate):
        return [0.0] * count
    ends = generator.exponential(size=count).cumsum()
    return [float(t) for t in ends * (count / rate / ends[-1])]


def _orca(order: Order) -> tuple[Conversation, ...]:
    """Orca's trace (Yu et al., OSDI 2022): both lengths uniform."""
    draw = order.stream(_LENGTHS)
    prompts = draw.integers(32, 512, order.requests, endpoint=True)
    return _single_turns(order, prompts, draw.integers(1, 128, order.requests, endpoint=True))


def _anyscale(order: Order) -> tuple[Conversation, ...]:
    """Anyscale's comparison of 2023: equal prompts, answers exponential with mean 128 and capped at 512."""
    answers = np.ceil(order.stream(_LENGTHS).exponential(128, order.requests)).astype(np.int64)
    return _single_turns(order, np.full(order.requests, 512), np.minimum(answers, 512))


def _sharegpt(order: Order) -> tuple[Conversation, ...]:
    """Lengths like those of ShareGPT's first turns: lognormal, means 161 and 338 after the cut, and what
    vLLM's benchmark filters out is drawn again."""
    draw = order.stream(_LENGTHS)
    prompts, answers = np.empty(0, np.int64), np.empty(0, np.int64)
    while len(prompts) < order.requests:
        more = _cut_lognormal(draw, 161, 1.2, 2 * order.requests)
        long = _cut_lognormal(draw, 338, 1.0, 2 * order.requests)
        keep = (more >= 4) & (long >= 4) & (more + long <= CONTEXT)
        prompts, answers = np.append(prompts, more[keep]), np.append(answers, long[keep])
    return _single_turns(order, prompts[: order.requests], answers[: order.requests])


def _chats(order: Order) -> tuple[Conversation, ...]:
    """Chats of TURNS turns that share a system prompt; the reader takes time to answer."""
    count = -(-order.requests // TURNS)
    lengths, tokens, pauses = (order.stream(purpose) for purpose in (_LENGTHS, _TOKENS, _PAUSES))
    fresh = order.scaled(lengths.integers(24, 72, (count, TURNS), endpoint=True))
    answers = order.scaled(lengths.integers(32, 96, (count, TURNS), endpoint=True))
    system = _draw_ids(tokens, order, int(order.scaled(np.array(96))))
    # Somebody who types as long as it takes to serve a few others.
    mean_pause = 0.0 if math.isinf(order.rate) else 2 / order.rate
    return tuple(
        Conversation(
            start,
            tuple(
                Turn(
                    (system if i == 0 else ()) + _draw_ids(tokens, order, int(fresh[c, i])),
                    int(answers[c, i]),
                    float(pauses.exponential(mean_pause)) if i else 0.0,
                )
                for i in range(TURNS)
            ),
        )
        for c, start in enumerate(poisson_starts(order.stream(_STARTS), count, order.rate / TURNS))
    )


def _long_prompts(order: Order) -> tuple[Conversation, ...]:
    """Sixteen short prompts that stream to three long ones, each of which comes into the streams' middle."""
    streams = order.requests * 16 // 19
    if streams < 1 or streams == order.requests:
        raise ValueError(f"requests: got {order.requests}, allowed: at least 2 for long prompts")
    tokens = order.stream(_TOKENS)
    stream_tokens, long_prompt, short = (
        int(order.scaled(np.array(length))) for length in (STREAM_TOKENS, LONG_PROMPT, 32)
    )
    streaming = [
        Conversation(start, (Turn(_draw_ids(tokens, order, short), stream_tokens),))
        for start in poisson_starts(order.stream(_STARTS), streams, order.rate)
    ]
    every = streams * stream_tokens // (order.requests - streams + 1)
    long = [
        Conversation(0.0, (Turn(_draw_ids(tokens, order, long_prompt), 4),), after_tokens=every * (i + 1))
        for i in range(order.requests - streams)
    ]
    return (*streaming, *long)


WORKLOADS: dict[str, tuple[str, Callable[[Order], tuple[Conversation, ...]]]] = {
    "a": ("Orca: prompts U(32, 512), answers U(1, 128)", _orca),
    "b": ("Anyscale: prompts of 512, answers exponential, mean 128", _anyscale),
    "c": ("ShareGPT-shaped: lognormal, means 161 and 338", _sharegpt),
    "d": (f"chats of {TURNS} turns", _chats),
    "e": ("long prompts between short streams", _long_prompts),
}


def _single_turns(order: Order, prompts: Lengths, answers: Lengths) -> tuple[Conversation, ...]:
    tokens = order.stream(_TOKENS)
    starts = poisson_starts(order.stream(_STARTS), order.requests, order.rate)
    return tuple(
        Conversation(start, (Turn(_draw_ids(tokens, order, int(prompt)), int(answer)),))
        for start, prompt, answer in zip(starts, order.scaled(prompts), order.scaled(answers), strict=True)
    )


def _draw_ids(generator: Generator, order: Order, count: int) -> tuple[int, ...]:
    return tuple(generator.integers(order.vocabulary, size=count).tolist())


def _cut_lognormal(generator: Generator, mean: float, sigma: float, count: int) -> Lengths:
    drawn = generator.lognormal(_mu_for(mean, sigma, CUT), sigma, count)
    return np.minimum(np.rint(drawn), CUT).astype(np.int64)


def _mu_for(mean: float, sigma: float, cut: float) -> float:
    """The mu with which min(lognormal(mu, sigma), cut) has this mean, found by halving."""
    phi, low, high = NormalDist().cdf, 0.0, math.log(cut) + 3 * sigma
    for _ in range(60):
        mu = (low + high) / 2
        z = (math.log(cut) - mu) / sigma
        got = math.exp(mu + sigma**2 / 2) * phi(z - sigma) + cut * (1 - phi(z))
        low, high = (mu, high) if got < mean else (low, mu)
    return low
