"""Computes a tick's batch on a GPU.

Knows: torch, the model, its KV memory, what lies on the device and what crosses to it. Does not know:
sequences, blocks' owners, why the batch is what it is, how CUDA is asked (`engine.gpu.driver`).

A tick: one copy of all inputs to the device, the forward pass, sampling behind it, one copy of the new ids
back, which is the only wait. The pass is replayed from a CUDA graph, padded to a size that was captured
(`engine.gpu.passes`), whether it is a decode step, in which every sequence has one token and gets one, or has
chunks of prompts in it.

The sampled ids stay on the device, too, and the next decode step reads them there. So the host could plan
and launch it while this one still runs. It does not: whoever ends by its token would only be known to have
ended a tick later, and its blocks be freed a tick later.
"""

from __future__ import annotations

from dataclasses import fields

import numpy as np
import torch

from engine.batch import Batch, LogitEdits, Logprobs, Sampling, StepOutput
from engine.blocks import BLOCK_SIZE, blocks_for
from engine.config import EngineConfig
from engine.gpu.buckets import chunk_buckets, decode_buckets
from engine.gpu.driver import Cuda, Driver
from engine.gpu.passes import Chunks, Steps
from engine.gpu.rehearsal import rehearsal
from engine.gpu.rows import DeviceRows
from engine.gpu.staging import Array, Results, Staging
from engine.models.inputs import KVCache
from engine.models.llama import CausalLM

_SAMPLING = [field.name for field in fields(Sampling)]
_EDITS = [field.name for field in fields(LogitEdits)]


class GpuRunner:
    """Implements `engine.engine.Runner`. All that must stay where it is, because graphs hold its address, is
    allocated here once: KV memory, with a block more than `config.num_blocks` for what padding writes; the
    rows' state; what passes read and leave.

    Args:
        kv_dtype: of KV memory.
        graphs: False: passes run kernel by kernel, unpadded.
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
        self._steps = Steps(model, self._kv, self._rows, most)
        self._chunks = Chunks(model, self._kv, self._rows, most)
        if graphs:
            # The longer passes first: what they need is then enough for the others.
            context = blocks_for(config.max_model_len) * BLOCK_SIZE
            self._chunks.capture(self._driver, chunk_buckets(config.token_budget, most, context))
            self._steps.capture(self._driver, decode_buckets(most))
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
            arrays |= self._rows.token_changes(batch) | {"step": self._steps.pack(batch)}
        else:
            arrays |= {"chunks": self._chunks.pack(batch), "sampled": batch.sampled}
        sent = self._staging.send(arrays)
        self._rows.write(sent)
        if is_step:
            logits = self._steps.logits(batch, sent["step"])
        else:
            logits = self._chunks.logits(batch, sent["chunks"], sent["sampled"])
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
