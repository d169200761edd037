"""Changing logits as the requests' parameters say: bias, penalties, masks.

Knows: rows of logits and sparse lists of ids. Does not know: sequences, requests.
See `kernels.Kernels.edit_logits` for the meaning, step by step.

The work of a row grows with its lists, not with the vocabulary; only a row with a list of allowed ids is
passed over once.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from torch import Tensor

from kernels.cpu.jit import helper, kernel, match_threads


def edit_logits(
    logits: Tensor,
    bias_start: Tensor,
    bias_ids: Tensor,
    bias: Tensor,
    seen_start: Tensor,
    seen_ids: Tensor,
    seen_counts: Tensor,
    presence: Tensor,
    frequency: Tensor,
    repetition: Tensor,
    allowed_start: Tensor,
    allowed_ids: Tensor,
    banned_start: Tensor,
    banned_ids: Tensor,
) -> None:
    num_rows = logits.shape[0]
    columns = {"presence": presence, "frequency": frequency, "repetition": repetition}
    starts = {"bias": bias_start, "seen": seen_start, "allowed": allowed_start, "banned": banned_start}
    for name, column in columns.items():
        if column.shape != (num_rows,):
            raise ValueError(f"{name}: got shape {tuple(column.shape)}, allowed: ({num_rows},), one per row")
    for name, start in starts.items():
        if start.shape != (num_rows + 1,):
            raise ValueError(f"{name}_start: got shape {tuple(start.shape)}, allowed: ({num_rows + 1},)")
    match_threads()
    _edit_logits(
        logits.numpy(),
        bias_start.numpy(),
        bias_ids.numpy(),
        bias.numpy(),
        seen_start.numpy(),
        seen_ids.numpy(),
        seen_counts.numpy(),
        presence.numpy(),
        frequency.numpy(),
        repetition.numpy(),
        allowed_start.numpy(),
        allowed_ids.numpy(),
        banned_start.numpy(),
        banned_ids.numpy(),
    )


@helper(exact=True)
def _add_bias(x: Any, ids: Any, bias: Any) -> None:
    for i in range(len(ids)):
        if 0 <= ids[i] < len(x):
            x[ids[i]] += bias[i]


@helper(exact=True)
def _penalise(x: Any, ids: Any, counts: Any, presence: Any, frequency: Any, repetition: Any) -> None:
    """The penalties are fp64: products of fp32 are exact there, so contracting them changes no bit."""
    for i in range(len(ids)):
        if 0 <= ids[i] < len(x):
            logit = np.float64(x[ids[i]])
            logit = logit / repetition if logit > 0 else logit * repetition
            logit = logit - frequency * counts[i]
            x[ids[i]] = logit - presence if counts[i] > 0 else logit


@helper(exact=True)
def _masked(logit: Any) -> Any:
    """What shows that the model is broken stays."""
    return np.float32(-np.inf) if logit < np.inf else logit


@helper(exact=True)
def _keep_only(x: Any, ids: Any) -> None:
    kept = np.empty(len(ids), dtype=np.float32)
    for i in range(len(ids)):
        if 0 <= ids[i] < len(x):
            kept[i] = x[ids[i]]
    for token in range(len(x)):
        x[token] = _masked(x[token])
    for i in range(len(ids)):
        if 0 <= ids[i] < len(x):
            x[ids[i]] = kept[i]


@helper(exact=True)
def _ban(x: Any, ids: Any) -> None:
    for i in range(len(ids)):
        if 0 <= ids[i] < len(x):
            x[ids[i]] = _masked(x[ids[i]])


@kernel(
    "void(float32[:, ::1], int32[::1], int32[::1], float32[::1], int32[::1], int32[::1], int32[::1],"
    " float32[::1], float32[::1], float32[::1], int32[::1], int32[::1], int32[::1], int32[::1])",
    parallel=True,
)
def _edit_logits(
    logits: Any,
    bias_start: Any,
    bias_ids: Any,
    bias: Any,
    seen_start: Any,
    seen_ids: Any,
    seen_counts: Any,
    presence: Any,
    frequency: Any,
    repetition: Any,
    allowed_start: Any,
    allowed_ids: Any,
    banned_start: Any,
    banned_ids: Any,
) -> None:
    for row in numba.prange(logits.shape[0]):
        x = logits[row]
        start, end = bias_start[row], bias_start[row + 1]
        _add_bias(x, bias_ids[start:end], bias[start:end])
        start, end = seen_start[row], seen_start[row + 1]
        penalties = np.float64(presence[row]), np.float64(frequency[row]), np.float64(repetition[row])
        _penalise(x, seen_ids[start:end], seen_counts[start:end], *penalties)
        start, end = allowed_start[row], allowed_start[row + 1]
        if start < end:
            _keep_only(x, allowed_ids[start:end])
        start, end = banned_start[row], banned_start[row + 1]
        _ban(x, banned_ids[start:end])
