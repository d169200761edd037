"""Finds the tiles with which a chip runs a kernel fastest.

Knows: which sizes are worth trying, and how to time a call. Does not know: how a kernel works, the table's
file. It takes minutes: it is run once for a chip, by `python -m kernels.tuning`, and never while serving.

From the tiles of the table one size is changed at a time and the change is kept if it pays, until none does.
What does not compile, spills registers, or is wrong by the oracle, is dropped.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from kernels import reference
from kernels.gpu import shapes
from kernels.gpu.ahead import RecordingDevice
from kernels.gpu.device import Device
from kernels.tuning import Tiles

_ATTENTION = {
    "BLOCK_M": (16, 32, 64, 128),
    "BLOCK_N": (16, 32, 64, 128),
    "PROGRAMS_PER_SM": (1, 2, 4, 8),
    "num_warps": (1, 2, 4, 8),
    "num_stages": (1, 2, 3, 4),
}
GRIDS: dict[str, dict[str, tuple[int, ...]]] = {
    "attention": _ATTENTION,
    "batch_invariant_attention": {**_ATTENTION, "SEGMENT": (256, 512, 1024, 2048)},
    "edit_logits": {"BLOCK": (64, 128, 256, 512, 1024), "num_warps": (1, 2, 4, 8)},
    "find_cut": {
        "BLOCK": (256, 512, 1024),
        "SCAN_BLOCK": (1024, 2048, 4096, 8192),
        "LISTED": (256, 512, 1024, 2048),
        "num_warps": (4, 8, 16),
        "num_stages": (1, 2, 3, 4),
    },
    "linear": {
        "BLOCK_M": (16, 32, 64, 128),
        "BLOCK_N": (16, 32, 64, 128, 256),
        "BLOCK_K": (32, 64, 128, 256),
        "num_warps": (2, 4, 8),
        "num_stages": (2, 3, 4, 5, 6),
        "GROUP_M": (1, 4, 16),
    },
    "logprobs": {"CHUNK": (1024, 2048, 4096, 8192), "num_warps": (4, 8, 16)},
    "mask_rows": {"BLOCK": (1024, 2048, 4096, 8192), "num_warps": (2, 4, 8)},
    "reduce_attention": {
        "BLOCK_HEADS": (1, 2, 4, 8, 16),
        "num_warps": (1, 2, 4, 8),
        "num_stages": (1, 2, 3, 4),
    },
    "rms_norm": {"num_warps": (1, 2, 4, 8, 16, 32)},
    "rope_and_cache": {"BLOCK_HEADS": (1, 2, 4, 8, 16), "num_warps": (1, 2, 4, 8)},
    "sample": {"CHUNK": (1024, 2048, 4096, 8192), "num_warps": (4, 8, 16)},
    "silu_mul": {"BLOCK": (256, 512, 1024, 2048, 4096), "num_warps": (1, 2, 4, 8)},
    "tally_chunks": {"BLOCK": (128, 256, 512), "num_warps": (4, 8, 16), "num_stages": (1, 2, 3, 4)},
}
"""Sizes to try, by kernel of the table. Those that are not named stay as they are."""

SIGNIFICANCE = ("itemsize", "head_dim", "queries", "vocabulary", "width", "fan_in")
"""Facts, in the order in which an entry of the table is looked for by them."""

FULL = shapes.Sizes(shapes.MODELS, ("bf16", "fp32"), shapes.ROWS, shapes.SAMPLED, shapes.TICKS, listed=(5,))
QUICK = replace(FULL, models=(shapes.LLAMA_1B, shapes.QWEN_8B), dtypes=("bf16",))
TINY = shapes.Sizes(
    (shapes.Model("tiny", 2, 1, 16, 32, 48, 100),),
    ("fp32",),
    {"": 2},
    {"": 2},
    (shapes.Tick("decode", (1, 1), (600, 5)), shapes.Tick("mixed", (1, 7), (20, 7))),
    listed=(2,),
)
"""For a dry run."""

WORTH = 0.02
"""The share of time that a change must save. Less is noise, and a table that changes for no reason."""

TOLERANCES = {
    torch.float32: 1e-4,
    torch.float16: 1e-2,
    torch.bfloat16: 4e-2,
    # Its neighbours lie up to an eighth apart.
    torch.float8_e4m3fn: 0.13,
}

Facts = tuple[tuple[str, int], ...]
"""Sorted by name."""

Timer = Callable[[Sequence[Callable[[], object]]], float]
"""Seconds that one of some calls takes."""


@dataclass(frozen=True)
class Group:
    """Calls for which a kernel takes its tiles from one place of the table."""

    kernel: str
    facts: Facts
    members: list[tuple[shapes.Case, bool]] = field(default_factory=list, compare=False)
    """Cases, and whether they run batch-invariant."""


@dataclass(frozen=True)
class Finding:
    group: Group
    current: Tiles
    current_seconds: float
    """Of the group's cases, in the geometric mean. Infinite if they do not work."""
    best: Tiles
    best_seconds: float
    dropped: list[tuple[Tiles, str]]
    """What does not work, and why."""


