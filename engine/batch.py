"""Turns a tick's plan into the flat arrays that a forward pass reads.

Knows: sequences, block tables, numpy. Does not know: torch, devices, models, sampling.

A batch is flat: the scheduled tokens of all sequences one behind the other, no padding. A decode step
is a run of one token, a prompt chunk a longer run; nothing distinguishes them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from engine.blocks import BLOCK_SIZE
from engine.request import Sequence

Int32 = NDArray[np.int32]
Int64 = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Batch:
    """One tick's input: T tokens of S sequences, R of which get a new token.

    Sequence `s` owns the tokens `query_start[s]:query_start[s + 1]`.
    """

    token_ids: Int64
    """[T]"""
    positions: Int64
    """[T] index of each token in its sequence."""
    slots: Int64
    """[T] where each token's key and value go: block * BLOCK_SIZE + offset."""
    query_start: Int32
    """[S + 1] ascending, from 0 to T."""
    context_lens: Int32
    """[S] tokens in KV memory once this tick has run, the scheduled ones included."""
    block_tables: Int32
    """[S, W] physical blocks; only the first ceil(context_lens / BLOCK_SIZE) of a row mean anything."""
    sampled: Int64
    """[R] indices into T: the last token of each sequence whose prompt is wholly computed by this tick."""


class BatchBuilder:
    """Keeps the block tables of all rows and builds batches from them.

    Args:
        num_rows: sequences that may run at once.
        max_blocks: longest block table.
    """

    def __init__(self, num_rows: int, max_blocks: int) -> None:
        self._tables = np.zeros((num_rows, max_blocks), dtype=np.int32)
        self._known = np.zeros(num_rows, dtype=np.int64)
        """Blocks of each row that the table already holds; tables only grow while a row is owned."""
        self._owners: list[Sequence | None] = [None] * num_rows

    def build(self, scheduled: Iterable[tuple[Sequence, int]]) -> Batch:
        """Arrays for `scheduled`: sequences with the number of tokens each computes in this tick."""
        pairs = list(scheduled)
        token_ids: list[int] = []
        for sequence, count in pairs:
            self._sync_row(sequence)
            token_ids.extend(sequence.tokens[sequence.num_computed : sequence.num_computed + count])

        counts = np.array([count for _, count in pairs], dtype=np.int64)
        computed = np.array([sequence.num_computed for sequence, _ in pairs], dtype=np.int64)
        rows = np.array([sequence.row for sequence, _ in pairs], dtype=np.int64)
        query_start = np.zeros(len(pairs) + 1, dtype=np.int64)
        np.cumsum(counts, out=query_start[1:])

        positions = np.arange(query_start[-1]) + np.repeat(computed - query_start[:-1], counts)
        token_rows = np.repeat(rows, counts)
        blocks = self._tables[token_rows, positions // BLOCK_SIZE].astype(np.int64)
        context_lens = computed + counts
        width = -(-int(context_lens.max()) // BLOCK_SIZE)
        is_sampled = np.array([sequence.num_uncomputed == count for sequence, count in pairs], dtype=bool)
        return Batch(
            token_ids=np.array(token_ids, dtype=np.int64),
            positions=positions,
            slots=blocks * BLOCK_SIZE + positions % BLOCK_SIZE,
            query_start=query_start.astype(np.int32),
            context_lens=context_lens.astype(np.int32),
            block_tables=self._tables[rows, :width],
            sampled=(query_start[1:] - 1)[is_sampled],
        )

    def _sync_row(self, sequence: Sequence) -> None:
        """Copy the blocks that the sequence got since its last tick into its row."""
        row = sequence.row
        if self._owners[row] is not sequence or sequence.num_computed == 0:
            self._owners[row] = sequence
            self._known[row] = 0
        known, blocks = self._known[row], sequence.blocks
        if known < len(blocks):
            self._tables[row, known : len(blocks)] = blocks[known:]
            self._known[row] = len(blocks)
