"""What every function of the GPU path demands of a tensor before it launches anything.

Knows: shapes, dtypes and strides. Does not know: kernels, what a tensor means.
"""

from __future__ import annotations

import torch
from torch import Tensor

FLOATS = (torch.float32, torch.float16, torch.bfloat16)
"""Dtypes of activations and weights."""


def check(name: str, x: Tensor, *dtypes: torch.dtype, shape: tuple[int, ...] | None = None) -> None:
    """Raises:
    ValueError: `x` has none of the dtypes, another shape than the one given, or is not contiguous.
    """
    if shape is not None and x.shape != shape:
        raise ValueError(f"{name}: got shape {tuple(x.shape)}, allowed: {tuple(shape)}")
    if x.dtype not in dtypes:
        raise ValueError(f"{name}: got {x.dtype}, allowed: {', '.join(map(str, dtypes))}")
    if not x.is_contiguous():
        raise ValueError(f"{name}: got strides {x.stride()}, allowed: a contiguous tensor")