@dataclass(frozen=True)
class Asking(RecordingDevice):
    """Notes which tiles are asked for."""

    asked: list[tuple[str, Facts]] = field(default_factory=list, compare=False)

    def tiles(self, kernel: str, **facts: int) -> Tiles:
        self.asked.append((kernel, tuple(sorted(facts.items()))))
        return super().tiles(kernel, **facts)


@dataclass(frozen=True)
class Trial(Device):
    """Has other tiles for one kernel, whatever it is asked with."""

    kernel: str
    candidate: Tiles
    spilled: list[int] = field(default_factory=list, compare=False)
    """Registers that each launch had no room for."""

    def tiles(self, kernel: str, **facts: int) -> Tiles:
        return self.candidate if kernel == self.kernel else super().tiles(kernel, **facts)

    def launch(
        self, kernel: Any, grid: tuple[int, ...], *, num_warps: int, num_stages: int, **arguments: Any
    ) -> None:
        program = kernel[grid](**arguments, num_warps=num_warps, num_stages=num_stages)
        # The interpreter has no program.
        self.spilled.append(getattr(program, "n_spills", 0))


def groups(sizes: shapes.Sizes, device: Device, kernel: str | None) -> list[Group]:
    """All there is to tune, or what one kernel has."""
    found: dict[Group, Group] = {}
    for case in shapes.cases(sizes):
        asked_before: set[tuple[str, Facts]] = set()
        for batch_invariant in (False, True):
            probe = Asking(device.arch, device.num_sms, batch_invariant)
            case.on(probe, case.arguments(shapes.META))()
            if not probe.launches:
                continue  # A library's.
            for name, facts in dict.fromkeys(probe.asked):
                if kernel in (None, name) and (name, facts) not in asked_before:
                    group = Group(name, facts)
                    found.setdefault(group, group).members.append((case, batch_invariant))
            asked_before |= set(probe.asked)
    return sorted(found.values(), key=lambda group: (group.kernel, group.facts))


class Sweep:
    """Tunes on one chip.

    Args:
        device: what to tune for; where the tensors go is `place`.
        passes: how often each size is tried at most.
    """

    def __init__(self, device: Device, place: torch.device, timer: Timer, passes: int) -> None:
        self._device, self._place, self._timer, self._passes = device, place, timer, passes
        self._cache_bytes = 0
        if place.type == "cuda":
            self._cache_bytes = torch.cuda.get_device_properties(place).L2_cache_size

    def tune(self, group: Group) -> Finding:
        current = dict(self._device.tiles(group.kernel, **dict(group.facts)))
        checks = [Check(case, mode, self._place, self._cache_bytes) for case, mode in group.members]
        scores: dict[tuple[tuple[str, int], ...], float] = {}
        dropped: list[tuple[Tiles, str]] = []

        def score(tiles: Tiles) -> float:
            key = tuple(sorted(tiles.items()))
            if key not in scores:
                try:
                    seconds = [self._seconds(check, group.kernel, tiles) for check in checks]
                    scores[key] = statistics.geometric_mean(seconds)
                # Whatever the compiler, the driver or the wrapper has against these tiles.
                except Exception as error:
                    scores[key] = math.inf
                    dropped.append((tiles, f"{type(error).__name__}: {error}".splitlines()[0]))
            return scores[key]

        best = climb(current, GRIDS[group.kernel], score, self._passes)
        return Finding(group, current, score(current), best, score(best), dropped)

    def _seconds(self, check: Check, kernel: str, tiles: Tiles) -> float:
        device = self._device
        trial = Trial(device.arch, device.num_sms, check.batch_invariant, kernel, tiles)
        check.run(trial)
        if any(trial.spilled):
            raise Unfit(f"{max(trial.spilled)} spilled registers")
        return self._timer(check.calls(trial))


class Unfit(Exception):
    """Tiles that are not to be used, though they run."""


