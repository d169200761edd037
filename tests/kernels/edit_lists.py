"""Rows of logits and what is to be done to them, in the words of `kernels.Kernels.edit_logits`.

Knows: how the edits of rows become sparse lists. Does not know: which kernels edit.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch

from engine.batch import LogitEdits

Row = dict[str, Any]
"""bias: {id: amount}; seen: {id: count}; presence, frequency, repetition; allowed, banned: ids."""


def edits_for(rows: list[Row]) -> LogitEdits:
    def starts(name: str) -> Any:
        return np.cumsum([0, *(len(row.get(name, ())) for row in rows)]).astype(np.int32)

    def entries(name: str, dtype: Any) -> Any:
        return np.array([x for row in rows for x in row.get(name, ())], dtype=dtype)

    def beside(name: str, dtype: Any) -> Any:
        return np.array([x for row in rows for x in row.get(name, {}).values()], dtype=dtype)

    def column(name: str, default: float) -> Any:
        return np.array([row.get(name, default) for row in rows], dtype=np.float32)

    return LogitEdits(
        bias_start=starts("bias"),
        bias_ids=entries("bias", np.int32),
        bias=beside("bias", np.float32),
        seen_start=starts("seen"),
        seen_ids=entries("seen", np.int32),
        seen_counts=beside("seen", np.int32),
        presence=column("presence", 0.0),
        frequency=column("frequency", 0.0),
        repetition=column("repetition", 1.0),
        allowed_start=starts("allowed"),
        allowed_ids=entries("allowed", np.int32),
        banned_start=starts("banned"),
        banned_ids=entries("banned", np.int32),
    )


def apply(kernels: Any, logits: Any, rows: list[Row]) -> Any:
    """The edited copy of [R, V]."""
    changed = torch.tensor(logits, dtype=torch.float32)
    edits = edits_for(rows)
    kernels.edit_logits(changed, *(torch.from_numpy(getattr(edits, f.name)) for f in fields(edits)))
    return changed.numpy()


def bits(logits: Any) -> Any:
    return logits.view(np.int32)


@dataclass(frozen=True)
class Made:
    logits: Any
    rows: list[Row]


def make(seed: int, num_rows: int, width: int) -> Made:
    """Rows of every kind: with all lists, some or none, with ids the vocabulary lacks, and broken logits."""
    rng = np.random.default_rng(seed)
    logits = (rng.standard_normal((num_rows, width)) * 5).astype(np.float32)
    logits[rng.random(logits.shape) < 0.02] = rng.choice([np.nan, np.inf, -np.inf, 0.0, -0.0])

    def ids(most: int) -> list[int]:
        some = rng.permutation(np.arange(-2, width + 2))[: rng.integers(0, most + 1)]
        return [int(i) for i in some] if rng.random() < 0.7 else []

    rows = [
        {
            "bias": {i: rng.uniform(-100, 100) for i in ids(5)},
            "seen": {i: int(rng.choice([0, 0, 1, 2, 1000])) for i in ids(width)},
            "presence": rng.choice([0.0, 0.3, -2.0]),
            "frequency": rng.choice([0.0, 0.1, 2.0]),
            "repetition": rng.choice([1.0, 1.1, 0.5, 2.0]),
            "allowed": ids(width),
            "banned": [*ids(3), *ids(3)],
        }
        for _ in range(num_rows)
    ]
    return Made(logits, rows)
