"""Matrix products: a library's, or ours where a row's bits must depend on that row alone.

Knows: how a product is cut into tiles. Does not know: what a layer is.

A library (cuBLAS, hipBLASLt) chooses its kernel by the number of rows, and with it the order of each sum.
Ours has one tile for each weight, whatever the number of rows: a sum is one accumulator that passes over the
fan-in in ascending order, in steps of BLOCK_K; nothing is split along it. Rows that a tile does not have are
zeros. So how many rows there are decides how many programs run, and nothing that one of them computes.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.gpu.checks import FLOATS, check
from kernels.gpu.device import Device


class Linear:
    """x[T, I] @ weight[O, I].T + bias[O]. The weight is kept, not copied.

    Moves: I O elements of weight, T (I + O) of activations; computes 2 T I O FLOPs. On one H200 (4.8 TB/s,
    989 TFLOP/s in 16 bits) reading the weight is the floor up to some 200 rows, computing beyond.

    Raises:
        ValueError: from the constructor, the bias does not fit the weight; from a call, x does not; from
            both, a dtype is not that of the weight or is none of activations.
    """

    def __init__(self, device: Device, weight: Tensor, bias: Tensor | None = None) -> None:
        check("weight", weight, *FLOATS)
        if bias is not None:
            check("bias", bias, weight.dtype, shape=weight.shape[:1])
        self._device, self._weight, self._bias = device, weight, bias
        self._width, self._fan_in = weight.shape
        self._tiles = device.tiles(
            "linear", width=self._width, fan_in=self._fan_in, itemsize=weight.element_size()
        )

    def __call__(self, x: Tensor) -> Tensor:
        rows, fan_in = x.shape
        if fan_in != self._fan_in:
            raise ValueError(f"x: got rows of {fan_in}, allowed: {self._fan_in}")
        check("x", x, self._weight.dtype)
        if not self._device.batch_invariant:
            return torch.nn.functional.linear(x, self._weight, self._bias)
        out = x.new_empty((rows, self._width))
        if rows > 0:
            self._launch(x, out)
        return out

    def _launch(self, x: Tensor, out: Tensor) -> None:
        rows, tiles = x.shape[0], self._tiles
        num_programs = triton.cdiv(rows, tiles["BLOCK_M"]) * triton.cdiv(self._width, tiles["BLOCK_N"])
        self._device.launch(
            _linear,
            (num_programs,),
            x=x,
            weight=self._weight,
            bias=self._bias,
            out=out,
            rows=rows,
            WIDTH=self._width,
            FAN_IN=self._fan_in,
            **tiles,
        )


@triton.jit(do_not_specialize=["rows"])
def _linear(
    x,
    weight,
    bias,
    out,
    rows,
    WIDTH: tl.constexpr,
    FAN_IN: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP_M: tl.constexpr,
):
    """A tile of BLOCK_M rows and BLOCK_N columns of the result."""
    row_tile, column_tile = _tile(rows, WIDTH, BLOCK_M, BLOCK_N, GROUP_M)
    first_row, first_column = (row_tile * BLOCK_M).to(tl.int64), (column_tile * BLOCK_N).to(tl.int64)
    m, n, k = tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_N), tl.arange(0, BLOCK_K)
    has_row, has_column = first_row + m < rows, first_column + n < WIDTH
    # Only the tile's corner needs 64 bits: offsets inside it are small.
    x += first_row * FAN_IN
    weight += first_column * FAN_IN
    sums = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for start in range(0, FAN_IN, BLOCK_K):
        x_mask, weight_mask = has_row[:, None], has_column[:, None]
        if FAN_IN % BLOCK_K != 0:
            has_k = (start + k < FAN_IN)[None, :]
            x_mask, weight_mask = x_mask & has_k, weight_mask & has_k
        x_tile = tl.load(x + m[:, None] * FAN_IN + (start + k)[None, :], x_mask, other=0.0)
        weight_tile = tl.load(weight + n[:, None] * FAN_IN + (start + k)[None, :], weight_mask, other=0.0)
        sums = tl.dot(x_tile, tl.trans(weight_tile), sums, input_precision="ieee")
    if bias is not None:
        sums += tl.load(bias + first_column + n, has_column, other=0.0).to(tl.float32)[None, :]
    out += first_row * WIDTH + first_column
    tl.store(
        out + m[:, None] * WIDTH + n[None, :],
        sums.to(out.dtype.element_ty),
        has_row[:, None] & has_column[None, :],
    )


@triton.jit
def _tile(
    rows,
    WIDTH: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    GROUP_M: tl.constexpr,
):
    """Which tile is this program's. Neighbours in time share a tile of the weight, GROUP_M of them at most:
    so the cache has both the weight's tile and the group's rows when the next one wants them."""
    row_tiles, column_tiles = tl.cdiv(rows, BLOCK_M), tl.cdiv(WIDTH, BLOCK_N)
    group, place = tl.program_id(0) // (GROUP_M * column_tiles), tl.program_id(0) % (GROUP_M * column_tiles)
    height = tl.minimum(row_tiles - group * GROUP_M, GROUP_M)
    return group * GROUP_M + place % height, place // height
