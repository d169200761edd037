"""Sampling: the fast path and the oracle choose the same tokens, and both follow the published generator."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numba
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from kernels import cpu, reference
from kernels.cpu import sampling
from tests.kernels.draws import Rows

# Known answers published with Random123: counter, key, four words.
PHILOX = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


@numba.njit
def _philox_of_the_fast_path(counter: Any, k0: Any, k1: Any) -> Any:
    return sampling._philox(counter, k0, k1)


@pytest.mark.parametrize(("counter", "key", "words"), PHILOX)
def test_philox_gives_the_published_words(
    counter: tuple[int, int, int, int], key: tuple[int, int], words: tuple[int, int, int, int]
) -> None:
    assert reference.philox(counter, key) == words
    first = _philox_of_the_fast_path(tuple(np.uint64(c) for c in counter), *(np.uint64(k) for k in key))
    assert int(first) == words[0]


@settings(max_examples=60)
@given(
    seed=st.integers(0, 2**32 - 1),
    width=st.sampled_from([1, 2, 7, 100, 257, 3001]),
    spread=st.sampled_from([0.1, 1.0, 8.0]),
    step=st.sampled_from([0.0, 0.5, 3.0]),
    masked=st.booleans(),
)
def test_the_same_tokens_as_the_oracle(
    seed: int, width: int, spread: float, step: float, masked: bool
) -> None:
    """`step` rounds the logits, so that many are equal."""
    g = torch.Generator().manual_seed(seed)
    logits = torch.randn(12, width, generator=g) * spread
    if step:
        logits = (logits / step).round() * step
    if masked:
        logits[:, 1::3] = -math.inf

    def one_of(*values: float) -> Tensor:
        return torch.tensor(values)[torch.randint(0, len(values), (12,), generator=g)]

    rows = Rows(
        logits,
        temperature=one_of(0, 9e-6, 2e-5, 0.3, 1, 2),
        top_p=one_of(1e-6, 0.1, 0.5, 0.9, 0.999, 1),
        top_k=one_of(0, 0, 1, 2, 40, 5000),
        min_p=one_of(0, 0, 0.01, 0.3, 1),
        seed=torch.randint(-(2**62), 2**62, (12,), generator=g),
        position=torch.randint(0, 2**40, (12,), generator=g),
    )
    assert rows.run(cpu) == rows.run(reference)


def test_the_same_tokens_as_the_oracle_over_a_whole_vocabulary() -> None:
    g = torch.Generator().manual_seed(7)
    rows = Rows(
        torch.randn(6, 49_152, generator=g) * 3,
        temperature=torch.tensor([1.0, 0.8, 1.3, 2.0, 1.0, 0.0]),
        top_p=torch.tensor([1.0, 0.95, 1.0, 0.999, 0.5, 1.0]),
        top_k=torch.tensor([0, 0, 50, 20_000, 0, 0]),
        min_p=torch.tensor([0.0, 0.0, 0.0, 0.0, 0.02, 0.0]),
    )
    for seed in range(5):
        assert replace(rows, seed=seed).run(cpu) == replace(rows, seed=seed).run(reference)


@pytest.mark.parametrize("kernels", [cpu, reference])
class TestMeaning:
    """What a user may expect, of either implementation."""

    def test_greedy_takes_the_lowest_of_equals(self, kernels: Any) -> None:
        assert Rows(torch.tensor([[1.0, 3.0, 3.0, 2.0]]), temperature=0.0).run(kernels) == [1]

    @pytest.mark.parametrize(
        "limits", [{"top_k": 1}, {"top_p": 1e-6}, {"min_p": 1.0}, {"temperature": 2e-5}, {"temperature": 0.0}]
    )
    def test_each_limit_at_its_end_is_greedy(self, kernels: Any, limits: dict[str, Any]) -> None:
        logits = torch.randn(20, 50, generator=torch.Generator().manual_seed(1))
        assert Rows(logits, **limits).run(kernels) == logits.argmax(dim=1).tolist()

    def test_min_p_keeps_all_that_equal_the_best(self, kernels: Any) -> None:
        logits = torch.tensor([[2.0, 1.9, 2.0, 2.0]]).repeat(200, 1)
        assert set(Rows(logits, min_p=1.0, seed=torch.arange(200)).run(kernels)) == {0, 2, 3}

    def test_top_k_keeps_exactly_k_of_equals(self, kernels: Any) -> None:
        logits = torch.tensor([[0.0, 5.0, 5.0, 5.0, 5.0]]).repeat(200, 1)
        assert set(Rows(logits, top_k=2, seed=torch.arange(200)).run(kernels)) == {1, 2}

    def test_top_p_keeps_the_smallest_set_that_reaches_it(self, kernels: Any) -> None:
        logits = torch.tensor([[0.0, 0.0, 0.0, 0.0]]).repeat(200, 1)
        seeds = torch.arange(200)
        assert set(Rows(logits, top_p=0.5, seed=seeds).run(kernels)) == {0, 1}
        assert set(Rows(logits, top_p=0.51, seed=seeds).run(kernels)) == {0, 1, 2}

    def test_top_p_is_a_share_of_what_top_k_left(self, kernels: Any) -> None:
        logits = torch.zeros(200, 100)
        assert set(Rows(logits, top_k=4, top_p=0.5, seed=torch.arange(200)).run(kernels)) == {0, 1}

    def test_tokens_come_as_often_as_the_softmax_says(self, kernels: Any) -> None:
        n = 4000
        p = torch.tensor([0.5, 0.3, 0.15, 0.05])
        ids = Rows(p.log().repeat(n, 1), seed=torch.arange(n), position=5).run(kernels)
        counts = torch.bincount(torch.tensor(ids), minlength=4)
        # Chi-squared, 3 degrees of freedom: 16.3 is the 99.9th percentile. The seeds fix the draw.
        assert float(((counts - n * p) ** 2 / (n * p)).sum()) < 16.3

    def test_seed_and_position_change_the_draw_and_company_does_not(self, kernels: Any) -> None:
        logits = torch.zeros(1, 1000)
        assert len({Rows(logits, seed=s).run(kernels)[0] for s in (0, 1, 2**32, -1)}) == 4
        assert len({Rows(logits, position=p).run(kernels)[0] for p in (0, 1, 2**32)}) == 3
        together = Rows(logits.repeat(5, 1), seed=torch.arange(5)).run(kernels)
        assert together == [Rows(logits, seed=s).run(kernels)[0] for s in range(5)]

    def test_rows_without_an_answer_say_why(self, kernels: Any) -> None:
        logits = torch.zeros(6, 10)
        logits[0, 3] = math.nan
        logits[1, :] = -math.inf
        logits[2, 4] = math.inf
        logits[3, :] = -math.inf
        logits[3, 9] = math.nan
        logits[4, :9] = -math.inf
        for temperature in (0.0, 1.0):
            got = Rows(logits, temperature=temperature, top_p=0.9).run(kernels)
            assert got[:5] == [-1, -2, -1, -1, 9]
            assert got[5] >= 0


def test_a_column_of_the_wrong_length_is_refused() -> None:
    one, three = torch.ones(1), torch.ones(3)
    with pytest.raises(ValueError, match=r"top_p: got shape \(3,\), allowed: \(1,\)"):
        cpu.sample(torch.zeros(1, 5), one, three, one.int(), one, one.long(), one.long())
