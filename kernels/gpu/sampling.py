"""Choosing the next token of each row.

Knows: logits, sampling parameters, random words. Does not know: sequences, text; how a cut is found.
See `kernels.Kernels.sample` for the meaning, step by step.

There are five launches, whatever the parameters, for a look at them would wait for the device. `_find_tops`
finds the largest logit of each chunk of the vocabulary; two launches of `kernels.gpu.threshold` find where
the row is cut off, and return at once if nowhere; `_draw` finds the best token of each chunk, and `_choose`
that of the row.

Scores are fp64, which many GPUs compute at a small fraction of the speed of fp32. So an upper bound of every
score is computed in fp32, and of the scores themselves only those whose bound reaches the best score so far:
about one in a chunk.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.gpu.checks import check
from kernels.gpu.device import Device
from kernels.gpu.order import find_top, ids_of, load_keys, logits_of
from kernels.gpu.threshold import find_cuts, is_drawn


def sample(
    device: Device,
    logits: Tensor,
    temperature: Tensor,
    top_p: Tensor,
    top_k: Tensor,
    min_p: Tensor,
    seed: Tensor,
    position: Tensor,
) -> Tensor:
    """See `kernels.Kernels.sample`.

    Moves: 4 V bytes for a greedy row, 8 V for another, and what `find_cuts` moves for one with a top_k or a
    top_p. Gumbel noise: Maddison et al., 2014.

    Raises:
        ValueError: a shape or a dtype is not the one stated there.
    """
    num_rows, vocabulary = logits.shape
    _check(logits, temperature, top_p, top_k, min_p, seed, position)
    out = logits.new_empty(num_rows, dtype=torch.int64)
    if not num_rows:
        return out
    tiles = device.tiles("sample", vocabulary=vocabulary)
    chunks = (num_rows, triton.cdiv(vocabulary, tiles["CHUNK"]))
    tops = logits.new_empty(chunks, dtype=torch.int64)
    device.launch(_find_tops, chunks, logits=logits, tops=tops, VOCABULARY=vocabulary, **tiles)
    cuts = find_cuts(device, logits, tops, temperature, top_p, top_k, min_p, tiles["CHUNK"])
    common = {
        "tops": tops,
        "temperatures": temperature,
        "scores": logits.new_empty(chunks, dtype=torch.float64),
        "ids": logits.new_empty(chunks, dtype=torch.int32),
        "VOCABULARY": vocabulary,
        **tiles,
    }
    device.launch(_draw, chunks, logits=logits, cuts=cuts, seeds=seed, positions=position, **common)
    device.launch(_choose, (num_rows,), out=out, **common)
    return out


def _check(
    logits: Tensor,
    temperature: Tensor,
    top_p: Tensor,
    top_k: Tensor,
    min_p: Tensor,
    seed: Tensor,
    position: Tensor,
) -> None:
    one_per_row = logits.shape[:1]
    check("logits", logits, torch.float32)
    for name, column in {"temperature": temperature, "top_p": top_p, "min_p": min_p}.items():
        check(name, column, torch.float32, shape=one_per_row)
    check("top_k", top_k, torch.int32, shape=one_per_row)
    check("seed", seed, torch.int64, shape=one_per_row)
    check("position", position, torch.int64, shape=one_per_row)


@triton.jit
def _find_tops(logits, tops, VOCABULARY: tl.constexpr, CHUNK: tl.constexpr):
    """The largest sort key of each chunk into tops[R, chunks]."""
    row, chunk = tl.program_id(0), tl.program_id(1)
    keys = load_keys(logits, row, chunk * CHUNK + tl.arange(0, CHUNK), VOCABULARY)
    tl.store(tops + row * triton.cdiv(VOCABULARY, CHUNK) + chunk, tl.max(keys, axis=0))


@triton.jit
def _draw(
    logits,
    tops,
    cuts,
    temperatures,
    seeds,
    positions,
    scores,
    ids,
    VOCABULARY: tl.constexpr,
    CHUNK: tl.constexpr,
):
    """The best score of each chunk and the lowest id that has it: scores, ids [R, chunks], of rows that are
    drawn from. -infinity where nothing is kept."""
    row, chunk = tl.program_id(0), tl.program_id(1)
    top = logits_of(find_top(tops, row, VOCABULARY, CHUNK), VOCABULARY)
    temperature = tl.load(temperatures + row)
    if is_drawn(top, temperature):
        place = row * triton.cdiv(VOCABULARY, CHUNK) + chunk
        cut = tl.load(cuts + row)
        best, best_id = tl.full([], float("-inf"), tl.float64), 0
        if tl.load(tops + place) >= cut:
            seed, position = tl.load(seeds + row), tl.load(positions + row)
            tokens = chunk * CHUNK + tl.arange(0, CHUNK)
            keys = load_keys(logits, row, tokens, VOCABULARY)
            words = random_words(tokens, seed, position)
            bounds = score_bounds(logits_of(keys, VOCABULARY), top, temperature, words)
            bounds = tl.where(keys >= cut, bounds, float("-inf"))
            bound = tl.max(bounds, axis=0)
            while (bound > float("-inf")) & (bound >= best):
                token = chunk * CHUNK + tl.argmax(bounds, axis=0)
                logit = tl.load(logits + row.to(tl.int64) * VOCABULARY + token)
                score = scores_of(logit, top, temperature, random_words(token, seed, position))
                better = (score > best) | ((score == best) & (token < best_id))
                best, best_id = tl.where(better, score, best), tl.where(better, token, best_id)
                bounds = tl.where(tokens == token, float("-inf"), bounds)
                bound = tl.max(bounds, axis=0)
        tl.store(scores + place, best)
        tl.store(ids + place, best_id)


@triton.jit
def random_words(ids, seed, position):
    """The first of Philox4x32-10, uint32, for ids i32, seed and position i64."""
    low, high = position.to(tl.uint32), (position >> 32).to(tl.uint32)
    return tl.philox(seed, ids, low, high, tl.zeros_like(high))[0]


@triton.jit
def scores_of(logits, top, temperature, words):
    """z and Gumbel noise together, in fp64."""
    u = (words.to(tl.float64) + 0.5) * 2.0**-32
    return (logits.to(tl.float64) - top) / temperature - tl.log(-tl.log(u))


@triton.jit
def score_bounds(logits, top, temperature, words):
    """In fp32, and not below the scores: -log(u) >= 1 - u, so the noise is at most -log(1 - u).

    -infinity where fp32 ends; no such score can win, for noise is above -4 and the largest logit has z = 0.
    """
    z = (logits - top) / temperature
    noise = 32 * 0.6931472 - tl.log((words ^ 0xFFFFFFFF).to(tl.float32) + 0.5)
    # More than all of this was rounded by.
    return z * (1 - 2.0**-19) + noise + 2.0**-10


@triton.jit
def _choose(tops, temperatures, scores, ids, out, VOCABULARY: tl.constexpr, CHUNK: tl.constexpr):
    row = tl.program_id(0)
    top_key = find_top(tops, row, VOCABULARY, CHUNK)
    top, token = logits_of(top_key, VOCABULARY), ids_of(top_key, VOCABULARY)
    if is_drawn(top, tl.load(temperatures + row)):
        num_chunks: tl.constexpr = triton.cdiv(VOCABULARY, CHUNK)
        chunks = tl.arange(0, triton.next_power_of_2(num_chunks))
        place = row * num_chunks + chunks
        best = tl.load(scores + place, mask=chunks < num_chunks, other=float("-inf"))
        of_best = tl.load(ids + place, mask=chunks < num_chunks, other=0)
        token = tl.min(tl.where(best == tl.max(best, axis=0), of_best, VOCABULARY), axis=0).to(tl.int64)
    broken = tl.where(top == float("-inf"), -2, -1)
    tl.store(out + row, tl.where((top > float("-inf")) & (top < float("inf")), token, broken))
