"""Rotary embedding, the optional norm per head, and the write into the KV cache: one pass per token.

Knows: heads and slots. Does not know: sequences, block tables. See `kernels.Kernels` for the shapes.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
import torch
from torch import Tensor

from kernels.cpu.jit import helper, kernel, match_threads

_SERIAL_ELEMENTS = 32_768
"""Below this many elements, waking a second thread costs more than it saves."""

_NO_NORM = np.empty(0, dtype=np.float32)


def rope_and_cache(
    qkv: Tensor,
    positions: Tensor,
    slots: Tensor,
    cos: Tensor,
    sin: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    q_norm: Tensor | None,
    k_norm: Tensor | None,
    eps: float,
) -> Tensor:
    num_tokens, width = qkv.shape
    _, num_kv_heads, num_slots, head_dim = key_cache.shape
    num_heads, rest = divmod(width - 2 * num_kv_heads * head_dim, head_dim)
    if rest or num_heads < num_kv_heads or cos.shape[1] * 2 != head_dim or sin.shape != cos.shape:
        raise ValueError(
            f"qkv: got width {width} and rotations {tuple(cos.shape)}, {tuple(sin.shape)}, which do not fit"
            f" {num_kv_heads} key-value heads of {head_dim}"
        )
    q = torch.empty((num_tokens, num_heads, head_dim))
    run = _rope if qkv.numel() < _SERIAL_ELEMENTS else _rope_parallel
    if run is _rope_parallel:
        match_threads()
    run(
        qkv.numpy(),
        positions.numpy(),
        slots.numpy(),
        cos.numpy(),
        sin.numpy(),
        key_cache.view(-1, head_dim).numpy(),
        value_cache.view(-1, head_dim).numpy(),
        _NO_NORM if q_norm is None else q_norm.numpy(),
        _NO_NORM if k_norm is None else k_norm.numpy(),
        eps,
        num_slots,
        q.view(-1, head_dim).numpy(),
    )
    return q


@helper()
def _factor(row: Any, t: Any, start: Any, head_dim: Any, eps: Any) -> Any:
    """1 / root mean square of one head."""
    total = np.float32(0.0)
    for d in range(head_dim):
        total += row[t, start + d] * row[t, start + d]
    return np.float32(1.0) / np.sqrt(total / np.float32(head_dim) + np.float32(eps))


@helper()
def _head(
    qkv: Any, t: Any, start: Any, cos: Any, sin: Any, p: Any, norm: Any, eps: Any, out: Any, row: Any
) -> None:
    """out[row, D]: one head, normalised if norm is not empty, and rotated."""
    half = cos.shape[1]
    if norm.shape[0] == 0:
        for d in range(half):
            out[row, d] = qkv[t, start + d]
            out[row, half + d] = qkv[t, start + half + d]
    else:
        factor = _factor(qkv, t, start, 2 * half, eps)
        for d in range(2 * half):
            out[row, d] = qkv[t, start + d] * factor * norm[d]
    for d in range(half):
        a, b = out[row, d], out[row, half + d]
        out[row, d] = a * cos[p, d] - b * sin[p, d]
        out[row, half + d] = b * cos[p, d] + a * sin[p, d]


@helper()
def _token(
    qkv: Any,
    t: Any,
    positions: Any,
    slots: Any,
    cos: Any,
    sin: Any,
    keys: Any,
    values: Any,
    q_norm: Any,
    k_norm: Any,
    eps: Any,
    num_slots: Any,
    q: Any,
) -> None:
    num_heads = q.shape[0] // qkv.shape[0]
    head_dim = q.shape[1]
    num_kv_heads = (qkv.shape[1] // head_dim - num_heads) // 2
    p, block, slot = positions[t], slots[t] // num_slots, slots[t] % num_slots
    for head in range(num_heads):
        _head(qkv, t, head * head_dim, cos, sin, p, q_norm, eps, q, t * num_heads + head)
    for head in range(num_kv_heads):
        row = (block * num_kv_heads + head) * num_slots + slot
        start = (num_heads + head) * head_dim
        _head(qkv, t, start, cos, sin, p, k_norm, eps, keys, row)
        start += num_kv_heads * head_dim
        for d in range(head_dim):
            values[row, d] = qkv[t, start + d]


_ROPE = (
    "void(float32[:, ::1], int64[::1], int64[::1], float32[:, ::1], float32[:, ::1], float32[:, ::1],"
    " float32[:, ::1], float32[::1], float32[::1], float64, int64, float32[:, ::1])"
)


@kernel(_ROPE)
def _rope(
    qkv: Any,
    positions: Any,
    slots: Any,
    cos: Any,
    sin: Any,
    keys: Any,
    values: Any,
    q_norm: Any,
    k_norm: Any,
    eps: Any,
    num_slots: Any,
    q: Any,
) -> None:
    for t in range(qkv.shape[0]):
        _token(qkv, t, positions, slots, cos, sin, keys, values, q_norm, k_norm, eps, num_slots, q)


@kernel(_ROPE, parallel=True)
def _rope_parallel(
    qkv: Any,
    positions: Any,
    slots: Any,
    cos: Any,
    sin: Any,
    keys: Any,
    values: Any,
    q_norm: Any,
    k_norm: Any,
    eps: Any,
    num_slots: Any,
    q: Any,
) -> None:
    for t in numba.prange(qkv.shape[0]):
        _token(qkv, np.int64(t), positions, slots, cos, sin, keys, values, q_norm, k_norm, eps, num_slots, q)
