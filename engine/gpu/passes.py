"""Forward passes, replayed from graphs where their size was captured.

Knows: the model, which inputs each kind of batch has, how it is padded to a captured size. Does not know:
CUDA, how inputs reach the device, what becomes of the logits.

A pass is hundreds of kernels, and launching them one by one takes the host longer than a small one takes the
device. What a kernel of ours does follows from shapes alone, attention over prompts included, and whose
tokens they are is read on the device: so one graph serves all batches of its size.

All that a captured pass reads and leaves lies at addresses that never change.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import TypeVar

import numpy as np
import torch

from engine.batch import Batch, Int64
from engine.blocks import BLOCK_SIZE
from engine.gpu.buckets import bucket_for
from engine.gpu.driver import Driver
from engine.gpu.rows import DeviceRows
from engine.models.inputs import ForwardInputs, KVCache
from engine.models.llama import CausalLM

Packed = TypeVar("Packed", Int64, torch.Tensor)

Replays = dict[int, Callable[[], None]]
"""Size -> what computes a pass of it."""


class Steps:
    """Decode steps: every sequence has one token, and gets one. They are padded with rows that are ordinary
    ones to the kernels; each computes one token, at the first slot of the null block.

    Args:
        most: sequences in a batch.
    """

    def __init__(self, model: CausalLM, kv: KVCache, rows: DeviceRows, most: int) -> None:
        device = model.device
        self._model, self._kv, self._rows = model, kv, rows
        self._inputs = torch.zeros(4 * most, dtype=torch.int64, device=device)
        """[4, size] of the size that runs: row, position, slot and context length of each token."""
        self._logits = torch.empty((most, model.config.vocab_size), dtype=torch.float32, device=device)
        """What a pass gives. One for all sizes: graphs would keep one each."""
        self._starts = torch.arange(most + 1, dtype=torch.int32, device=device)
        self._order = torch.arange(most, device=device)
        self._replays: Replays = {}
        self._sizes: list[int] = []

    def capture(self, driver: Driver, sizes: list[int]) -> None:
        """`sizes` ascend to the most sequences."""
        self._sizes = sizes
        for size in _largest_first(sizes):
            self._write(torch.from_numpy(self._pad(np.empty((4, size), dtype=np.int64), 0)))
            self._replays[size] = driver.capture(partial(self._compute, size))

    def pack(self, batch: Batch) -> Int64:
        """What `logits` must be given, on the device."""
        used = len(batch.rows)
        columns = np.empty((4, bucket_for(self._sizes, used) or used), dtype=np.int64)
        columns[0, :used], columns[1, :used] = batch.rows, batch.positions
        columns[2, :used], columns[3, :used] = batch.slots, batch.context_lens
        return self._pad(columns, used)

    def logits(self, batch: Batch, packed: torch.Tensor) -> torch.Tensor:
        """fp32 [R, vocab_size], valid until the next pass. The tokens are those that the rows were fed."""
        self._write(packed)
        size = len(packed) // 4
        if size in self._replays:
            self._replays[size]()
        else:
            self._compute(size)
        return self._logits[: len(batch.rows)]

    def _pad(self, columns: Int64, used: int) -> Int64:
        rows = self._rows
        columns[:, used:] = [[rows.padding_row], [0], [rows.null_block * BLOCK_SIZE], [1]]
        return columns.reshape(-1)

    def _write(self, packed: torch.Tensor) -> None:
        self._inputs[: len(packed)].copy_(packed)

    @torch.inference_mode()
    def _compute(self, size: int) -> None:
        rows, positions, slots, context_lens = self._inputs[: 4 * size].view(4, size).unbind()
        inputs = ForwardInputs(
            token_ids=self._rows.last_tokens.index_select(0, rows),
            positions=positions,
            slots=slots,
            query_start=self._starts[: size + 1],
            context_lens=context_lens.int(),
            block_tables=self._rows.tables.index_select(0, rows),
            sampled=self._order[:size],
        )
        self._logits[:size] = self._model.forward(inputs, self._kv)


class Chunks:
    """All other batches. A size is a number of tokens, and goes with as many sequences as there may be, and
    one more: those that a batch does not have share the tokens that are padding. All of these go to one slot
    of the null block, which has any of them then.

    The logits are no part of a pass: they are of few tokens, whose number has nothing to do with the size.

    Args:
        most: sequences in a batch.
    """

    def __init__(self, model: CausalLM, kv: KVCache, rows: DeviceRows, most: int) -> None:
        self._model, self._kv, self._rows = model, kv, rows
        self._num_sequences = most + 1
        self._inputs = torch.empty(0, dtype=torch.int64, device=model.device)
        """As `_views` takes it apart."""
        self._hidden = torch.empty(0, dtype=model.dtype, device=model.device)
        """[2, largest size, hidden_size]: what `CausalLM.hidden` gives."""
        self._replays: Replays = {}
        self._sizes: list[int] = []

    def capture(self, driver: Driver, sizes: list[int]) -> None:
        """`sizes` ascend; a batch that none of them holds is computed kernel by kernel."""
        self._sizes = sizes
        # As many tokens as sequences mean one of each to attention, which has other tiles for that.
        while self._num_sequences in sizes:
            self._num_sequences += 1
        self._inputs = self._inputs.new_empty(_num_inputs(sizes[-1], self._num_sequences))
        self._hidden = self._hidden.new_empty((2, sizes[-1], self._model.config.hidden_size))
        for size in _largest_first(sizes):
            self._write(torch.from_numpy(self._pad(size, 0, 0)))
            self._replays[size] = driver.capture(partial(self._compute, size))

    def pack(self, batch: Batch) -> Int64:
        """What `logits` must be given, on the device."""
        used, present = len(batch.token_ids), len(batch.rows)
        size = bucket_for(self._sizes, used)
        if size is None:
            packed = np.empty(_num_inputs(used, present), dtype=np.int64)
            tokens, sequences, starts = _views(packed, used, present)
        else:
            packed = self._pad(size, used, present)
            tokens, sequences, starts = _views(packed, size, self._num_sequences)
        tokens[0, :used], tokens[1, :used], tokens[2, :used] = batch.token_ids, batch.positions, batch.slots
        sequences[0, :present], sequences[1, :present] = batch.rows, batch.context_lens
        starts[: present + 1] = batch.query_start
        return packed

    def logits(self, batch: Batch, packed: torch.Tensor, sampled: torch.Tensor) -> torch.Tensor:
        """fp32 [R, vocab_size]."""
        used, present = len(batch.token_ids), len(batch.rows)
        size = bucket_for(self._sizes, used)
        if size is None:
            hidden = self._forward(packed, used, present, batch.block_tables.shape[1])
            return self._model.logits(*hidden, sampled)
        self._write(packed)
        self._replays[size]()
        return self._model.logits(self._hidden[0, :size], self._hidden[1, :size], sampled)

    def _pad(self, size: int, used: int, present: int) -> Int64:
        """Inputs of which the first `used` tokens and `present` sequences are still to be filled in."""
        packed = np.empty(_num_inputs(size, self._num_sequences), dtype=np.int64)
        tokens, sequences, starts = _views(packed, size, self._num_sequences)
        tokens[:, used:] = [[0], [0], [self._rows.null_block * BLOCK_SIZE]]
        absent = self._num_sequences - present
        starts[present:] = used + (size - used) * np.arange(absent + 1) // absent
        sequences[0, present:] = self._rows.padding_row
        sequences[1, present:] = np.maximum(np.diff(starts[present:]), 1)
        return packed

    def _write(self, packed: torch.Tensor) -> None:
        self._inputs[: len(packed)].copy_(packed)

    @torch.inference_mode()
    def _compute(self, size: int) -> None:
        packed = self._inputs[: _num_inputs(size, self._num_sequences)]
        output, residual = self._forward(packed, size, self._num_sequences, self._rows.tables.shape[1])
        self._hidden[0, :size], self._hidden[1, :size] = output, residual

    def _forward(
        self, packed: torch.Tensor, size: int, num_sequences: int, table_width: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        tokens, sequences, starts = _views(packed, size, num_sequences)
        token_ids, positions, slots = tokens.unbind()
        rows, context_lens = sequences.unbind()
        inputs = ForwardInputs(
            token_ids=token_ids,
            positions=positions,
            slots=slots,
            query_start=starts.int(),
            context_lens=context_lens.int(),
            block_tables=self._rows.tables[:, :table_width].index_select(0, rows),
            sampled=starts[:0],
        )
        return self._model.hidden(inputs, self._kv)


def _num_inputs(size: int, num_sequences: int) -> int:
    return 3 * size + 3 * num_sequences + 1


def _views(packed: Packed, size: int, num_sequences: int) -> tuple[Packed, Packed, Packed]:
    """[3, size]: token id, position and slot; [2, S]: row and context length; [S + 1]: query_start."""
    end = 3 * size + 2 * num_sequences
    tokens, sequences = packed[: 3 * size], packed[3 * size : end]
    return tokens.reshape(3, size), sequences.reshape(2, num_sequences), packed[end:]


def _largest_first(sizes: list[int]) -> Iterable[int]:
    """What the largest needs is then enough for the others."""
    return reversed(sizes)
