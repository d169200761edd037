"""What a tick costs beside the model: pure Python and numpy, stage by stage.

    python -m benchmarks.tick [--rows N] [--queued N,N] [--sessions N] [--ticks N] [--json PATH] [--profile]

Engines of the same size serve the same kind of requests; they differ in how many wait in the queue. Each has
all its rows running; whenever an answer ends, another request is submitted, between two ticks. The engines
take turns, a round of ticks each, so that a busy machine slows all of them alike. The model is
`benchmarks.simulated`, and does not count. `publish` is the bridge's own, into a loop that drops
what it is given: what the loop makes of the events is another thread's work.

The stages are those of the engine's recorder, in wall time. `tick` is schedule + apply + publish, and `all`
the whole tick except the model. `cpu` is the same as `all` in the thread's own time, which a busy neighbour
hardly changes.
"""

from __future__ import annotations

import argparse
import cProfile
import itertools
import json
import pstats
import random
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from app.bridge import Bridge
from app.metrics import Metrics
from benchmarks.drive import SimulatedTime, spelled_vocabulary
from benchmarks.simulated import GPU_LIKE, SimulatedRunner
from engine.batch import Batch, StepOutput
from engine.blocks import blocks_for
from engine.config import EngineConfig
from engine.engine import Engine
from engine.recorder import Stages
from engine.request import FinishedEvent, Request
from engine.sampling import SamplingParams

AIM_MICROSECONDS = 1000
"""Of schedule + apply + publish, in the median tick."""
PROMPT_TOKENS = (16, 128)
OUTPUT_TOKENS = (64, 448)
CONTEXT = 1024
VOCABULARY = 4096
ROUND_TICKS = 20
MOST_IDLE = 8
"""Rows whose answer has just ended, or that wait for a budget."""
WARM_UP_TICKS = 300


class DroppingLoop:
    """What the bridge needs of an event loop. Nothing that is called soon is ever called."""

    def __init__(self) -> None:
        self._events: list[Any] = []

    def is_closed(self) -> bool:
        return False

    def call_soon_threadsafe(self, callback: Callable[..., Any], events: list[Any]) -> None:
        self._events += events

    def take_ended(self) -> int:
        """Answers that ended since it was last asked."""
        events, self._events = self._events, []
        return sum(isinstance(event, FinishedEvent) for event in events)


class TimedRunner:
    """The runner, and how much of the thread's time it took in the last tick."""

    def __init__(self, runner: SimulatedRunner) -> None:
        self._runner = runner
        self.seconds = 0.0

    def execute(self, batch: Batch) -> StepOutput:
        before = time.thread_time()
        output = self._runner.execute(batch)
        self.seconds = time.thread_time() - before
        return output

    def reset(self) -> None:
        self._runner.reset()


class Sample(NamedTuple):
    """One tick, in microseconds."""

    stages: Stages
    cpu: float


class Arm:
    """An engine with all rows running and so many requests in its queue, from tick to tick."""

    def __init__(self, rows: int, queued: int, sessions: int) -> None:
        num_blocks = rows * blocks_for(PROMPT_TOKENS[1] + OUTPUT_TOKENS[1])
        places = queued + 2 * rows
        config = EngineConfig(
            num_blocks, CONTEXT, max_num_seqs=rows, token_budget=2 * rows,
            max_queue=places, max_queue_per_session=places, recorded_ticks=ROUND_TICKS,
        )  # fmt: skip
        self.queued = queued
        self.samples: list[Sample] = []
        self._rng = random.Random(1)
        self._sessions = itertools.cycle([f"session-{i}" for i in range(sessions)])
        self._numbers = itertools.count()
        self._loop = DroppingLoop()
        self._runner = TimedRunner(SimulatedRunner(num_blocks, VOCABULARY, SimulatedTime(), GPU_LIKE))
        bridge = Bridge(Metrics())
        bridge.run_on(self._loop)  # type: ignore[arg-type]
        self.engine = Engine(self._runner, spelled_vocabulary(VOCABULARY), config, bridge.publish)
        for _ in range(rows + queued):
            self._submit()

    def tick(self) -> float:
        """A tick, and a new request for each answer that ended in it. Returns the microseconds of the
        thread's time that it took beside the model."""
        before = time.thread_time()
        self.engine.tick()
        seconds = time.thread_time() - before - self._runner.seconds
        for _ in range(self._loop.take_ended()):
            self._submit()
        return seconds * 1e6

    def measure(self, ticks: int) -> None:
        """
        Raises:
            RuntimeError: in one of the ticks a row was idle, or the queue was not as long as it should be.
        """
        cpu = [self.tick() for _ in range(ticks)]
        records = self.engine.recorder.records()[-ticks:]
        rows = self.engine.config.max_num_seqs
        idle = [record for record in records if record.rows < rows - MOST_IDLE]
        if idle or abs(records[-1].waiting - self.queued) > rows // 4:
            raise RuntimeError(
                f"{len(idle)} ticks had fewer than {rows - MOST_IDLE} rows, and {records[-1].waiting} wait"
            )
        self.samples += [Sample(r.stages, micro) for r, micro in zip(records, cpu, strict=True)]

    def _submit(self) -> None:
        prompt = tuple(self._rng.choices(range(VOCABULARY), k=self._rng.randint(*PROMPT_TOKENS)))
        sampling = SamplingParams(max_tokens=self._rng.randint(*OUTPUT_TOKENS))
        number = next(self._numbers)
        self.engine.submit(Request(f"{number:032x}", prompt, sampling, 0.0, session=next(self._sessions)))


