"""Norms and the gated activation: one pass per row.

Knows: rows. Does not know: heads, caches, sequences. See `kernels.Kernels` for the shapes.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
import torch
from torch import Tensor

from kernels.cpu.jit import Function, exp, helper, kernel, match_threads

_SERIAL_ELEMENTS = 32_768
"""Below this many elements, waking a second thread costs more than it saves."""


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    _check_weight(x, weight)
    out = torch.empty_like(x)
    _choose(_rms_norm, _rms_norm_parallel, x)(x.numpy(), weight.numpy(), eps, out.numpy())
    return out


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Tensor:
    _check_weight(x, weight)
    if x.shape != residual.shape:
        raise ValueError(f"residual: got shape {tuple(residual.shape)}, allowed: {tuple(x.shape)}")
    out = torch.empty_like(x)
    _choose(_add_rms_norm, _add_rms_norm_parallel, x)(
        x.numpy(), residual.numpy(), weight.numpy(), eps, out.numpy()
    )
    return out


def silu_mul(gate_up: Tensor) -> Tensor:
    num_tokens, width = gate_up.shape
    out = torch.empty((num_tokens, width // 2))
    _choose(_silu_mul, _silu_mul_parallel, out)(gate_up.numpy(), out.numpy())
    return out


def _choose(serial: Function, parallel: Function, x: Tensor) -> Function:
    if x.numel() < _SERIAL_ELEMENTS:
        return serial
    match_threads()
    return parallel


def _check_weight(x: Tensor, weight: Tensor) -> None:
    if weight.shape[0] != x.shape[1]:
        raise ValueError(f"weight: got {weight.shape[0]} elements, allowed: {x.shape[1]}, the width of x")


@helper()
def _inverse_rms(x: Any, t: Any, eps: Any) -> Any:
    total = np.float32(0.0)
    for i in range(x.shape[1]):
        total += x[t, i] * x[t, i]
    return np.float32(1.0) / np.sqrt(total / np.float32(x.shape[1]) + np.float32(eps))


@helper()
def _normalise(x: Any, t: Any, weight: Any, eps: Any, out: Any) -> None:
    factor = _inverse_rms(x, t, eps)
    for i in range(x.shape[1]):
        out[t, i] = x[t, i] * factor * weight[i]


@helper()
def _add(x: Any, t: Any, residual: Any) -> None:
    for i in range(x.shape[1]):
        residual[t, i] += x[t, i]


@helper()
def _gate(gate_up: Any, t: Any, out: Any) -> None:
    width = out.shape[1]
    for i in range(width):
        gate = gate_up[t, i]
        # Beyond 88 e^-gate leaves fp32; the quotient is 0 to 37 digits by then.
        decay = exp(min(-gate, np.float32(88.0)))
        out[t, i] = gate / (np.float32(1.0) + decay) * gate_up[t, width + i]


_NORM = "void(float32[:, ::1], float32[::1], float64, float32[:, ::1])"
_ADD_NORM = "void(float32[:, ::1], float32[:, ::1], float32[::1], float64, float32[:, ::1])"
_GATE = "void(float32[:, ::1], float32[:, ::1])"


@kernel(_NORM)
def _rms_norm(x: Any, weight: Any, eps: Any, out: Any) -> None:
    for t in range(x.shape[0]):
        _normalise(x, t, weight, eps, out)


@kernel(_NORM, parallel=True)
def _rms_norm_parallel(x: Any, weight: Any, eps: Any, out: Any) -> None:
    for t in numba.prange(x.shape[0]):
        _normalise(x, t, weight, eps, out)


@kernel(_ADD_NORM)
def _add_rms_norm(x: Any, residual: Any, weight: Any, eps: Any, out: Any) -> None:
    for t in range(x.shape[0]):
        _add(x, t, residual)
        _normalise(residual, t, weight, eps, out)


@kernel(_ADD_NORM, parallel=True)
def _add_rms_norm_parallel(x: Any, residual: Any, weight: Any, eps: Any, out: Any) -> None:
    for t in numba.prange(x.shape[0]):
        _add(x, t, residual)
        _normalise(residual, t, weight, eps, out)


@kernel(_GATE)
def _silu_mul(gate_up: Any, out: Any) -> None:
    for t in range(out.shape[0]):
        _gate(gate_up, t, out)


@kernel(_GATE, parallel=True)
def _silu_mul_parallel(gate_up: Any, out: Any) -> None:
    for t in numba.prange(out.shape[0]):
        _gate(gate_up, t, out)
