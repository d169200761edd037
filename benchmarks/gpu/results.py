"""What a run found.

Knows: the parts' figures, and how they are written. Does not know: how they came about, what they should be.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from benchmarks.gpu.numerics import Check
from benchmarks.gpu.serving import EngineFigures
from benchmarks.gpu.speed import Rates, Timing
from benchmarks.gpu.steps import Step


@dataclass
class Serving:
    model: str
    ours: EngineFigures | None = None
    sampled: EngineFigures | None = None
    """With temperature and top_p instead of greedily."""
    transformers_tokens_per_s: float | None = None
    transformers_requests: int | None = None
    """That it ended in its time."""
    transformers_attention: str | None = None


@dataclass
class Results:
    dry: bool
    machine: dict[str, str]
    rates: Rates | None = None
    numerics: list[Check] = field(default_factory=list)
    speed: list[Timing] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    serving: list[Serving] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)
    """Part -> how long it took."""


def as_json(results: Results) -> dict[str, Any]:
    """With what is derived from it, too."""
    raw = asdict(results)
    for name, properties in (
        ("numerics", ("passed",)),
        ("speed", ("share",)),
        ("steps", ("share", "forward_share")),
    ):
        for entry, record in zip(raw[name], getattr(results, name), strict=True):
            entry |= {each: getattr(record, each) for each in properties}
    for entry, record in zip(raw["serving"], results.serving, strict=True):
        for name in ("ours", "sampled"):
            if figures := getattr(record, name):
                entry[name]["tokens_per_s"] = figures.tokens_per_s
    return raw
