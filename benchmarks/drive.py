"""Serves a workload with an engine, tick by tick, in the caller's thread.

Knows: engines, workloads, clocks that stand still between ticks. Does not know: models, percentiles, arms.

Several engines take turns, each with a clock of its own that runs only during its ticks; so a busy machine
slows all of them alike. Nobody waits for an arrival: when an engine is idle, its clock jumps there.

The engine is given a vocabulary in which each token spells its own id. So the text of an answer tells its
tokens, which the next turn of a conversation repeats.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import NamedTuple, Protocol

from benchmarks.measure import Answers, Figures, Meter, figures
from benchmarks.workloads import Workload
from engine.config import EngineConfig
from engine.detokenizer import Vocabulary
from engine.engine import Engine, Runner
from engine.request import FinishedEvent, Request
from engine.sampling import SamplingParams

DIGITS = 5


def spelled_vocabulary(size: int) -> Vocabulary:
    """Token `i` reads as `i` in DIGITS digits, and none is an end token."""
    return Vocabulary(tuple(f"{i:0{DIGITS}}".encode() for i in range(size)), frozenset())


def spelled_ids(text: str) -> tuple[int, ...]:
    return tuple(int(text[i : i + DIGITS]) for i in range(0, len(text), DIGITS))


class Clock(Protocol):
    def __call__(self) -> float:
        """Now. Never less than at the call before."""
        ...

    def running(self) -> AbstractContextManager[None]:
        """While this is open, time passes."""
        ...

    def jump_to(self, moment: float) -> None:
        """From here on it is at least `moment`."""
        ...


class OwnTime:
    """Seconds, of which only those count that pass while it runs."""

    def __init__(self) -> None:
        self._before = 0.0
        self._since: float | None = None

    def __call__(self) -> float:
        return self._before + (0.0 if self._since is None else time.perf_counter() - self._since)

    @contextmanager
    def running(self) -> Iterator[None]:
        self._since = time.perf_counter()
        yield
        self._before, self._since = self(), None

    def jump_to(self, moment: float) -> None:
        self._before = max(self._before, moment)


class SimulatedTime:
    """Passes only when somebody says so."""

    def __init__(self) -> None:
        self._now = 0.0

    def __call__(self) -> float:
        return self._now

    def running(self) -> AbstractContextManager[None]:
        return nullcontext()

    def jump_to(self, moment: float) -> None:
        self._now = max(self._now, moment)

    def advance(self, duration: float) -> None:
        self._now += duration


class _Turn(NamedTuple):
    """A request: which turn of which conversation, and what was said before it."""

    conversation: int
    number: int
    said: tuple[int, ...]

    @property
    def id(self) -> str:
        return request_id(self.conversation, self.number)


def request_id(conversation: int, turn: int) -> str:
    return f"{conversation}.{turn}"


class Run:
    """One engine on its way through one workload.

    Args:
        arm: a name for the result.
    """

    def __init__(
        self, arm: str, workload: Workload, config: EngineConfig, runner: Runner, size: int, clock: Clock
    ) -> None:
        self.arm = arm
        self.workload = workload
        self.answers = Answers()
        self._clock = clock
        self._meter = Meter(runner)
        self._engine = Engine(self._meter, spelled_vocabulary(size), config, self.answers, clock=clock)
        self._live: dict[str, _Turn] = {}
        """By the id of the request."""
        self._to_come: list[tuple[float, _Turn]] = []
        """A heap: when, and what."""
        self._by_tokens: list[tuple[int, _Turn]] = []
        """The same, by how many tokens must have been given out before."""
        for number, conversation in enumerate(workload.conversations):
            first = _Turn(number, 0, ())
            if conversation.after_tokens:
                heapq.heappush(self._by_tokens, (conversation.after_tokens, first))
            else:
                heapq.heappush(self._to_come, (conversation.start, first))

    @property
    def progress(self) -> float:
        """Share of the workload's tokens that it has given out."""
        return self.answers.num_tokens / self.workload.output_tokens

    def step(self) -> None:
        """One tick, and before it whatever has arrived.

        Raises:
            RuntimeError: the engine has requests and computes nothing.
        """
        if not self._live and self._to_come:
            self._clock.jump_to(self._to_come[0][0])
        self._submit_due()
        with self._clock.running():
            computed = self._engine.tick()
        ended, self.answers.just_ended = self.answers.just_ended, []
        for event in ended:
            self._go_on(event)
        if not computed and not ended and self._live:
            raise RuntimeError(f"{self.arm}: nothing was computed, though {len(self._live)} requests wait")

    def figures(self) -> Figures:
        """Of the whole run, which is over."""
        memory = self._engine.scheduler.ledger.over_ticks()
        return figures(self.workload.name, self.arm, self.answers, self._meter, memory, began=0.0)

    def _submit_due(self) -> None:
        while self._by_tokens and self._by_tokens[0][0] <= self.answers.num_tokens:
            heapq.heappush(self._to_come, (self._clock(), heapq.heappop(self._by_tokens)[1]))
        while self._to_come and self._to_come[0][0] <= self._clock():
            due, turn = heapq.heappop(self._to_come)
            asked = self.workload.conversations[turn.conversation].turns[turn.number]
            sampling = SamplingParams(temperature=0, ignore_eos=True, max_tokens=asked.output_tokens)
            self._live[turn.id] = turn
            self._engine.submit(Request(turn.id, turn.said + asked.fresh, sampling, arrival=due))

    def _go_on(self, event: FinishedEvent) -> None:
        """The next turn follows on what was really answered."""
        turn = self._live.pop(event.request_id)
        turns = self.workload.conversations[turn.conversation].turns
        if turn.number + 1 < len(turns):
            answer = spelled_ids("".join(self.answers.by_id[turn.id].text))
            said = turn.said + turns[turn.number].fresh + answer
            due = event.timings.finished + turns[turn.number + 1].pause
            heapq.heappush(self._to_come, (due, _Turn(turn.conversation, turn.number + 1, said)))


def run_in_turn(runs: Iterable[Run]) -> None:
    """Runs all to their ends, always the one that has come least far: they end at about the same moment, so
    what disturbs the machine disturbs each as much."""
    under_way = list(runs)
    while under_way:
        run = min(under_way, key=lambda each: each.progress)
        run.step()
        if run.progress >= 1:
            under_way.remove(run)


def check_same(runs: Iterable[Run]) -> None:
    """Compares the lengths of the runs' answers with the workload's, and their tokens with each other.

    Raises:
        RuntimeError: they differ.
    """
    runs = list(runs)
    for run in runs:
        wanted = {
            request_id(i, j): turn.output_tokens
            for i, conversation in enumerate(run.workload.conversations)
            for j, turn in enumerate(conversation.turns)
        }
        got = {name: len(answer.times) for name, answer in run.answers.by_id.items()}
        if got != wanted:
            wrong = sorted(name for name in wanted | got if wanted.get(name) != got.get(name))
            raise RuntimeError(f"{run.arm}: the answers {wrong[:5]} have other lengths than were asked for")
        said = {name: "".join(answer.text) for name, answer in run.answers.by_id.items()}
        first = {name: "".join(answer.text) for name, answer in runs[0].answers.by_id.items()}
        if said != first:
            wrong = sorted(name for name in said if said[name] != first[name])
            raise RuntimeError(f"{run.arm} and {runs[0].arm} differ in the answers {wrong[:5]}")
