"""Computes a tick's batch on a GPU.

Knows: torch, the model, its KV memory, what lies on the device and what crosses to it. Does not know:
sequences, blocks' owners, why the batch is what it is, how CUDA is asked (`engine.gpu.driver`).

A tick: one copy of all inputs to the device, the forward pass, sampling behind it, one copy of the new ids
back, which is the only wait. A batch in which every sequence has one token and gets one, a decode step, is
replayed from a CUDA graph, since launching its hundreds of kernels one by one would take longer than
computing them; it is padded to the next size that was captured. Other batches run kernel by kernel: they
are long, and their shapes differ each time.

The sampled ids stay on the device, too, and the next decode step reads them there. So the host could plan
and launch it while this one still runs. It does not: whoever ends by its token would only be known to have
ended a tick later, and its blocks be freed a tick later.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from functools import partial

import numpy as np
import torch

from engine.batch import Batch, Int64, LogitEdits, Logprobs, Sampling, StepOutput
from engine.blocks import BLOCK_SIZE, blocks_for
from engine.config import EngineConfig
from engine.gpu.buckets import bucket_for, decode_buckets
from engine.gpu.driver import Cuda, Driver
from engine.gpu.rehearsal import rehearsal
from engine.gpu.rows import DeviceRows
from engine.gpu.staging import Array, Results, Staging
from engine.models.inputs import ForwardInputs, KVCache
from engine.models.llama import CausalLM

_SAMPLING = [field.name for field in fields(Sampling)]
_EDITS = [field.name for field in fields(LogitEdits)]


class GpuRunner:
    """Implements `engine.engine.Runner`. All that must stay where it is, because graphs hold its address, is
    allocated here once: KV memory, with a block more than `config.num_blocks` for what padding rows write;
    the rows' state; the inputs and the logits of decode steps.

    Args:
        kv_dtype: of KV memory.
        graphs: False: decode steps run kernel by kernel, too, unpadded.
        driver: what stands in for CUDA; None: nothing does.

    Raises:
        torch.OutOfMemoryError: this, or a batch as big as any, does not fit.
    """

    def __init__(
        self,
        model: CausalLM,
        config: EngineConfig,
        *,
        kv_dtype: torch.dtype,
        graphs: bool = True,
        driver: Driver | None = None,
    ) -> None:
        device, most = model.device, config.max_num_seqs
        self._model = model
        self._driver = driver or Cuda(device)
        self._driver.bind()
        self._kv = KVCache.allocate(model.config, config.num_blocks + 1, kv_dtype, device)
        self._rows = DeviceRows(most, blocks_for(config.max_model_len), config.num_blocks, device)
        self._staging = Staging(self._driver, device)
        self._results = Results(self._driver)
        self._steps = torch.zeros(4 * most, dtype=torch.int64, device=device)
        """Inputs of a decode step, see `_step_columns`, packed for its size."""
        self._logits = torch.empty((most, model.config.vocab_size), dtype=torch.float32, device=device)
        """What a decode step gives. One for all sizes: graphs would keep one each."""
        self._starts = torch.arange(most + 1, dtype=torch.int32, device=device)
        self._order = torch.arange(most, device=device)
        self._buckets = decode_buckets(most) if graphs else []
        self._replays: dict[int, Callable[[], None]] = {}
        # The largest first: what it needs is then enough for the others.
        for size in reversed(self._buckets):
            self._replays[size] = self._capture(size)
        # Kernels are compiled, and memory is found to be too small, here and not under somebody's request.
        # After the captures, since what these keep is gone for good.
        self.execute(rehearsal(config))
        self.reset()

    @torch.inference_mode()
    def execute(self, batch: Batch) -> StepOutput:
        """See `Runner.execute`."""
        self._driver.bind()
        for source, target in batch.copies.tolist():
            self._kv.copy(source, target)
        is_step = len(batch.rows) == len(batch.token_ids) == len(batch.sampled)
        arrays = self._rows.table_changes(batch) | _sampling_arrays(batch)
        if is_step:
            arrays |= self._rows.token_changes(batch)
            arrays["step"] = self._step_columns(batch).reshape(-1)
        else:
            arrays |= _chunk_arrays(batch)
        sent = self._staging.send(arrays)
        self._rows.write(sent)
        logits = self._step(len(batch.rows), sent) if is_step else self._chunks(batch, sent)
        if not len(batch.sampled):
            return StepOutput(np.empty(0, dtype=np.int64), None)
        return self._choose(batch, logits, sent, arrays["sampled_rows"])

    @torch.inference_mode()
    def reset(self) -> None:
        """See `Runner.reset`. What was captured stays: it is as good as before, since no address changed. A
        fault that ends the process's use of the device, as an illegal address does, cannot be survived by
        capturing anew either; the first thing asked of the device tells it.

        Raises:
            RuntimeError: the device can do no more.
        """
        self._driver.bind()
        self._driver.synchronize()
        self._kv.clear()
        self._rows.clear()

    # -- decode steps -----------------------------------------------------------------------------------

    def _step_columns(self, batch: Batch) -> Int64:
        """[4, bucket]: row, position, slot and context length of each token. Padding rows are ordinary ones
        to the kernels; they compute one token, at the first slot of the null block."""
        used = len(batch.rows)
        columns = np.empty((4, bucket_for(self._buckets, used) if self._buckets else used), dtype=np.int64)
        columns[0, :used], columns[1, :used] = batch.rows, batch.positions
        columns[2, :used], columns[3, :used] = batch.slots, batch.context_lens
        columns[:, used:] = self._padding()
        return columns

    def _padding(self) -> Int64:
        """[4, 1]"""
        return np.array([[self._rows.padding_row], [0], [self._rows.null_block * BLOCK_SIZE], [1]])

    def _step(self, used: int, sent: dict[str, torch.Tensor]) -> torch.Tensor:
        """Logits of the `used` rows that are no padding, valid until the next step."""
        columns = sent["step"]
        self._steps[: len(columns)].copy_(columns)
        size = len(columns) // 4
        if self._replays:
            self._replays[size]()
        else:
            self._compute_step(size)
        return self._logits[:used]

    def _compute_step(self, size: int) -> None:
        """What graphs capture: all it reads and leaves lies at fixed addresses."""
        rows, positions, slots, context_lens = self._steps[: 4 * size].view(4, size).unbind()
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

    @torch.inference_mode()
    def _capture(self, size: int) -> Callable[[], None]:
        padding = torch.from_numpy(self._padding().repeat(size, axis=1)).view(-1)
        self._steps[: len(padding)].copy_(padding)
        return self._driver.capture(partial(self._compute_step, size))

    # -- other batches, and what is common --------------------------------------------------------------

    def _chunks(self, batch: Batch, sent: dict[str, torch.Tensor]) -> torch.Tensor:
        tables = self._rows.tables[:, : batch.block_tables.shape[1]].index_select(0, sent["rows"])
        inputs = ForwardInputs(
            block_tables=tables, **{name: sent[name] for name in _CHUNK_FIELDS if name != "rows"}
        )
        return self._model.forward(inputs, self._kv)

    def _choose(
        self, batch: Batch, logits: torch.Tensor, sent: dict[str, torch.Tensor], rows: Array
    ) -> StepOutput:
        """Samples for `rows`, and fetches what it gave."""
        kernels = self._model.kernels
        # Taken before the edits: log probabilities are those of the model's own logits.
        raw = logits.index_select(0, sent["told"]) if "told" in sent else None
        if batch.edits is not None:
            kernels.edit_logits(logits, *(sent[name] for name in _EDITS))
        ids = kernels.sample(logits, *(sent[name] for name in _SAMPLING))
        self._rows.feed(sent["sampled_rows"], ids)
        found = [ids]
        if raw is not None:
            found += kernels.logprobs(raw, ids.index_select(0, sent["told"]), int(batch.num_logprobs.max()))
        chosen, *logprobs = self._results.fetch(found)
        self._rows.fed(rows, chosen)
        if not logprobs:
            return StepOutput(chosen, None)
        return StepOutput(chosen, Logprobs(np.flatnonzero(batch.num_logprobs >= 0), *logprobs))


_CHUNK_FIELDS = ("rows", "token_ids", "positions", "slots", "query_start", "context_lens", "sampled")


def _chunk_arrays(batch: Batch) -> dict[str, Array]:
    return {name: getattr(batch, name) for name in _CHUNK_FIELDS}


def _sampling_arrays(batch: Batch) -> dict[str, Array]:
    """All that follows the forward pass, if anything is sampled."""
    if not len(batch.sampled):
        return {}
    owners = np.searchsorted(batch.query_start[1:], batch.sampled, side="right")
    arrays: dict[str, Array] = {"sampled_rows": batch.rows[owners]}
    arrays |= {name: getattr(batch.sampling, name) for name in _SAMPLING}
    if len(told := np.flatnonzero(batch.num_logprobs >= 0)):
        arrays["told"] = told
    if batch.edits is not None:
        arrays |= {name: getattr(batch.edits, name) for name in _EDITS}
    return arrays
