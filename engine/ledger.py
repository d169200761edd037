"""Where the KV memory is: what each token slot is good for, now and over the ticks.

Knows: how many blocks each sequence holds, how many of its slots are filled, how far it can still grow, and
the pool's counts. Does not know: block numbers, why anything is allocated, time.

The split of waste is PagedAttention's (Kwon et al., SOSP 2023, section 3.1), and the measure is its own:
slots that hold computed keys and values over slots that are allocated, both summed over ticks. External
fragmentation, memory that is free but of no use, is 0 by construction: a block table takes any free block,
so an allocation fails only where too few are free.

Every call costs O(1). A block that several hold counts once: each holder counts it as filled, and the pool's
number of surplus holds is taken off again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from engine.blocks import BLOCK_SIZE
from engine.request import Sequence


class PoolCounts(Protocol):
    """What the ledger asks of the block pool."""

    @property
    def num_blocks(self) -> int: ...

    @property
    def num_free(self) -> int:
        """Blocks that can be allocated, those with kept content included."""
        ...

    @property
    def num_cached(self) -> int:
        """Blocks that nobody holds, kept for their content."""
        ...

    @property
    def num_shared(self) -> int:
        """Holds beyond the first, summed over all blocks."""
        ...


@dataclass(frozen=True, slots=True)
class MemoryTruth:
    """Token slots by what they are good for. The five kinds add up to `total`."""

    total: int
    used: int
    """Of held blocks: they hold computed keys and values."""
    reserved: int
    """Of held blocks: empty, and their holder may still fill them."""
    internal: int
    """Of held blocks: nobody can ever fill them."""
    cached: int
    """Of idle blocks that are kept for their content; whoever needs a block may take them."""
    free: int

    @property
    def allocated(self) -> int:
        return self.used + self.reserved + self.internal


@dataclass(frozen=True, slots=True)
class MemoryOverTicks:
    """Token slots as in `MemoryTruth`, summed over ticks."""

    ticks: int
    used: int
    reserved: int
    internal: int

    @property
    def allocated(self) -> int:
        return self.used + self.reserved + self.internal

    @property
    def utilisation(self) -> float:
        """Of the slots that were allocated, the share that held keys and values. 1 where none were."""
        return self.used / self.allocated if self.allocated else 1.0


@dataclass(slots=True)
class _Holding:
    """What one sequence adds to the sums, in slots."""

    computed: int
    borrowed: int
    """Slots of a shared tail block that count as filled, see `MemoryLedger`."""
    held: int
    reach: int
    """How many of its tokens can ever be computed."""
    has_ended: bool = False

    @property
    def filled(self) -> int:
        return self.computed + self.borrowed

    @property
    def internal(self) -> int:
        return max(0, self.held - max(self.reach, self.filled))


class MemoryLedger:
    """Is told when sequences take, fill and give back memory.

    Calls for one sequence: `admitted`, then any of `grew` and `computed`, perhaps `ended_but_held`, then
    `released`; and from the start again if it was preempted. Any order else is a KeyError.

    A tail block that a fork shares with its source, neither having written to it, counts as full for the
    fork until the fork computes a token. That is exact while both hold the block. Between the source's
    copying it and the fork's first token, which come in one tick as a rule, it is 15 slots too many at most.
    A fork can grow as far as its source: it is another answer to the same request.
    """

    def __init__(self) -> None:
        self._holdings: dict[Sequence, _Holding] = {}
        self._filled = 0
        self._internal = 0
        self._ticks = 0
        self._sums = [0, 0, 0]

    def admitted(self, sequence: Sequence) -> None:
        """It holds its first blocks; what it shares of them counts as computed already."""
        computed = sequence.num_computed
        borrowed = -computed % BLOCK_SIZE if sequence.shares_tail else 0
        # The last token of an answer is sampled, but never computed.
        reach = sequence.num_prompt_tokens + sequence.max_output_tokens - 1
        holding = _Holding(computed, borrowed, len(sequence.blocks) * BLOCK_SIZE, reach)
        self._holdings[sequence] = holding
        self._filled += holding.filled
        self._internal += holding.internal

    def grew(self, sequence: Sequence, blocks_before: int) -> None:
        """It took blocks, and had `blocks_before` of them."""
        holding = self._holdings[sequence]
        before = holding.internal
        holding.held += (len(sequence.blocks) - blocks_before) * BLOCK_SIZE
        self._internal += holding.internal - before

    def computed(self, sequence: Sequence, count: int) -> None:
        """The keys and values of `count` more of its tokens were written. Padding behind the end of an answer
        is none of its tokens."""
        holding = self._holdings[sequence]
        if holding.has_ended:
            return
        internal, filled = holding.internal, holding.filled
        holding.computed += count
        holding.borrowed = 0
        self._internal += holding.internal - internal
        self._filled += holding.filled - filled

    def ended_but_held(self, sequence: Sequence) -> None:
        """It has ended and keeps its blocks, for its batch has not: what it did not fill is lost."""
        holding = self._holdings[sequence]
        before = holding.internal
        holding.reach, holding.has_ended = holding.computed, True
        self._internal += holding.internal - before

    def released(self, sequence: Sequence) -> None:
        """It is about to give its blocks back."""
        holding = self._holdings.pop(sequence)
        self._filled -= holding.filled
        self._internal -= holding.internal

    def tick(self, pool: PoolCounts) -> MemoryTruth:
        """Adds the state at the end of a tick to the sums, and returns it."""
        truth = self.truth(pool)
        self._ticks += 1
        for index, slots in enumerate((truth.used, truth.reserved, truth.internal)):
            self._sums[index] += slots
        return truth

    def over_ticks(self) -> MemoryOverTicks:
        """The sums over all ticks so far."""
        return MemoryOverTicks(self._ticks, *self._sums)

    def truth(self, pool: PoolCounts) -> MemoryTruth:
        """Where the memory is now. To be asked between two ticks, by whoever makes them."""
        used = self._filled - pool.num_shared * BLOCK_SIZE
        allocated = (pool.num_blocks - pool.num_free) * BLOCK_SIZE
        return MemoryTruth(
            total=pool.num_blocks * BLOCK_SIZE,
            used=used,
            reserved=allocated - used - self._internal,
            internal=self._internal,
            cached=pool.num_cached * BLOCK_SIZE,
            free=(pool.num_free - pool.num_cached) * BLOCK_SIZE,
        )
