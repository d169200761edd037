"""What an engine is told when it is made: sizes, policies, bounds, and how to disturb it.

Knows: names, ranges, defaults. Does not know: how any of it is done.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from engine.blocks import BLOCK_SIZE


class Admission(enum.Enum):
    """How KV memory is promised to a sequence. All but PAGED exist to be compared with."""

    PAGED = "paged"
    """Blocks are taken as tokens reach into them; the queue's head enters when what the running ones are
    expected to need leaves room for it."""
    RESERVE_MAX = "reserve_max"
    """Each sequence takes a whole context at its entry (Orca)."""
    RESERVE_POW2 = "reserve_pow2"
    """Each takes its prompt and the next power of two of its longest answer."""
    STATIC = "static"
    """As RESERVE_MAX, and nobody enters, and no memory comes back, until the whole batch has ended; until
    then those who ended early compute on as padding."""


@dataclass(frozen=True, slots=True)
class Chaos:
    """Disturbances for tests of programs that use the engine. Answers do not change by them.

    Raises:
        ValueError: a value is negative.
    """

    preempt_every: int = 0
    """In every so many ticks the newest running sequence is preempted. 0: never."""
    slow_tick_ms: float = 0.0
    """Milliseconds that every tick is delayed by."""

    def __post_init__(self) -> None:
        for name in ("preempt_every", "slow_tick_ms"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name}: got {getattr(self, name)}, allowed: at least 0")


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Raises:
    ValueError: the context does not fit in KV memory, or a bound is out of range.
    """

    num_blocks: int
    """KV memory, in blocks of BLOCK_SIZE tokens."""
    max_model_len: int
    """The context: most tokens of one sequence, prompt and answer together."""
    max_num_seqs: int = 32
    """Sequences running at once; also the number of rows."""
    token_budget: int = 512
    """Tokens computed in one tick, over all sequences."""
    prefill_chunk: int = 256
    """Tokens of one prompt in one tick."""
    admission: Admission = Admission.PAGED
    chunked_prefill: bool = True
    """False: prompts are computed whole, in ticks of their own, while those who decode wait."""
    prefix_cache: bool = True
    """Whether computed prefixes are kept and shared."""
    max_queue: int = 1024
    """Sequences that may wait."""
    max_queue_per_session: int = 256
    """Of these, one session's."""
    turn_tokens: int = 512
    """How many tokens' worth of requests a session may enter per turn, when others wait too."""
    recorded_ticks: int = 1024
    """How many of the last ticks the recorder keeps."""
    chaos: Chaos = Chaos()

    def __post_init__(self) -> None:
        if not 2 <= self.max_model_len <= self.num_blocks * BLOCK_SIZE:
            raise ValueError(
                f"max_model_len: got {self.max_model_len}, allowed: 2 to {self.num_blocks * BLOCK_SIZE}, "
                f"the tokens that {self.num_blocks} blocks of KV memory hold"
            )
        for name in (
            "max_num_seqs", "token_budget", "prefill_chunk", "max_queue", "max_queue_per_session",
            "turn_tokens", "recorded_ticks",
        ):  # fmt: skip
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: got {getattr(self, name)}, allowed: at least 1")
        if self.token_budget < self.max_num_seqs:
            raise ValueError(
                f"token_budget: got {self.token_budget}, allowed: at least max_num_seqs "
                f"({self.max_num_seqs}), so that every running sequence can advance in every tick"
            )
