"""e4m3 numbers: all 256 of them, by an instruction and by integer arithmetic."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.gpu import fp8
from kernels.gpu.device import Device
from tests.kernels.gpu.conftest import PLACE

EVERY = torch.arange(256, dtype=torch.uint8)


@triton.jit
def _widen_kernel(numbers, out, SIZE: tl.constexpr):
    at = tl.arange(0, SIZE)
    tl.store(out + at, fp8.widen(tl.load(numbers + at), out.dtype.element_ty))


def widened(device: Device, numbers: Tensor, dtype: torch.dtype) -> Tensor:
    out = torch.empty(len(numbers), dtype=dtype, device=PLACE)
    device.launch(
        _widen_kernel,
        (1,),
        num_warps=1,
        num_stages=1,
        numbers=fp8.readable(device, numbers.to(PLACE)),
        out=out,
        SIZE=len(numbers),
    )
    return out.cpu()


def same(got: Tensor, expected: Tensor) -> bool:
    """Zeros keep their signs."""
    return bool(torch.equal(got.isnan(), expected.isnan())) and torch.equal(
        got.nan_to_num().view(torch.uint8), expected.nan_to_num().view(torch.uint8)
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("arch", ["own", "cuda:80"])
def test_each_number_is_widened_exactly(device: Device, arch: str, dtype: torch.dtype) -> None:
    if dtype == torch.bfloat16 and PLACE.type == "cpu":
        pytest.skip("the interpreter has no bf16")
    numbers = EVERY.view(torch.float8_e4m3fn)
    if arch != "own":
        device = replace(device, arch=arch)
    assert same(widened(device, numbers, dtype), numbers.to(dtype))


def test_other_tensors_are_read_as_they_are(device: Device) -> None:
    x = torch.randn(256)
    assert same(widened(device, x.half(), torch.float32), x.half().float())


def test_bytes_stand_for_numbers_only_where_the_chip_has_no_such_type(device: Device) -> None:
    numbers = EVERY.view(torch.float8_e4m3fn)
    with_it, without = replace(device, arch="cuda:90"), replace(device, arch="hip:gfx942")
    assert fp8.readable(with_it, numbers) is numbers
    got = fp8.readable(without, numbers)
    assert got.dtype == torch.uint8
    assert got.data_ptr() == numbers.data_ptr()


@triton.jit
def _narrow_kernel(numbers, out, SIZE: tl.constexpr):
    at = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    tl.store(out + at, fp8.narrow(tl.load(numbers + at).to(tl.float32), out.dtype.element_ty))


def narrowed(device: Device, numbers: Tensor, dtype: torch.dtype) -> Tensor:
    """`numbers`: a multiple of 1024."""
    out = torch.empty(len(numbers), dtype=dtype, device=PLACE)
    device.launch(
        _narrow_kernel,
        (len(numbers) // 1024,),
        num_warps=4,
        num_stages=1,
        numbers=numbers.to(PLACE),
        out=fp8.readable(device, out),
        SIZE=1024,
    )
    return out.cpu()


def _hard_numbers() -> Tensor:
    """fp32 of all sizes, and where e4m3 has to decide: each of its numbers, the middle between neighbours,
    and what lies just beside those."""
    positive = EVERY[:127].view(torch.float8_e4m3fn).float()
    middles = (positive[1:] + positive[:-1]) / 2
    exact = torch.cat([positive, middles, torch.tensor([464.0, 480.0, 1e38, torch.inf, 1e-45, 1e-40])])
    beside = torch.cat([exact, exact.nextafter(torch.tensor(torch.inf)), exact.nextafter(torch.tensor(0.0))])
    signed = torch.cat([beside, -beside])
    random = torch.randint(-(2**31), 2**31, (16 * 1024 - len(signed),)).int().view(torch.float32)
    return torch.cat([signed, random])


@pytest.mark.parametrize("arch", ["own", "cuda:80"])
def test_numbers_are_rounded_as_torch_rounds_them(device: Device, arch: str) -> None:
    if arch != "own":
        device = replace(device, arch=arch)
    every_half = torch.arange(-(2**15), 2**15, dtype=torch.int16).view(torch.float16)
    for numbers in (every_half, _hard_numbers()):
        expected = numbers.float().clamp(-448, 448).to(torch.float8_e4m3fn)
        got = narrowed(device, numbers, torch.float8_e4m3fn)
        numeric = ~numbers.isnan()
        assert got.float()[~numeric].isnan().all()
        assert torch.equal(got.view(torch.uint8)[numeric], expected.view(torch.uint8)[numeric])


def test_other_tensors_get_their_own_dtype(device: Device) -> None:
    x = torch.randn(1024) * 1000
    assert torch.equal(narrowed(device, x, torch.float32), x)
    assert torch.equal(narrowed(device, x, torch.float16), x.half())
