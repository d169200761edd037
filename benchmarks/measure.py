"""From what an engine published to the figures of a table.

Knows: events, times, percentiles. Does not know: which engine, model or clock it was, nor what time is in.

Definitions. A token's time is that of the tick which gave it. TTFT: from arrival to the first token.
Inter-token: from one token to the next, over all answers. Normalized latency, after Orca and PagedAttention:
mean over answers of (end - arrival) / tokens. Useful tokens: those of answers; total: prompts as well, each
turn's whole. All rates are over the time from the beginning of the run to the last token.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from engine.batch import Batch, StepOutput
from engine.ledger import MemoryOverTicks
from engine.request import Event, FinishedEvent, FinishReason, TokenEvent


@dataclass(slots=True)
class Answer:
    """What came back for one request."""

    text: list[str] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    """Of each token."""
    end: FinishedEvent | None = None


class Answers:
    """Collects what an engine publishes.

    Raises:
        RuntimeError: an answer ended by an error.
    """

    def __init__(self) -> None:
        self.by_id: dict[str, Answer] = {}
        self.num_tokens = 0
        self.just_ended: list[FinishedEvent] = []
        """Since somebody last emptied it."""

    def __call__(self, events: list[Event]) -> None:
        for event in events:
            answer = self.by_id.setdefault(event.request_id, Answer())
            if isinstance(event, TokenEvent):
                answer.text.append(event.text)
                if event.num_output_tokens > len(answer.times):
                    answer.times.append(event.time)
                    self.num_tokens += 1
                continue
            if event.reason is not FinishReason.LENGTH:
                raise RuntimeError(f"{event.request_id} ended with {event.reason}: {event.error}")
            answer.end = event
            self.just_ended.append(event)


class Executor(Protocol):
    """What is measured of `engine.engine.Runner`."""

    def execute(self, batch: Batch) -> StepOutput: ...

    def reset(self) -> None: ...


class Meter:
    """A runner that counts what it is asked for."""

    def __init__(self, runner: Executor) -> None:
        self._runner = runner
        self.ticks = 0
        self.rows = 0
        """Sequences, summed over ticks."""
        self.tokens = 0

    def execute(self, batch: Batch) -> StepOutput:
        self.ticks += 1
        self.rows += len(batch.context_lens)
        self.tokens += len(batch.token_ids)
        return self._runner.execute(batch)

    def reset(self) -> None:
        self._runner.reset()


@dataclass(frozen=True, slots=True)
class Figures:
    """One arm on one workload. Times are in the unit of its clock, rates per that unit."""

    workload: str
    arm: str
    requests: int
    duration: float
    useful_tokens: int
    useful_tokens_rate: float
    total_tokens_rate: float
    normalized_latency: float
    ttft_p50: float
    ttft_p99: float
    inter_token_p50: float
    inter_token_p99: float
    inter_token_max: float
    ticks: int
    rows_per_tick: float
    """Sequences computed in a tick, padding included."""
    useful_per_tick: float
    """Tokens of answers given out per tick."""
    utilisation: float
    """Slots with keys and values over allocated slots, each summed over ticks."""
    reserved: float
    """Of the allocated slots: to be filled later."""
    internal: float
    """Of the allocated slots: never filled."""
    preemptions: int
    computed_again: int
    """Tokens computed beyond those that were needed once: recomputed after preemption, or padding."""
    prefix_hits: float
    """Of all tokens of prompts: those found computed."""


def figures(
    workload: str, arm: str, answers: Answers, meter: Meter, memory: MemoryOverTicks, began: float
) -> Figures:
    """Sums up a run in which every answer has ended.

    Raises:
        RuntimeError: one has not.
    """
    ends = [_end(name, answer) for name, answer in answers.by_id.items()]
    times = [np.array(answer.times) for answer in answers.by_id.values()]
    arrivals = [end.timings.arrival for end in ends]
    useful = sum(len(t) for t in times)
    prompts = sum(end.num_prompt_tokens for end in ends)
    cached = sum(end.num_cached_tokens for end in ends)
    duration = max(float(t[-1]) for t in times) - began
    ttft = [float(t[0]) - arrival for t, arrival in zip(times, arrivals, strict=True)]
    gaps = np.concatenate([np.diff(t) for t in times])
    latencies = [(float(t[-1]) - arrival) / len(t) for t, arrival in zip(times, arrivals, strict=True)]
    allocated = memory.allocated or 1
    return Figures(
        workload=workload,
        arm=arm,
        requests=len(ends),
        duration=duration,
        useful_tokens=useful,
        useful_tokens_rate=useful / duration,
        total_tokens_rate=(useful + prompts) / duration,
        normalized_latency=float(np.mean(latencies)),
        ttft_p50=float(np.quantile(ttft, 0.5)),
        ttft_p99=float(np.quantile(ttft, 0.99)),
        inter_token_p50=float(np.quantile(gaps, 0.5)) if len(gaps) else 0.0,
        inter_token_p99=float(np.quantile(gaps, 0.99)) if len(gaps) else 0.0,
        inter_token_max=float(gaps.max(initial=0.0)),
        ticks=meter.ticks,
        rows_per_tick=meter.rows / meter.ticks,
        useful_per_tick=useful / meter.ticks,
        utilisation=memory.utilisation,
        reserved=memory.reserved / allocated,
        internal=memory.internal / allocated,
        preemptions=sum(end.num_preemptions for end in ends),
        # The last token of an answer is sampled, but never computed.
        computed_again=meter.tokens - (prompts - cached + useful - len(ends)),
        prefix_hits=cached / prompts,
    )


def _end(name: str, answer: Answer) -> FinishedEvent:
    if answer.end is None:
        raise RuntimeError(f"{name} has not ended")
    return answer.end
