"""What is measured: models of real shapes with random weights, and batches over scattered blocks.

Knows: the shapes of known models, how to make weights, caches and batches for them. Does not know: clocks,
what is measured with them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from engine.batch import Batch, Sampling
from engine.blocks import BLOCK_SIZE, blocks_for
from engine.models.config import ModelConfig
from engine.models.llama import CausalLM
from kernels import Kernels


def _llama(
    vocab: int, hidden: int, inner: int, layers: int, heads: int, kv: int, tied: bool
) -> dict[str, Any]:
    """A config.json."""
    return {
        "model_type": "llama",
        "vocab_size": vocab,
        "hidden_size": hidden,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv,
        "tie_word_embeddings": tied,
        "max_position_embeddings": 8192,
        "rms_norm_eps": 1e-5,
        "rope_parameters": {"rope_type": "default", "rope_theta": 500000.0},
        "bos_token_id": None,
        "eos_token_id": None,
    }


RAW = {
    "llama-3-8b": _llama(128256, 4096, 14336, 32, 32, 8, tied=False),
    "smollm2-135m": _llama(49152, 576, 1536, 30, 9, 3, tied=True),
    "llama-3.2-1b": _llama(128256, 2048, 8192, 16, 32, 8, tied=True),
}
Order = tuple[list[int], int]
"""What a stream asks for: a prompt, and the length of its answer."""
TINY = "tiny"
RAW_TINY = _llama(199, 64, 96, 2, 4, 2, tied=True)


@dataclass(frozen=True)
class Scale:
    """How large everything is: as on a card, or as in a dry run."""

    dry: bool
    device: torch.device
    dtype: torch.dtype
    """Of weights and activations."""
    checked_dtypes: tuple[torch.dtype, ...]
    models: tuple[str, ...]
    kernel_model: str
    """The one whose shapes the single kernels get."""

    @property
    def measured_models(self) -> tuple[str, ...]:
        """Whose kernels will run, each once."""
        return tuple(dict.fromkeys((self.kernel_model, *self.models)))

    def pick(self, real: Any, dry: Any) -> Any:
        return dry if self.dry else real


def raw_config(name: str) -> dict[str, Any]:
    return RAW_TINY if name == TINY else RAW[name]


def model_config(name: str) -> ModelConfig:
    return ModelConfig.from_hf(raw_config(name))


class RandomWeights:
    """Gives weights by their names, makes each when it is first asked for, and keeps them to be shared."""

    def __init__(self, dtype: torch.dtype, device: torch.device) -> None:
        self.by_name: dict[str, Tensor] = {}
        self._dtype, self._device = dtype, device

    def __call__(self, name: str, shape: tuple[int, ...]) -> Tensor:
        if name not in self.by_name:
            weight = torch.empty(shape, dtype=self._dtype, device=self._device)
            is_norm = len(shape) == 1
            self.by_name[name] = weight.fill_(1.0) if is_norm else weight.normal_(std=0.02)
        return self.by_name[name]


def weight_bytes(config: ModelConfig, dtype: torch.dtype) -> int:
    """The matrices that a step reads whole. Of the embedding table, as such, it reads a few rows."""
    heads = 2 * config.num_heads + 2 * config.num_kv_heads
    per_layer = config.hidden_size * (config.head_dim * heads + 3 * config.intermediate_size)
    return dtype.itemsize * (config.num_layers * per_layer + config.vocab_size * config.hidden_size)


def make_model(name: str, weights: RandomWeights, kernels: Kernels, scale: Scale) -> CausalLM:
    return CausalLM(model_config(name), weights, kernels, scale.device, scale.dtype)


def decode_batch(batch: int, context: int, vocab_size: int, num_blocks: int) -> Batch:
    """A tick in which each of `batch` sequences gets the token after `context`. Their blocks lie scattered
    over the first `num_blocks`. All choose greedily."""
    width = blocks_for(context)
    rng = np.random.default_rng(1)
    tables = rng.permutation(num_blocks)[: batch * width].astype(np.int32).reshape(batch, width)
    position = context - 1
    return Batch(
        rows=np.arange(batch),
        token_ids=rng.integers(vocab_size, size=batch),
        positions=np.full(batch, position),
        slots=tables[:, position // BLOCK_SIZE].astype(np.int64) * BLOCK_SIZE + position % BLOCK_SIZE,
        query_start=np.arange(batch + 1, dtype=np.int32),
        context_lens=np.full(batch, context, dtype=np.int32),
        block_tables=tables,
        sampled=np.arange(batch),
        sampling=Sampling(
            temperature=np.zeros(batch, dtype=np.float32),
            top_p=np.ones(batch, dtype=np.float32),
            top_k=np.zeros(batch, dtype=np.int32),
            min_p=np.zeros(batch, dtype=np.float32),
            seed=np.arange(batch),
            position=np.full(batch, context),
        ),
        edits=None,
        num_logprobs=np.full(batch, -1, dtype=np.int32),
        copies=np.empty((0, 2), dtype=np.int64),
    )


@dataclass(frozen=True)
class Paged:
    """The inputs of one call of `paged_attention`."""

    q: Tensor
    key_cache: Tensor
    value_cache: Tensor
    block_tables: Tensor
    context_lens: Tensor
    query_start: Tensor

    def run(self, kernels: Any, window: int | None = None) -> Tensor:
        result: Tensor = kernels.paged_attention(
            self.q, self.key_cache, self.value_cache, self.block_tables, self.context_lens, self.query_start,
            self.q.shape[2] ** -0.5, window,
        )  # fmt: skip
        return result

    def wide(self) -> Paged:
        """The same numbers in fp64."""
        q, keys, values = (t.to(torch.float64) for t in (self.q, self.key_cache, self.value_cache))
        return Paged(q, keys, values, self.block_tables, self.context_lens, self.query_start)

    def last_of(self, s: int) -> Paged:
        """The last token of sequence s, as a decode row without company."""
        device, end = self.q.device, int(self.query_start[s + 1])
        return Paged(
            self.q[end - 1 : end],
            self.key_cache,
            self.value_cache,
            self.block_tables[s : s + 1],
            self.context_lens[s : s + 1],
            torch.tensor([0, 1], dtype=torch.int32, device=device),
        )


def paged(
    runs: list[tuple[int, int]], heads: tuple[int, int, int], dtype: torch.dtype, cache_dtype: torch.dtype,
    device: torch.device,
) -> Paged:  # fmt: skip
    """`runs`: context length and number of query tokens of each sequence; `heads`: query heads, key-value
    heads, head_dim. Slots that no token sees hold NaN, and table entries that mean nothing lead to such."""
    num_heads, num_kv_heads, head_dim = heads
    widths = [blocks_for(length) for length, _ in runs]
    order = torch.randperm(sum(widths) + 1, device=device)
    unused = int(order[-1])
    tables = torch.full((len(runs), max(widths)), unused, dtype=torch.int32, device=device)
    shape = (len(order), num_kv_heads, BLOCK_SIZE, head_dim)
    # Made once: the numbers, not their arrangement, are what a kernel reads.
    caches = [torch.randn(shape, dtype=dtype, device=device) for _ in range(2)]
    for cache in caches:
        cache[unused] = math.nan
    for s, part in enumerate(order[:-1].split(widths)):
        tables[s, : len(part)] = part
        if unseen := -runs[s][0] % BLOCK_SIZE:
            for cache in caches:
                cache[part[-1], :, BLOCK_SIZE - unseen :] = math.nan
    counts = torch.tensor([0] + [count for _, count in runs], device=device)
    total = sum(count for _, count in runs)
    return Paged(
        torch.randn((total, num_heads, head_dim), dtype=dtype, device=device),
        caches[0].to(cache_dtype),
        caches[1].to(cache_dtype),
        tables,
        torch.tensor([length for length, _ in runs], dtype=torch.int32, device=device),
        counts.cumsum(0).to(torch.int32),
    )
