"""Norms and the gated activation: one pass over memory.

Knows: rows, and how wide they are. Does not know: heads, caches, sequences. See `kernels.Kernels` for the
shapes.

A row of a norm is one program's, which keeps it in registers between the sum of squares and the product. How
a sum is taken follows from the width alone, so a row's bits depend on that row alone.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.gpu.checks import FLOATS, check
from kernels.gpu.device import Device


def rms_norm(device: Device, x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """See `kernels.Kernels.rms_norm`. Zhang and Sennrich, 2019.

    Moves: 2 T H elements.

    Raises:
        ValueError: `weight` does not fit x, or a dtype is not that of activations.
        LookupError: a row is too wide for one program.
    """
    out = torch.empty_like(x)
    _launch_norm(device, x, None, weight, eps, out)
    return out


def add_rms_norm(device: Device, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Tensor:
    """See `kernels.Kernels.add_rms_norm`. The norm is that of the residual as it is stored, rounded.

    Moves: 4 T H elements.

    Raises:
        ValueError: `weight` or `residual` does not fit x, or a dtype is not that of activations.
        LookupError: a row is too wide for one program.
    """
    out = torch.empty_like(x)
    _launch_norm(device, x, residual, weight, eps, out)
    return out


def silu_mul(device: Device, gate_up: Tensor) -> Tensor:
    """See `kernels.Kernels.silu_mul`. Shazeer, 2020 (SwiGLU).

    Moves: 3 T I elements.

    Raises:
        ValueError: the width is odd, or the dtype is not that of activations.
    """
    rows, width = gate_up.shape
    check("gate_up", gate_up, *FLOATS)
    if width % 2:
        raise ValueError(f"gate_up: got rows of {width}, allowed: an even number")
    out = gate_up.new_empty((rows, width // 2))
    tiles = device.tiles("silu_mul")
    device.launch(
        _silu_mul,
        (rows, triton.cdiv(width // 2, tiles["BLOCK"])),
        gate_up=gate_up,
        out=out,
        WIDTH=width // 2,
        **tiles,
    )
    return out


def _launch_norm(
    device: Device, x: Tensor, residual: Tensor | None, weight: Tensor, eps: float, out: Tensor
) -> None:
    rows, width = x.shape
    check("x", x, *FLOATS)
    if weight.shape != (width,):
        raise ValueError(f"weight: got {weight.shape[0]} elements, allowed: {width}, the width of x")
    check("weight", weight, x.dtype)
    if residual is not None:
        check("residual", residual, x.dtype, shape=x.shape)
    device.launch(
        _rms_norm,
        (rows,),
        x=x,
        residual=residual,
        weight=weight,
        out=out,
        eps=eps,
        WIDTH=width,
        BLOCK=triton.next_power_of_2(width),
        **device.tiles("rms_norm", width=width),
    )


@triton.jit
def _rms_norm(x, residual, weight, out, eps, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    """One row. `residual` is None, or gets x added to it first."""
    column = tl.arange(0, BLOCK)
    inside = column < WIDTH
    at = tl.program_id(0).to(tl.int64) * WIDTH + column
    row = tl.load(x + at, inside, other=0.0).to(tl.float32)
    if residual is not None:
        row += tl.load(residual + at, inside, other=0.0).to(tl.float32)
        rounded = row.to(residual.dtype.element_ty)
        tl.store(residual + at, rounded, inside)
        row = rounded.to(tl.float32)
    factor = tl.rsqrt(tl.sum(row * row, 0) / WIDTH + eps)
    scale = tl.load(weight + column, inside, other=0.0).to(tl.float32)
    tl.store(out + at, (row * factor * scale).to(out.dtype.element_ty), inside)


@triton.jit
def _silu_mul(gate_up, out, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    """A piece of one row."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < WIDTH
    at = gate_up + row * (2 * WIDTH) + column
    gate = tl.load(at, inside, other=0.0).to(tl.float32)
    up = tl.load(at + WIDTH, inside, other=0.0).to(tl.float32)
    # Where e^-gate is infinite the quotient is 0, as it should be; e^gate / (1 + e^gate) would be NaN.
    activated = gate / (1.0 + tl.exp(-gate)) * up
    tl.store(out + row * WIDTH + column, activated.to(out.dtype.element_ty), inside)
