"""Computes a tick's batch with a real model.

Knows: torch, the model, its KV memory, the sampling kernels, which runner serves which device. Does not know:
sequences, blocks' owners, why the batch is what it is.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from engine.batch import Batch, Int64, Logprobs, StepOutput
from engine.config import EngineConfig
from engine.engine import Runner
from engine.gpu.runner import GpuRunner
from engine.models.inputs import ForwardInputs, KVCache
from engine.models.llama import CausalLM


def make_runner(
    model: CausalLM, config: EngineConfig, *, kv_dtype: torch.dtype | None = None, graphs: bool = True
) -> Runner:
    """What computes best where the model lies.

    Args:
        kv_dtype: of KV memory; None: the model's.
        graphs: whether forward passes on a GPU are replayed from captured graphs.
    """
    kv_dtype = kv_dtype or model.dtype
    if model.device.type == "cuda":
        return GpuRunner(model, config, kv_dtype=kv_dtype, graphs=graphs)
    return ModelRunner(model, config.num_blocks, kv_dtype)


class ModelRunner:
    """Implements `engine.engine.Runner`, each step in turn: for CPUs, and anywhere to compare with.

    Args:
        num_blocks: size of KV memory, which is allocated here.
        kv_dtype: of KV memory; None: the model's.
    """

    def __init__(self, model: CausalLM, num_blocks: int, kv_dtype: torch.dtype | None = None) -> None:
        self._model = model
        self._device = model.device
        self._kernels = model.kernels
        self._num_blocks = num_blocks
        self._kv_dtype = kv_dtype or model.dtype
        self._kv = self._allocate()

    @torch.inference_mode()
    def execute(self, batch: Batch) -> StepOutput:
        """See `Runner.execute`."""
        for source, target in batch.copies.tolist():
            self._kv.copy(source, target)
        logits = self._model.forward(ForwardInputs.from_batch(batch, self._device), self._kv)
        if not len(batch.sampled):
            return StepOutput(np.empty(0, dtype=np.int64), None)
        told = np.flatnonzero(batch.num_logprobs >= 0)
        # Taken before the edits: log probabilities are those of the model's own logits.
        raw = logits[self._tensor(told)] if len(told) else None
        if (edits := batch.edits) is not None:
            self._kernels.edit_logits(logits, *(self._tensor(getattr(edits, f.name)) for f in fields(edits)))
        s = batch.sampling
        columns = (s.temperature, s.top_p, s.top_k, s.min_p, s.seed, s.position)
        ids = self._kernels.sample(logits, *(self._tensor(column) for column in columns))
        logprobs = None if raw is None else self._logprobs(batch, told, raw, ids)
        return StepOutput(ids.numpy(force=True), logprobs)

    def reset(self) -> None:
        """See `Runner.reset`."""
        # First the old goes: there is rarely room for both.
        del self._kv
        self._kv = self._allocate()

    def _allocate(self) -> KVCache:
        return KVCache.allocate(self._model.config, self._num_blocks, self._kv_dtype, self._device)

    def _logprobs(self, batch: Batch, rows: Int64, raw: torch.Tensor, ids: torch.Tensor) -> Logprobs:
        """Of the sampled `rows`, whose own logits are `raw`."""
        k = int(batch.num_logprobs.max())
        chosen, top_ids, top = self._kernels.logprobs(raw, ids[self._tensor(rows)], k)
        return Logprobs(rows, chosen.numpy(force=True), top_ids.numpy(force=True), top.numpy(force=True))

    def _tensor(self, array: NDArray[Any]) -> torch.Tensor:
        return torch.from_numpy(array).to(self._device)
