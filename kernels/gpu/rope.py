"""Rotary embedding, the optional norm per head, and the write into the KV cache: one pass per token.

Knows: heads and slots. Does not know: sequences, block tables. See `kernels.Kernels` for the shapes.

A program has some of a token's heads, whichever of queries, keys and values they are: all are loaded alike,
each in two halves, whose elements the rotation pairs.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.gpu.checks import FLOATS, check
from kernels.gpu.device import Device
from kernels.gpu.fp8 import narrow, readable


def rope_and_cache(
    device: Device,
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
    """See `kernels.Kernels.rope_and_cache`. Su et al., 2021 (RoFormer).

    Tokens may share a slot that nobody reads, as padding does: it then holds numbers of any of them.

    Moves: 2 T (NQ + 2 NK) D elements (those of the caches in the caches' dtype), and 4 T D bytes of angles.

    Raises:
        ValueError: shapes do not fit each other, a dtype is none of those allowed, or only one norm is given.
    """
    tokens, width = qkv.shape
    _, kv_heads, block_size, head_dim = key_cache.shape
    heads, rest = divmod(width - 2 * kv_heads * head_dim, head_dim)
    if rest or heads < kv_heads or cos.shape[1] * 2 != head_dim or sin.shape != cos.shape:
        raise ValueError(
            f"qkv: got width {width} and rotations {tuple(cos.shape)}, {tuple(sin.shape)}, which do not fit"
            f" {kv_heads} key-value heads of {head_dim}"
        )
    _check(qkv, positions, slots, cos, sin, key_cache, value_cache, q_norm, k_norm)
    q = qkv.new_empty((tokens, heads, head_dim))
    tiles = device.tiles("rope_and_cache", head_dim=head_dim)
    device.launch(
        _rope_and_cache,
        (tokens, triton.cdiv(heads + 2 * kv_heads, tiles["BLOCK_HEADS"])),
        qkv=qkv,
        positions=positions,
        slots=slots,
        cos=cos,
        sin=sin,
        key_cache=readable(device, key_cache),
        value_cache=readable(device, value_cache),
        q_norm=q_norm,
        k_norm=k_norm,
        eps=eps,
        q=q,
        HEADS=heads,
        KV_HEADS=kv_heads,
        HALF=head_dim // 2,
        SLOTS=block_size,
        BLOCK_HALF=triton.next_power_of_2(head_dim // 2),
        **tiles,
    )
    return q


def _check(
    qkv: Tensor,
    positions: Tensor,
    slots: Tensor,
    cos: Tensor,
    sin: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    q_norm: Tensor | None,
    k_norm: Tensor | None,
) -> None:
    check("qkv", qkv, *FLOATS)
    check("positions", positions, torch.int64, shape=qkv.shape[:1])
    check("slots", slots, torch.int64, shape=qkv.shape[:1])
    check("cos", cos, torch.float32)
    check("sin", sin, torch.float32)
    check("key_cache", key_cache, qkv.dtype, torch.float8_e4m3fn)
    check("value_cache", value_cache, key_cache.dtype, shape=key_cache.shape)
    if (q_norm is None) != (k_norm is None):
        raise ValueError("q_norm, k_norm: got one of them, allowed: both or none")
    if q_norm is not None and k_norm is not None:
        check("q_norm", q_norm, qkv.dtype, shape=key_cache.shape[3:])
        check("k_norm", k_norm, qkv.dtype, shape=key_cache.shape[3:])


# These two are parts of larger buffers, wherever they begin there: nothing is compiled anew for that.
@triton.jit(do_not_specialize_on_alignment=["positions", "slots"])
def _rope_and_cache(
    qkv,
    positions,
    slots,
    cos,
    sin,
    key_cache,
    value_cache,
    q_norm,
    k_norm,
    eps,
    q,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    HALF: tl.constexpr,
    SLOTS: tl.constexpr,
    BLOCK_HEADS: tl.constexpr,
    BLOCK_HALF: tl.constexpr,
):
    """Some heads of one token."""
    token = tl.program_id(0).to(tl.int64)
    head = (tl.program_id(1) * BLOCK_HEADS + tl.arange(0, BLOCK_HEADS))[:, None]
    d = tl.arange(0, BLOCK_HALF)
    in_half = d < HALF
    inside = (head < HEADS + 2 * KV_HEADS) & in_half[None, :]
    is_query = head < HEADS
    is_value = head >= HEADS + KV_HEADS

    at = qkv + token * ((HEADS + 2 * KV_HEADS) * 2 * HALF) + head * (2 * HALF) + d[None, :]
    first = tl.load(at, inside, other=0.0).to(tl.float32)
    second = tl.load(at + HALF, inside, other=0.0).to(tl.float32)
    a, b = first, second
    if q_norm is not None:
        squares = tl.sum(a * a, 1) + tl.sum(b * b, 1)
        factor = tl.rsqrt(squares / (2 * HALF) + eps)[:, None]
        a *= factor * _weights(q_norm, k_norm, is_query, d, in_half)
        b *= factor * _weights(q_norm + HALF, k_norm + HALF, is_query, d, in_half)
    angle = tl.load(positions + token) * HALF + d
    c = tl.load(cos + angle, in_half, other=0.0)[None, :]
    s = tl.load(sin + angle, in_half, other=0.0)[None, :]
    first = tl.where(is_value, first, a * c - b * s)
    second = tl.where(is_value, second, b * c + a * s)

    _store(q + (token * HEADS + head) * (2 * HALF) + d[None, :], first, second, HALF, inside & is_query)
    slot = tl.load(slots + token)
    kv_head = head - tl.where(is_value, HEADS + KV_HEADS, HEADS)
    row = (slot // SLOTS * KV_HEADS + kv_head) * SLOTS + slot % SLOTS
    cell = row * (2 * HALF) + d[None, :]
    _store(key_cache + cell, first, second, HALF, inside & (head >= HEADS) & (head < HEADS + KV_HEADS))
    _store(value_cache + cell, first, second, HALF, inside & is_value)


@triton.jit
def _weights(q_norm, k_norm, is_query, d, in_half):
    """Half of the norm's weights for each head."""
    of_queries = tl.load(q_norm + d, in_half, other=0.0).to(tl.float32)
    of_keys = tl.load(k_norm + d, in_half, other=0.0).to(tl.float32)
    return tl.where(is_query, of_queries[None, :], of_keys[None, :])


@triton.jit
def _store(at, first, second, HALF: tl.constexpr, mask):
    tl.store(at, narrow(first, at.dtype.element_ty), mask)
    tl.store(at + HALF, narrow(second, at.dtype.element_ty), mask)
