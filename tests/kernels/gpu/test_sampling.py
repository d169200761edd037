"""Sampling on a GPU: the cuts and the tokens are the oracle's, whatever is in the batch."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from kernels import reference
from kernels.gpu import sampling, threshold
from kernels.gpu.device import Device
from kernels.gpu.order import id_bits
from tests.kernels.draws import Rows
from tests.kernels.gpu.conftest import PLACE

DEVICE = Device.of(PLACE, batch_invariant=False)
GPU = SimpleNamespace(sample=lambda *arguments: sampling.sample(DEVICE, *(x.to(PLACE) for x in arguments)))
"""What `Rows.run` takes for kernels."""


def make(seed: int, num_rows: int, width: int, spread: float, step: float, masked: float) -> Rows:
    """Rows with every kind of parameters. `step` rounds the logits, so that many are equal; a share of them,
    `masked`, is -infinity."""
    g = torch.Generator().manual_seed(seed)
    logits = torch.randn(num_rows, width, generator=g) * spread
    if step:
        logits = (logits / step).round() * step
    logits[torch.rand(logits.shape, generator=g) < masked] = -math.inf

    def one_of(*values: float) -> Tensor:
        return torch.tensor(values)[torch.randint(0, len(values), (num_rows,), generator=g)]

    return Rows(
        logits,
        temperature=one_of(0, 9e-6, 1e-5, 2e-5, 0.3, 1, 1, 2),
        top_p=one_of(1e-6, 0.1, 0.5, 0.9, 0.999, 1, 1),
        top_k=one_of(0, 0, 1, 2, 40, 300, 5000),
        min_p=one_of(0, 0, 0.01, 0.3, 1),
        seed=torch.randint(-(2**62), 2**62, (num_rows,), generator=g),
        position=torch.randint(0, 2**40, (num_rows,), generator=g),
    )


@settings(max_examples=8)
@given(
    seed=st.integers(0, 2**32 - 1),
    width=st.sampled_from([1, 2, 17, 255, 600]),
    spread=st.sampled_from([0.1, 1.0, 8.0]),
    step=st.sampled_from([0.0, 0.5, 3.0]),
    masked=st.sampled_from([0.0, 0.3, 0.95]),
)
def test_the_same_tokens_as_the_oracle(
    seed: int, width: int, spread: float, step: float, masked: float
) -> None:
    rows = make(seed, 6, width, spread, step, masked)
    assert rows.run(GPU) == rows.run(reference)


@pytest.mark.parametrize(
    ("num_rows", "width"),
    [
        (2, 5000),
        pytest.param(
            64,
            151_936,
            marks=pytest.mark.skipif(PLACE.type == "cpu", reason="takes hours in the interpreter"),
        ),
    ],
)
def test_the_same_tokens_as_the_oracle_over_a_wide_vocabulary(num_rows: int, width: int) -> None:
    rows = replace(make(3, num_rows, width, 3.0, 0.0, 0.0), temperature=0.9, top_p=0.95)
    assert rows.run(GPU) == rows.run(reference)


# -- the cut ----------------------------------------------------------------------------------------------


def kept_by_the_kernels(rows: Rows) -> list[set[int]]:
    """The ids of each row that reach its cut."""
    found = {}

    def spy(device: Device, logits: Tensor, *rest: Any) -> Tensor:
        found["cuts"] = threshold.find_cuts(device, logits, *rest)
        return found["cuts"]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sampling, "find_cuts", spy)
        rows.run(GPU)
    bits = rows.logits.numpy().view(np.int32).astype(np.int64)
    order = np.where(bits < 0, -(bits & 0x7FFFFFFF) - 1, bits)
    order[rows.logits.numpy() == 0] = 0
    width = rows.logits.shape[1]
    keys = (order << id_bits(width)) + (1 << id_bits(width)) - 1 - np.arange(width)
    return [set(np.flatnonzero(row)) for row in keys >= found["cuts"].cpu().numpy()[:, None]]


def kept_by_definition(
    logits: Tensor, temperature: float, top_p: float, top_k: int, min_p: float
) -> set[int]:
    """In the words of `Kernels.sample`, but for tokens of -infinity, which are never drawn and never kept."""
    x, ids = torch.sort(logits, descending=True, stable=True)
    z = (x.double() - x[0].double()) / temperature
    z = z[: int((z >= math.log(min_p)).sum())] if min_p > 0 else z[z > -math.inf]
    z = z[:top_k] if top_k > 0 else z
    weights = z.exp()
    before = weights.cumsum(0) - weights
    kept = int((before < top_p * weights.sum()).sum()) if top_p < 1 else len(z)
    return set(ids[:kept].tolist())


def check_cuts(rows: Rows) -> None:
    count = rows.logits.shape[0]
    columns = [
        torch.as_tensor(c, dtype=torch.float32).expand(count).tolist()
        for c in (rows.temperature, rows.top_p, rows.top_k, rows.min_p)
    ]
    got = kept_by_the_kernels(rows)
    for r, (temperature, top_p, top_k, min_p) in enumerate(zip(*columns, strict=True)):
        if temperature >= 1e-5 and rows.logits[r].isfinite().any():
            expected = kept_by_definition(rows.logits[r], temperature, top_p, int(top_k), min_p)
            assert got[r] == expected, f"row {r}: {len(got[r])} kept, not {len(expected)}"


@settings(max_examples=6)
@given(
    seed=st.integers(0, 2**32 - 1),
    width=st.sampled_from([3, 600]),
    spread=st.sampled_from([0.1, 3.0]),
    step=st.sampled_from([0.0, 0.5]),
    masked=st.sampled_from([0.0, 0.9]),
)
def test_what_is_kept_is_what_the_definition_says(
    seed: int, width: int, spread: float, step: float, masked: float
) -> None:
    check_cuts(make(seed, 6, width, spread, step, masked))


@pytest.mark.filterwarnings("ignore:overflow")
def test_cuts_where_the_search_has_a_hard_time() -> None:
    """More equals than the list can hold; one far above the others; numbers at the ends of fp32."""
    g = torch.Generator().manual_seed(5)
    equal = torch.zeros(450)
    peaked = torch.zeros(450)
    peaked[449] = 9.0
    flat = torch.randn(450, generator=g) * 1e-3
    tiny = torch.randn(450, generator=g).sign() * torch.arange(450) * 1e-45
    huge = (torch.rand(450, generator=g) * 2 - 1) * 3e38
    few = torch.full((450,), -math.inf)
    few[100:104] = torch.tensor([1.0, 1.0, 0.0, 0.0])
    logits = torch.stack([equal, equal, peaked, peaked, flat, flat, tiny, huge, huge, few])
    check_cuts(
        Rows(
            logits,
            temperature=torch.tensor([1, 2e-5, 1, 1, 1, 2, 1e-4, 1, 1, 1]),
            top_p=torch.tensor([0.5, 1, 0.999, 1, 0.7, 0.3, 0.9, 0.9, 1, 0.5]),
            top_k=torch.tensor([0, 311, 0, 412, 400, 0, 200, 0, 440, 50]),
            min_p=torch.tensor([0, 1, 0, 0, 0, 0.9, 0, 0, 0, 0.3]),
        )
    )


def test_min_p_cuts_at_the_last_bit() -> None:
    """Neighbours in fp32 around the logit at which min_p cuts, near 0 too, where they are close together."""
    top = torch.tensor([3.0, 2.302586, 80.0])[:, None]
    cut = (top.double() + torch.tensor(0.1).double().log()).float()
    near = cut.view(torch.int32) + torch.arange(-300, 300, dtype=torch.int32)
    check_cuts(Rows(torch.cat([top, near.view(torch.float32)], dim=1), min_p=0.1))


def test_weights_are_wider_than_fp32() -> None:
    """Shares so close to where a token is kept or not that weights rounded to fp32 would decide otherwise."""
    logits = torch.randn(450, generator=torch.Generator().manual_seed(2)).sort(descending=True).values
    weights = (logits.double() - logits[0].double()).exp()

    def kept(weights: Tensor, top_p: Tensor) -> Tensor:
        before = weights.cumsum(0) - weights
        return (before < top_p.double()[:, None] * weights.sum()).sum(dim=1)

    shares = ((weights.cumsum(0) - weights) / weights.sum()).float()[1:]
    delicate = shares[kept(weights, shares) != kept(weights.float().double(), shares)]
    assert len(delicate) > 0
    check_cuts(Rows(logits.repeat(len(delicate), 1), top_p=delicate))


# -- the draw ---------------------------------------------------------------------------------------------


@triton.jit
def _words(seeds, positions, ids, out, N: tl.constexpr):
    i = tl.arange(0, N)
    seed, position = tl.load(seeds + tl.program_id(0)), tl.load(positions + tl.program_id(0))
    tl.store(out + tl.program_id(0) * N + i, sampling.random_words(tl.load(ids + i), seed, position))


def test_random_words_are_those_of_philox() -> None:
    """The oracle's generator is tested against the published words."""
    seeds, positions = [0, 1, -1, 2**62 + 12345, -(2**63)], [0, 2**40 + 3, 2**32 - 1, 7, 2**62]
    ids = [0, 1, 31_999, 2**31 - 1]
    out = torch.empty(5, 4, dtype=torch.int32, device=PLACE)
    columns = [torch.tensor(x, device=PLACE) for x in (seeds, positions)]
    _words[(5,)](*columns, torch.tensor(ids, dtype=torch.int32, device=PLACE), out, N=4)
    for r, (seed, position) in enumerate(zip(seeds, positions, strict=True)):
        low, high = position & 0xFFFFFFFF, position >> 32
        key = (seed & 0xFFFFFFFF, (seed >> 32) & 0xFFFFFFFF)
        expected = [reference.philox((i, low, high, 0), key)[0] for i in ids]
        assert [w & 0xFFFFFFFF for w in out[r].tolist()] == expected
    assert out[0, 0].item() == 0x6627E8D5


