"""Matrix products in which a row's bits depend on that row alone.

Knows: how the weight is laid out, how a product is cut into tiles and shared among threads. Does not know:
what a layer is, how a tile is multiplied.

The order of summation is fixed. The fan-in is cut into equal parts of at most _CHAIN, so the cuts follow from
the fan-in alone; the sum of a part is one chain of fused multiply-adds in ascending order, begun at zero;
bias and parts are then added in ascending order. (Short chains also lose less to rounding than a long one.)
Which rows share a tile, how long the vectors are and which thread does what decide only what happens at the
same time. So any batch, any cut of a prompt, any number of threads and any processor give the same bits.

The weight is kept once, as panels: as many columns of x @ weight.T as one tile has, and for each element of
the fan-in the panel's weights side by side, so that a panel is read from its beginning to its end.
"""

from __future__ import annotations

from typing import Any

import llvmlite.binding
import numba
import numpy as np
import torch
from torch import Tensor

from kernels import memory
from kernels.cpu.jit import helper, kernel, match_threads
from kernels.cpu.tile import NARROW, WIDE, Shape, add_narrow_tile, add_wide_tile

_CHAIN = 512
"""A panel's part of this length stays in the second-level cache while all tiles of rows pass over it."""

_ITEMS_PER_THREAD = 4
"""Work for a thread to share out evenly, where there are rows enough to cut it so."""

_WIDE_WIDTH = WIDE.width


def best_shape() -> Shape:
    """The tile that fills this processor's registers."""
    return WIDE if llvmlite.binding.get_host_cpu_features().get("avx512f") else NARROW


class Linear:
    """x @ weight.T + bias. The weight is copied: whoever built the model can drop its own tensor."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None, shape: Shape | None = None) -> None:
        if bias is not None and bias.shape != weight.shape[:1]:
            raise ValueError(f"bias: got shape {tuple(bias.shape)}, allowed: {tuple(weight.shape[:1])}")
        self._shape = shape or best_shape()
        self._out_features, self._in_features = weight.shape
        self._panels = _lay_out(weight, self._shape.width).numpy()
        self._bias = np.zeros(self._panels.shape[0] * self._shape.width, dtype=np.float32)
        if bias is not None:
            self._bias[: self._out_features] = bias.numpy()

    def __call__(self, x: Tensor) -> Tensor:
        rows, width = x.shape
        if width != self._in_features:
            raise ValueError(f"x: got rows of {width}, allowed: {self._in_features}")
        out = torch.empty((rows, self._out_features))
        tiles = -(-rows // self._shape.rows)
        # More shares make more threads read the same panel, so no more than are needed.
        shares = min(tiles, -(-_ITEMS_PER_THREAD * match_threads() // self._panels.shape[0]))
        _multiply(x.numpy(), self._panels, self._bias, tiles, shares, out.view(-1).numpy())
        return out


def _lay_out(weight: Tensor, width: int) -> Tensor:
    """weight[O, I] as panels[P, I, width], on huge pages; columns beyond O are zero."""
    out_features, in_features = weight.shape
    panels = memory.zeros((-(-out_features // width), in_features, width), weight.dtype)
    whole = out_features // width
    panels[:whole] = weight[: whole * width].view(whole, width, in_features).transpose(1, 2)
    if whole < panels.shape[0]:
        panels[whole, :, : out_features - whole * width] = weight[whole * width :].T
    return panels


@helper(exact=True)
def _add_tile(
    x: Any, first: Any, end: Any, panels: Any, panel: Any, start: Any, stop: Any,
    base: Any, base_at: Any, base_stride: Any, out: Any, out_at: Any, out_stride: Any,
) -> None:  # fmt: skip
    if panels.shape[2] == _WIDE_WIDTH:
        add_wide_tile(
            x, first, end, panels, panel, start, stop, base, base_at, base_stride, out, out_at, out_stride
        )
    else:
        add_narrow_tile(
            x, first, end, panels, panel, start, stop, base, base_at, base_stride, out, out_at, out_stride
        )


@kernel(
    "void(float32[:, ::1], float32[:, :, ::1], float32[::1], int64, int64, float32[::1])",
    parallel=True,
    exact=True,
)
def _multiply(x: Any, panels: Any, bias: Any, tiles: Any, shares: Any, out: Any) -> None:
    """out[T * O]. An item is a panel and a share of the tiles of rows."""
    num_rows, fan_in = x.shape
    width, stride = panels.shape[2], out.shape[0] // max(num_rows, 1)
    parts = (fan_in + _CHAIN - 1) // _CHAIN
    for item in numba.prange(panels.shape[0] * shares):
        panel, share = np.int64(item) // shares, np.int64(item) % shares
        first_tile, end_tile = share * tiles // shares, (share + 1) * tiles // shares
        column = panel * width
        columns = min(width, stride - column)
        # A tile is written whole, so a panel that sticks out gets a place of its own.
        if columns == width:
            sums, sums_at, sums_stride = out, column, stride
        else:
            sums, sums_at, sums_stride = np.empty(num_rows * width, dtype=np.float32), 0, width
        for part in range(parts):
            start, stop = part * fan_in // parts, (part + 1) * fan_in // parts
            for tile in range(first_tile, end_tile):
                first, end = tile * num_rows // tiles, (tile + 1) * num_rows // tiles
                at = sums_at + first * sums_stride
                base, base_at, base_stride = (bias, column, 0) if part == 0 else (sums, at, sums_stride)
                _add_tile(
                    x, first, end, panels, panel, start, stop,
                    base, base_at, base_stride, sums, at, sums_stride,
                )  # fmt: skip
        if columns < width:
            for row in range(first_tile * num_rows // tiles, end_tile * num_rows // tiles):
                for c in range(columns):
                    out[row * stride + column + c] = sums[row * width + c]
