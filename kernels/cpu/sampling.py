"""Choosing the next token of each row.

Knows: logits, sampling parameters, random words. Does not know: sequences, text.
See `kernels.Kernels.sample` for the meaning, step by step.

A row's candidates are two arrays, ids in ascending order and their logits, and each filter shortens
them. Nothing is sorted: top_k and top_p look for the logit at which they cut by narrowing a range of
sort keys, with histograms over 11, 11 and 10 bits of the key; equals of that logit are kept from the
lowest id on. Exponentials and logarithms are fp64 and written so that the compiler can vectorise them.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
import torch
from torch import Tensor

from kernels import GREEDY_BELOW
from kernels.cpu.jit import helper, kernel, match_threads

_CHUNK = 256
"""Candidates scored at a time, so that their scores stay in the nearest cache."""


def sample(
    logits: Tensor,
    temperature: Tensor,
    top_p: Tensor,
    top_k: Tensor,
    min_p: Tensor,
    seed: Tensor,
    position: Tensor,
) -> Tensor:
    num_rows = logits.shape[0]
    for name, column in {"temperature": temperature, "top_p": top_p, "top_k": top_k, "min_p": min_p}.items():
        if column.shape != (num_rows,):
            raise ValueError(f"{name}: got shape {tuple(column.shape)}, allowed: ({num_rows},), one per row")
    ids = torch.empty(num_rows, dtype=torch.int64)
    match_threads()
    _sample(
        logits.numpy(),
        temperature.numpy(),
        top_p.numpy(),
        top_k.numpy(),
        min_p.numpy(),
        seed.numpy(),
        position.numpy(),
        ids.numpy(),
    )
    return ids


@helper(exact=True, inline=True)
def _key(logit: Any) -> Any:
    """A number below 2^32 that orders as the logits do. -0 and 0 are equal, for -0 + 0 = 0."""
    bits = np.int64(np.float32(logit + np.float32(0.0)).view(np.int32))
    return bits + 0x80000000 if bits >= 0 else 0x7FFFFFFF - (bits & 0x7FFFFFFF)


_SHIFTER = 1.5 * 2.0**52
"""Added to a small number, leaves its nearest integer in the lowest bits."""


@helper(exact=True, inline=True)
def exp64(x: Any) -> Any:
    """e^x in fp64 for x <= 0, 0 below -700. Taylor series around the nearest power of two."""
    shifted = max(x, -700.0) * 1.4426950408889634 + _SHIFTER
    n = shifted - _SHIFTER
    r = (max(x, -700.0) - n * 0.6931471803691238) - n * 1.9082149292705877e-10
    p = 1 / 6227020800.0
    p = p * r + 1 / 479001600.0
    p = p * r + 1 / 39916800.0
    p = p * r + 1 / 3628800.0
    p = p * r + 1 / 362880.0
    p = p * r + 1 / 40320.0
    p = p * r + 1 / 5040.0
    p = p * r + 1 / 720.0
    p = p * r + 1 / 120.0
    p = p * r + 1 / 24.0
    p = p * r + 1 / 6.0
    p = p * r + 0.5
    p = p * r * r + r + 1.0
    bits = np.float64(p).view(np.int64) + (np.float64(shifted).view(np.int64) << 52)
    scaled = np.int64(bits).view(np.float64)
    return 0.0 if x < -700.0 else scaled


@helper(exact=True, inline=True)
def _log(x: Any) -> Any:
    """Natural logarithm in fp64 of a normal positive number: 2 artanh((m - 1) / (m + 1)) and the exponent."""
    bits = np.float64(x).view(np.int64)
    # The exponent that leaves a mantissa between sqrt(1/2) and sqrt(2).
    n = (bits - 0x3FE6A09E667F3BCD) >> 52
    m = np.int64(bits - (n << 52)).view(np.float64)
    f = (m - 1.0) / (m + 1.0)
    g = f * f
    p = 1 / 21.0
    p = p * g + 1 / 19.0
    p = p * g + 1 / 17.0
    p = p * g + 1 / 15.0
    p = p * g + 1 / 13.0
    p = p * g + 1 / 11.0
    p = p * g + 1 / 9.0
    p = p * g + 1 / 7.0
    p = p * g + 1 / 5.0
    p = p * g + 1 / 3.0
    return (2.0 * f * g * p + 2.0 * f) + np.float64(n) * 0.6931471805599453


@helper(inline=True)
def _round(c: Any, k0: Any, k1: Any, n: Any) -> Any:
    """Round n of Philox4x32 on the counter c; all uint64 below 2^32."""
    mask, shift = np.uint64(0xFFFFFFFF), np.uint64(32)
    a, b = c[0] * np.uint64(0xD2511F53), c[2] * np.uint64(0xCD9E8D57)
    k0 = (k0 + np.uint64(n * 0x9E3779B9)) & mask
    k1 = (k1 + np.uint64(n * 0xBB67AE85)) & mask
    return (b >> shift) ^ c[1] ^ k0, b & mask, (a >> shift) ^ c[3] ^ k1, a & mask


@helper(inline=True)
def _philox(c: Any, k0: Any, k1: Any) -> Any:
    """The first word of Philox4x32-10 (Salmon et al., 2011). Written out, for a loop inside would keep the
    compiler from vectorising over tokens."""
    c = _round(c, k0, k1, 0)
    c = _round(c, k0, k1, 1)
    c = _round(c, k0, k1, 2)
    c = _round(c, k0, k1, 3)
    c = _round(c, k0, k1, 4)
    c = _round(c, k0, k1, 5)
    c = _round(c, k0, k1, 6)
    c = _round(c, k0, k1, 7)
    c = _round(c, k0, k1, 8)
    return _round(c, k0, k1, 9)[0]


@helper(exact=True, inline=True)
def _gumbel(token: Any, seed: Any, position: Any) -> Any:
    """Noise for one token; seed and position uint64."""
    mask, shift = np.uint64(0xFFFFFFFF), np.uint64(32)
    counter = np.uint64(token), position & mask, position >> shift, np.uint64(0)
    word = _philox(counter, seed & mask, seed >> shift)
    # Through int64: the conversion from unsigned is slow on AVX2.
    u = (np.float64(np.int64(word)) + 0.5) * 2.0**-32
    return -_log(-_log(u))


@helper()
def _best(logits: Any, row: Any) -> Any:
    """The largest logit and its lowest id. The id is -1 where there is a NaN or +infinity, else -2 where all
    are -infinity."""
    top, best, nans = np.float32(-np.inf), np.int64(-2), np.int64(0)
    for i in range(logits.shape[1]):
        x = logits[row, i]
        nans += np.isnan(x)
        if x > top:
            top, best = x, np.int64(i)
    return top, best if nans == 0 and top < np.inf else np.int64(-1)


@helper(exact=True)
def _take_likely(logits: Any, row: Any, top: Any, temperature: Any, min_p: Any, ids: Any, x: Any) -> Any:
    """The candidates that min_p keeps; their number."""
    lowest = np.log(np.float64(min_p)) if min_p > 0 else -np.inf
    n = 0
    for i in range(logits.shape[1]):
        if (np.float64(logits[row, i]) - top) / temperature >= lowest:
            ids[n], x[n] = i, logits[row, i]
            n += 1
    return n


@helper()
def _find_cut(x: Any, amounts: Any, n: Any, goal: Any) -> Any:
    """Going down from the largest x, the sort key at which the sum of amounts reaches `goal`, and the sum
    above that key. Key 0 if the sum never gets there."""
    low, bits, above = np.int64(0), np.int64(32), 0.0
    sums = np.empty(2048, dtype=np.float64)
    for width in (11, 11, 10):
        bits -= width
        bins = np.int64(1) << width
        for b in range(bins):
            sums[b] = 0.0
        for i in range(n):
            b = (_key(x[i]) - low) >> bits
            if 0 <= b < bins:
                sums[b] += amounts[i]
        b = bins - 1
        while b > 0 and above + sums[b] < goal:
            above += sums[b]
            b -= 1
        low += b << bits
    return low, above


@helper()
def _keep(ids: Any, x: Any, amounts: Any, n: Any, cut: Any, above: Any, goal: Any) -> Any:
    """Keep what lies above the cut, and of the equals at the cut those before which less than `goal` lies."""
    kept = 0
    for i in range(n):
        key = _key(x[i])
        if key > cut or (key == cut and above < goal):
            if key == cut:
                above += amounts[i]
            ids[kept], x[kept] = ids[i], x[i]
            kept += 1
    return kept


@helper()
def _keep_top_k(ids: Any, x: Any, amounts: Any, n: Any, top_k: Any) -> Any:
    for i in range(n):
        amounts[i] = 1.0
    goal = np.float64(top_k)
    cut, above = _find_cut(x, amounts, n, goal)
    return _keep(ids, x, amounts, n, cut, above, goal)


@helper()
def _keep_top_p(ids: Any, x: Any, amounts: Any, n: Any, top: Any, temperature: Any, top_p: Any) -> Any:
    total = 0.0
    for i in range(n):
        amounts[i] = exp64((np.float64(x[i]) - top) / temperature)
        total += amounts[i]
    # All that is no likelier than this makes up less than 1 - top_p together: none of it is in the
    # nucleus, and the search need not look at it.
    useless = (1.0 - top_p) * total / n * (1.0 - 1e-9)
    candidates = 0
    for i in range(n):
        if amounts[i] >= useless:
            ids[candidates], x[candidates], amounts[candidates] = ids[i], x[i], amounts[i]
            candidates += 1
    goal = top_p * total
    cut, above = _find_cut(x, amounts, candidates, goal)
    return _keep(ids, x, amounts, candidates, cut, above, goal)


@helper()
def _draw(ids: Any, x: Any, n: Any, top: Any, temperature: Any, seed: Any, position: Any, scores: Any) -> Any:
    """The id with the largest sum of scaled logit and noise."""
    best_score, best = -np.inf, np.int64(-1)
    for start in range(0, n, _CHUNK):
        count = min(n - start, _CHUNK)
        for i in range(count):
            z = (np.float64(x[start + i]) - top) / temperature
            scores[i] = z + _gumbel(ids[start + i], seed, position)
        for i in range(count):
            if scores[i] > best_score:
                best_score, best = scores[i], np.int64(ids[start + i])
    return best


@kernel(
    "void(float32[:, ::1], float32[::1], float32[::1], int32[::1], float32[::1],"
    " int64[::1], int64[::1], int64[::1])",
    parallel=True,
)
def _sample(
    logits: Any,
    temperatures: Any,
    top_ps: Any,
    top_ks: Any,
    min_ps: Any,
    seeds: Any,
    positions: Any,
    out: Any,
) -> None:
    width = logits.shape[1]
    for row in numba.prange(logits.shape[0]):
        top, best = _best(logits, row)
        if best < 0 or temperatures[row] < GREEDY_BELOW:
            out[row] = best
            continue
        largest, temperature = np.float64(top), np.float64(temperatures[row])
        ids, x = np.empty(width, dtype=np.int32), np.empty(width, dtype=np.float32)
        amounts = np.empty(width, dtype=np.float64)
        n = _take_likely(logits, row, largest, temperature, min_ps[row], ids, x)
        if 0 < top_ks[row] < n:
            n = _keep_top_k(ids, x, amounts, n, top_ks[row])
        if top_ps[row] < 1:
            n = _keep_top_p(ids, x, amounts, n, largest, temperature, np.float64(top_ps[row]))
        seed, position = np.uint64(seeds[row]), np.uint64(positions[row])
        out[row] = _draw(ids, x, n, largest, temperature, seed, position, amounts[:_CHUNK])
