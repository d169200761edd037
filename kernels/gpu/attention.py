"""Causal attention over paged keys and values, read where they lie.

Knows: block tables, query heads that share a key-value head. Does not know: models, requests, how contexts
are cut into splits (`attention_splits`). See `kernels.Kernels.paged_attention` for the shapes.

One kernel serves decode rows and prompt chunks in one launch. A program has a query block, the heads that
share a key-value head, and a split of what they see. Its tile has a row for each pair of token and head, so
that the heads of a group read the keys once, and fill a matrix product that a decode row would leave empty.
It reads BLOCK_N positions at a time, each through the block table, and keeps a running softmax to the base 2.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.gpu import fp8, interpreter
from kernels.gpu.attention_splits import Parts, base_of, cut, find_block, fold, reduce, shares, split_size
from kernels.gpu.checks import FLOATS, check
from kernels.gpu.device import Device
from kernels.tuning import Tiles

interpreter.mend()


def paged_attention(
    device: Device,
    q: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    block_tables: Tensor,
    context_lens: Tensor,
    query_start: Tensor,
    scale: float,
    window: int | None,
) -> Tensor:
    """Returns [T, NQ * D] in the dtype of q.

    Kwon et al., 2023 (PagedAttention); Dao et al., 2022 (FlashAttention); Ainslie et al., 2023 (GQA).

    Moves: at least 2 * NK * D numbers of the caches for each position that a sequence's tokens see, once for
    all tokens of a query block, and q and the result once. 4 * NQ * D FLOPs for each position that a token
    sees.

    Raises:
        ValueError: heads that do not fit the cache, dtypes that do not fit each other, an empty window.
    """
    _check(q, key_cache, value_cache, block_tables, context_lens, query_start, window)
    num_tokens, num_heads, head_dim = q.shape
    _, num_kv_heads, num_slots, _ = key_cache.shape
    num_sequences, table_width = block_tables.shape
    group = num_heads // num_kv_heads
    tiles = _tiles(device, head_dim, q.element_size(), triton.cdiv(num_tokens, num_sequences))
    heads = min(group, tiles["BLOCK_M"])
    per_block = num_kv_heads * triton.cdiv(group, heads)
    constants = {
        "HEAD_DIM": head_dim,
        "BLOCK_D": max(16, triton.next_power_of_2(head_dim)),
        "BLOCK_Q": tiles["BLOCK_M"] // heads,
        "BLOCK_N": tiles["BLOCK_N"],
        "SEGMENT": tiles.get("SEGMENT"),
    }
    plan = cut(
        num_tokens,
        num_sequences,
        table_width * num_slots,
        window,
        block_q=tiles["BLOCK_M"] // heads,
        segment=tiles.get("SEGMENT"),
        per_block=per_block,
        enough=tiles["PROGRAMS_PER_SM"] * device.num_sms,
    )
    parts = Parts.empty(q, plan.splits)
    out = q.new_empty((num_tokens, num_heads * head_dim))
    device.launch(
        _attention_kernel,
        (plan.query_blocks, per_block, plan.splits),
        num_warps=tiles["num_warps"],
        num_stages=tiles["num_stages"],
        q=q,
        key_cache=fp8.readable(device, key_cache),
        value_cache=fp8.readable(device, value_cache),
        block_tables=block_tables,
        context_lens=context_lens,
        query_start=query_start,
        out=out,
        acc_parts=parts.acc,
        tops=parts.top,
        totals=parts.total,
        num_tokens=num_tokens,
        num_sequences=num_sequences,
        table_width=table_width,
        splits=plan.splits,
        scale=scale * math.log2(math.e),
        window=window,
        NUM_HEADS=num_heads,
        NUM_KV_HEADS=num_kv_heads,
        HEADS=heads,
        SLOTS=num_slots,
        BLOCK_M=tiles["BLOCK_M"],
        **constants,
    )
    if plan.splits > 1:
        reduce(device, parts, query_start, context_lens, out, plan, window, constants)
    return out


def _tiles(device: Device, head_dim: int, itemsize: int, queries: int) -> Tiles:
    """For `queries` tokens of a sequence on average. What must not depend on company has one size for all."""
    if device.batch_invariant:
        return device.tiles("batch_invariant_attention", head_dim=head_dim, itemsize=itemsize)
    return device.tiles("attention", head_dim=head_dim, itemsize=itemsize, queries=queries)


def _check(
    q: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    block_tables: Tensor,
    context_lens: Tensor,
    query_start: Tensor,
    window: int | None,
) -> None:
    check("q", q, *FLOATS)
    check("key_cache", key_cache, q.dtype, torch.float8_e4m3fn)
    check("value_cache", value_cache, key_cache.dtype, shape=tuple(key_cache.shape))
    check("block_tables", block_tables, torch.int32)
    num_sequences = len(block_tables)
    check("context_lens", context_lens, torch.int32, shape=(num_sequences,))
    check("query_start", query_start, torch.int32, shape=(num_sequences + 1,))
    _, num_heads, head_dim = q.shape
    _, num_kv_heads, num_slots, cache_dim = key_cache.shape
    if head_dim != cache_dim or num_heads % num_kv_heads:
        raise ValueError(
            f"q: got {num_heads} heads of {head_dim}, which do not fit a cache of {num_kv_heads} heads of"
            f" {cache_dim} in blocks of {num_slots}"
        )
    if window is not None and window < 1:
        raise ValueError(f"window: got {window}, allowed: at least 1, or None")


# Nothing is compiled anew for where in a larger buffer the tick's integers begin, or how many there are.
@triton.jit(
    do_not_specialize=["num_tokens", "num_sequences", "table_width", "splits"],
    do_not_specialize_on_alignment=["block_tables", "context_lens", "query_start"],
)
def _attention_kernel(
    q,
    key_cache,
    value_cache,
    block_tables,
    context_lens,
    query_start,
    out,
    acc_parts,
    tops,
    totals,
    num_tokens,
    num_sequences,
    table_width,
    splits,
    scale,
    window,
    NUM_HEADS: tl.constexpr,
    NUM_KV_HEADS: tl.constexpr,
    HEADS: tl.constexpr,
    SLOTS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_Q: tl.constexpr,
    BLOCK_N: tl.constexpr,
    SEGMENT: tl.constexpr,
):
    """Grid: query blocks, up to HEADS heads that share a key-value head, splits.

    Row i of the tile is token i // HEADS and head i % HEADS of these. Rows that stand for none are computed,
    but not stored."""
    # The last blocks of a chunk see most, so they begin first.
    sequence, first, end, position, first_seen, end_seen = find_block(
        query_start,
        context_lens,
        tl.num_programs(0) - 1 - tl.program_id(0),
        num_tokens,
        num_sequences,
        window,
        BLOCK_Q,
    )
    if first >= end:
        return
    split = tl.program_id(2)
    origin, size = split_size(first_seen, end_seen, splits, BLOCK_N, SEGMENT)
    begin = origin + split * size
    stop = tl.minimum(begin + size, end_seen)
    if begin >= stop:
        return

    GROUP: tl.constexpr = NUM_HEADS // NUM_KV_HEADS
    HEAD_TILES: tl.constexpr = (GROUP + HEADS - 1) // HEADS
    kv_head = tl.program_id(1) // HEAD_TILES
    rows = tl.arange(0, BLOCK_M)
    token = first + rows // HEADS
    head = tl.program_id(1) % HEAD_TILES * HEADS + rows % HEADS
    real = (token < end) & (head < GROUP)
    row = token.to(tl.int64) * NUM_HEADS + kv_head * GROUP + head
    d = tl.arange(0, BLOCK_D)
    inside = real[:, None] & (d < HEAD_DIM)[None, :]
    query = tl.load(q + row[:, None] * HEAD_DIM + d[None, :], mask=inside, other=0.0)
    table = block_tables + sequence.to(tl.int64) * table_width
    keys = key_cache + kv_head * SLOTS * HEAD_DIM
    values = value_cache + kv_head * SLOTS * HEAD_DIM
    # A row without a token stands with the last that has one, or it might see nothing, and divide by 0.
    positions = tl.minimum(position + rows // HEADS, end_seen - 1)
    if SEGMENT is None:
        top, total, acc = _attend(
            query, keys, values, table, positions, begin, stop, first_seen, scale, window,
            NUM_KV_HEADS, SLOTS, BLOCK_M, HEAD_DIM, BLOCK_D, BLOCK_N,
        )  # fmt: skip
    else:
        top = tl.full([BLOCK_M], float("-inf"), tl.float32)
        total = tl.zeros([BLOCK_M], tl.float32)
        acc = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
        for start in range(begin, stop, SEGMENT):
            seen_from = tl.maximum(start, first_seen // BLOCK_N * BLOCK_N)
            part_top, part_total, part = _attend(
                query, keys, values, table, positions, seen_from, tl.minimum(start + SEGMENT, stop),
                first_seen, scale, window, NUM_KV_HEADS, SLOTS, BLOCK_M, HEAD_DIM, BLOCK_D, BLOCK_N,
            )  # fmt: skip
            top, share, part_share = shares(top, part_top)
            total = fold(total, share, part_total, part_share)
            acc = fold(acc, share[:, None], part, part_share[:, None])

    if splits == 1:
        result = tl.div_rn(acc, total[:, None])
        tl.store(out + row[:, None] * HEAD_DIM + d[None, :], result.to(out.dtype.element_ty), mask=inside)
    else:
        part_row = row * splits + split
        tl.store(tops + part_row, top, mask=real)
        tl.store(totals + part_row, total, mask=real)
        tl.store(acc_parts + part_row[:, None] * HEAD_DIM + d[None, :], acc, mask=inside)


@triton.jit
def _attend(
    query,
    keys,
    values,
    table,
    positions,
    begin,
    stop,
    first_seen,
    scale,
    window,
    NUM_KV_HEADS: tl.constexpr,
    SLOTS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """Softmax over the positions begin..stop, as largest score, sum of weights, and weighted sum of values.
    `begin` is a multiple of BLOCK_N. Row i stands at positions[i]."""
    top = tl.full([BLOCK_M], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    d = tl.arange(0, BLOCK_D)
    n = begin + tl.arange(0, BLOCK_N)
    # The blocks of a tile are looked up one tile ahead: keys and values that waited for that as well would
    # leave the pipeline half as deep.
    block = tl.load(table + n // SLOTS, mask=n < stop, other=0)
    for _ in range(begin, stop, BLOCK_N):
        # What no row sees may be NaN, which a weight of 0 would let through, and has no block.
        held = n < stop
        if window is not None:
            held &= n >= first_seen
        slot = block.to(tl.int64) * (NUM_KV_HEADS * SLOTS * HEAD_DIM) + n % SLOTS * HEAD_DIM
        at = slot[:, None] + d[None, :]
        inside = held[:, None]
        if BLOCK_D != HEAD_DIM:
            inside &= (d < HEAD_DIM)[None, :]
        key = fp8.widen(tl.load(keys + at, mask=inside, other=0.0), query.dtype)
        scores = tl.dot(query, tl.trans(key), input_precision="ieee") * scale
        seen = n[None, :] <= positions[:, None]
        if window is not None:
            seen &= n[None, :] > positions[:, None] - window
        scores = tl.where(seen, scores, float("-inf"))
        new_top = tl.maximum(top, tl.max(scores, 1))
        base = base_of(new_top)
        share = tl.exp2(top - base)
        weights = tl.exp2(scores - base[:, None])
        top = new_top
        total = total * share + tl.sum(weights, 1)
        value = fp8.widen(tl.load(values + at, mask=inside, other=0.0), query.dtype)
        acc = tl.dot(weights.to(query.dtype), value, acc * share[:, None], input_precision="ieee")
        n += BLOCK_N
        block = tl.load(table + n // SLOTS, mask=n < stop, other=0)
    return top, total, acc
