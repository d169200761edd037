"""Builds paged caches for tests, with poison everywhere that no kernel may look."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

BLOCK_SIZE = 16


@dataclass(frozen=True)
class Paged:
    """The inputs of one attention call. Slots that no token may see hold NaN; table entries that mean
    nothing lie outside the cache."""

    q: Tensor
    key_cache: Tensor
    value_cache: Tensor
    block_tables: Tensor
    context_lens: Tensor
    query_start: Tensor

    @property
    def scale(self) -> float:
        return self.q.shape[2] ** -0.5

    def run(self, kernels: Any, window: int | None = None) -> Tensor:
        result: Tensor = kernels.paged_attention(
            self.q,
            self.key_cache,
            self.value_cache,
            self.block_tables,
            self.context_lens,
            self.query_start,
            self.scale,
            window,
        )
        return result

    def alone(self, s: int, end: int) -> Paged:
        """The token at position end - 1 of sequence s, as a decode row without company."""
        t = int(self.query_start[s + 1]) - int(self.context_lens[s]) + end - 1
        return Paged(
            self.q[t : t + 1].contiguous(),
            self.key_cache,
            self.value_cache,
            self.block_tables[s : s + 1].contiguous(),
            torch.tensor([end], dtype=torch.int32, device=self.q.device),
            torch.tensor([0, 1], dtype=torch.int32, device=self.q.device),
        )


def paged(
    runs: list[tuple[int, int]],
    *,
    heads: int = 9,
    kv_heads: int = 3,
    dim: int = 64,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
    cache_dtype: torch.dtype | None = None,
    device: torch.device | str = "cpu",
) -> Paged:
    """`runs`: context length and number of query tokens of each sequence. The caches have `dtype` too, if no
    other is given."""
    generator = torch.Generator().manual_seed(seed)
    num_blocks = [math.ceil(length / BLOCK_SIZE) for length, _ in runs]
    free = torch.randperm(sum(num_blocks) + 2, generator=generator).int()
    caches = torch.full((2, len(free), kv_heads, BLOCK_SIZE, dim), math.nan)
    tables = torch.full((len(runs), max(num_blocks) + 1), 10**6, dtype=torch.int32)
    used = 0
    for s, (length, _) in enumerate(runs):
        table = free[used : used + num_blocks[s]]
        used += num_blocks[s]
        tables[s, : len(table)] = table
        positions = torch.arange(length)
        data = torch.randn(2, length, kv_heads, dim, generator=generator)
        caches[:, table[positions // BLOCK_SIZE].long(), :, positions % BLOCK_SIZE] = data.transpose(0, 1)
    counts = torch.tensor([0] + [count for _, count in runs])
    caches = caches.to(cache_dtype or dtype).to(device)
    return Paged(
        torch.randn(int(counts.sum()), heads, dim, generator=generator).to(dtype).to(device),
        caches[0],
        caches[1],
        tables.to(device),
        torch.tensor([length for length, _ in runs], dtype=torch.int32, device=device),
        counts.cumsum(0).int().to(device),
    )
