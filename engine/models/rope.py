"""The cos and sin tables of rotary position embedding, for each way of stretching a context.

Knows: RopeConfig, torch. Does not know: how the tables are applied (the kernels do that).

The order of the fp32 operations is transformers', so that the tables are bit for bit the same.
"""

from __future__ import annotations

import math

import torch

from engine.models.config import RopeConfig


def rope_tables(rope: RopeConfig, head_dim: int, num_positions: int) -> tuple[torch.Tensor, torch.Tensor]:
    """cos and sin, each [num_positions, head_dim / 2], fp32."""
    positions = torch.arange(num_positions, dtype=torch.float32)
    angles = positions[:, None] * inverse_frequencies(rope, head_dim)[None, :]
    return angles.cos() * rope.attention_factor, angles.sin() * rope.attention_factor


def inverse_frequencies(rope: RopeConfig, head_dim: int) -> torch.Tensor:
    """Radians per position, [head_dim / 2], fp32."""
    exponents = torch.arange(0, head_dim, 2, dtype=torch.int64).float() / head_dim
    frequencies = 1.0 / (rope.theta**exponents)
    if rope.type == "linear":
        return frequencies / rope.factor
    if rope.type == "llama3":
        return _llama3(rope, frequencies)
    if rope.type == "yarn":
        return _yarn(rope, head_dim, rope.theta**exponents)
    if rope.frequency_divisors:
        return frequencies / torch.tensor(rope.frequency_divisors, dtype=torch.float32)
    return frequencies


def _llama3(rope: RopeConfig, frequencies: torch.Tensor) -> torch.Tensor:
    """Llama 3.1's scaling: slow frequencies are divided by the factor, fast ones kept, the rest blended."""
    old_context = rope.original_max_position_embeddings
    low, high = rope.low_freq_factor, rope.high_freq_factor
    wavelength = 2 * math.pi / frequencies
    smooth = (old_context / wavelength - low) / (high - low)
    blended = (1 - smooth) * frequencies / rope.factor + smooth * frequencies
    slow = wavelength > old_context / low
    fast = wavelength < old_context / high
    return torch.where(slow, frequencies / rope.factor, torch.where(fast, frequencies, blended))


def _yarn(rope: RopeConfig, head_dim: int, periods: torch.Tensor) -> torch.Tensor:
    """YaRN, section 3.2 of arXiv 2309.00071: dimensions that turn often keep their frequency, those that turn
    rarely are interpolated, with a ramp between."""

    def dimension(turns: float) -> float:
        ratio = rope.original_max_position_embeddings / (turns * 2 * math.pi)
        return head_dim * math.log(ratio) / (2 * math.log(rope.theta))

    low, high = dimension(rope.beta_fast), dimension(rope.beta_slow)
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    if low == high:
        high += 0.001
    ramp = ((torch.arange(head_dim // 2, dtype=torch.float32) - low) / (high - low)).clamp(0, 1)
    kept = 1 - ramp
    return 1.0 / (rope.factor * periods) * (1 - kept) + 1.0 / periods * kept
