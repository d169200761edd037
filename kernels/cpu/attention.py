"""Causal attention over paged keys and values, read where they lie.

Knows: block tables, query heads that share a key-value head, threads. Does not know: models, requests.
See `kernels.Kernels.paged_attention` for the shapes.

The work is cut into items: a tile of up to TILE query tokens of one sequence, times one key-value head,
times a range of splits. A split is SPLIT positions, beginning at a multiple of SPLIT. Inside a split the
softmax is taken in two passes over a buffer of scores; the splits of a row are then folded together in
ascending order, as in online softmax (Milakov and Gimelshein, 2018). Decode rows, and chunks of one tile,
get an item per split, so that few rows with long contexts still feed all threads; the thread that finishes
the last item of such a group folds their partial results. Longer chunks have items enough and fold as they
go. Which thread takes which item is decided while they run.

A row's arithmetic is a function of its own position and context only. The groups of positions that are
summed together begin at fixed positions, and positions that a row does not see enter as weights of
exactly 0, so the result is the same bit for bit in any batch and any cut of the prompt into chunks.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
import torch
from torch import Tensor

from kernels.cpu.jit import exp, fetch_add, helper, kernel, match_threads, prefetch

SPLIT = 128
TILE = 16
_LANES = 4
"""Positions that are multiplied together; SPLIT and the blocks' slots are multiples of it."""
_NO_WINDOW = np.iinfo(np.int32).max
_MINUS_INFINITY = np.float32(-np.inf)


def paged_attention(
    q: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    block_tables: Tensor,
    context_lens: Tensor,
    query_start: Tensor,
    scale: float,
    window: int | None,
) -> Tensor:
    num_tokens, num_heads, head_dim = q.shape
    _, num_kv_heads, num_slots, cache_dim = key_cache.shape
    if head_dim != cache_dim or num_heads % num_kv_heads or num_slots % _LANES or SPLIT % num_slots:
        raise ValueError(
            f"q: got {num_heads} heads of {head_dim}, which do not fit a cache of {num_kv_heads} heads of"
            f" {cache_dim} in blocks of {num_slots}"
        )
    out = torch.empty((num_tokens, num_heads * head_dim))
    _attend(
        q.numpy(),
        key_cache.numpy(),
        value_cache.numpy(),
        block_tables.numpy(),
        context_lens.numpy(),
        query_start.numpy(),
        scale,
        _NO_WINDOW if window is None else window,
        out.view(q.shape).numpy(),
        match_threads(),
    )
    return out


# Columns of the array of items.
_SEQUENCE, _FIRST_TOKEN, _END_TOKEN, _HEAD, _FIRST_SPLIT, _END_SPLIT, _PARTIAL, _GROUP, _GROUP_SIZE = range(9)


@helper()
def _spans(query_start: Any, context_lens: Any, s: Any, first: Any, end: Any, window: Any) -> Any:
    """The splits that hold what the tokens first..end of sequence s see, as a half-open range."""
    last_position = context_lens[s] - (query_start[s + 1] - end) - 1
    first_position = max(0, context_lens[s] - (query_start[s + 1] - first) - window + 1)
    return first_position // SPLIT, last_position // SPLIT + 1


