"""Changing logits as the requests' parameters say: bias, penalties, masks.

Knows: rows of logits and sparse lists of ids. Does not know: sequences, requests.
See `kernels.Kernels.edit_logits` for the meaning, step by step.

A step is a launch of its own, for it must see all that the step before it did to a logit, and is left out
where no row has such a list. The programs share the entries of all rows evenly and search each entry's row:
how many a row has is known on the device alone.

Only where some row has allowed ids are whole rows passed over. Banned ids are masked before: then what is put
back of the allowed ones is already masked, and the order of two masks does not matter.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.gpu.checks import check
from kernels.gpu.device import Device


def edit_logits(
    device: Device,
    logits: Tensor,
    bias_start: Tensor,
    bias_ids: Tensor,
    bias: Tensor,
    seen_start: Tensor,
    seen_ids: Tensor,
    seen_counts: Tensor,
    presence: Tensor,
    frequency: Tensor,
    repetition: Tensor,
    allowed_start: Tensor,
    allowed_ids: Tensor,
    banned_start: Tensor,
    banned_ids: Tensor,
) -> None:
    """See `kernels.Kernels.edit_logits`. Keskar et al., 2019 (CTRL).

    Moves: for each entry two sectors of 32 bytes, and 8 V bytes for each row with allowed ids.

    Raises:
        ValueError: a shape or a dtype is not the one stated there.
    """
    check("logits", logits, torch.float32)
    num_rows, vocabulary = logits.shape
    for name, column in {"presence": presence, "frequency": frequency, "repetition": repetition}.items():
        check(name, column, torch.float32, shape=(num_rows,))
    starts = {"bias": bias_start, "seen": seen_start, "allowed": allowed_start, "banned": banned_start}
    for name, start in starts.items():
        check(f"{name}_start", start, torch.int32, shape=(num_rows + 1,))
    lists = {"bias": bias_ids, "seen": seen_ids, "allowed": allowed_ids, "banned": banned_ids}
    for name, ids in lists.items():
        check(f"{name}_ids", ids, torch.int32)
    check("bias", bias, torch.float32, shape=bias_ids.shape)
    check("seen_counts", seen_counts, torch.int32, shape=seen_ids.shape)

    _edit(device, _add_bias, logits, bias_start, bias_ids, bias=bias)
    _edit(
        device,
        _penalise,
        logits,
        seen_start,
        seen_ids,
        counts=seen_counts,
        presence=presence,
        frequency=frequency,
        repetition=repetition,
    )
    _edit(device, _ban, logits, banned_start, banned_ids)
    kept = torch.empty_like(allowed_ids, dtype=torch.float32)
    _edit(device, _save, logits, allowed_start, allowed_ids, kept=kept)
    if num_rows and len(allowed_ids):
        tiles = device.tiles("mask_rows")
        grid = (num_rows, triton.cdiv(vocabulary, tiles["BLOCK"]))
        device.launch(
            _mask_rows, grid, logits=logits, allowed_start=allowed_start, VOCABULARY=vocabulary, **tiles
        )
    _edit(device, _restore, logits, allowed_start, allowed_ids, kept=kept)


def _edit(device: Device, kernel: Any, logits: Tensor, start: Tensor, ids: Tensor, **columns: Tensor) -> None:
    """One launch over all entries of a list."""
    num_rows, vocabulary = logits.shape
    if not num_rows or not len(ids):
        return
    tiles = device.tiles("edit_logits")
    device.launch(
        kernel,
        (triton.cdiv(len(ids), tiles["BLOCK"]),),
        logits=logits,
        start=start,
        ids=ids,
        num_rows=num_rows,
        num_entries=len(ids),
        first_step=1 << (num_rows.bit_length() - 1),
        VOCABULARY=vocabulary,
        **columns,
        **tiles,
    )


_VARYING = ["num_rows", "num_entries", "first_step"]
"""For these nothing is compiled anew."""


@triton.jit
def _find_entries(
    start, ids, num_rows, num_entries, first_step, VOCABULARY: tl.constexpr, BLOCK: tl.constexpr
):
    """A block of entries: their indices, rows, places in logits[R, VOCABULARY], and which of them count:
    those that are some row's and whose id the vocabulary has."""
    entry = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    # The last row that starts at the entry or before, num_rows for entries that are no row's.
    row, step = tl.zeros([BLOCK], tl.int32), first_step
    while step > 0:
        next_row = row + step
        starts = tl.load(start + next_row, mask=next_row <= num_rows, other=num_entries)
        row = tl.where((next_row <= num_rows) & (starts <= entry), next_row, row)
        step = step // 2
    token = tl.load(ids + entry, mask=entry < num_entries, other=-1)
    counts = (row < num_rows) & (entry >= tl.load(start)) & (token >= 0) & (token < VOCABULARY)
    return entry, row, row.to(tl.int64) * VOCABULARY + token, counts


