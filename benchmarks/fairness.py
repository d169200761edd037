"""How long somebody who sends one request at a time waits beside sessions that flood the engine.

    python -m benchmarks.fairness [--floods N,N] [--requests N] [--rows N] [--ticks N] [--json PATH]

Each flood keeps so many requests in the engine: whenever one is answered, it sends another. The visitor
sends one at a time, and pauses after each answer. `alike`: all are one session, and then the order is that of
arrival, for all prompts are equally long. `by session`: each is its own. Waits are in ticks, from the tick
before which a request comes to the one that takes it. The model is `benchmarks.simulated`, and nothing
depends on the machine.

The bound beside them is that of `engine.waiting`, in ticks. Before the visitor, k floods pay less than
k * (Q + C) tokens, and at least c per request; so they enter at most m = (k * (Q + C) - 1) // c requests.
Here c is a prompt and the shortest answer, for what is expected of an answer is a mean of earlier ones; and
C is a prompt and the longest. Rows are what is scarce. No answer has more than L tokens, so each of the R
rows ends what it does within L ticks, and is given away in the next: within any L ticks R requests enter. So
the visitor waits for at most ceil((m + 1) / R) * L ticks.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from benchmarks.drive import SimulatedTime, spelled_vocabulary
from benchmarks.simulated import Cost, SimulatedRunner
from engine.blocks import blocks_for
from engine.config import EngineConfig
from engine.engine import Engine
from engine.request import Event, FinishedEvent, Request
from engine.sampling import SamplingParams

PROMPT_TOKENS = 32
LEAST_OUTPUT, MOST_OUTPUT = 16, 64
LONGEST_PAUSE = 64
"""Ticks."""
VOCABULARY = 1024
ONE_PER_TICK = Cost(1, 0, 0)
VISITOR = "visitor"


@dataclass(frozen=True)
class Result:
    """The visitor's waits, in ticks."""

    floods: int
    arm: str
    ticks: int
    answers: int
    """How many it got."""
    median: float
    p99: float
    most: float
    bound: int


class Scene:
    """An engine, floods, and a visitor.

    Args:
        session_of: from the name of whoever asks to the session it is served as.
    """

    def __init__(self, floods: int, requests: int, rows: int, session_of: Callable[[str], str]) -> None:
        most_tokens = PROMPT_TOKENS + MOST_OUTPUT
        num_blocks = 2 * rows * blocks_for(most_tokens)
        places = floods * requests + 1
        self.config = EngineConfig(
            num_blocks, most_tokens, max_num_seqs=rows, token_budget=rows * (PROMPT_TOKENS + 1),
            max_queue=places, max_queue_per_session=places,
        )  # fmt: skip
        self.waits: list[float] = []
        self._floods = floods
        self._session_of = session_of
        self._rng = random.Random(1)
        self._clock = SimulatedTime()
        self._num_asked = 0
        self._pause: int | None = None
        """Ticks until the visitor asks again; None while there is no answer to pause after."""
        runner = SimulatedRunner(num_blocks, VOCABULARY, self._clock, ONE_PER_TICK)
        self._engine = Engine(runner, spelled_vocabulary(VOCABULARY), self.config, self._hear, self._clock)
        for number in range(floods * requests):
            self._ask(f"flood {number % floods}")
        self._ask(VISITOR)

    def run(self, arm: str, ticks: int) -> Result:
        for _ in range(ticks):
            self._engine.tick()
            if self._pause is not None:
                self._pause -= 1
                if self._pause < 0:
                    self._pause = None
                    self._ask(VISITOR)
        median, p99 = (round(float(each), 1) for each in np.percentile(self.waits, (50, 99)))
        most, answers = max(self.waits), len(self.waits)
        return Result(self._floods, arm, ticks, answers, median, p99, most, self.bound())

    def bound(self) -> int:
        """See the module's docstring; for arms in which the visitor is a session of its own."""
        largest, least = PROMPT_TOKENS + MOST_OUTPUT, PROMPT_TOKENS + LEAST_OUTPUT
        before = (self._floods * (self.config.turn_tokens + largest) - 1) // least
        return -(-(before + 1) // self.config.max_num_seqs) * MOST_OUTPUT

    def _ask(self, who: str) -> None:
        self._num_asked += 1
        prompt = tuple(self._rng.choices(range(VOCABULARY), k=PROMPT_TOKENS))
        sampling = SamplingParams(max_tokens=self._rng.randint(LEAST_OUTPUT, MOST_OUTPUT))
        name = f"{who} {self._num_asked}"
        self._engine.submit(Request(name, prompt, sampling, self._clock(), session=self._session_of(who)))

    def _hear(self, events: list[Event]) -> None:
        for event in events:
            if not isinstance(event, FinishedEvent):
                continue
            who = event.request_id.rpartition(" ")[0]
            if who != VISITOR:
                self._ask(who)
            elif event.timings.admitted is not None:
                self.waits.append(event.timings.admitted - event.timings.arrival)
                self._pause = self._rng.randint(0, LONGEST_PAUSE)


ARMS: dict[str, Callable[[str], str]] = {"alike": lambda _: "all", "by session": lambda who: who}


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure waits beside sessions that flood the engine.")
    parser.add_argument("--floods", default="1,4", help="how many sessions flood")
    parser.add_argument("--requests", type=int, default=200, help="that each flood keeps")
    parser.add_argument("--rows", type=int, default=8)
    parser.add_argument("--ticks", type=int, default=10_000)
    parser.add_argument("--json", type=Path, metavar="PATH", help="also write the results there")
    arguments = parser.parse_args()

    results: list[Result] = []
    print("waits of the visitor, in ticks")
    print(f"{'floods':>6} {'':<10} {'answers':>7} {'median':>7} {'p99':>7} {'most':>7} {'bound':>7}")
    for floods in map(int, arguments.floods.split(",")):
        for arm, session_of in ARMS.items():
            each = Scene(floods, arguments.requests, arguments.rows, session_of).run(arm, arguments.ticks)
            bound = f"{each.bound:7d}" if each.arm == "by session" else f"{'none':>7}"
            waits = f"{each.median:7.0f} {each.p99:7.0f} {each.most:7.0f}"
            print(f"{floods:6d} {each.arm:<10} {each.answers:7d} {waits} {bound}", flush=True)
            results.append(each)
    if arguments.json:
        arguments.json.write_text(json.dumps([asdict(each) for each in results], indent=2))


if __name__ == "__main__":
    main()
