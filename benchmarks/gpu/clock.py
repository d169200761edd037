"""Time: how much of it a run may spend, and how long a piece of work takes on a device.

Knows: clocks, CUDA events and graphs. Does not know: what is measured.
"""

from __future__ import annotations

import gc
import signal
import statistics
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

import torch

GRACE = 10.0
"""Seconds that a part may overrun before it is interrupted."""
GRAPH_SECONDS = 2e-3
"""A graph holds so many launches that it takes about this long."""
MOST_LAUNCHES = 256
MEASURE_SECONDS = 0.15
"""Of replays that count."""


class OutOfTime(Exception):
    """The part was interrupted."""


class Part:
    """One part of the run: the time it may spend, and what came of that."""

    def __init__(self, seconds: float) -> None:
        self._ends = time.monotonic() + seconds
        self.left_out: list[str] = []
        """What did not fit."""
        self.failed: list[str] = []
        """What raised, and what it said."""

    @property
    def left(self) -> float:
        """Seconds."""
        return self._ends - time.monotonic()

    def allows(self, what: str, seconds: float = 0.0) -> bool:
        """Whether there is time for something that takes so many seconds. If not, it is noted."""
        if self.left > seconds:
            return True
        self.left_out.append(what)
        return False

    @contextmanager
    def guarded(self, what: str) -> Iterator[None]:
        """An error inside is noted, and the run goes on."""
        try:
            yield
        except OutOfTime:
            raise
        except Exception as error:
            first_line = str(error).strip().split("\n", 1)[0][:200]
            self.failed.append(f"{what}: {type(error).__name__}: {first_line}")
            traceback.print_exc(file=sys.stderr)

    @contextmanager
    def enforced(self) -> Iterator[None]:
        """Well after the time is up, what runs inside is interrupted by OutOfTime, which is noted."""

        def interrupt(signum: int, frame: FrameType | None) -> None:
            raise OutOfTime(f"whatever was still to come: interrupted {GRACE:.0f} s after its time")

        before = signal.signal(signal.SIGALRM, interrupt)
        signal.setitimer(signal.ITIMER_REAL, max(self.left, 0.0) + GRACE)
        try:
            with self.guarded("the part"):
                yield
        except OutOfTime as error:
            self.left_out.append(str(error))
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0.0)
            signal.signal(signal.SIGALRM, before)


class Clock:
    """A run's time, dealt out so that what one part leaves is shared by those that follow.

    Args:
        weights: part -> how much of the time is for it, relative to the others.
    """

    def __init__(self, seconds: float, weights: dict[str, float]) -> None:
        self._ends = time.monotonic() + seconds
        self._weights = dict(weights)

    def begin(self, part: str) -> Part:
        """A part that begins now. Each begins once."""
        share = self._weights[part] / sum(self._weights.values())
        del self._weights[part]
        return Part((self._ends - time.monotonic()) * share)


def seconds_of(device: torch.device, run: Callable[[int], object], copies: int = 1) -> float:
    """How long one call of `run` takes on the device, launches from a graph: the median over replays.

    Args:
        run: is given 0 .. copies - 1 in turn, so that it can take other memory each time. It must not wait
            for the device.
    """
    return _on_gpu(run, copies) if device.type == "cuda" else _on_cpu(run, copies)


def _on_cpu(run: Callable[[int], object], copies: int) -> float:
    times = []
    for i in range(3):
        start = time.perf_counter()
        run(i % copies)
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def _on_gpu(run: Callable[[int], object], copies: int) -> float:
    # The first calls compile, and allocate what a library wants; a graph can hold neither.
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for i in range(3):
            run(i % copies)
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        once = _between_events(lambda: run(0))
    launches = min(max(copies, round(GRAPH_SECONDS / once)), MOST_LAUNCHES)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for i in range(launches):
            run(i % copies)
    graph.replay()
    torch.cuda.synchronize()
    replays = min(max(round(MEASURE_SECONDS / _between_events(graph.replay)), 5), 50)
    return statistics.median(_between_events(graph.replay) for _ in range(replays)) / launches


def _between_events(work: Callable[[], object]) -> float:
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    work()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / 1e3


def free_memory(device: torch.device) -> None:
    """Gives back what nobody holds any more."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
