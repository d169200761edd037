"""When a sequence may enter, and how many blocks it holds from then on.

Knows: blocks, how far sequences can grow and how far they are expected to. Does not know: the queue, whose
turn it is, rows, budgets, tokens.

PAGED takes blocks as they are needed, so it must not let in more than will fit: the running ones are still
owed the rest of their prompts, and will grow. How much is expected from the lengths of past answers; how much
of that is held free adapts (the idea of SGLang's new-token ratio): a little less with every tick that goes
well, much more after a preemption. So memory is neither idle nor thrashed.

The others reserve for each sequence's whole life and never preempt: Orca (Yu et al., OSDI 2022) and the
baselines of PagedAttention (Kwon et al., SOSP 2023).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from engine.blocks import BLOCK_SIZE, BlockPool, blocks_for
from engine.config import Admission, EngineConfig
from engine.expectation import ExpectedLength
from engine.request import Sequence


@dataclass(frozen=True, slots=True)
class Shared:
    """Computed blocks that a newcomer can share."""

    blocks: list[int]
    """Full ones, to be held together with others."""
    num_tokens: int
    """How many of its tokens are computed: never all, for at least one must be to sample the next."""
    tail: int | None = None
    """A block that holds those of them which do not fill one. The newcomer writes behind them in the tick of
    its entry, so it gets a copy."""


class AdmissionPolicy(Protocol):
    admits_whole_batches: bool
    """Nobody enters while anybody runs, and all memory comes back at once."""

    def blocks_at_entry(self, newcomer: Sequence, first: int) -> int:
        """How many blocks it holds when the tick of its entry computes its tokens up to `first`."""
        ...

    def has_room_for(self, newcomer: Sequence, shared: Shared, pool: BlockPool) -> bool:
        """Whether it may enter now. With nobody running the answer must be yes: the pool is idle then."""
        ...

    def holds(self, sequence: Sequence) -> None:
        """It entered, or took more blocks."""
        ...

    def left(self, sequence: Sequence) -> None:
        """It runs no more."""
        ...

    def tick(self, num_preempted: int) -> None:
        """A tick was planned, in which so many had to give way for want of memory."""
        ...


def reserved_blocks(policy: Admission, prompt: int, most_output: int, context: int) -> int:
    """Blocks that `policy` (any but PAGED) holds for a prompt of so many tokens and an answer of at most
    `most_output`, from its entry to its end."""
    if policy is not Admission.RESERVE_POW2:
        return blocks_for(context)
    return blocks_for(min(prompt + (1 << (most_output - 1).bit_length()), context))


def make_policy(config: EngineConfig, expected: ExpectedLength) -> AdmissionPolicy:
    if config.admission is Admission.PAGED:
        return _Paged(expected)
    return _Reserve(config.admission, config.max_model_len)


class _Paged:
    admits_whole_batches = False

    LEAST, MOST, START = 0.1, 1.0, 0.5
    """Of the share of the expected growth that is held free."""
    DECAY = 0.998
    """Per tick without preemption: from the most to the least in about 1100 ticks."""
    PENALTY = 0.2
    """Per preempted sequence."""

    def __init__(self, expected: ExpectedLength) -> None:
        self._expected = expected
        self._share = self.START
        self._needs: dict[Sequence, tuple[int, int]] = {}
        """What each running one still needs: blocks for the rest of its prompt, and tokens by which its
        answer is expected to grow. Taken anew when it takes blocks; in every tick it would cost too much."""
        self._owed_blocks = 0
        self._growth = 0

    def blocks_at_entry(self, newcomer: Sequence, first: int) -> int:
        return blocks_for(first)

    def has_room_for(self, newcomer: Sequence, shared: Shared, pool: BlockPool) -> bool:
        if not self._needs:
            return True
        # Half-computed prompts would otherwise push each other out.
        needed = blocks_for(newcomer.num_tokens) - len(shared.blocks) + pool.num_idle(shared.blocks)
        growth = self._growth + self._growth_of(newcomer)
        # Whatever is expected, each may reach into its next block at any time.
        reserve = max(len(self._needs), int(self._share * growth) // BLOCK_SIZE)
        return needed + self._owed_blocks + reserve <= pool.num_free

    def holds(self, sequence: Sequence) -> None:
        self.left(sequence)
        owed = max(0, blocks_for(sequence.num_tokens) - len(sequence.blocks))
        growth = self._growth_of(sequence)
        self._needs[sequence] = owed, growth
        self._owed_blocks += owed
        self._growth += growth

    def left(self, sequence: Sequence) -> None:
        owed, growth = self._needs.pop(sequence, (0, 0))
        self._owed_blocks -= owed
        self._growth -= growth

    def tick(self, num_preempted: int) -> None:
        if num_preempted:
            self._share = min(self.MOST, self._share + self.PENALTY * num_preempted)
        else:
            self._share = max(self.LEAST, self._share * self.DECAY)

    def _growth_of(self, sequence: Sequence) -> int:
        made = sequence.num_output_tokens
        return self._expected.remaining(made, sequence.max_output_tokens - made)


class _Reserve:
    def __init__(self, policy: Admission, context: int) -> None:
        self._policy = policy
        self._context = context
        self.admits_whole_batches = policy is Admission.STATIC

    def blocks_at_entry(self, newcomer: Sequence, first: int) -> int:
        return reserved_blocks(
            self._policy, newcomer.num_prompt_tokens, newcomer.max_output_tokens, self._context
        )

    def has_room_for(self, newcomer: Sequence, shared: Shared, pool: BlockPool) -> bool:
        needed = self.blocks_at_entry(newcomer, newcomer.num_tokens)
        return needed - len(shared.blocks) + pool.num_idle(shared.blocks) <= pool.num_free

    def holds(self, sequence: Sequence) -> None:
        """What it may need it has."""

    def left(self, sequence: Sequence) -> None:
        """Its memory comes back, and that is all."""

    def tick(self, num_preempted: int) -> None:
        """Nobody ever has to give way."""
