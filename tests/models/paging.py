"""A hand-made paged run: sequences grow over scattered blocks, with none of the engine's own bookkeeping."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from engine.blocks import BLOCK_SIZE
from engine.models.config import ModelConfig
from engine.models.inputs import ForwardInputs, KVCache
from engine.models.llama import CausalLM


class PagedRun:
    """Sequences 0..num_sequences-1, each with a table of shuffled blocks for up to `max_tokens`."""

    def __init__(
        self, config: ModelConfig, num_sequences: int, max_tokens: int, device: torch.device | str = "cpu"
    ) -> None:
        self.device = device
        width = -(-max_tokens // BLOCK_SIZE)
        num_blocks = num_sequences * width + 3
        generator = torch.Generator().manual_seed(7)
        order = torch.randperm(num_blocks, generator=generator)[: num_sequences * width]
        self.tables = order.view(num_sequences, width).to(torch.int32)
        self.lengths = [0] * num_sequences
        self.kv = KVCache.allocate(config, num_blocks, torch.float32, device)

    def inputs(self, chunks: Mapping[int, Sequence[int]], *, all_rows: bool) -> ForwardInputs:
        """Appends `chunks` (sequence -> tokens). Sampled are all tokens, or the last of each chunk."""
        token_ids: list[int] = []
        positions: list[int] = []
        slots: list[int] = []
        starts = [0]
        for index, tokens in chunks.items():
            for token in tokens:
                position = self.lengths[index]
                block = int(self.tables[index, position // BLOCK_SIZE])
                token_ids.append(token)
                positions.append(position)
                slots.append(block * BLOCK_SIZE + position % BLOCK_SIZE)
                self.lengths[index] += 1
            starts.append(len(token_ids))
        rows = list(chunks)
        sampled = range(len(token_ids)) if all_rows else [end - 1 for end in starts[1:]]
        return ForwardInputs(
            token_ids=torch.tensor(token_ids, device=self.device),
            positions=torch.tensor(positions, device=self.device),
            slots=torch.tensor(slots, device=self.device),
            query_start=torch.tensor(starts, dtype=torch.int32, device=self.device),
            context_lens=torch.tensor(
                [self.lengths[index] for index in rows], dtype=torch.int32, device=self.device
            ),
            block_tables=self.tables[rows].to(self.device),
            sampled=torch.tensor(list(sampled), dtype=torch.int64, device=self.device),
        )

    def step(self, model: CausalLM, chunks: Mapping[int, Sequence[int]]) -> dict[int, torch.Tensor]:
        """Runs `chunks`; sequence -> logits of all its tokens, [len(chunk), vocab]."""
        logits = model.forward(self.inputs(chunks, all_rows=True), self.kv)
        parts = logits.split([len(tokens) for tokens in chunks.values()])
        return dict(zip(chunks, parts, strict=True))
