"""Log probabilities on a GPU: what the oracle says."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.gpu import logprobs
from kernels.gpu.device import Device
from tests import oracle
from tests.kernels.gpu.conftest import PLACE

DEVICE = Device.of(PLACE, batch_invariant=False)


FLOOR = -9999.0


def run(logits: Any, chosen: list[int], k: int) -> tuple[Any, Any, Any]:
    rows = torch.as_tensor(logits, dtype=torch.float32).to(PLACE)
    results = logprobs.logprobs(DEVICE, rows, torch.tensor(chosen, dtype=torch.int64, device=PLACE), k)
    assert [r.dtype for r in results] == [torch.float32, torch.int32, torch.float32]
    of_chosen, ids, top = (r.cpu().numpy() for r in results)
    return of_chosen, ids, top


@pytest.mark.filterwarnings("ignore:invalid value")
@settings(max_examples=15)
@given(
    seed=st.integers(0, 2**32 - 1),
    width=st.sampled_from([1, 2, 17, 257, 1000]),
    k=st.sampled_from([0, 1, 5, 20]),
    spread=st.sampled_from([0.01, 1.0, 30.0]),
    step=st.sampled_from([0.0, 0.5]),
)
def test_it_says_what_the_oracle_says(seed: int, width: int, k: int, spread: float, step: float) -> None:
    """`step` rounds the logits, so that many are equal."""
    rng = np.random.default_rng(seed)
    logits = (rng.standard_normal((5, width)) * spread).astype(np.float32)
    if step:
        logits = np.round(logits / np.float32(step)) * np.float32(step)
    logits[1, ::2] = -np.inf
    logits[1, 256:512] = -np.inf  # A whole chunk.
    logits[2] = rng.choice([np.nan, np.inf, -np.inf, 0.0])
    logits[3, rng.integers(width)] = rng.choice([np.nan, np.inf, 3e38])
    chosen = rng.integers(-2, width, 5).tolist()
    rows = [oracle.logprobs(row, c, k) for row, c in zip(logits, chosen, strict=True)]
    of_chosen, ids, top = run(logits, chosen, k)
    np.testing.assert_array_equal(ids, [ids for _, ids, _ in rows])
    # fp64 sums in another order: the last bit of the fp32 result may differ.
    np.testing.assert_allclose(of_chosen, [c for c, _, _ in rows], rtol=1.2e-7, atol=1e-12)
    np.testing.assert_allclose(top, [top for _, _, top in rows], rtol=1.2e-7, atol=1e-12)


def test_a_row_does_not_depend_on_its_company_bit_for_bit() -> None:
    logits = torch.randn(7, 5001, generator=torch.Generator().manual_seed(1)) * 5
    together = run(logits, list(range(7)), 7)
    for r in (0, 3, 6):
        for alone, all_rows in zip(run(logits[r : r + 1], [r], 7), together, strict=True):
            assert alone[0].tobytes() == all_rows[r].tobytes()


def test_sums_are_wider_than_fp32() -> None:
    """In fp32, a thousand small numbers vanish one by one beside a large one."""
    logits = torch.full((1, 1001), -16.0)
    logits[0, 0] = 1.0
    of_chosen, _, _ = run(logits, [0], 0)
    assert of_chosen[0] == pytest.approx(-math.log1p(1000 * math.exp(-17)), rel=1e-7)


def test_equals_come_from_the_lowest_id_on_across_chunks() -> None:
    logits = torch.zeros(1, 700)
    logits[0, [5, 300, 600]] = 2.0
    logits[0, 0] = -0.0
    assert run(logits, [0], 5)[1].tolist() == [[5, 300, 600, 0, 1]]


def test_impossible_tokens_have_the_floor() -> None:
    of_chosen, ids, top = run([[-math.inf, 0.0, -1e30]], [0], 3)
    assert (of_chosen.tolist(), ids.tolist(), top.tolist()) == ([FLOOR], [[1, 2, 0]], [[0, FLOOR, FLOOR]])


def test_there_are_no_more_tokens_than_the_vocabulary_has() -> None:
    _, ids, top = run([[0.0, 0.0]], [0], 4)
    assert ids.tolist() == [[0, 1, -1, -1]]
    assert top.tolist() == [[pytest.approx(-math.log(2))] * 2 + [FLOOR] * 2]


@pytest.mark.filterwarnings("ignore:invalid value")
@pytest.mark.parametrize("broken", [[math.nan, 0.0], [math.inf, 0.0], [-math.inf, -math.inf]])
def test_logits_that_are_no_distribution_tell_nothing(broken: list[float]) -> None:
    of_chosen, ids, top = run([broken, [0.0, 9.0]], [1, 1], 2)
    assert (of_chosen[0], ids[0].tolist(), top[0].tolist()) == (FLOOR, [-1, -1], [FLOOR, FLOOR])
    assert ids[1].tolist() == [1, 0]


def test_no_rows_and_none_of_the_likeliest() -> None:
    assert [r.shape for r in run(torch.zeros(0, 5), [], 3)] == [(0,), (0, 3), (0, 3)]
    of_chosen, ids, top = run([[0.0, 0.0]], [1], 0)
    assert (of_chosen[0], ids.shape, top.shape) == (pytest.approx(-math.log(2)), (1, 0), (1, 0))


def test_arguments_that_cannot_be_are_refused() -> None:
    with pytest.raises(ValueError, match=r"chosen: got shape \(2,\), allowed: \(1,\)"):
        logprobs.logprobs(DEVICE, torch.zeros(1, 5), torch.zeros(2, dtype=torch.int64), 1)
    with pytest.raises(ValueError, match=r"logits: got torch.float16"):
        logprobs.logprobs(DEVICE, torch.zeros(1, 5).half(), torch.zeros(1, dtype=torch.int64), 1)
    with pytest.raises(ValueError, match="k: got -1, allowed: 0 or more"):
        logprobs.logprobs(DEVICE, torch.zeros(1, 5), torch.zeros(1, dtype=torch.int64), -1)
