"""Telling how likely a token was, and which were the likeliest.

Knows: rows of logits. Does not know: sequences, how a token was chosen.
See `kernels.Kernels.logprobs` for the meaning.

Two passes over a row: one finds the largest logits, in a list short enough to insert into; the other sums
the exponentials, in fp64 and in an order that depends on the row's width alone.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
import torch
from torch import Tensor

from kernels import LEAST_LOGPROB
from kernels.cpu.jit import helper, kernel, match_threads
from kernels.cpu.sampling import exp64


def logprobs(logits: Tensor, chosen: Tensor, k: int) -> tuple[Tensor, Tensor, Tensor]:
    num_rows = logits.shape[0]
    if chosen.shape != (num_rows,):
        raise ValueError(f"chosen: got shape {tuple(chosen.shape)}, allowed: ({num_rows},), one per row")
    if num_rows and int(chosen.max()) >= logits.shape[1]:
        raise ValueError(f"chosen: got {int(chosen.max())}, allowed: at most {logits.shape[1] - 1}")
    of_chosen = torch.empty(num_rows)
    top_ids, top = torch.empty((num_rows, k), dtype=torch.int32), torch.empty((num_rows, k))
    match_threads()
    _logprobs(logits.numpy(), chosen.numpy(), of_chosen.numpy(), top_ids.numpy(), top.numpy())
    return of_chosen, top_ids, top


@helper()
def _largest(x: Any) -> Any:
    """The largest logit; NaN where there is a NaN."""
    largest, nans = np.float32(-np.inf), np.int64(0)
    for i in range(len(x)):
        nans += np.isnan(x[i])
        largest = max(largest, x[i])
    return largest if nans == 0 else np.float32(np.nan)


@helper()
def _log_sum(x: Any, largest: Any) -> Any:
    """log(sum of e^(x - largest))."""
    total = 0.0
    for i in range(len(x)):
        total += exp64(np.float64(x[i]) - largest)
    return np.log(total)


@helper(exact=True)
def _find_top(x: Any, ids: Any, values: Any) -> None:
    """The largest of x, descending, equals from the lowest id on; -1 where x is too short."""
    n = 0
    for i in range(len(x)):
        if n == len(ids) and (n == 0 or not x[i] > values[n - 1]):
            continue
        n = min(n + 1, len(ids))
        place = n - 1
        while place > 0 and x[i] > values[place - 1]:
            ids[place], values[place] = ids[place - 1], values[place - 1]
            place -= 1
        ids[place], values[place] = i, x[i]
    ids[n:] = -1


@helper(exact=True)
def _logprob(x: Any, largest: Any, log_sum: Any) -> Any:
    return max((np.float64(x) - largest) - log_sum, LEAST_LOGPROB)


@kernel(
    "void(float32[:, ::1], int64[::1], float32[::1], int32[:, ::1], float32[:, ::1])",
    parallel=True,
)
def _logprobs(logits: Any, chosen: Any, of_chosen: Any, top_ids: Any, top: Any) -> None:
    for row in numba.prange(logits.shape[0]):
        x, ids, values = logits[row], top_ids[row], top[row]
        of_chosen[row] = LEAST_LOGPROB
        largest = np.float64(_largest(x))
        if not np.isfinite(largest):
            ids[:] = -1
            values[:] = LEAST_LOGPROB
            continue
        log_sum = _log_sum(x, largest)
        if chosen[row] >= 0:
            of_chosen[row] = _logprob(x[chosen[row]], largest, log_sum)
        _find_top(x, ids, values)
        for i in range(len(ids)):
            values[i] = _logprob(values[i], largest, log_sum) if ids[i] >= 0 else LEAST_LOGPROB