@triton.jit
def _bounds_and_scores(logits, words, top, temperature, bounds, scores, N: tl.constexpr):
    i = tl.arange(0, N)
    x, word = tl.load(logits + i), tl.load(words + i).to(tl.uint32, bitcast=True)
    top, temperature = tl.load(top), tl.load(temperature)
    tl.store(bounds + i, sampling.score_bounds(x, top, temperature, word))
    tl.store(scores + i, sampling.scores_of(x, top, temperature, word))


@pytest.mark.filterwarnings("ignore:overflow")
@pytest.mark.parametrize("temperature", [1e-5, 0.7, 2.0])
@pytest.mark.parametrize("top", [0.0, 30.0, 3e38])
def test_no_score_is_above_its_bound(top: float, temperature: float) -> None:
    """Else a token that should be drawn would never be looked at."""
    g = torch.Generator().manual_seed(1)
    n = 1 << 12
    words = torch.randint(-(2**31), 2**31, (n,), generator=g).int()
    words[:64] = torch.arange(-32, 32)
    words[64:128] = torch.arange(-(2**31), -(2**31) + 64)
    logits = top - torch.rand(n, generator=g) * 10 ** torch.linspace(-9, 38, n)
    logits[::3] = top
    columns = [x.to(PLACE) for x in (logits, words, torch.tensor([top]), torch.tensor([temperature]))]
    bounds, scores = torch.empty(n, device=PLACE), torch.empty(n, dtype=torch.float64, device=PLACE)
    _bounds_and_scores[(1,)](*columns, bounds, scores, N=n)
    assert ((bounds.double() >= scores) | (scores < -3e38)).all()
    # And they are of use: of 20 tokens with as good a logit as the best, few must be looked at.
    good = (logits == top).to(PLACE) & (scores > 3)
    assert good.sum() > 20
    assert (bounds[good] - scores[good]).max() < 0.04