class Check:
    """One case with its arguments, and what the oracle makes of them."""

    def __init__(
        self, case: shapes.Case, batch_invariant: bool, place: torch.device, cache_bytes: int
    ) -> None:
        self.batch_invariant = batch_invariant
        self._case = case
        torch.manual_seed(0)
        self._arguments = case.arguments(place)
        self._expected = self._outcome(getattr(reference, case.function), _clone(self._arguments))
        size = sum(x.numel() * x.element_size() for x in self._arguments.values() if isinstance(x, Tensor))
        # More in all than the cache holds, so that a call finds it full of other things, as in a tick.
        self._copies = [_clone(self._arguments) for _ in range(min(64, 2 * cache_bytes // size) + 1)]

    def run(self, device: Device) -> None:
        """Raises:
        AssertionError: the result is not that of the oracle.
        """
        for got, expected in zip(self._outcome_on(device), self._expected, strict=True):
            tolerance = TOLERANCES.get(expected.dtype, 0.0)
            if expected.dtype == shapes.FP8:
                got, expected = got.float(), expected.float()
            finite = expected[expected.isfinite()].double()
            # Sums that happen to be near zero have the errors of what was added.
            usual = float(finite.abs().mean()) if len(finite) else 0.0
            torch.testing.assert_close(got, expected, rtol=tolerance, atol=tolerance * usual, equal_nan=True)

    def calls(self, device: Device) -> list[Callable[[], object]]:
        return [self._case.on(device, arguments) for arguments in self._copies]

    def _outcome_on(self, device: Device) -> list[Tensor]:
        arguments = _clone(self._arguments)
        return _tensors(self._case.on(device, arguments)(), arguments)

    def _outcome(self, function: Callable[..., Any], arguments: dict[str, Any]) -> list[Tensor]:
        return _tensors(self._case.of(function, arguments)(), arguments)


def _tensors(result: Any, arguments: dict[str, Any]) -> list[Tensor]:
    """What is returned, and all that may have been changed in place."""
    returned = result if isinstance(result, tuple) else (result,)
    return [x for x in (*returned, *arguments.values()) if isinstance(x, Tensor)]


def _clone(arguments: dict[str, Any]) -> dict[str, Any]:
    return {name: x.clone() if isinstance(x, Tensor) else x for name, x in arguments.items()}


def climb(
    start: Tiles, grid: dict[str, tuple[int, ...]], score: Callable[[Tiles], float], passes: int
) -> Tiles:
    """The tiles with the lowest score, of those that changes of one size at a time lead to."""
    best = start
    for _ in range(passes):
        before = best
        for name, sizes in grid.items():
            tried = min(({**best, name: size} for size in sizes), key=score)
            if score(tried) < score(best) * (1 - WORTH):
                best = tried
        if best == before:
            break
    return best


Found = list[tuple[dict[str, int], Tiles]]
"""What is best for which facts."""


def entries(found: Found, limits: dict[str, int]) -> list[dict[str, Any]]:
    """The table's list for a chip: of each fact the values that were seen serve what is below them, and the
    largest what is beyond, up to its limit if the kernel has one."""
    order = [fact for fact in SIGNIFICANCE if fact in found[0][0]]
    kept: list[dict[str, Any]] = []
    for entry in reversed(_entries(found, order, limits)):
        if not (kept and _same(entry, kept[-1])):
            kept.append(entry)
    return kept[::-1]


def _entries(found: Found, order: list[str], limits: dict[str, int]) -> list[dict[str, Any]]:
    if not order:
        return [{"up_to": {}, "tiles": dict(tiles)} for _, tiles in found]
    fact, *rest = order
    values = sorted({facts[fact] for facts, _ in found})
    bounds = [{fact: value} for value in values[:-1]] + [{fact: limits[fact]} if fact in limits else {}]
    return [
        {"up_to": {**bound, **entry["up_to"]}, "tiles": entry["tiles"]}
        for value, bound in zip(values, bounds, strict=True)
        for entry in _entries([one for one in found if one[0][fact] == value], rest, limits)
    ]


def _same(entry: dict[str, Any], after: dict[str, Any]) -> bool:
    """Whether `after` says the same of all that `entry` serves."""
    bounds = entry["up_to"]
    reaches = all(bounds.get(fact, math.inf) <= largest for fact, largest in after["up_to"].items())
    return reaches and entry["tiles"] == after["tiles"]


def graph_seconds(calls: Sequence[Callable[[], object]]) -> float:
    """As the server launches them, from a graph: launched one by one, small kernels would wait for Python."""
    calls[0]()  # What is compiled or loaded first cannot be captured.
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    rounds = max(1, 16 // len(calls))
    with torch.cuda.graph(graph):
        for _ in range(rounds):
            for call in calls:
                call()
    times = []
    for _ in range(12):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) / 1e3)
    # The first two find the chip at rest.
    return statistics.median(times[2:]) / (rounds * len(calls))
