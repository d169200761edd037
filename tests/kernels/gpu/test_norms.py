"""Norms and the gated activation: the oracle's numbers, rounded once, and a row that knows no other."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from kernels import reference
from kernels.gpu import norms
from kernels.gpu.ahead import RecordingDevice
from kernels.gpu.device import Device
from tests.kernels.gpu.conftest import PLACE
from tests.kernels.gpu.rounding import assert_rounded_once, every_dtype, normal

EPS = 1e-5
ON_META = RecordingDevice("cuda:90", 132, False)


@pytest.mark.parametrize(("tokens", "width"), [(1, 8), (2, 576), (3, 1000), (1, 4096), (0, 64)])
@every_dtype
def test_norms(device: Device, tokens: int, width: int, dtype: torch.dtype) -> None:
    x, residual = normal(tokens, width, dtype=dtype) * 3, normal(tokens, width, dtype=dtype)
    weight = normal(width, dtype=dtype)
    exact = reference.rms_norm(x.double(), weight.double(), EPS)
    assert_rounded_once(norms.rms_norm(device, x, weight, EPS), exact)
    changed, before = residual.clone(), x.clone()
    got = norms.add_rms_norm(device, x, changed, weight, EPS)
    assert torch.equal(changed, (residual.float() + x.float()).to(dtype))
    # Not of the sum as it was before it was rounded.
    assert_rounded_once(got, reference.rms_norm(changed.double(), weight.double(), EPS))
    assert torch.equal(x, before)


@settings(max_examples=25)
@given(tokens=st.integers(1, 4), width=st.integers(1, 200), scale=st.sampled_from([1e-3, 1.0, 1e3]))
def test_every_shape(tokens: int, width: int, scale: float) -> None:
    device = Device.of(PLACE, batch_invariant=True)
    x, weight = normal(tokens, width) * scale, normal(width)
    exact = reference.rms_norm(x.double(), weight.double(), EPS)
    assert_rounded_once(norms.rms_norm(device, x, weight, EPS), exact)
    gate_up = normal(tokens, 2 * width) * 10
    exact = reference.silu_mul(gate_up.double())
    assert_rounded_once(norms.silu_mul(device, gate_up), exact, error=3e-6)


def test_a_row_of_zeros_is_no_division_by_zero(device: Device) -> None:
    got = norms.rms_norm(device, torch.zeros(1, 8, device=PLACE), torch.ones(8, device=PLACE), EPS)
    assert torch.equal(got, torch.zeros_like(got))


@pytest.mark.parametrize(("tokens", "width"), [(1, 1), (2, 1536), (3, 1025), (0, 64)])
@every_dtype
def test_silu_mul(device: Device, tokens: int, width: int, dtype: torch.dtype) -> None:
    gate_up = normal(tokens, 2 * width, dtype=dtype) * 10
    got = norms.silu_mul(device, gate_up)
    assert_rounded_once(got, reference.silu_mul(gate_up.double()), error=3e-6)


def test_silu_mul_at_the_ends_of_the_range(device: Device) -> None:
    gate = torch.tensor([[-1e30, -200.0, -88.0, -87.0, 0.0, 88.0, 200.0, 1e30]], device=PLACE)
    got = norms.silu_mul(device, torch.cat([gate, torch.ones_like(gate)], dim=1))
    torch.testing.assert_close(got, gate * torch.sigmoid(gate), atol=1e-35, rtol=1e-5)


def _add_rms_norm(device: Device, x: Tensor, weight: Tensor) -> Tensor:
    residual = x.flip(1).contiguous()
    out = norms.add_rms_norm(device, x, residual, weight, EPS)
    return torch.cat([out, residual], dim=1)


KERNELS = [
    pytest.param(lambda device, x, weight: norms.rms_norm(device, x, weight, EPS), id="rms_norm"),
    pytest.param(_add_rms_norm, id="add_rms_norm"),
    pytest.param(lambda device, x, _: norms.silu_mul(device, x), id="silu_mul"),
]


@pytest.mark.parametrize("kernel", KERNELS)
def test_a_row_does_not_depend_on_its_company_bit_for_bit(device: Device, kernel: Any) -> None:
    x, weight = normal(20, 1152), normal(1152)
    together = kernel(device, x, weight)
    for t in (0, 11, 19):
        assert torch.equal(kernel(device, x[t : t + 1], weight)[0], together[t])


@pytest.mark.parametrize("kernel", KERNELS)
def test_a_broken_row_breaks_no_other(device: Device, kernel: Any) -> None:
    """Nothing is read or written beyond a row's ends, though tiles reach further."""
    x, weight = normal(5, 72), normal(72)
    x[0::2] = math.nan
    got = kernel(device, x, weight)
    assert torch.equal(got.isnan().all(dim=1).cpu(), torch.tensor([True, False, True, False, True]))
    assert torch.equal(got.isnan().any(dim=1), got.isnan().all(dim=1))


def test_shapes_are_all_that_is_looked_at() -> None:
    x = torch.empty(7, 576, dtype=torch.float16, device="meta")
    device = replace(ON_META, launches=[])
    results = [
        norms.rms_norm(device, x, x[0], EPS),
        norms.add_rms_norm(device, x, x, x[0], EPS),
        norms.silu_mul(device, x),
    ]
    assert [(r.shape, r.dtype, r.device.type) for r in results] == [
        ((7, width), torch.float16, "meta") for width in (576, 576, 288)
    ]
    assert len(device.launches) == 3


def test_what_does_not_fit_is_refused() -> None:
    x, residual, weight = (torch.empty(shape, device="meta") for shape in [(2, 8), (2, 8), (8,)])
    with pytest.raises(ValueError, match="weight: got 7 elements, allowed: 8, the width of x"):
        norms.rms_norm(ON_META, x, weight[:7], EPS)
    with pytest.raises(ValueError, match=r"residual: got shape \(1, 8\), allowed: \(2, 8\)"):
        norms.add_rms_norm(ON_META, x, residual[:1], weight, EPS)
    with pytest.raises(ValueError, match="gate_up: got rows of 7, allowed: an even number"):
        norms.silu_mul(ON_META, x[:1, :7])
    with pytest.raises(ValueError, match=r"weight: got torch.float16, allowed: torch.float32"):
        norms.rms_norm(ON_META, x, weight.half(), EPS)
    with pytest.raises(ValueError, match=r"residual: got torch.float16, allowed: torch.float32"):
        norms.add_rms_norm(ON_META, x, residual.half(), weight, EPS)
    for kernel in (lambda x: norms.rms_norm(ON_META, x, weight, EPS), lambda x: norms.silu_mul(ON_META, x)):
        with pytest.raises(
            ValueError, match=r"got torch.int64, allowed: torch.float32, torch.float16, torch.bf"
        ):
            kernel(x.long())
        with pytest.raises(ValueError, match=r"got strides \(16, 2\), allowed: a contiguous tensor"):
            kernel(torch.empty(2, 16, device="meta")[:, ::2])
