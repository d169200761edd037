"""The order of a row's tokens, the largest logit first and of equals the lowest id, as one integer.

Knows: the bits of fp32 numbers, rows of logits cut into chunks. Does not know: what the order is used for.

A token's sort key is larger the earlier it comes. Its upper half orders as the logits do: the bits of an fp32
number, all but the sign turned over where it is negative (usual in radix sorts; Herf, 2001). Below them are
`id_bits` bits of the id, turned over. So no two keys of a row are equal, the largest key tells the largest
logit and its token, and any number of likeliest tokens is "all whose keys reach the cut".
"""

from __future__ import annotations

import triton
import triton.language as tl

NO_TOKEN = tl.constexpr(-(1 << 62))
"""Below all sort keys."""

_NAN = tl.constexpr(0x7FFFFFFF)
"""In place of a NaN's bits: above those of +infinity."""


@triton.constexpr_function
def id_bits(vocabulary: int) -> int:
    return max(1, (vocabulary - 1).bit_length())


@triton.jit
def sort_keys(logits, ids, VOCABULARY: tl.constexpr):
    bits = tl.where(logits == 0, 0.0, logits).to(tl.int32, bitcast=True)  # -0 and 0 are equal
    bits = tl.where(logits != logits, _NAN, _turn(bits))
    return (bits.to(tl.int64) << id_bits(VOCABULARY)) | ((1 << id_bits(VOCABULARY)) - 1 - ids)


@triton.jit
def lowest_keys(logits, VOCABULARY: tl.constexpr):
    """What all tokens with these logits or larger ones reach."""
    return sort_keys(logits, (1 << id_bits(VOCABULARY)) - 1, VOCABULARY)


@triton.jit
def logits_of(keys, VOCABULARY: tl.constexpr):
    return logits_of_bits((keys >> id_bits(VOCABULARY)).to(tl.int32))


@triton.jit
def logits_of_bits(bits):
    """Of the upper half of a key."""
    return _turn(bits).to(tl.float32, bitcast=True)


@triton.jit
def _turn(bits):
    """Undoes itself."""
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def ids_of(keys, VOCABULARY: tl.constexpr):
    return (1 << id_bits(VOCABULARY)) - 1 - (keys & ((1 << id_bits(VOCABULARY)) - 1))


@triton.jit
def load_keys(logits, row, ids, VOCABULARY: tl.constexpr):
    """Of logits[:, VOCABULARY]; NO_TOKEN for ids beyond it."""
    known = ids < VOCABULARY
    x = tl.load(logits + row.to(tl.int64) * VOCABULARY + ids, mask=known, other=0.0)
    return tl.where(known, sort_keys(x, ids, VOCABULARY), NO_TOKEN)


@triton.jit
def find_top(tops, row, VOCABULARY: tl.constexpr, CHUNK: tl.constexpr):
    """The largest key of a row; tops[R, chunks] has those of its chunks."""
    num_chunks: tl.constexpr = triton.cdiv(VOCABULARY, CHUNK)
    chunks = tl.arange(0, triton.next_power_of_2(num_chunks))
    keys = tl.load(tops + row * num_chunks + chunks, mask=chunks < num_chunks, other=NO_TOKEN)
    return tl.max(keys, axis=0)
