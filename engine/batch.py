"""Turns a tick's plan into the flat arrays that a forward pass reads.

Knows: sequences, block tables, numpy. Does not know: torch, devices, models, how a token is chosen.

A batch is flat: the scheduled tokens of all sequences one behind the other, no padding. A decode step
is a run of one token, a prompt chunk a longer run; nothing distinguishes them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from engine.blocks import BLOCK_SIZE
from engine.edits import RowEdits, edits_of
from engine.request import Sequence
from engine.scheduler import Plan

Int32 = NDArray[np.int32]
Int64 = NDArray[np.int64]
Float32 = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Sampling:
    """How to choose the new tokens: one entry per sampled row, R in all. Ranges as in `SamplingParams`."""

    temperature: Float32
    top_p: Float32
    top_k: Int32
    min_p: Float32
    seed: Int64
    position: Int64
    """Index of the new token in its sequence. With the seed it keys the draw, so that a draw depends on
    neither the company nor the history of chunks and preemptions."""


@dataclass(frozen=True, slots=True)
class LogitEdits:
    """What changes the logits before a token is chosen; see `engine.sampling` for the meaning and the order.

    Sparse: of row r, list x has the entries `x_start[r]:x_start[r + 1]`. No id appears twice in one row's
    list, except in `banned_ids`.
    """

    bias_start: Int32
    """[R + 1]"""
    bias_ids: Int32
    bias: Float32
    seen_start: Int32
    """[R + 1]; empty for rows without penalties."""
    seen_ids: Int32
    """The tokens of prompt and answer, each once, in any order."""
    seen_counts: Int32
    """How often the answer, not the prompt, holds each."""
    presence: Float32
    """[R]"""
    frequency: Float32
    """[R]"""
    repetition: Float32
    """[R]"""
    allowed_start: Int32
    """[R + 1]; a row without entries may choose any token."""
    allowed_ids: Int32
    banned_start: Int32
    """[R + 1]"""
    banned_ids: Int32


@dataclass(frozen=True, slots=True)
class Batch:
    """One tick's input: T tokens of S sequences, R of which get a new token.

    Sequence `s` owns the tokens `query_start[s]:query_start[s + 1]`.
    """

    rows: Int64
    """[S] where each sequence stands: no other has this row while it runs."""
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
    """[R] indices into T: the last token of each sequence that catches up with its tokens in this tick."""
    sampling: Sampling
    edits: LogitEdits | None
    """None: no row needs any."""
    num_logprobs: Int32
    """[R] how many of the likeliest tokens to tell about; -1 for rows that want no log probabilities."""
    copies: Int64
    """[C, 2] blocks to copy, source and target, one after the other in this order, before anything else."""


@dataclass(frozen=True, slots=True)
class Logprobs:
    """Log probabilities of L of the R sampled rows, natural logarithms of the softmax of the model's own
    logits; -9999.0 is the least."""

    rows: Int64
    """[L] ascending indices into R."""
    chosen: Float32
    """[L] of the chosen token."""
    top_ids: Int32
    """[L, K] the likeliest tokens, likeliest first (equals: lower ids first). K is the most that any row
    wants; -1 beyond the vocabulary."""
    top: Float32
    """[L, K]"""


NOT_A_NUMBER = -1
NOTHING_ALLOWED = -2


@dataclass(frozen=True, slots=True)
class StepOutput:
    """What a forward pass gave."""

    ids: Int64
    """[R] new token ids, one for each of `Batch.sampled`; NOT_A_NUMBER where the model's logits were not
    finite, NOTHING_ALLOWED where the edits excluded every token."""
    logprobs: Logprobs | None
    """None: no row wanted any."""


class BatchBuilder:
    """Keeps what rarely changes about each row, and builds batches from it.

    Args:
        num_rows: sequences that may run at once.
        max_blocks: longest block table.
        eos_ids: the model's end tokens.
    """

    def __init__(self, num_rows: int, max_blocks: int, eos_ids: frozenset[int]) -> None:
        self._eos_ids = eos_ids
        self._tables = np.zeros((num_rows, max_blocks), dtype=np.int32)
        self._known = np.zeros(num_rows, dtype=np.int64)
        """Blocks of each row that the table already holds: tables only grow while a row has its owner."""
        self._temperature = np.zeros(num_rows, dtype=np.float32)
        self._top_p = np.zeros(num_rows, dtype=np.float32)
        self._top_k = np.zeros(num_rows, dtype=np.int32)
        self._min_p = np.zeros(num_rows, dtype=np.float32)
        self._seed = np.zeros(num_rows, dtype=np.int64)
        self._presence = np.zeros(num_rows, dtype=np.float32)
        self._frequency = np.zeros(num_rows, dtype=np.float32)
        self._repetition = np.ones(num_rows, dtype=np.float32)
        self._num_logprobs = np.zeros(num_rows, dtype=np.int32)
        self._edits: dict[int, RowEdits] = {}
        """Row -> what its sequence does to its logits; most do nothing."""
        self._is_edited = np.zeros(num_rows, dtype=np.bool_)
        """The rows in `_edits`, so that a batch without any is recognised at once."""

    def enter(self, sequence: Sequence) -> None:
        """Takes note of a sequence that was admitted to its row; before `build`, and once for each time that
        it is admitted.

        Raises:
            OverflowError: its parameters name an id that is no 32-bit number. No other row is touched.
        """
        row, params = sequence.row, sequence.request.sampling
        edits = edits_of(sequence, self._eos_ids)
        self._is_edited[row] = edits is not None
        if edits is not None:
            self._edits[row] = edits
        self._known[row] = 0
        self._temperature[row] = params.temperature
        self._top_p[row] = params.top_p
        self._top_k[row] = params.top_k
        self._min_p[row] = params.min_p
        self._seed[row] = sequence.seed
        self._presence[row] = params.presence_penalty
        self._frequency[row] = params.frequency_penalty
        self._repetition[row] = params.repetition_penalty
        self._num_logprobs[row] = -1 if params.logprobs is None else params.logprobs

    def build(self, plan: Plan) -> Batch:
        """Arrays for the plan's scheduled sequences, of which there is at least one, and all of which have
        entered. Call once per plan, before `num_computed` moves on."""
        token_ids: list[int] = []
        for sequence, count in plan.scheduled.items():
            self._sync_table(sequence)
            token_ids.extend(sequence.tokens[sequence.num_computed : sequence.num_computed + count])

        counts = np.fromiter(plan.scheduled.values(), dtype=np.int64)
        computed = np.array([s.num_computed for s in plan.scheduled], dtype=np.int64)
        known = np.array([s.num_tokens for s in plan.scheduled], dtype=np.int64)
        rows = np.array([s.row for s in plan.scheduled], dtype=np.int64)
        query_start = np.zeros(len(rows) + 1, dtype=np.int64)
        np.cumsum(counts, out=query_start[1:])

        positions = np.arange(query_start[-1]) + np.repeat(computed - query_start[:-1], counts)
        blocks = self._tables[np.repeat(rows, counts), positions // BLOCK_SIZE].astype(np.int64)
        context_lens = computed + counts
        is_sampled = context_lens == known
        sampled_rows = rows[is_sampled]
        return Batch(
            rows=rows,
            token_ids=np.array(token_ids, dtype=np.int64),
            positions=positions,
            slots=blocks * BLOCK_SIZE + positions % BLOCK_SIZE,
            query_start=query_start.astype(np.int32),
            context_lens=context_lens.astype(np.int32),
            block_tables=self._tables[rows, : -(-int(context_lens.max()) // BLOCK_SIZE)],
            sampled=(query_start[1:] - 1)[is_sampled],
            sampling=self._sampling(sampled_rows, known[is_sampled]),
            edits=self._logit_edits(plan, sampled_rows) if self._is_edited[sampled_rows].any() else None,
            num_logprobs=self._num_logprobs[sampled_rows],
            copies=np.array(plan.copies, dtype=np.int64).reshape(-1, 2),
        )

    def _sync_table(self, sequence: Sequence) -> None:
        row, known = sequence.row, self._known[sequence.row]
        if known < len(sequence.blocks):
            self._tables[row, known : len(sequence.blocks)] = sequence.blocks[known:]
            self._known[row] = len(sequence.blocks)

    def _sampling(self, rows: Int64, position: Int64) -> Sampling:
        return Sampling(
            temperature=self._temperature[rows],
            top_p=self._top_p[rows],
            top_k=self._top_k[rows],
            min_p=self._min_p[rows],
            seed=self._seed[rows],
            position=position,
        )

    def _logit_edits(self, plan: Plan, rows: Int64) -> LogitEdits | None:
        """For the sampled `rows`, of which at least one is edited."""
        owners = {sequence.row: sequence for sequence in plan.scheduled}
        places = np.flatnonzero(self._is_edited[rows])
        lists = [self._edits[row].now(owners[row]) for row in rows[places].tolist()]
        if not any(len(entries) for row_lists in lists for entries in row_lists):
            return None

        def starts(lengths: list[int]) -> Int32:
            ends = np.zeros(len(rows) + 1, dtype=np.int32)
            ends[places + 1] = lengths
            return np.cumsum(ends, dtype=np.int32)

        return LogitEdits(
            bias_start=starts([len(x.bias_ids) for x in lists]),
            bias_ids=np.concatenate([x.bias_ids for x in lists]),
            bias=np.concatenate([x.bias for x in lists]),
            seen_start=starts([len(x.seen_ids) for x in lists]),
            seen_ids=np.concatenate([x.seen_ids for x in lists]),
            seen_counts=np.concatenate([x.seen_counts for x in lists]),
            presence=self._presence[rows],
            frequency=self._frequency[rows],
            repetition=self._repetition[rows],
            allowed_start=starts([len(x.allowed_ids) for x in lists]),
            allowed_ids=np.concatenate([x.allowed_ids for x in lists]),
            banned_start=starts([len(x.banned_ids) for x in lists]),
            banned_ids=np.concatenate([x.banned_ids for x in lists]),
        )
