"""How attention is cut into programs, and how the partial results of a context become one.

Knows: query blocks, splits and segments, the fold. Does not know: queries, keys, how a split is computed.

A query block is BLOCK_Q tokens of one sequence, or its last few. A program finds its block itself, so that
the grid follows from shapes alone. What the block sees is cut into splits, one program each, which leave
partial results for `reduce`. What a split is depends on the mode:

- Without SEGMENT the context is cut into equal splits, as many as there are programs for them. They begin at
  multiples of BLOCK_N, the tile in which keys are read.
- With SEGMENT the softmax is taken over each SEGMENT positions alone, beginning at a multiple of it, and
  these are folded in ascending order: by the program that computes them, if it has all, else by `reduce`.
  Both calculate alike, and a segment of which a row sees nothing changes no bit of it. So a row's result does
  not tell what else was computed, nor by how many programs.

The fold is that of online softmax: Milakov and Gimelshein, 2018. Splits: Flash-Decoding, Dao et al., 2023.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.gpu.device import Device

LEAST_SPLIT = 256
"""Positions. A shorter split takes longer to begin and to fold than to compute."""
MOST_SPLITS = 32
"""They are folded one after the other."""


@dataclass(frozen=True)
class Cut:
    """The grid of one call. Shapes alone decide it, so what a graph has captured fits all that it replays."""

    query_blocks: int
    """At least as many as there are: some programs may find nothing to do."""
    tokens: int
    """The most that a query block holds."""
    splits: int


def cut(
    num_tokens: int,
    num_sequences: int,
    positions: int,
    window: int | None,
    *,
    block_q: int,
    segment: int | None,
    per_block: int,
    enough: int,
) -> Cut:
    """Cut contexts into splits where the query blocks alone are too few.

    Args:
        positions: the longest context possible.
        per_block: programs that share a query block, one for each group of heads.
        enough: programs that keep the chip busy.
    """
    single = num_tokens == num_sequences
    tokens = 1 if single else block_q
    query_blocks = num_tokens if single else num_tokens // block_q + num_sequences
    programs = query_blocks * per_block
    seen = positions if window is None else min(positions, window + tokens - 1)
    if segment is None:
        splits = min(enough // programs, triton.cdiv(seen, LEAST_SPLIT), MOST_SPLITS)
    elif programs < enough:
        # A window may begin at the last position of a segment.
        splits = min(triton.cdiv(positions, segment), triton.cdiv(seen - 1, segment) + 1)
    else:
        splits = 1
    return Cut(query_blocks, tokens, max(splits, 1))


@triton.jit
def find_block(
    query_start, context_lens, index, num_tokens, num_sequences, window, BLOCK_Q: tl.constexpr
):  # fmt: skip
    """Query block `index`: its sequence, first token, end token, the position of the first token, and the
    positions that its tokens see, from the first to the end. One that does not exist has end <= first.

    The blocks of sequence s have the indices from query_start[s] // BLOCK_Q + s on, which is room for all.
    With as many tokens as sequences, a block is one token, and its index the token's.
    """
    single = num_tokens == num_sequences
    size = tl.where(single, 1, BLOCK_Q)
    # If every sequence has one token, which they nearly always do then, nothing needs to be searched for.
    known = single & (tl.load(query_start + index, mask=single, other=0) == index)
    known &= tl.load(query_start + index + 1, mask=single, other=0) == index + 1
    low = tl.where(known, index, 0)
    high = tl.where(known, index + 1, num_sequences)
    while high - low > 1:
        middle = (low + high) // 2
        begin = tl.load(query_start + middle)
        beyond = tl.where(single, begin, begin // BLOCK_Q + middle) > index
        low = tl.where(beyond, low, middle)
        high = tl.where(beyond, middle, high)
    start, stop = tl.load(query_start + low), tl.load(query_start + low + 1)
    first = start + (index - tl.where(single, start, start // BLOCK_Q + low)) * size
    end = tl.minimum(first + size, stop)
    position = tl.load(context_lens + low) - (stop - first)
    first_seen = 0 if window is None else tl.maximum(position - window + 1, 0)
    return low, first, end, position, first_seen, position + end - first


@triton.jit
def split_size(first_seen, end_seen, splits, BLOCK_N: tl.constexpr, SEGMENT: tl.constexpr):
    """Where the first split of first_seen..end_seen begins, and how many positions each has."""
    if SEGMENT is None:
        origin = first_seen // BLOCK_N * BLOCK_N
        size = tl.cdiv(tl.maximum(tl.cdiv(end_seen - origin, BLOCK_N), 1), splits) * BLOCK_N
    else:
        origin = first_seen // SEGMENT * SEGMENT
        size = tl.where(splits > 1, SEGMENT, tl.cdiv(end_seen - origin, SEGMENT) * SEGMENT)
    return origin, size


@triton.jit
def base_of(top):
    """What to take from scores whose maximum is `top`: where nothing has been seen yet, -infinity less itself
    would be NaN."""
    return tl.where(top == float("-inf"), 0.0, top)


@triton.jit
def shares(top, part_top):
    """The larger of two maxima, and what the sums taken with either are multiplied by to be added."""
    both = tl.maximum(top, part_top)
    base = base_of(both)
    return both, tl.exp2(top - base), tl.exp2(part_top - base)


@triton.jit
def fold(x, share, part, part_share):
    """x * share + part * part_share, in the one way that compilers cannot rearrange."""
    return tl.fma(x, share, part * part_share)


@triton.jit(
    do_not_specialize=["num_tokens", "num_sequences", "splits"],
    do_not_specialize_on_alignment=["query_start", "context_lens"],
)
def _reduce_kernel(
    acc_parts,
    tops,
    totals,
    query_start,
    context_lens,
    out,
    num_tokens,
    num_sequences,
    splits,
    window,
    NUM_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_Q: tl.constexpr,
    BLOCK_N: tl.constexpr,
    SEGMENT: tl.constexpr,
    BLOCK_HEADS: tl.constexpr,
):
    """Grid: query blocks, tokens of a block, BLOCK_HEADS heads."""
    _, first, end, _, first_seen, end_seen = find_block(
        query_start, context_lens, tl.program_id(0), num_tokens, num_sequences, window, BLOCK_Q
    )
    token = first + tl.program_id(1)
    if token >= end:
        return
    origin, size = split_size(first_seen, end_seen, splits, BLOCK_N, SEGMENT)
    head = tl.program_id(2) * BLOCK_HEADS + tl.arange(0, BLOCK_HEADS)
    real = head < NUM_HEADS
    row = token.to(tl.int64) * NUM_HEADS + head
    d = tl.arange(0, BLOCK_D)[None, :]
    inside = real[:, None] & (d < HEAD_DIM)
    top = tl.full([BLOCK_HEADS], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_HEADS], tl.float32)
    acc = tl.zeros([BLOCK_HEADS, BLOCK_D], tl.float32)
    for split in range(0, tl.cdiv(end_seen - origin, size)):
        part = row * splits + split
        part_acc = tl.load(acc_parts + part[:, None] * HEAD_DIM + d, mask=inside, other=0.0)
        part_total = tl.load(totals + part, mask=real, other=1.0)
        top, share, part_share = shares(top, tl.load(tops + part, mask=real, other=0.0))
        total = fold(total, share, part_total, part_share)
        acc = fold(acc, share[:, None], part_acc, part_share[:, None])
    result = tl.div_rn(acc, total[:, None])
    tl.store(out + row[:, None] * HEAD_DIM + d, result.to(out.dtype.element_ty), mask=inside)


class Parts(NamedTuple):
    """What the splits leave of each token and head. Empty if there is one split, which leaves the result."""

    acc: Tensor
    """[T, NQ, splits, D]: sums of the values, weighted by powers of 2 of the score less `top`."""
    top: Tensor
    """[T, NQ, splits]: the largest score, -infinity if the row sees nothing of the split."""
    total: Tensor
    """[T, NQ, splits]: the sum of the weights."""

    @classmethod
    def empty(cls, q: Tensor, splits: int) -> Parts:
        num_tokens, num_heads, head_dim = q.shape
        shape = (num_tokens if splits > 1 else 0, num_heads, splits)
        acc = q.new_empty((*shape, head_dim), dtype=torch.float32)
        return cls(acc, acc.new_empty(shape), acc.new_empty(shape))


def reduce(
    device: Device,
    parts: Parts,
    query_start: Tensor,
    context_lens: Tensor,
    out: Tensor,
    plan: Cut,
    window: int | None,
    constants: dict[str, int | None],
) -> None:
    """Fold the partial results of all splits into out[T, NQ * D].

    Moves: D + 2 numbers of fp32 for each token, head and split that has positions, and the result.
    """
    num_tokens, num_heads, _, head_dim = parts.acc.shape
    tiles = device.tiles("reduce_attention", head_dim=head_dim)
    device.launch(
        _reduce_kernel,
        (plan.query_blocks, plan.tokens, triton.cdiv(num_heads, tiles["BLOCK_HEADS"])),
        **tiles,
        acc_parts=parts.acc,
        tops=parts.top,
        totals=parts.total,
        query_start=query_start,
        context_lens=context_lens,
        out=out,
        num_tokens=num_tokens,
        num_sequences=len(context_lens),
        splits=plan.splits,
        window=window,
        NUM_HEADS=num_heads,
        **constants,
    )
