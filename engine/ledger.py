"""Where the KV memory is: what each token slot is good for, now and over the ticks.

Knows: how many blocks each sequence holds, how many of its slots are filled, how far it can still grow, and
the pool's counts. Does not know: block numbers, why anything is allocated, time.

The split of waste is PagedAttention's (Kwon et al., SOSP 2023, section 3.1), and the measure is its own:
slots that hold computed keys and values over slots that are allocated, both summed over ticks. External
fragmentation, memory that is free but of no use, is 0 by construction: a block table takes any free block,
so an allocation fails only where too few are free.

Every call costs O(1). Only full blocks are ever held by several, and they count once: each holder counts its
own tokens, and the pool's number of surplus holds is taken off again.
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
    def external(self) -> int:
        """Slots that were free and yet of no use. There are none: any free block will do for any table."""
        return 0

    @property
    def allocated(self) -> int:
        return self.used + self.reserved + self.internal

    @property
    def utilisation(self) -> float:
        """Of the slots that were allocated, the share that held keys and values. 1 where none were."""
        return self.used / self.allocated if self.allocated else 1.0


class MemoryLedger:
    """Is told when sequences take, fill and give back memory.

    Calls for one sequence: `admitted`, then any of `grew` and `computed`, perhaps `ended_but_held`, then
    `released`; and from the start again if it was preempted.
    """

    def __init__(self) -> None:
        self._filled = 0
        self._internal = 0
        self._lost: dict[Sequence, int] = {}
        """Ended sequences that still hold memory -> the slots of it that they never filled."""
        self._ticks = 0
        self._sums = [0, 0, 0]

    def admitted(self, sequence: Sequence) -> None:
        """It holds its first blocks; what it shares of them counts as computed already."""
        self._filled += sequence.num_computed
        self._internal += _out_of_reach(sequence, len(sequence.blocks))

    def grew(self, sequence: Sequence, blocks_before: int) -> None:
        """It took blocks, and had `blocks_before` of them."""
        self._internal += _out_of_reach(sequence, len(sequence.blocks)) - _out_of_reach(
            sequence, blocks_before
        )

    def computed(self, count: int) -> None:
        """The keys and values of `count` more tokens of somebody were written. Padding behind the end of an
        answer is no token."""
        self._filled += count

    def ended_but_held(self, sequence: Sequence) -> None:
        """It has ended and keeps its blocks, for its batch has not: what it did not fill is lost."""
        self._lost[sequence] = len(sequence.blocks) * BLOCK_SIZE - sequence.num_computed
        self._internal += self._lost[sequence] - _out_of_reach(sequence, len(sequence.blocks))

    def released(self, sequence: Sequence) -> None:
        """It is about to give its blocks back."""
        self._filled -= sequence.num_computed
        lost = self._lost.pop(sequence, None)
        self._internal -= _out_of_reach(sequence, len(sequence.blocks)) if lost is None else lost

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


def _out_of_reach(sequence: Sequence, num_blocks: int) -> int:
    """Slots of its first `num_blocks` blocks that it can never fill. The last token of an answer is sampled,
    but never computed."""
    reach = sequence.num_prompt_tokens + sequence.max_output_tokens - 1
    return max(0, num_blocks * BLOCK_SIZE - reach)
