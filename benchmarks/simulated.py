"""A model that computes next to nothing, for schedules of machines that are not there.

Knows: batches, KV slots, what a tick costs by its shape. Does not know: tensors, schedulers, real time.

Like the tests' fake model, its next token follows from what stands in KV memory as read back through the
block table, so a scheduler that mixes sequences up changes the texts. It is made to be cheap: each slot holds
a running sum over all tokens up to its own, so a tick is a few numpy operations.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from benchmarks.drive import SimulatedTime
from engine.batch import Batch, StepOutput
from engine.blocks import BLOCK_SIZE

_NOWHERE = -1


@dataclass(frozen=True, slots=True)
class Cost:
    """What a tick costs, in units of time."""

    fixed: float
    per_row: float
    """Of a sequence that computes one token."""
    per_prompt_token: float
    """Of a sequence that computes several."""

    def of(self, counts: NDArray[np.int32]) -> float:
        """`counts`: tokens of each sequence in the tick."""
        rows = int((counts == 1).sum())
        return self.fixed + self.per_row * rows + self.per_prompt_token * (int(counts.sum()) - rows)


GPU_LIKE = Cost(1, 0.004, 0.0015)
"""A decode tick reads the weights, whatever the number of rows; a unit is one such tick."""
CPU_LIKE = Cost(1, 0.07, 0.07)
"""Shaped like our default model on two cores: 16 rows cost twice as much as one."""


class SimulatedRunner:
    """Implements `engine.engine.Runner`.

    Args:
        vocabulary: tokens are 0 to this, exclusively.
    """

    def __init__(self, num_blocks: int, vocabulary: int, clock: SimulatedTime, cost: Cost) -> None:
        self._vocabulary = np.uint64(vocabulary)
        self._clock = clock
        self._cost = cost
        self._sums = np.zeros(num_blocks * BLOCK_SIZE, dtype=np.uint64)
        self._positions = np.empty(num_blocks * BLOCK_SIZE, dtype=np.int64)
        self.reset()

    def execute(self, batch: Batch) -> StepOutput:
        """See `Runner.execute`.

        Raises:
            RuntimeError: what stands before a sequence's tokens is not its own.
        """
        for source, target in (batch.copies[:, :, None] * BLOCK_SIZE + np.arange(BLOCK_SIZE)).tolist():
            self._sums[target], self._positions[target] = self._sums[source], self._positions[source]
        counts = np.diff(batch.query_start)
        self._clock.advance(self._cost.of(counts))

        mixed = _mix(batch.token_ids.astype(np.uint64) << np.uint64(20) | batch.positions.astype(np.uint64))
        sums, first = np.cumsum(mixed, dtype=np.uint64), batch.query_start[:-1]
        sums += np.repeat(self._sums_before(batch) - (sums[first] - mixed[first]), counts)
        self._sums[batch.slots], self._positions[batch.slots] = sums, batch.positions
        ids = _mix(sums[batch.sampled]) % self._vocabulary
        return StepOutput(ids.astype(np.int64), None)

    def reset(self) -> None:
        """See `Runner.reset`."""
        self._positions[:] = _NOWHERE

    def _sums_before(self, batch: Batch) -> NDArray[np.uint64]:
        """Of each sequence, the sum over the tokens before its first in this batch: 0 at its beginning."""
        last = batch.positions[batch.query_start[:-1]] - 1
        blocks = batch.block_tables[np.arange(len(last)), np.maximum(last, 0) // BLOCK_SIZE]
        slots = blocks.astype(np.int64) * BLOCK_SIZE + last % BLOCK_SIZE
        if ((self._positions[slots] != last) & (last >= 0)).any():
            raise RuntimeError("KV memory read through the block table is not this sequence's")
        return np.where(last >= 0, self._sums[slots], np.uint64(0))


def _mix(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The finaliser of splitmix64 (Steele et al., OOPSLA 2014): every bit depends on every bit."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))
