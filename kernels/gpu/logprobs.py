"""Telling how likely a token was, and which were the likeliest.

Knows: rows of logits. Does not know: sequences, how a token was chosen.
See `kernels.Kernels.logprobs` for the meaning.

A row is cut into chunks. Of each, `_survey` takes the k largest sort keys, one after the other, and the sum
of the exponentials, scaled by the chunk's own largest; `_merge` makes one list and one sum of them.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels import LEAST_LOGPROB
from kernels.gpu.checks import check
from kernels.gpu.device import Device
from kernels.gpu.order import NO_TOKEN, ids_of, load_keys, logits_of

_LEAST_LOGPROB = tl.constexpr(LEAST_LOGPROB)
_LOWEST = tl.constexpr(-3.4028234663852886e38)
"""The lowest finite number of fp32."""


def logprobs(device: Device, logits: Tensor, chosen: Tensor, k: int) -> tuple[Tensor, Tensor, Tensor]:
    """See `kernels.Kernels.logprobs`. Sums of chunks as in online softmax (Milakov and Gimelshein, 2018).

    Moves: 4 L V bytes; an fp64 exponential for each.

    Raises:
        ValueError: a shape or a dtype is not the one stated there, or k is negative.
    """
    check("logits", logits, torch.float32)
    num_rows, vocabulary = logits.shape
    check("chosen", chosen, torch.int64, shape=(num_rows,))
    if k < 0:
        raise ValueError(f"k: got {k}, allowed: 0 or more")
    of_chosen = logits.new_empty(num_rows)
    top_ids = logits.new_empty((num_rows, k), dtype=torch.int32)
    top = logits.new_empty((num_rows, k))
    if not num_rows:
        return of_chosen, top_ids, top
    tiles = device.tiles("logprobs", vocabulary=vocabulary)
    num_chunks = triton.cdiv(vocabulary, tiles["CHUNK"])
    # At least one of each chunk: the row's largest is needed, whatever k is.
    listed = max(1, k)
    chunks = {
        "keys": logits.new_empty((num_rows, num_chunks, listed), dtype=torch.int64),
        "sums": logits.new_empty((num_rows, num_chunks), dtype=torch.float64),
        "listed": listed,
        "VOCABULARY": vocabulary,
    }
    device.launch(_survey, (num_rows, num_chunks), logits=logits, **chunks, **tiles)
    device.launch(
        _merge,
        (num_rows,),
        logits=logits,
        chosen=chosen,
        of_chosen=of_chosen,
        top_ids=top_ids,
        top=top,
        k=k,
        LISTED=triton.next_power_of_2(num_chunks * listed),
        **chunks,
        **tiles,
    )
    return of_chosen, top_ids, top


@triton.jit(do_not_specialize=["listed"])
def _survey(logits, keys, sums, listed, VOCABULARY: tl.constexpr, CHUNK: tl.constexpr):
    """Of each chunk the largest keys, descending, [L, chunks, listed]; and
    sums[L, chunks] of e^(logit - largest)."""
    row, chunk = tl.program_id(0), tl.program_id(1)
    mine = load_keys(logits, row, chunk * CHUNK + tl.arange(0, CHUNK), VOCABULARY)
    # Where all are -infinity the largest is taken for finite, so that their weights are 0 and not NaN.
    largest = tl.maximum(logits_of(tl.max(mine, axis=0), VOCABULARY).to(tl.float64), _LOWEST)
    z = tl.where(mine > NO_TOKEN, logits_of(mine, VOCABULARY).to(tl.float64) - largest, float("-inf"))
    place = row * triton.cdiv(VOCABULARY, CHUNK) + chunk
    tl.store(sums + place, tl.sum(tl.exp(z), axis=0))
    i = 0
    while i < listed:
        first = tl.max(mine, axis=0)
        tl.store(keys + place * listed + i, first)
        mine = tl.where(mine == first, NO_TOKEN, mine)
        i += 1


@triton.jit
def _logprob(logits, largest, log_sum):
    return tl.maximum(logits.to(tl.float64) - largest - log_sum, _LEAST_LOGPROB).to(tl.float32)


@triton.jit(do_not_specialize=["listed", "k"])
def _merge(
    logits,
    chosen,
    keys,
    sums,
    of_chosen,
    top_ids,
    top,
    listed,
    k,
    VOCABULARY: tl.constexpr,
    CHUNK: tl.constexpr,
    LISTED: tl.constexpr,
):
    """One row: its sum of exponentials, and the k largest of what its chunks have listed."""
    row = tl.program_id(0)
    num_chunks: tl.constexpr = triton.cdiv(VOCABULARY, CHUNK)
    i = tl.arange(0, LISTED)
    mine = tl.load(keys + row * num_chunks * listed + i, mask=i < num_chunks * listed, other=NO_TOKEN)
    largest = logits_of(tl.max(mine, axis=0), VOCABULARY).to(tl.float64)
    chunks = tl.arange(0, triton.next_power_of_2(num_chunks))
    place = row * num_chunks + chunks
    of_chunks = tl.load(keys + place * listed, mask=chunks < num_chunks, other=NO_TOKEN)
    scale = tl.exp(logits_of(of_chunks, VOCABULARY).to(tl.float64) - largest)
    log_sum = tl.log(tl.sum(tl.load(sums + place, mask=chunks < num_chunks, other=0.0) * scale, axis=0))
    told = (largest > float("-inf")) & (largest < float("inf"))
    token = tl.load(chosen + row)
    known = told & (token >= 0) & (token < VOCABULARY)
    logit = tl.load(logits + row.to(tl.int64) * VOCABULARY + token, mask=known, other=0.0)
    tl.store(of_chosen + row, tl.where(known, _logprob(logit, largest, log_sum), _LEAST_LOGPROB))
    j = 0
    while j < k:
        key = tl.max(mine, axis=0)
        mine = tl.where(mine == key, NO_TOKEN, mine)
        known = told & (key > NO_TOKEN)
        tl.store(top_ids + row * k + j, tl.where(known, ids_of(key, VOCABULARY), -1).to(tl.int32))
        value = _logprob(logits_of(key, VOCABULARY), largest, log_sum)
        tl.store(top + row * k + j, tl.where(known, value, _LEAST_LOGPROB))
        j += 1