class Figure(NamedTuple):
    median: float
    p99: float
    most: float


@dataclass(frozen=True)
class Result:
    """One arm; microseconds per tick."""

    rows: int
    queued: int
    sessions: int
    ticks: int
    figures: dict[str, Figure]


def main() -> None:
    parser = argparse.ArgumentParser(description="Time a tick without its model.")
    parser.add_argument("--rows", type=int, default=256)
    parser.add_argument("--queued", default="10,10000", help="lengths of queues to compare")
    parser.add_argument("--sessions", type=int, default=100)
    parser.add_argument("--ticks", type=int, default=600, help="measured ticks of each engine")
    parser.add_argument("--json", type=Path, metavar="PATH", help="also write the results there")
    parser.add_argument("--profile", action="store_true", help="profile the last engine instead")
    arguments = parser.parse_args()

    arms = [Arm(arguments.rows, int(each), arguments.sessions) for each in arguments.queued.split(",")]
    for _ in range(WARM_UP_TICKS):
        for arm in arms:
            arm.tick()
    if arguments.profile:
        profile(arms[-1], arguments.ticks)
        return
    for _ in range(arguments.ticks // ROUND_TICKS):
        for arm in arms:
            arm.measure(ROUND_TICKS)
    results = [result(arm, arguments.sessions) for arm in arms]
    print("\n\n".join(map(table, results)))
    if arguments.json:
        arguments.json.write_text(json.dumps([asdict(each) for each in results], indent=2))


def profile(arm: Arm, ticks: int) -> None:
    with cProfile.Profile() as profiler:
        for _ in range(ticks):
            arm.tick()
    pstats.Stats(profiler).sort_stats("tottime").print_stats(25)


def result(arm: Arm, sessions: int) -> Result:
    columns = {name: [getattr(s.stages, name) for s in arm.samples] for name in Stages._fields}
    del columns["execute"]
    columns["tick"] = [s.stages.schedule + s.stages.apply + s.stages.publish for s in arm.samples]
    columns["all"] = [sum(s.stages) - s.stages.execute for s in arm.samples]
    columns["cpu"] = [s.cpu for s in arm.samples]
    figures = {
        name: Figure(*(round(float(each), 1) for each in (*np.percentile(values, (50, 99)), max(values))))
        for name, values in columns.items()
    }
    return Result(arm.engine.config.max_num_seqs, arm.queued, sessions, len(arm.samples), figures)


def table(result: Result) -> str:
    lines = [
        f"{result.rows} rows, {result.queued} queued in {result.sessions} sessions, {result.ticks} ticks",
        f"{'microseconds':<14} {'median':>8} {'p99':>8} {'most':>8}",
        *(f"{name:<14} {f.median:8.0f} {f.p99:8.0f} {f.most:8.0f}" for name, f in result.figures.items()),
    ]
    kept = "kept" if result.figures["tick"].median < AIM_MICROSECONDS else "missed"
    return "\n".join([*lines, f"aim: tick below {AIM_MICROSECONDS} in the median: {kept}"])


if __name__ == "__main__":
    main()
