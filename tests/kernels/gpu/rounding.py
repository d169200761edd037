"""What tests of several kernels say about the numbers that come out: exact ones, rounded once."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tests.kernels.gpu.conftest import PLACE

every_dtype = pytest.mark.parametrize(
    "dtype",
    [
        torch.float32,
        torch.float16,
        pytest.param(
            torch.bfloat16,
            marks=pytest.mark.skipif(PLACE.type == "cpu", reason="the interpreter has no bf16"),
        ),
    ],
    ids=str,
)

E4M3 = torch.float8_e4m3fn

_HALF_STEP = {torch.float32: 2.0**-24, torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8, E4M3: 2.0**-4}
"""Half the distance of neighbours at most, as a share of the number."""

_HALF_OF_SMALLEST = {torch.float32: 0.0, torch.float16: 2.0**-25, torch.bfloat16: 0.0, E4M3: 2.0**-10}


def assert_rounded_once(got: Tensor, exact: Tensor, error: float = 1e-6) -> None:
    """`exact` is fp64 and may hold NaN, which must be where `got` has it. `error` is what fp32 arithmetic may
    lose before the one rounding, as a share of the number and of 1."""
    assert exact.dtype == torch.float64
    torch.testing.assert_close(
        got.double(),
        exact,
        rtol=_HALF_STEP[got.dtype] + error,
        atol=_HALF_OF_SMALLEST[got.dtype] + error,
        equal_nan=True,
    )


def normal(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, device=PLACE).to(dtype)
