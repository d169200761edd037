"""Matrix products: a library's, and ours, whose rows know no others."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from kernels import reference
from kernels.gpu.ahead import RecordingDevice
from kernels.gpu.device import Device
from kernels.gpu.linear import Linear
from tests.kernels.gpu.conftest import PLACE
from tests.kernels.gpu.rounding import assert_rounded_once, every_dtype, normal

INVARIANT = Device.of(PLACE, batch_invariant=True)
ON_META = RecordingDevice("cuda:90", 132, True)
SHAPES = [(200, 96), (5, 1), (1, 1500), (49, 513), (144, 576)]


def made(width: int, fan_in: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Weight and bias, of which results become of the order of 1."""
    return normal(width, fan_in, dtype=dtype) * fan_in**-0.5, normal(width, dtype=dtype)


@pytest.mark.parametrize("with_bias", [True, False])
@pytest.mark.parametrize("tokens", [1, 2, 70])
@pytest.mark.parametrize(("width", "fan_in"), SHAPES)
@every_dtype
def test_ours(width: int, fan_in: int, tokens: int, with_bias: bool, dtype: torch.dtype) -> None:
    weight, bias = made(width, fan_in, dtype)
    x = normal(tokens, fan_in, dtype=dtype)
    exact = x.double() @ weight.double().T + (bias.double() if with_bias else 0)
    assert_rounded_once(Linear(INVARIANT, weight, bias if with_bias else None)(x), exact, error=5e-6)


@settings(max_examples=20)
@given(tokens=st.integers(1, 90), width=st.integers(1, 150), fan_in=st.integers(1, 150))
def test_every_shape(tokens: int, width: int, fan_in: int) -> None:
    weight, bias = made(width, fan_in, torch.float16)
    x = normal(tokens, fan_in, dtype=torch.float16)
    exact = reference.Linear(weight.double(), bias.double())(x.double())
    assert_rounded_once(Linear(INVARIANT, weight, bias)(x), exact, error=5e-6)


@pytest.mark.parametrize(("width", "fan_in"), SHAPES)
@every_dtype
def test_a_row_does_not_depend_on_its_company_bit_for_bit(
    width: int, fan_in: int, dtype: torch.dtype
) -> None:
    weight, bias = made(width, fan_in, dtype)
    product, x = Linear(INVARIANT, weight, bias), normal(70, fan_in, dtype=dtype)
    alone = product(x[:1])[0]
    for rows in (2, 17, 70):
        for place in (0, rows - 1):
            company = x[:rows].clone()
            company[[0, place]] = company[[place, 0]]
            assert torch.equal(product(company)[place], alone)


@every_dtype
def test_a_broken_row_breaks_no_other(dtype: torch.dtype) -> None:
    weight, bias = made(40, 72, dtype)
    product, x = Linear(INVARIANT, weight, bias), normal(3, 72, dtype=dtype)
    alone = product(x[1:2])[0]
    x[0], x[2] = math.nan, math.inf
    got = product(x)
    assert torch.equal(got[1], alone)
    assert got[0].isnan().all()


def test_many_tiles_of_rows_are_each_computed_once() -> None:
    """More than one group, the last of them not full."""
    tiles = INVARIANT.tiles("linear", width=40, fan_in=4, itemsize=4)
    rows = (2 * tiles["GROUP_M"] + 3) * tiles["BLOCK_M"] - 1
    weight, bias = made(40, 4, torch.float32)
    x = normal(rows, 4)
    exact = x.double() @ weight.double().T + bias.double()
    assert_rounded_once(Linear(INVARIANT, weight, bias)(x), exact, error=5e-6)


@pytest.mark.parametrize(
    ("width", "fan_in", "dtype"), [(4096, 4096, torch.bfloat16), (28672, 4096, torch.float32)]
)
def test_the_number_of_rows_chooses_the_grid_alone(width: int, fan_in: int, dtype: torch.dtype) -> None:
    device = replace(ON_META, launches=[])
    product = Linear(device, torch.empty(width, fan_in, dtype=dtype, device="meta"))
    for rows in (1, 2, 64, 2048):
        out = product(torch.empty(rows, fan_in, dtype=dtype, device="meta"))
        assert (out.shape, out.dtype, out.device.type) == ((rows, width), dtype, "meta")
    constants = [
        {name: value for name, value in launch.arguments.items() if name.isupper()}
        | {"num_warps": launch.num_warps, "num_stages": launch.num_stages}
        for launch in device.launches
    ]
    assert constants == [constants[0]] * 4


def test_no_rows_start_nothing() -> None:
    device = replace(ON_META, launches=[])
    product = Linear(device, torch.empty(5, 7, device="meta"))
    assert product(torch.empty(0, 7, device="meta")).shape == (0, 5)
    assert device.launches == []


@pytest.mark.parametrize("with_bias", [True, False])
@every_dtype
def test_a_librarys_product_is_taken_where_nobody_asked_for_ours(with_bias: bool, dtype: torch.dtype) -> None:
    weight, bias = made(49, 64, dtype)
    product = Linear(replace(INVARIANT, batch_invariant=False), weight, bias if with_bias else None)
    for rows in (0, 1, 17):
        x = normal(rows, 64, dtype=dtype)
        assert torch.equal(product(x), reference.Linear(weight, bias if with_bias else None)(x))


def test_what_does_not_fit_is_refused(device: Device) -> None:
    weight = torch.zeros(4, 8, device=PLACE)
    x = torch.zeros(1, 8, device=PLACE)
    with pytest.raises(ValueError, match="x: got rows of 7, allowed: 8"):
        Linear(device, weight)(x[:, :7])
    with pytest.raises(ValueError, match=r"bias: got shape \(8,\), allowed: \(4,\)"):
        Linear(device, weight, x[0])
    with pytest.raises(ValueError, match=r"x: got torch.float16, allowed: torch.float32"):
        Linear(device, weight)(x.half())
    with pytest.raises(ValueError, match=r"bias: got torch.float16, allowed: torch.float32"):
        Linear(device, weight, x[0, :4].half())
    with pytest.raises(
        ValueError, match=r"weight: got torch.int64, allowed: torch.float32, torch.float16, torch.b"
    ):
        Linear(device, weight.long())
    with pytest.raises(ValueError, match=r"weight: got strides \(1, 4\), allowed: a contiguous tensor"):
        Linear(device, weight.view(8, 4).T)
    with pytest.raises(ValueError, match=r"x: got strides \(1, 2\), allowed: a contiguous tensor"):
        Linear(device, weight)(torch.zeros(8, 2, device=PLACE).T)