@helper()
def _plan(query_start: Any, context_lens: Any, num_kv_heads: Any, group: Any, window: Any) -> Any:
    """All items, and the number of partial rows that they leave."""
    num_sequences = context_lens.shape[0]
    count = 0
    for s in range(num_sequences):
        first, end = query_start[s], query_start[s + 1]
        if 0 < end - first <= TILE:
            first_split, end_split = _spans(query_start, context_lens, s, first, end, window)
            count += (end_split - first_split) * num_kv_heads
        else:
            count += (end - first + TILE - 1) // TILE * num_kv_heads
    items = np.empty((count, 9), dtype=np.int64)
    n = 0
    partials = 0
    for s in range(num_sequences):
        start, stop = query_start[s], query_start[s + 1]
        for first in range(start, stop, TILE):
            end = min(first + TILE, stop)
            first_split, end_split = _spans(query_start, context_lens, s, first, end, window)
            step = 1 if stop - start <= TILE else end_split - first_split
            for head in range(num_kv_heads):
                group_start = n
                for split in range(first_split, end_split, step):
                    items[n, _SEQUENCE], items[n, _HEAD] = s, head
                    items[n, _FIRST_TOKEN], items[n, _END_TOKEN] = first, end
                    items[n, _FIRST_SPLIT], items[n, _END_SPLIT] = split, split + step
                    items[n, _GROUP], items[n, _GROUP_SIZE] = group_start, (end_split - first_split) // step
                    items[n, _PARTIAL] = -1
                    if end_split - first_split > step:
                        items[n, _PARTIAL] = partials
                        partials += (end - first) * group
                    n += 1
    return items, partials


@helper()
def _load_queries(q: Any, first: Any, end: Any, head: Any, group: Any, scale: Any, tile: Any) -> None:
    """tile[(token - first) * group + g, D]: the queries that share this key-value head, scaled."""
    for t in range(first, end):
        for g in range(group):
            for d in range(q.shape[2]):
                tile[(t - first) * group + g, d] = q[t, head * group + g, d] * scale


