"""The engine: one thread, one iteration per tick.

Knows: the inbox, the order of a tick, how sequences begin and end, and the events that tell about it.
Does not know: asyncio, sockets, formats, torch (a `Runner` computes), how text is written to anyone.

A tick: take commands, schedule, build the batch, run it, take commands again (whoever left during the
forward pass gets no token), apply the new tokens, publish. Each ending passes through `_finish`, which frees
the memory in this same tick, so that a queued request can use it in the next.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from engine.batch import Batch, BatchBuilder, StepOutput
from engine.blocks import BlockPool, blocks_for
from engine.config import EngineConfig
from engine.detokenizer import Detokenizer, Vocabulary
from engine.request import (
    ContextLengthExceeded,
    EngineStopped,
    Event,
    FinishedEvent,
    FinishReason,
    Request,
    Sequence,
    Timings,
    TokenEvent,
)
from engine.scheduler import Limits, Plan, Scheduler

log = logging.getLogger(__name__)


class Runner(Protocol):
    """Computes a batch: the model, its KV memory and the sampler."""

    def execute(self, batch: Batch) -> StepOutput:
        """Reads and writes KV memory only at the batch's slots and copies, and through its block tables. Any
        exception means that KV memory can no longer be trusted.
        """
        ...

    def reset(self) -> None:
        """Throw KV memory away and make it anew."""
        ...


@dataclass(frozen=True, slots=True)
class EngineStats:
    num_running: int
    num_waiting: int
    num_blocks: int
    num_free_blocks: int
    num_preemptions: int
    num_ticks: int
    failure: str | None
    """Why the engine takes no more requests; None while it does."""


@dataclass(frozen=True, slots=True)
class _Add:
    sequence: Sequence


@dataclass(frozen=True, slots=True)
class _Abort:
    request_id: str


@dataclass(slots=True)
class _Live:
    """A sequence that has not ended, and its text so far."""

    sequence: Sequence
    detokenizer: Detokenizer


class Engine:
    """Runs requests in company.

    `submit`, `abort`, `stats`, `start` and `shutdown` may be called from any thread. `tick` belongs to the
    engine thread; without `start`, the caller is that thread and drives tick by tick.

    Args:
        publish: is given the events of a tick, in order, once per tick and from the engine thread.
    """

    def __init__(
        self,
        runner: Runner,
        vocabulary: Vocabulary,
        config: EngineConfig,
        publish: Callable[[list[Event]], None],
    ) -> None:
        self.config = config
        limits = Limits(config.max_num_seqs, config.token_budget, config.prefill_chunk)
        self.scheduler = Scheduler(BlockPool(config.num_blocks), limits)
        self._runner = runner
        self._vocabulary = vocabulary
        self._publish = publish
        self._batches = BatchBuilder(config.max_num_seqs, blocks_for(config.max_model_len))
        self._live: dict[str, _Live] = {}
        self._events: list[Event] = []
        self._inbox: deque[_Add | _Abort] = deque()
        self._wake = threading.Condition()
        self._stopped: str | None = None
        self._failure: str | None = None
        self._num_ticks = 0
        self._thread = threading.Thread(target=self._run, name="tickwire-engine", daemon=True)

    # -- from any thread ------------------------------------------------------------------------------

    def start(self) -> None:
        self._thread.start()

    def submit(self, request: Request) -> None:
        """Queues a request. It gets token events and then exactly one finished event.

        Raises:
            ContextLengthExceeded: it can never fit. Nothing was queued.
            EngineStopped: the engine was shut down or failed. Nothing was queued.
            ValueError: the prompt is empty or holds an id that the vocabulary does not have.
        """
        prompt, sampling, context = request.prompt, request.sampling, self.config.max_model_len
        if not prompt:
            raise ValueError("prompt: got no tokens, allowed: at least 1")
        if not 0 <= min(prompt) <= max(prompt) < len(self._vocabulary.token_bytes):
            raise ValueError(f"prompt: token ids must be 0 to {len(self._vocabulary.token_bytes) - 1}")
        if len(prompt) + (sampling.max_tokens or 1) > context:
            raise ContextLengthExceeded(len(prompt), sampling.max_tokens, context)
        sequence = Sequence(
            request,
            seed=secrets.randbits(63) if sampling.seed is None else sampling.seed,
            max_output_tokens=sampling.max_tokens or context - len(prompt),
        )
        with self._wake:
            if self._stopped is not None:
                raise EngineStopped(self._stopped)
            self._inbox.append(_Add(sequence))
            self._wake.notify()

    def abort(self, request_id: str) -> None:
        """Ends a request within a tick, wherever it stands. One that is unknown or has ended is left
        alone: a client's cancel and the answer's end may cross."""
        with self._wake:
            self._inbox.append(_Abort(request_id))
            self._wake.notify()

    def shutdown(self) -> None:
        """Ends every request with ABORT and the thread with them; returns when all is done."""
        self._stop("the engine was shut down")
        if self._thread.is_alive():
            self._thread.join()
        else:
            self._end_all(FinishReason.ABORT, None)

    def stats(self) -> EngineStats:
        pool = self.scheduler.pool
        return EngineStats(
            num_running=len(self.scheduler.running),
            num_waiting=len(self.scheduler.waiting),
            num_blocks=pool.num_blocks,
            num_free_blocks=pool.num_free,
            num_preemptions=self.scheduler.num_preemptions,
            num_ticks=self._num_ticks,
            failure=self._failure,
        )

    # -- the engine thread ----------------------------------------------------------------------------

    def tick(self) -> bool:
        """One iteration. False: there was nothing to compute.

        Raises:
            Exception: whatever the runner raised. KV memory is then in an unknown state.
        """
        self._take_commands()
        plan = self.scheduler.schedule()
        if plan.scheduled:
            self._num_ticks += 1
            now = time.monotonic()
            for sequence in plan.admitted:
                sequence.admitted = sequence.admitted or now
            output = self._runner.execute(self._batches.build(plan))
            self._take_commands()
            self._apply(plan, output)
        self._flush_events()
        return bool(plan.scheduled)

    def _run(self) -> None:
        try:
            while True:
                with self._wake:
                    while not (self._inbox or self._live or self._stopped):
                        self._wake.wait()
                if self._stopped:
                    break
                self.tick()
            self._end_all(FinishReason.ABORT, None)
        except BaseException as fault:
            log.critical("the engine failed", exc_info=True)
            self._failure = f"the engine failed: {type(fault).__name__}: {fault}"
            self._stop(self._failure)
            self._end_all(FinishReason.ERROR, "the engine failed while computing this answer")

    def _take_commands(self) -> None:
        while self._inbox:
            match self._inbox.popleft():
                case _Add(sequence):
                    stop = sequence.request.sampling.stop
                    self._live[sequence.id] = _Live(sequence, Detokenizer(self._vocabulary, stop))
                    self.scheduler.add(sequence)
                case _Abort(request_id):
                    if live := self._live.get(request_id):
                        self._finish(live, FinishReason.ABORT)

    def _apply(self, plan: Plan, output: StepOutput) -> None:
        new_tokens = iter(output.ids.tolist())
        now = time.monotonic()
        for sequence, count in plan.scheduled.items():
            is_sampled = sequence.num_uncomputed == count
            token = next(new_tokens) if is_sampled else None
            live = self._live.get(sequence.id)
            if live is None:
                continue  # it left during the forward pass
            sequence.num_computed += count
            if token is None:
                continue
            if token < 0:
                self._finish(live, FinishReason.ERROR, error="the model's output was not a number")
            else:
                self._append(live, token, now)

    def _append(self, live: _Live, token: int, now: float) -> None:
        """One new token: its text, and whether it is the last."""
        sequence, detokenizer = live.sequence, live.detokenizer
        sampling = sequence.request.sampling
        sequence.tokens.append(token)
        sequence.first_token = sequence.first_token or now
        ends_by_id = token in self._vocabulary.eos_ids or token in sampling.stop_token_ids
        text = "" if ends_by_id else detokenizer.push(token)
        is_full = sequence.num_output_tokens >= sequence.max_output_tokens
        if ends_by_id or is_full:
            text += detokenizer.flush()
        self._events.append(TokenEvent(sequence.id, 0, text, sequence.num_output_tokens, now))
        if detokenizer.stopped_by is not None:
            self._finish(live, FinishReason.STOP, stop=detokenizer.stopped_by)
        elif ends_by_id:
            stop = None if token in self._vocabulary.eos_ids else token
            self._finish(live, FinishReason.STOP, stop=stop)
        elif is_full:
            self._finish(live, FinishReason.LENGTH)

    def _finish(
        self, live: _Live, reason: FinishReason, *, stop: str | int | None = None, error: str | None = None
    ) -> None:
        """The one way out: frees the memory, releases held text, tells the client."""
        sequence, now = live.sequence, time.monotonic()
        del self._live[sequence.id]
        self.scheduler.finish(sequence)
        if text := live.detokenizer.flush():
            self._events.append(TokenEvent(sequence.id, 0, text, sequence.num_output_tokens, now))
        self._events.append(
            FinishedEvent(
                request_id=sequence.id,
                choice=0,
                reason=reason,
                stop=stop,
                error=error,
                num_prompt_tokens=sequence.num_prompt_tokens,
                num_cached_tokens=0,
                num_output_tokens=sequence.num_output_tokens,
                num_preemptions=sequence.num_preemptions,
                timings=Timings(sequence.request.arrival, sequence.admitted, sequence.first_token, now),
            )
        )

    def _stop(self, why: str) -> None:
        with self._wake:
            self._stopped = self._stopped or why
            self._wake.notify()

    def _end_all(self, reason: FinishReason, error: str | None) -> None:
        self._take_commands()
        for live in list(self._live.values()):
            self._finish(live, reason, error=error)
        self._flush_events()

    def _flush_events(self) -> None:
        if self._events:
            events, self._events = self._events, []
            self._publish(events)