def test_tokens_come_as_often_as_the_softmax_says() -> None:
    n = 4000 if PLACE.type == "cuda" else 80
    p = torch.tensor([0.5, 0.3, 0.2])
    ids = Rows(p.log().repeat(n, 1), seed=9, position=torch.arange(n)).run(GPU)
    counts = torch.bincount(torch.tensor(ids), minlength=3)
    # Chi-squared, 2 degrees of freedom: 13.8 is the 99.9th percentile. The seed fixes the draw.
    assert float(((counts - n * p) ** 2 / (n * p)).sum()) < 13.8


def test_a_row_does_not_depend_on_its_company() -> None:
    rows = make(11, 9, 600, 1.0, 0.5, 0.1)
    rows.logits[4, 7], rows.logits[5, 9] = math.nan, math.inf
    together = rows.run(GPU)
    for r in (0, 3, 5, 8):
        columns = {
            name: getattr(rows, name)[r : r + 1]
            for name in ("logits", "temperature", "top_p", "top_k", "min_p", "seed", "position")
        }
        assert Rows(**columns).run(GPU) == [together[r]]


def test_rows_without_an_answer_say_why() -> None:
    logits = torch.zeros(6, 300)
    logits[0, 3] = -math.nan
    logits[1, :] = -math.inf
    logits[2, 299] = math.inf
    logits[3, :] = -math.inf
    logits[3, 270] = math.nan
    logits[4, :] = -math.inf
    logits[4, 280] = 1.0
    logits[5, 5] = 0.5
    for temperature, top_p in ((0.0, 1.0), (0.01, 0.9)):
        rows = Rows(logits, temperature=temperature, top_p=top_p)
        assert rows.run(GPU) == [-1, -2, -1, -1, 280, 5]


def test_no_rows() -> None:
    assert Rows(torch.zeros(0, 5)).run(GPU) == []


def test_greedy_takes_the_lowest_of_equals() -> None:
    logits = torch.zeros(1, 700)
    logits[0, [301, 600]] = 2.0
    assert Rows(logits, temperature=0.0).run(GPU) == [301]
    assert Rows(torch.tensor([[-1.0, -0.0, 0.0]]), temperature=0.0).run(GPU) == [1]


def test_greedy_ends_where_the_oracle_says() -> None:
    """1e-5 in fp32 is below 1e-5."""
    ends = np.nextafter(np.float32(1e-5), np.float32(1))
    rows = Rows(torch.zeros(2, 100), temperature=torch.tensor([1e-5, ends]), seed=3)
    got = rows.run(GPU)
    assert got == rows.run(reference)
    assert got[0] == 0 != got[1]


def test_a_column_of_the_wrong_length_or_dtype_is_refused() -> None:
    logits, one, three = torch.zeros(1, 5), torch.ones(1), torch.ones(3)
    with pytest.raises(ValueError, match=r"top_p: got shape \(3,\), allowed: \(1,\)"):
        sampling.sample(DEVICE, logits, one, three, one.int(), one, one.long(), one.long())
    with pytest.raises(ValueError, match=r"top_k: got torch.int64, allowed: torch.int32"):
        sampling.sample(DEVICE, logits, one, one, one.long(), one, one.long(), one.long())
