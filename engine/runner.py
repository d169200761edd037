"""Computes a tick's batch with a real model.

Knows: torch, the model, its KV memory, the sampling kernel. Does not know: sequences, blocks' owners, why
the batch is what it is.
"""

from __future__ import annotations

import numpy as np
import torch

from engine.batch import Batch, StepOutput
from engine.models.inputs import ForwardInputs, KVCache
from engine.models.llama import CausalLM
from kernels import for_device


class ModelRunner:
    """Implements `engine.engine.Runner`: forward pass, sampling, one copy of the new ids to the host.

    Args:
        num_blocks: size of KV memory, which is allocated here.
    """

    def __init__(self, model: CausalLM, num_blocks: int, device: torch.device | str = "cpu") -> None:
        self._model = model
        self._device = torch.device(device)
        self._num_blocks = num_blocks
        self._kernels = for_device(self._device)
        self.reset()

    @torch.inference_mode()
    def execute(self, batch: Batch) -> StepOutput:
        """See `Runner.execute`."""
        logits = self._model.forward(ForwardInputs.from_batch(batch, self._device), self._kv)
        if not len(batch.sampled):
            return StepOutput(np.empty(0, dtype=np.int64), None)
        s = batch.sampling
        columns = (s.temperature, s.top_p, s.top_k, s.min_p, s.seed, s.position)
        ids: torch.Tensor = self._kernels.sample(
            logits, *(torch.from_numpy(column).to(self._device) for column in columns)
        )
        return StepOutput(ids.numpy(force=True), None)

    def reset(self) -> None:
        """See `Runner.reset`."""
        self._kv = KVCache.allocate(self._model.config, self._num_blocks, torch.float32, self._device)
