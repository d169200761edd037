"""Bias, penalties and masks: both kernels do, bit for bit, what the oracle does."""

from __future__ import annotations

import math
from dataclasses import fields
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels import cpu, reference
from tests import oracle
from tests.kernels.edit_lists import Row, apply, bits, edits_for, make


@settings(max_examples=60)
@given(seed=st.integers(0, 2**32 - 1), width=st.sampled_from([1, 2, 7, 100, 257]), num_rows=st.integers(0, 6))
def test_both_do_what_the_oracle_does(seed: int, width: int, num_rows: int) -> None:
    made = make(seed, num_rows, width)
    expected = oracle.edit_batch(made.logits, edits_for(made.rows))
    for kernels in (cpu, reference):
        np.testing.assert_array_equal(apply(kernels, made.logits, made.rows), expected)


def test_a_row_does_not_depend_on_its_company_bit_for_bit() -> None:
    made = make(7, 40, 1001)
    together = apply(cpu, made.logits, made.rows)
    for r in (0, 11, 39):
        alone = apply(cpu, made.logits[r : r + 1], made.rows[r : r + 1])
        assert (bits(alone[0]) == bits(together[r])).all()


@pytest.mark.parametrize("kernels", [cpu, reference])
class TestMeaning:
    """Values that can be worked out by hand, of either implementation."""

    def test_bias_is_added(self, kernels: Any) -> None:
        assert apply(kernels, [[1, 2, 3]], [{"bias": {0: 5, 2: -100}}]).tolist() == [[6, 2, -97]]

    def test_repetition_makes_what_was_seen_less_likely_whatever_its_sign(self, kernels: Any) -> None:
        row = {"seen": {0: 0, 1: 3, 2: 0}, "repetition": 2.0}
        assert apply(kernels, [[4, -4, 0, 4]], [row]).tolist() == [[2, -8, 0, 4]]

    def test_presence_and_frequency_count_the_answer_and_not_the_prompt(self, kernels: Any) -> None:
        row = {"seen": {0: 0, 1: 1, 2: 3}, "presence": 0.5, "frequency": 0.25}
        assert apply(kernels, [[1, 1, 1, 1]], [row]).tolist() == [[1, 0.25, -0.25, 1]]

    def test_bias_comes_before_penalties_and_repetition_before_the_others(self, kernels: Any) -> None:
        row = {"bias": {0: 9}, "seen": {0: 1}, "presence": 2.0, "frequency": 1.0, "repetition": 2.0}
        assert apply(kernels, [[-1, 0]], [row]).tolist() == [[1, 0]]

    def test_masks_come_last(self, kernels: Any) -> None:
        row = {"bias": {0: 100, 1: 100}, "allowed": [1, 2], "banned": [2, 2]}
        assert apply(kernels, [[0, 0, 0, 0]], [row]).tolist() == [[-math.inf, 100, -math.inf, -math.inf]]

    def test_what_shows_a_broken_model_is_never_masked(self, kernels: Any) -> None:
        rows: list[Row] = [{"allowed": [2], "banned": [0, 1]}, {"banned": [0, 1, 2]}]
        edited = apply(kernels, [[math.nan, math.inf, 0], [math.nan, math.inf, -math.inf]], rows)
        np.testing.assert_array_equal(edited, [[math.nan, math.inf, 0], [math.nan, math.inf, -math.inf]])

    def test_ids_that_the_vocabulary_lacks_change_nothing(self, kernels: Any) -> None:
        beyond: Row = {"bias": {2: 5, -1: 5}, "seen": {2: 1, -1: 1}, "presence": 1.0, "banned": [2, -1]}
        assert apply(kernels, [[1, 2], [3, 4]], [beyond, beyond]).tolist() == [[1, 2], [3, 4]]
        assert apply(kernels, [[1, 2]], [{"allowed": [2]}]).tolist() == [[-math.inf, -math.inf]]

    def test_rows_without_entries_stay_as_they_are(self, kernels: Any) -> None:
        logits = np.array([[1, -0.0, math.nan], [1, 2, 3]], dtype=np.float32)
        assert (bits(apply(kernels, logits, [{}, {"banned": [0]}]))[0] == bits(logits)[0]).all()


def test_columns_of_the_wrong_length_are_refused() -> None:
    edits = edits_for([{}, {}])
    tensors = {f.name: torch.from_numpy(getattr(edits, f.name)) for f in fields(edits)}
    with pytest.raises(ValueError, match=r"presence: got shape \(2,\), allowed: \(3,\)"):
        cpu.edit_logits(torch.zeros(3, 5), **tensors)
    tensors |= {"presence": torch.zeros(3), "frequency": torch.zeros(3), "repetition": torch.ones(3)}
    with pytest.raises(ValueError, match=r"bias_start: got shape \(3,\), allowed: \(4,\)"):
        cpu.edit_logits(torch.zeros(3, 5), **tensors)
