"""Rows of logits to be sampled, in the words of `kernels.Kernels.sample`.

Knows: the parameters' names, dtypes and neutral values. Does not know: which kernels sample.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class Rows:
    """The inputs of one call; scalars are spread over all rows."""

    logits: Tensor
    temperature: Any = 1.0
    top_p: Any = 1.0
    top_k: Any = 0
    min_p: Any = 0.0
    seed: Any = 0
    position: Any = 0

    def run(self, kernels: Any) -> list[int]:
        def column(value: Any, dtype: torch.dtype) -> Tensor:
            return torch.as_tensor(value).to(dtype).expand(self.logits.shape[0]).contiguous()

        ids: Tensor = kernels.sample(
            self.logits,
            column(self.temperature, torch.float32),
            column(self.top_p, torch.float32),
            column(self.top_k, torch.int32),
            column(self.min_p, torch.float32),
            column(self.seed, torch.int64),
            column(self.position, torch.int64),
        )
        result: list[int] = ids.tolist()
        return result
