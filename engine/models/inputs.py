"""What a forward pass reads and writes: the batch as tensors, and the paged KV memory.

Knows: torch, devices, the shape of a block. Does not know: which block belongs to whom.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

import torch

from engine.blocks import BLOCK_SIZE
from engine.models.config import ModelConfig
from kernels import memory

if TYPE_CHECKING:
    from engine.batch import Batch


@dataclass(frozen=True, slots=True)
class ForwardInputs:
    """`engine.batch.Batch` on the device: the same fields, shapes and dtypes."""

    token_ids: torch.Tensor
    positions: torch.Tensor
    slots: torch.Tensor
    query_start: torch.Tensor
    context_lens: torch.Tensor
    block_tables: torch.Tensor
    sampled: torch.Tensor

    @classmethod
    def from_batch(cls, batch: Batch, device: torch.device | str) -> ForwardInputs:
        """On the CPU the tensors share the arrays' memory."""
        return cls(*(torch.from_numpy(getattr(batch, f.name)).to(device) for f in fields(cls)))


@dataclass(frozen=True, slots=True)
class KVCache:
    """Keys and values of all layers, in blocks."""

    storage: torch.Tensor
    """[num_layers, 2, num_blocks, num_kv_heads, BLOCK_SIZE, head_dim], keys before values."""
    keys: list[torch.Tensor]
    """Views of it, one per layer, [num_blocks, num_kv_heads, BLOCK_SIZE, head_dim]."""
    values: list[torch.Tensor]

    @classmethod
    def allocate(
        cls, config: ModelConfig, num_blocks: int, dtype: torch.dtype, device: torch.device | str
    ) -> KVCache:
        """Zeroed: a slot never written may be read behind a mask, and a NaN left there would get through."""
        shape = (config.num_layers, 2, num_blocks, config.num_kv_heads, BLOCK_SIZE, config.head_dim)
        on_cpu = torch.device(device).type == "cpu"
        storage = memory.zeros(shape, dtype) if on_cpu else torch.zeros(shape, dtype=dtype, device=device)
        return cls(storage, [layer[0] for layer in storage], [layer[1] for layer in storage])

    def copy(self, source: int, target: int) -> None:
        """Makes block `target` hold what block `source` holds, in all layers.

        Moves: one block's bytes, read and written.
        """
        blocks = self._bits()
        blocks[:, :, target] = blocks[:, :, source]

    def clear(self) -> None:
        """As new, at the same addresses."""
        self._bits().zero_()

    def _bits(self) -> torch.Tensor:
        """As bytes: of 8-bit floats torch does little more than keep them."""
        return self.storage.view(torch.uint8)

    @staticmethod
    def bytes_per_block(config: ModelConfig, dtype: torch.dtype) -> int:
        """Bytes that one block takes in all layers, keys and values together."""
        return 2 * config.num_layers * config.num_kv_heads * BLOCK_SIZE * config.head_dim * dtype.itemsize
