"""Bias, penalties and masks: both kernels do, bit for bit, what the oracle does."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.batch import LogitEdits
from kernels import cpu, reference
from tests import oracle

Row = dict[str, Any]
"""bias: {id: amount}; seen: {id: count}; presence, frequency, repetition; allowed, banned: ids."""


def edits_for(rows: list[Row]) -> LogitEdits:
    def starts(name: str) -> Any:
        return np.cumsum([0, *(len(row.get(name, ())) for row in rows)]).astype(np.int32)

    def entries(name: str, dtype: Any) -> Any:
        return np.array([x for row in rows for x in row.get(name, ())], dtype=dtype)

    def beside(name: str, dtype: Any) -> Any:
        return np.array([x for row in rows for x in row.get(name, {}).values()], dtype=dtype)

    def column(name: str, default: float) -> Any:
        return np.array([row.get(name, default) for row in rows], dtype=np.float32)

    return LogitEdits(
        bias_start=starts("bias"),
        bias_ids=entries("bias", np.int32),
        bias=beside("bias", np.float32),
        seen_start=starts("seen"),
        seen_ids=entries("seen", np.int32),
        seen_counts=beside("seen", np.int32),
        presence=column("presence", 0.0),
        frequency=column("frequency", 0.0),
        repetition=column("repetition", 1.0),
        allowed_start=starts("allowed"),
        allowed_ids=entries("allowed", np.int32),
        banned_start=starts("banned"),
        banned_ids=entries("banned", np.int32),
    )


def apply(kernels: Any, logits: Any, rows: list[Row]) -> Any:
    """The edited copy of [R, V]."""
    changed = torch.tensor(logits, dtype=torch.float32)
    edits = edits_for(rows)
    kernels.edit_logits(changed, *(torch.from_numpy(getattr(edits, f.name)) for f in fields(edits)))
    return changed.numpy()


def bits(logits: Any) -> Any:
    return logits.view(np.int32)


@dataclass(frozen=True)
class Made:
    logits: Any
    rows: list[Row]


def make(seed: int, num_rows: int, width: int) -> Made:
    """Rows of every kind: with all lists, some or none, with ids the vocabulary lacks, and broken logits."""
    rng = np.random.default_rng(seed)
    logits = (rng.standard_normal((num_rows, width)) * 5).astype(np.float32)
    logits[rng.random(logits.shape) < 0.02] = rng.choice([np.nan, np.inf, -np.inf, 0.0, -0.0])

    def ids(most: int) -> list[int]:
        some = rng.permutation(np.arange(-2, width + 2))[: rng.integers(0, most + 1)]
        return [int(i) for i in some] if rng.random() < 0.7 else []

    rows = [
        {
            "bias": {i: rng.uniform(-100, 100) for i in ids(5)},
            "seen": {i: int(rng.choice([0, 0, 1, 2, 1000])) for i in ids(width)},
            "presence": rng.choice([0.0, 0.3, -2.0]),
            "frequency": rng.choice([0.0, 0.1, 2.0]),
            "repetition": rng.choice([1.0, 1.1, 0.5, 2.0]),
            "allowed": ids(width),
            "banned": [*ids(3), *ids(3)],
        }
        for _ in range(num_rows)
    ]
    return Made(logits, rows)


@settings(max_examples=60, deadline=None)
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
