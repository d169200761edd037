"""A tiny model with random weights, over the fake model's vocabulary."""

from __future__ import annotations

import torch

from engine.models.config import ModelConfig
from engine.models.llama import CausalLM
from kernels import Kernels, for_device
from tests.fakes import fake_vocabulary

CONFIG = ModelConfig.from_hf(
    {
        "architectures": ["LlamaForCausalLM"],
        "vocab_size": len(fake_vocabulary().token_bytes),
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 512,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "eos_token_id": 0,
        "bos_token_id": 1,
    }
)


def tiny_model(device: str, kernels: Kernels | None = None, dtype: torch.dtype = torch.float32) -> CausalLM:
    """The same weights wherever it lies. `kernels`: None for those of the device."""
    generator = torch.Generator().manual_seed(7)

    def take(name: str, shape: tuple[int, ...]) -> torch.Tensor:
        if name.endswith("norm.weight"):
            return torch.ones(shape)
        return torch.randn(shape, generator=generator) * 0.2

    return CausalLM(CONFIG, take, kernels or for_device(torch.device(device)), device, dtype)


def broken_model(device: str) -> CausalLM:
    """Gives no numbers."""
    return CausalLM(
        CONFIG, lambda _, shape: torch.full(shape, torch.nan), for_device(torch.device(device)), device
    )