@helper()
def _score(
    tile: Any,
    rows: Any,
    keys: Any,
    block_tables: Any,
    s: Any,
    head: Any,
    low: Any,
    high: Any,
    start: Any,
    scores: Any,
    values: Any,
) -> None:
    """scores[row, p - start] for the positions low..high, in groups of _LANES; the values are sent for.

    The groups' edges do not move with low and high: a group that sticks out repeats its nearest position.
    """
    num_slots = keys.shape[2]
    for b in range(low // num_slots, (high + num_slots - 1) // num_slots):
        block, origin = block_tables[s, b], b * num_slots
        first, last = max(low - origin, 0), min(high - origin, num_slots) - 1
        for j in range(first - first % _LANES, last + 1, _LANES):
            _send_for(values, block, head, j)
            j0, j1 = max(j, first), min(max(j + 1, first), last)
            j2, j3 = min(max(j + 2, first), last), min(j + 3, last)
            at = origin - start + j
            for r in range(rows):
                s0 = s1 = s2 = s3 = np.float32(0.0)
                for d in range(tile.shape[1]):
                    x = tile[r, d]
                    s0 += x * keys[block, head, j0, d]
                    s1 += x * keys[block, head, j1, d]
                    s2 += x * keys[block, head, j2, d]
                    s3 += x * keys[block, head, j3, d]
                scores[r, at] = s0
                scores[r, at + 1] = s1
                scores[r, at + 2] = s2
                scores[r, at + 3] = s3


@helper()
def _accumulate(
    weights: Any,
    rows: Any,
    values: Any,
    block_tables: Any,
    s: Any,
    head: Any,
    low: Any,
    high: Any,
    start: Any,
    acc: Any,
    keys: Any,
    ahead: Any,
) -> None:
    """acc[row] += weights[row, p - start] * value of p, for low..high, grouped as in _score; the keys
    of the split `ahead` (sequence, head, first block, end block) are sent for."""
    num_slots = values.shape[2]
    for b in range(low // num_slots, (high + num_slots - 1) // num_slots):
        block, origin = block_tables[s, b], b * num_slots
        first, last = max(low - origin, 0), min(high - origin, num_slots) - 1
        ahead_b = ahead[2] + (b - start // num_slots)
        for j in range(first - first % _LANES, last + 1, _LANES):
            if ahead_b < ahead[3]:
                _send_for(keys, block_tables[ahead[0], ahead_b], ahead[1], j)
            j0, j1 = max(j, first), min(max(j + 1, first), last)
            j2, j3 = min(max(j + 2, first), last), min(j + 3, last)
            at = origin - start + j
            for r in range(rows):
                w0, w1 = weights[r, at], weights[r, at + 1]
                w2, w3 = weights[r, at + 2], weights[r, at + 3]
                for d in range(acc.shape[1]):
                    acc[r, d] += (
                        w0 * values[block, head, j0, d]
                        + w1 * values[block, head, j1, d]
                        + w2 * values[block, head, j2, d]
                        + w3 * values[block, head, j3, d]
                    )


@helper()
def _send_for(cache: Any, block: Any, head: Any, slot: Any) -> None:
    """Have memory bring _LANES positions of a block, while the processor does something else."""
    _, num_heads, num_slots, head_dim = cache.shape
    offset = ((np.int64(block) * num_heads + head) * num_slots + slot) * head_dim
    for i in range(0, _LANES * head_dim, 16):
        prefetch(cache, offset + i)


@helper()
def _softmax(scores: Any, row: Any, low: Any, high: Any) -> Any:
    """Turn scores[row, low:high] into exp(score - maximum), the rest into 0; the maximum and the sum."""
    for i in range(low):
        scores[row, i] = _MINUS_INFINITY
    for i in range(high, SPLIT):
        scores[row, i] = _MINUS_INFINITY
    top = _MINUS_INFINITY
    for i in range(SPLIT):
        top = max(top, scores[row, i])
    if top == _MINUS_INFINITY:
        top = np.float32(0.0)
    total = np.float32(0.0)
    for i in range(SPLIT):
        weight = exp(scores[row, i] - top)
        scores[row, i] = weight
        total += weight
    return top, total


@helper()
def _split(
    tile: Any,
    tokens: Any,
    group: Any,
    keys: Any,
    values: Any,
    block_tables: Any,
    s: Any,
    head: Any,
    split: Any,
    position: Any,
    window: Any,
    scores: Any,
    tops: Any,
    totals: Any,
    acc: Any,
    ahead: Any,
) -> None:
    """One split for a tile whose first token stands at `position`: tops, totals, acc of each row."""
    start = split * SPLIT
    low, high = max(start, position - window + 1), min(start + SPLIT, position + tokens)
    rows = tokens * group
    _score(tile, rows, keys, block_tables, s, head, low, high, start, scores, values)
    for r in range(rows):
        p = position + r // group
        row_low, row_high = max(p - window + 1 - start, 0), min(p + 1 - start, SPLIT)
        tops[r], totals[r] = _softmax(scores, r, min(row_low, SPLIT), max(row_high, 0))
        for d in range(acc.shape[1]):
            acc[r, d] = np.float32(0.0)
    _accumulate(scores, rows, values, block_tables, s, head, low, high, start, acc, keys, ahead)


@helper(exact=True)
def _fold(tops: Any, totals: Any, acc: Any, at: Any, top: Any, total: Any, part: Any, row: Any) -> None:
    """Add the partial result part[row] with its maximum and sum to the running result acc[at]."""
    if total == np.float32(0.0):
        return
    new_top = max(tops[at], top)
    old_share, share = exp(tops[at] - new_top), exp(top - new_top)
    tops[at] = new_top
    totals[at] = totals[at] * old_share + total * share
    for d in range(acc.shape[1]):
        acc[at, d] = acc[at, d] * old_share + part[row, d] * share


@helper()
def _reset(tops: Any, totals: Any, acc: Any, rows: Any) -> None:
    for r in range(rows):
        tops[r], totals[r] = _MINUS_INFINITY, np.float32(0.0)
        for d in range(acc.shape[1]):
            acc[r, d] = np.float32(0.0)


@helper()
def _store(totals: Any, acc: Any, row: Any, out: Any, t: Any, head: Any) -> None:
    factor = np.float32(1.0) / totals[row]
    for d in range(acc.shape[1]):
        out[t, head, d] = acc[row, d] * factor


@helper()
def _fold_group(
    items: Any,
    i: Any,
    rows: Any,
    part_tops: Any,
    part_totals: Any,
    parts: Any,
    tops: Any,
    totals: Any,
    acc: Any,
) -> None:
    """Fold the partial results of all items of the group of item i, in the order of the splits."""
    _reset(tops, totals, acc, rows)
    for j in range(items[i, _GROUP], items[i, _GROUP] + items[i, _GROUP_SIZE]):
        for r in range(rows):
            p = items[j, _PARTIAL] + r
            _fold(tops, totals, acc, r, part_tops[p], part_totals[p], parts, p)


@helper()
def _ahead(items: Any, i: Any, context_lens: Any, num_slots: Any) -> Any:
    """Sequence, head, first block and end of the context in blocks, of the first split of item i."""
    if i >= items.shape[0]:
        return 0, 0, 0, 0
    s = items[i, _SEQUENCE]
    blocks = (np.int64(context_lens[s]) + num_slots - 1) // num_slots
    return s, items[i, _HEAD], items[i, _FIRST_SPLIT] * SPLIT // num_slots, blocks


@kernel(
    "void(float32[:, :, ::1], float32[:, :, :, ::1], float32[:, :, :, ::1], int32[:, ::1], int32[::1],"
    " int32[::1], float32, int64, float32[:, :, ::1], int64)",
    parallel=True,
)
def _attend(
    q: Any,
    keys: Any,
    values: Any,
    block_tables: Any,
    context_lens: Any,
    query_start: Any,
    scale: Any,
    window: Any,
    out: Any,
    threads: Any,
) -> None:
    head_dim, num_kv_heads, num_slots = q.shape[2], keys.shape[1], keys.shape[2]
    group = q.shape[1] // num_kv_heads
    items, num_partials = _plan(query_start, context_lens, num_kv_heads, group, window)
    part_tops = np.empty(num_partials, dtype=np.float32)
    part_totals = np.empty(num_partials, dtype=np.float32)
    parts = np.empty((num_partials, head_dim), dtype=np.float32)
    next_item = np.zeros(1, dtype=np.int64)
    finished = np.zeros(items.shape[0], dtype=np.int64)
    for _ in numba.prange(threads):
        tile = np.empty((TILE * group, head_dim), dtype=np.float32)
        scores = np.empty((TILE * group, SPLIT), dtype=np.float32)
        tops = np.empty(TILE * group, dtype=np.float32)
        totals = np.empty(TILE * group, dtype=np.float32)
        acc = np.empty((TILE * group, head_dim), dtype=np.float32)
        new_tops = np.empty(TILE * group, dtype=np.float32)
        new_totals = np.empty(TILE * group, dtype=np.float32)
        new = np.empty((TILE * group, head_dim), dtype=np.float32)
        next_i = fetch_add(next_item, 0)
        while next_i < items.shape[0]:
            i, next_i = next_i, fetch_add(next_item, 0)
            s, head = items[i, _SEQUENCE], items[i, _HEAD]
            first, end = items[i, _FIRST_TOKEN], items[i, _END_TOKEN]
            tokens, rows = end - first, (end - first) * group
            position = context_lens[s] - (query_start[s + 1] - first)
            _load_queries(q, first, end, head, group, scale, tile)
            ahead = _ahead(items, next_i, context_lens, num_slots)
            _reset(tops, totals, acc, rows)
            for split in range(items[i, _FIRST_SPLIT], items[i, _END_SPLIT]):
                _split(
                    tile, tokens, group, keys, values, block_tables, s, head, split,
                    position, window, scores, new_tops, new_totals, new, ahead,
                )  # fmt: skip
                for r in range(rows):
                    _fold(tops, totals, acc, r, new_tops[r], new_totals[r], new, r)
            partial = items[i, _PARTIAL]
            if partial >= 0:
                for r in range(rows):
                    part_tops[partial + r], part_totals[partial + r] = tops[r], totals[r]
                    for d in range(head_dim):
                        parts[partial + r, d] = acc[r, d]
                if fetch_add(finished, items[i, _GROUP]) < items[i, _GROUP_SIZE] - 1:
                    continue
                _fold_group(items, i, rows, part_tops, part_totals, parts, tops, totals, acc)
            for r in range(rows):
                _store(totals, acc, r, out, first + r // group, head * group + r % group)
