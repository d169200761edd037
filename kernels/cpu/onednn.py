"""The kernels for CPUs, with oneDNN's matrix products in the place of ours.

Knows: oneDNN's prepacked products, which torch keeps private; this is the only file that names them.
Does not know: what a layer is.

Packing once spares oneDNN a reordering of the weight at every call, about half of the time for few rows.
The packed weight is a second copy. A single row against a small weight is faster without oneDNN, whose
fixed cost per call is then a large share: those products read the plain weight, so small weights are kept
in both forms, the plain one as a copy on huge pages. Large ones are kept packed only. Either way, whoever
built the model can drop its own tensor.

The order of summation differs between one row and several, and oneDNN is free to choose its blocking by the
number of rows: a row's last bits may differ between batch sizes.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
import torch
from torch import Tensor

from kernels import memory
from kernels.cpu import *  # noqa: F403 (all kernels but the one defined here)
from kernels.cpu.jit import kernel, match_threads

_PACKED_FOR_ROWS = 16
"""The layout that measured best or equal from 1 to 256 rows."""

_SMALL_BYTES = 16 * 2**20
"""Up to here one row is faster without oneDNN (1.7 times at 1 MB, 1.15 times at 7 MB, equal at 64 MB)."""

_NO_BIAS = np.empty(0, dtype=np.float32)


def packing_available() -> bool:
    """Whether this torch has oneDNN, and the private operations under the names known here."""
    names = ("_linear_pointwise", "_reorder_linear_weight")
    available: bool = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    return available and all(hasattr(torch.ops.mkldnn, name) for name in names)


class Linear:
    """x @ weight.T + bias, with the weight packed for oneDNN where there is one."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        if bias is not None and bias.shape != weight.shape[:1]:
            raise ValueError(f"bias: got shape {tuple(bias.shape)}, allowed: {tuple(weight.shape[:1])}")
        packs, small = packing_available(), weight.nbytes <= _SMALL_BYTES
        self._out_features, self._in_features = weight.shape
        self._bias = bias
        self._packed = torch.ops.mkldnn._reorder_linear_weight(weight, _PACKED_FOR_ROWS) if packs else None
        self._plain = None if packs else weight
        bias_array = _NO_BIAS if bias is None else bias.numpy()
        self._one_row = (_on_huge_pages(weight).numpy(), bias_array) if small else None

    def __call__(self, x: Tensor) -> Tensor:
        if x.shape[1] != self._in_features:
            raise ValueError(f"x: got rows of {x.shape[1]}, allowed: {self._in_features}")
        if x.shape[0] == 1 and self._one_row is not None:
            out = torch.empty((1, self._out_features))
            match_threads()
            _multiply_row(x.numpy(), *self._one_row, out.numpy())
            return out
        if self._plain is not None:
            return torch.nn.functional.linear(x, self._plain, self._bias)
        padded = _pad_rows(x)
        product: Tensor = torch.ops.mkldnn._linear_pointwise(padded, self._packed, self._bias, "none", [], "")
        return product[: x.shape[0]]


def padded_rows(rows: int) -> int:
    """The number of rows that a product of `rows` is computed with.

    oneDNN keeps code and memory for each number of rows that it ever saw, about 3 MB for a model of four
    kinds of layers. A server sees all numbers up to its token budget; so the larger ones are rounded up.
    """
    for end, step in ((16, 1), (64, 8), (256, 16)):
        if rows <= end:
            return -(-rows // step) * step
    return -(-rows // 32) * 32


def _pad_rows(x: Tensor) -> Tensor:
    rows = x.shape[0]
    missing = padded_rows(rows) - rows
    return x if missing == 0 else torch.nn.functional.pad(x, (0, 0, 0, missing))


def _on_huge_pages(weight: Tensor) -> Tensor:
    return memory.zeros(weight.shape, weight.dtype).copy_(weight)


@kernel("void(float32[:, ::1], float32[:, ::1], float32[::1], float32[:, ::1])", parallel=True)
def _multiply_row(x: Any, weight: Any, bias: Any, out: Any) -> None:
    for o in numba.prange(weight.shape[0]):
        total = np.float32(0.0)
        for i in range(weight.shape[1]):
            total += x[0, i] * weight[o, i]
        out[0, o] = total + bias[o] if bias.shape[0] > 0 else total
