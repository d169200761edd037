"""Log probabilities: both kernels say what the oracle says."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels import cpu, reference
from tests import oracle

FLOOR = -9999.0


def run(kernels: Any, logits: Any, chosen: list[int], k: int) -> tuple[Any, Any, Any]:
    rows = torch.as_tensor(logits, dtype=torch.float32)
    results = kernels.logprobs(rows, torch.tensor(chosen, dtype=torch.int64), k)
    assert [r.dtype for r in results] == [torch.float32, torch.int32, torch.float32]
    return tuple(r.numpy() for r in results)


@settings(max_examples=60)
@given(
    seed=st.integers(0, 2**32 - 1),
    width=st.sampled_from([1, 2, 7, 100, 257, 3001]),
    k=st.sampled_from([0, 1, 5, 20]),
    spread=st.sampled_from([0.01, 1.0, 30.0]),
    step=st.sampled_from([0.0, 0.5]),
)
def test_both_say_what_the_oracle_says(seed: int, width: int, k: int, spread: float, step: float) -> None:
    """`step` rounds the logits, so that many are equal."""
    rng = np.random.default_rng(seed)
    logits = (rng.standard_normal((6, width)) * spread).astype(np.float32)
    if step:
        logits = np.round(logits / np.float32(step)) * np.float32(step)
    logits[1, ::2] = -np.inf
    logits[2] = rng.choice([np.nan, np.inf, -np.inf, 0.0])
    logits[3, rng.integers(width)] = rng.choice([np.nan, np.inf, 3e38])
    chosen = rng.integers(-2, width, 6).tolist()
    rows = [oracle.logprobs(row, c, k) for row, c in zip(logits, chosen, strict=True)]
    for kernels in (cpu, reference):
        of_chosen, ids, top = run(kernels, logits, chosen, k)
        np.testing.assert_array_equal(ids, [ids for _, ids, _ in rows])
        # fp64 sums in another order: the last bit of the fp32 result may differ.
        np.testing.assert_allclose(of_chosen, [c for c, _, _ in rows], rtol=1.2e-7, atol=1e-12)
        np.testing.assert_allclose(top, [top for _, _, top in rows], rtol=1.2e-7, atol=1e-12)


def test_a_row_does_not_depend_on_its_company_bit_for_bit() -> None:
    logits = torch.randn(33, 49_153, generator=torch.Generator().manual_seed(1)) * 5
    together = run(cpu, logits, list(range(33)), 7)
    for r in (0, 16, 32):
        for alone, all_rows in zip(run(cpu, logits[r : r + 1], [r], 7), together, strict=True):
            assert alone[0].tobytes() == all_rows[r].tobytes()


@pytest.mark.parametrize("kernels", [cpu, reference])
class TestMeaning:
    """What a user may expect, of either implementation."""

    def test_they_are_logarithms_of_what_adds_up_to_one(self, kernels: Any) -> None:
        logits = torch.randn(4, 50, generator=torch.Generator().manual_seed(1)) * 3
        of_chosen, ids, top = run(kernels, logits, [3, 0, 49, 7], 50)
        np.testing.assert_allclose(np.exp(top.astype(float)).sum(axis=1), 1, rtol=1e-6)
        assert [top[r][ids[r].tolist().index(c)] for r, c in enumerate([3, 0, 49, 7])] == of_chosen.tolist()

    def test_equals_come_from_the_lowest_id_on(self, kernels: Any) -> None:
        _, ids, _ = run(kernels, [[0.0, 2.0, -0.0, 2.0, 2.0, 1.0]], [0], 5)
        assert ids.tolist() == [[1, 3, 4, 5, 0]]
        assert run(kernels, [[0.0, -0.0, 0.0]], [0], 2)[1].tolist() == [[0, 1]]

    def test_impossible_tokens_have_the_floor(self, kernels: Any) -> None:
        of_chosen, ids, top = run(kernels, [[-math.inf, 0.0, -1e30]], [0], 3)
        assert (of_chosen.tolist(), ids.tolist(), top.tolist()) == ([FLOOR], [[1, 2, 0]], [[0, FLOOR, FLOOR]])

    def test_there_are_no_more_tokens_than_the_vocabulary_has(self, kernels: Any) -> None:
        _, ids, top = run(kernels, [[0.0, 0.0]], [0], 4)
        assert ids.tolist() == [[0, 1, -1, -1]]
        assert top.tolist() == [[pytest.approx(-math.log(2))] * 2 + [FLOOR] * 2]

    @pytest.mark.parametrize("broken", [[math.nan, 0.0], [math.inf, 0.0], [-math.inf, -math.inf]])
    def test_logits_that_are_no_distribution_tell_nothing(self, kernels: Any, broken: list[float]) -> None:
        of_chosen, ids, top = run(kernels, [broken, [0.0, 9.0]], [1, 1], 2)
        assert (of_chosen[0], ids[0].tolist(), top[0].tolist()) == (FLOOR, [-1, -1], [FLOOR, FLOOR])
        assert ids[1].tolist() == [1, 0]

    def test_a_row_without_a_chosen_token_still_tells_the_likeliest(self, kernels: Any) -> None:
        of_chosen, ids, _ = run(kernels, [[0.0, 9.0]], [-2], 1)
        assert (of_chosen.tolist(), ids.tolist()) == ([FLOOR], [[1]])

    def test_no_rows_and_none_of_the_likeliest(self, kernels: Any) -> None:
        assert [r.shape for r in run(kernels, torch.zeros(0, 5), [], 3)] == [(0,), (0, 3), (0, 3)]
        of_chosen, ids, top = run(kernels, [[0.0, 0.0]], [1], 0)
        assert (of_chosen[0], ids.shape, top.shape) == (pytest.approx(-math.log(2)), (1, 0), (1, 0))


def test_chosen_ids_that_cannot_be_are_refused() -> None:
    with pytest.raises(ValueError, match=r"chosen: got shape \(2,\), allowed: \(1,\)"):
        cpu.logprobs(torch.zeros(1, 5), torch.zeros(2, dtype=torch.int64), 1)
    with pytest.raises(ValueError, match="chosen: got 5, allowed: at most 4"):
        cpu.logprobs(torch.zeros(1, 5), torch.tensor([5]), 1)