@triton.jit
def _masked(logits):
    """What shows that the model is broken stays."""
    return tl.where(logits < float("inf"), float("-inf"), logits)


@triton.jit(do_not_specialize=_VARYING)
def _add_bias(
    logits,
    start,
    ids,
    bias,
    num_rows,
    num_entries,
    first_step,
    VOCABULARY: tl.constexpr,
    BLOCK: tl.constexpr,
):
    entry, _, place, counts = _find_entries(start, ids, num_rows, num_entries, first_step, VOCABULARY, BLOCK)
    x = tl.load(logits + place, mask=counts) + tl.load(bias + entry, mask=counts)
    tl.store(logits + place, x, mask=counts)


@triton.jit(do_not_specialize=_VARYING)
def _penalise(
    logits,
    start,
    ids,
    counts,
    presence,
    frequency,
    repetition,
    num_rows,
    num_entries,
    first_step,
    VOCABULARY: tl.constexpr,
    BLOCK: tl.constexpr,
):
    entry, row, place, known = _find_entries(start, ids, num_rows, num_entries, first_step, VOCABULARY, BLOCK)
    x = tl.load(logits + place, mask=known).to(tl.float64)
    count = tl.load(counts + entry, mask=known)
    factor = tl.load(repetition + row, mask=known, other=1.0).to(tl.float64)
    # Products of fp32 numbers and counts are exact in fp64: whether they are contracted changes no bit.
    x = tl.where(x > 0, x / factor, x * factor)
    x -= tl.load(frequency + row, mask=known).to(tl.float64) * count
    x -= tl.where(count > 0, tl.load(presence + row, mask=known).to(tl.float64), 0.0)
    tl.store(logits + place, x.to(tl.float32), mask=known)


@triton.jit(do_not_specialize=_VARYING)
def _ban(
    logits, start, ids, num_rows, num_entries, first_step, VOCABULARY: tl.constexpr, BLOCK: tl.constexpr
):
    _, _, place, counts = _find_entries(start, ids, num_rows, num_entries, first_step, VOCABULARY, BLOCK)
    tl.store(logits + place, _masked(tl.load(logits + place, mask=counts)), mask=counts)


@triton.jit(do_not_specialize=_VARYING)
def _save(
    logits,
    start,
    ids,
    kept,
    num_rows,
    num_entries,
    first_step,
    VOCABULARY: tl.constexpr,
    BLOCK: tl.constexpr,
):
    entry, _, place, counts = _find_entries(start, ids, num_rows, num_entries, first_step, VOCABULARY, BLOCK)
    tl.store(kept + entry, tl.load(logits + place, mask=counts), mask=counts)


@triton.jit
def _mask_rows(logits, allowed_start, VOCABULARY: tl.constexpr, BLOCK: tl.constexpr):
    """All of the rows that have allowed ids."""
    row = tl.program_id(0)
    if tl.load(allowed_start + row) < tl.load(allowed_start + row + 1):
        token = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
        place = logits + row.to(tl.int64) * VOCABULARY + token
        x = tl.load(place, mask=token < VOCABULARY)
        tl.store(place, _masked(x), mask=token < VOCABULARY)


@triton.jit(do_not_specialize=_VARYING)
def _restore(
    logits,
    start,
    ids,
    kept,
    num_rows,
    num_entries,
    first_step,
    VOCABULARY: tl.constexpr,
    BLOCK: tl.constexpr,
):
    entry, _, place, counts = _find_entries(start, ids, num_rows, num_entries, first_step, VOCABULARY, BLOCK)
    tl.store(logits + place, tl.load(kept + entry, mask=counts), mask=counts)
