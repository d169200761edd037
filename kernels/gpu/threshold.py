"""Where a row of logits is cut off: min_p, top_k and top_p as one sort key, which the kept tokens reach.

Knows: sort keys, weights e^((logit - largest) / temperature) in fp64. Does not know: noise, draws.
See `kernels.Kernels.sample`, steps 2 to 4.

Nothing is sorted. Pivots are keys; a tally says how many tokens reach each pivot, and what they weigh
together. The first tally is taken by many programs a row, at pivots whose distance from the largest logit
grows geometrically (`tally_chunks`). One program a row goes on (`find_cut`): between two of the pivots the
tally reaches its goal; that range is divided evenly by new pivots, and so on. Once few tokens are left in the
range they are put into a list, which then stays in registers. It is a radix select (Alabi et al., 2012,
"Fast k-selection algorithms for graphics processing units") with pivots in place of digits.

All sums run in an order that the vocabulary and the tiles decide, and nothing else.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels import GREEDY_BELOW
from kernels.gpu.device import Device
from kernels.gpu.order import NO_TOKEN, find_top, load_keys, logits_of, logits_of_bits, lowest_keys

_PIVOTS = tl.constexpr(16)
"""Of the first tally."""

_WAYS = tl.constexpr(8)
"""Parts into which a range is divided after that."""

_LOWEST = tl.constexpr(-3.4028234663852886e38)
"""The lowest finite number. No token with a logit of -infinity is ever drawn or weighs anything: that none is
kept changes nothing, and spares the search a wide range."""

_INFINITY = tl.constexpr(0x7F800000)
"""Its bits."""

_GREEDY_BELOW = tl.constexpr(GREEDY_BELOW)


def find_cuts(
    device: Device,
    logits: Tensor,
    tops: Tensor,
    temperature: Tensor,
    top_p: Tensor,
    top_k: Tensor,
    min_p: Tensor,
    chunk: int,
) -> Tensor:
    """The sort key that the kept tokens of each row reach, [R] i64; anything for rows not drawn from.

    Args:
        logits: [R, V] f32, and the parameters of `Kernels.sample`.
        tops: [R, chunks] i64: the largest key of each chunk.
        chunk: tokens in one.

    Moves: for a row with a top_k or a top_p 8 V bytes, for one with both 12 V: a tally, and a list for each.
    What is too much for a list costs 4 V more each time it is cut to an eighth. With a top_p each token in a
    tally costs an fp64 exponential.
    """
    num_rows, vocabulary = logits.shape
    pivots = logits.new_empty((num_rows, _PIVOTS.value), dtype=torch.int64)
    tally = {
        "counts": logits.new_empty((*tops.shape, _PIVOTS.value), dtype=torch.int32),
        "sums": logits.new_empty((*tops.shape, _PIVOTS.value), dtype=torch.float64),
    }
    rows = {"logits": logits, "tops": tops, "temperatures": temperature, "top_ps": top_p, "top_ks": top_k}
    common = {"pivots": pivots, **tally, **rows, "VOCABULARY": vocabulary, "CHUNK": chunk}
    tiles = device.tiles("tally_chunks", vocabulary=vocabulary)
    device.launch(
        tally_chunks, tuple(tops.shape), **common, min_ps=min_p, STAGES=tiles["num_stages"], **tiles
    )
    tiles = device.tiles("find_cut", vocabulary=vocabulary)
    listed = logits.new_empty((num_rows, tiles["LISTED"]), dtype=torch.int64)
    cuts = logits.new_empty(num_rows, dtype=torch.int64)
    device.launch(
        find_cut, (num_rows,), **common, listed=listed, cuts=cuts, STAGES=tiles["num_stages"], **tiles
    )
    return cuts


@triton.jit
def is_drawn(top, temperature):
    """Whether a row with this largest logit is drawn from; if not, it is greedy or broken."""
    finite = (top > float("-inf")) & (top < float("inf"))
    return finite & (temperature.to(tl.float64) >= tl.full([], _GREEDY_BELOW, tl.float64))


@triton.jit
def _is_searched(top_k, top_p, VOCABULARY: tl.constexpr):
    return ((top_k > 0) & (top_k < VOCABULARY)) | (top_p < 1)


@triton.jit
def tally_chunks(
    logits,
    tops,
    temperatures,
    top_ps,
    top_ks,
    min_ps,
    pivots,
    counts,
    sums,
    VOCABULARY: tl.constexpr,
    CHUNK: tl.constexpr,
    BLOCK: tl.constexpr,
    STAGES: tl.constexpr,
):
    """The first tally of one chunk of a row that must be searched: counts and sums [R, chunks, PIVOTS].

    Writes pivots[R, PIVOTS], descending, of every row drawn from; all that min_p keeps reaches the last.
    """
    row, chunk = tl.program_id(0), tl.program_id(1)
    top = logits_of(find_top(tops, row, VOCABULARY, CHUNK), VOCABULARY)
    temperature, top_p = tl.load(temperatures + row), tl.load(top_ps + row)
    searched = _is_searched(tl.load(top_ks + row), top_p, VOCABULARY)
    if is_drawn(top, temperature) & (searched | (chunk == 0)):
        p = tl.arange(0, _PIVOTS)
        lowest = _lowest_kept(top, temperature, tl.load(min_ps + row))
        # 0.25, 0.375, 0.56, ... 73 temperatures below the largest logit.
        pivot = tl.maximum(top - temperature * tl.exp2(p * 0.585 - 2), lowest)
        pivot = lowest_keys(tl.where(p == _PIVOTS - 1, lowest, pivot), VOCABULARY)
        tl.store(pivots + row * _PIVOTS + p, pivot, mask=(p < _PIVOTS) & (chunk == 0))
        if searched:
            n, w = tl.zeros([_PIVOTS, BLOCK], tl.int32), tl.zeros([_PIVOTS, BLOCK], tl.float64)
            for start in tl.range(0, CHUNK, BLOCK, num_stages=STAGES):
                keys = load_keys(logits, row, chunk * CHUNK + start + tl.arange(0, BLOCK), VOCABULARY)
                n, w = _add_tally(n, w, pivot, keys, _weights(keys, top, temperature, top_p, VOCABULARY))
            place = (row * triton.cdiv(VOCABULARY, CHUNK) + chunk) * _PIVOTS + p
            tl.store(counts + place, tl.sum(n, axis=1))
            tl.store(sums + place, tl.sum(w, axis=1))


@triton.jit
def _lowest_kept(top, temperature, min_p):
    """The lowest finite logit that min_p keeps. One comparison decides it, and it is monotonic: so the bits
    of that logit are found from the highest on, eight at a time."""
    lowest = _LOWEST
    if min_p > 0:
        least = tl.log(min_p.to(tl.float64))
        bits = tl.full([], -(1 << 31), tl.int64)
        for shift in tl.static_range(24, -1, -8):
            ends = bits + (tl.arange(1, 257).to(tl.int64) << shift) - 1
            x = logits_of_bits(tl.minimum(tl.maximum(ends, -1 - _INFINITY), _INFINITY).to(tl.int32))
            z = (x.to(tl.float64) - top) / temperature
            bits += tl.sum((z < least).to(tl.int64), axis=0) << shift
        lowest = tl.maximum(logits_of_bits(bits.to(tl.int32)), _LOWEST)
    return lowest


@triton.jit
def _weights(keys, top, temperature, top_p, VOCABULARY: tl.constexpr):
    """Zeros if the row has no top_p. The reciprocal may change the last bit of z, which is no more than the
    order of a sum does."""
    weights = tl.zeros(keys.shape, tl.float64)
    if top_p < 1:
        z = (logits_of(keys, VOCABULARY).to(tl.float64) - top) * (1.0 / temperature.to(tl.float64))
        weights = tl.exp(tl.where(keys > NO_TOKEN, z, float("-inf")))
    return weights


@triton.jit
def _at(values, index):
    """values[index], or 0 for an index of -1."""
    return tl.sum(tl.where(tl.arange(0, values.shape[0]) == index, values, 0), axis=0)


@triton.jit
def _add_tally(counts, sums, pivots, keys, weights):
    """How many keys reach each pivot, and their weights; apart for each place in a block until the end, for
    sums across threads are dear."""
    reached = keys[None, :] >= pivots[:, None]
    return counts + reached.to(tl.int32), sums + tl.where(reached, weights[None, :], 0.0)


@triton.jit
def find_cut(
    logits,
    tops,
    temperatures,
    top_ps,
    top_ks,
    pivots,
    counts,
    sums,
    listed,
    cuts,
    VOCABULARY: tl.constexpr,
    CHUNK: tl.constexpr,
    BLOCK: tl.constexpr,
    SCAN_BLOCK: tl.constexpr,
    LISTED: tl.constexpr,
    STAGES: tl.constexpr,
):
    """cuts[R] of rows that are drawn from. listed[R, LISTED] is scratch."""
    row = tl.program_id(0)
    top_key = find_top(tops, row, VOCABULARY, CHUNK)
    top = logits_of(top_key, VOCABULARY)
    temperature, top_p, top_k = tl.load(temperatures + row), tl.load(top_ps + row), tl.load(top_ks + row)
    if is_drawn(top, temperature):
        cut = tl.load(pivots + row * _PIVOTS + _PIVOTS - 1)
        if _is_searched(top_k, top_p, VOCABULARY):
            n, w = _join(counts, sums, row, VOCABULARY, CHUNK)
            num_kept, weight_kept = _at(n, _PIVOTS - 1), _at(w, _PIVOTS - 1)
            # First by number, for top_k; then by weight, for top_p, which reaches its goal among what is kept
            # so far and need not look where that ends. In a loop the search is compiled once.
            for by_weight in range(2):
                if tl.where(by_weight == 0, (top_k > 0) & (top_k < num_kept), top_p < 1):
                    goal = tl.where(by_weight == 0, top_k.to(tl.float64), top_p.to(tl.float64) * weight_kept)
                    first = tl.load(pivots + row * _PIVOTS + tl.arange(0, _PIVOTS))
                    n, w = _join(counts, sums, row, VOCABULARY, CHUNK)
                    span = _narrow(first, n, w, (cut, top_key + 1, 0, 0, 0.0), goal, by_weight)
                    of_row = (logits, row, top, temperature, top_p)
                    span = _narrow_row(of_row, span, goal, by_weight, VOCABULARY, BLOCK, LISTED, STAGES)
                    here = listed + row * LISTED
                    length = _list(logits, row, span, here, VOCABULARY, SCAN_BLOCK, STAGES)
                    i = tl.arange(0, LISTED)
                    keys = tl.load(here + i, mask=i < length, other=NO_TOKEN)
                    weights = _weights(keys, top, temperature, top_p, VOCABULARY)
                    cut, weight_kept = _search_list(keys, weights, span, goal, by_weight)
        tl.store(cuts + row, tl.minimum(cut, top_key))


@triton.jit
def _join(counts, sums, row, VOCABULARY: tl.constexpr, CHUNK: tl.constexpr):
    """The first tally, of all chunks together."""
    num_chunks: tl.constexpr = triton.cdiv(VOCABULARY, CHUNK)
    chunks = tl.arange(0, triton.next_power_of_2(num_chunks))[:, None]
    places = (row * num_chunks + chunks) * _PIVOTS + tl.arange(0, _PIVOTS)[None, :]
    n = tl.load(counts + places, mask=chunks < num_chunks, other=0)
    w = tl.load(sums + places, mask=chunks < num_chunks, other=0.0)
    return tl.sum(n, axis=0), tl.sum(w, axis=0)


@triton.jit
def _narrow(pivots, counts, sums, span, goal, by_weight):
    """Of the parts of a span, between `pivots`, descending, the one in which the tally reaches the goal.

    A span is (low, high, inside, above_n, above_w): the keys from low to below high, how many tokens are in
    it, how many above it, and what those weigh. Counts and sums are of the span alone.
    """
    _, high, _, above_n, above_w = span
    reached = tl.where(by_weight == 1, above_w + sums, above_n + counts.to(tl.float64)) >= goal
    # Rounding may leave the last pivot short of the goal; the span ends there all the same.
    index = tl.minimum(tl.sum((~reached).to(tl.int32), axis=0), pivots.shape[0] - 1)
    n_before, w_before = _at(counts, index - 1), _at(sums, index - 1)
    high = tl.where(index > 0, _at(pivots, index - 1), high)
    return _at(pivots, index), high, _at(counts, index) - n_before, above_n + n_before, above_w + w_before


@triton.jit
def _divide(span):
    """Pivots, evenly below high down to low. A key takes less than 56 bits: nothing overflows."""
    return span[1] - (span[1] - span[0]) * (tl.arange(0, _WAYS) + 1) // _WAYS


@triton.jit
def _narrow_row(
    of_row,
    span,
    goal,
    by_weight,
    VOCABULARY: tl.constexpr,
    BLOCK: tl.constexpr,
    LISTED: tl.constexpr,
    STAGES: tl.constexpr,
):
    """Until all that the span holds fits into the list."""
    logits, row, top, temperature, top_p = of_row
    while (span[2] > LISTED) & (span[1] - span[0] > 1):
        pivots = _divide(span)
        n, w = tl.zeros([_WAYS, BLOCK], tl.int32), tl.zeros([_WAYS, BLOCK], tl.float64)
        for start in tl.range(0, VOCABULARY, BLOCK, num_stages=STAGES):
            keys = load_keys(logits, row, start + tl.arange(0, BLOCK), VOCABULARY)
            keys = tl.where(keys < span[1], keys, NO_TOKEN)
            n, w = _add_tally(n, w, pivots, keys, _weights(keys, top, temperature, top_p, VOCABULARY))
        span = _narrow(pivots, tl.sum(n, axis=1), tl.sum(w, axis=1), span, goal, by_weight)
    return span


@triton.jit
def _list(logits, row, span, here, VOCABULARY: tl.constexpr, SCAN_BLOCK: tl.constexpr, STAGES: tl.constexpr):
    """Writes the keys of the span in the order of ids. Returns how many there are."""
    # Here no thread may still read a former list, and below all must see what others wrote.
    tl.debug_barrier()
    length = 0
    for start in tl.range(0, VOCABULARY, SCAN_BLOCK, num_stages=STAGES):
        keys = load_keys(logits, row, start + tl.arange(0, SCAN_BLOCK), VOCABULARY)
        held = ((keys >= span[0]) & (keys < span[1])).to(tl.int32)
        tl.store(here + length + tl.cumsum(held, axis=0) - 1, keys, mask=held > 0)
        length += tl.sum(held, axis=0)
    tl.debug_barrier()
    return length


@triton.jit
def _search_list(keys, weights, span, goal, by_weight):
    """The key at which the tally reaches the goal, and the weight of all tokens that reach it."""
    while (span[2] > 1) & (span[1] - span[0] > 1):
        pivots = _divide(span)
        reached = (keys[None, :] >= pivots[:, None]) & (keys < span[1])[None, :]
        n = tl.sum(reached.to(tl.int32), axis=1)
        w = tl.sum(tl.where(reached, weights[None, :], 0.0), axis=1)
        span = _narrow(pivots, n, w, span, goal, by_weight)
    inside = (keys >= span[0]) & (keys < span[1])
    return span[0], span[4] + tl.sum(tl.where(inside, weights, 0.0), axis=0)
