"""Bias, penalties and masks on a GPU: bit for bit what the oracle does."""

from __future__ import annotations

import math
from dataclasses import fields
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from kernels.gpu import edits
from kernels.gpu.device import Device
from tests import oracle
from tests.kernels.edit_lists import Row, apply, bits, edits_for, make
from tests.kernels.gpu.conftest import PLACE

DEVICE = Device.of(PLACE, batch_invariant=False)


def _edit_logits(logits: Tensor, *lists: Tensor) -> None:
    moved = logits.to(PLACE)
    edits.edit_logits(DEVICE, moved, *(x.to(PLACE) for x in lists))
    logits.copy_(moved)


GPU = SimpleNamespace(edit_logits=_edit_logits)


@settings(max_examples=25)
@given(seed=st.integers(0, 2**32 - 1), width=st.sampled_from([1, 2, 7, 257]), num_rows=st.integers(0, 6))
def test_it_does_what_the_oracle_does(seed: int, width: int, num_rows: int) -> None:
    made = make(seed, num_rows, width)
    expected = oracle.edit_batch(made.logits, edits_for(made.rows))
    np.testing.assert_array_equal(apply(GPU, made.logits, made.rows), expected)


def test_lists_and_rows_of_more_than_one_block() -> None:
    """Most rows without entries, among them the first and the last, and a list that spans blocks."""
    made = make(3, 3, 4500)
    rows: list[Row] = [{} for _ in range(40)]
    rows[5], rows[6], rows[38] = made.rows
    rows[20] = {
        "seen": dict.fromkeys(range(0, 4500, 5), 2),
        "frequency": 0.1,
        "allowed": list(range(1, 4500, 7)),
    }
    logits = np.tile(made.logits[:1], (40, 1))
    np.testing.assert_array_equal(apply(GPU, logits, rows), oracle.edit_batch(logits, edits_for(rows)))


def test_a_row_does_not_depend_on_its_company_bit_for_bit() -> None:
    made = make(7, 12, 301)
    together = apply(GPU, made.logits, made.rows)
    for r in (0, 5, 11):
        alone = apply(GPU, made.logits[r : r + 1], made.rows[r : r + 1])
        assert (bits(alone[0]) == bits(together[r])).all()


def test_what_lies_behind_the_lists_is_not_read() -> None:
    """Buffers may be longer than the lists in them."""
    rows: list[Row] = [{"bias": {1: 1.0}, "seen": {2: 1}, "presence": 1.0}, {"allowed": [0], "banned": [3]}]
    tensors = {f.name: torch.from_numpy(getattr(edits_for(rows), f.name)) for f in fields(edits_for(rows))}
    for name in ("bias_ids", "seen_ids", "allowed_ids", "banned_ids", "bias", "seen_counts"):
        tensors[name] = torch.cat([tensors[name], torch.full((300,), 2).to(tensors[name].dtype)])
    logits = torch.zeros(2, 4)
    _edit_logits(logits, *tensors.values())
    assert logits.tolist() == [[0, 1, -1, 0], [0, -math.inf, -math.inf, -math.inf]]


def test_masks_come_last_and_hide_no_broken_model() -> None:
    rows: list[Row] = [
        {"bias": {0: 100, 1: 100}, "allowed": [1, 2], "banned": [2, 2]},
        {"allowed": [2], "banned": [0, 1]},
        {"allowed": [9]},
    ]
    logits = [[0, 0, 0, 0], [math.nan, math.inf, 0, 1], [0, math.nan, math.inf, -math.inf]]
    expected = [
        [-math.inf, 100, -math.inf, -math.inf],
        [math.nan, math.inf, 0, -math.inf],
        [-math.inf, math.nan, math.inf, -math.inf],
    ]
    np.testing.assert_array_equal(apply(GPU, logits, rows), expected)


def test_nothing_is_launched_for_lists_that_no_row_has(monkeypatch: pytest.MonkeyPatch) -> None:
    launched: list[Any] = []
    monkeypatch.setattr(Device, "launch", lambda self, kernel, grid, **rest: launched.append(kernel))
    apply(GPU, [[1, 2]], [{}])
    assert launched == []
    apply(GPU, [[1, 2]], [{"banned": [1]}])
    assert len(launched) == 1


def test_lists_of_the_wrong_length_or_dtype_are_refused() -> None:
    of_two = edits_for([{}, {"bias": {0: 1.0}}])
    tensors = {f.name: torch.from_numpy(getattr(of_two, f.name)) for f in fields(of_two)}
    wrong = {
        "presence": (torch.zeros(3), r"presence: got shape \(3,\), allowed: \(2,\)"),
        "bias_start": (torch.zeros(2, dtype=torch.int32), r"bias_start: got shape \(2,\), allowed: \(3,\)"),
        "bias": (torch.zeros(2), r"bias: got shape \(2,\), allowed: \(1,\)"),
        "banned_ids": (torch.zeros(0, dtype=torch.int64), "banned_ids: got torch.int64"),
    }
    for name, (value, message) in wrong.items():
        with pytest.raises(ValueError, match=message):
            edits.edit_logits(DEVICE, torch.zeros(2, 5), **{**tensors, name: value})
