"""The engine: one thread, one iteration per tick.

Knows: the inbox, the order of a tick, what a fault costs. Does not know: asyncio, sockets, formats, torch (a
`Runner` computes), how answers become text and events.

A tick: take commands, schedule, build the batch, run it, take commands again (whoever left during the
forward pass gets no token), apply the new tokens, publish. What ends is freed in this same tick, so that a
queued request can use it in the next.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol, TypeVar

from engine.batch import NOT_A_NUMBER, NOTHING_ALLOWED, Batch, BatchBuilder, StepOutput
from engine.blocks import blocks_for
from engine.config import Admission, EngineConfig
from engine.detokenizer import Vocabulary
from engine.intake import Intake
from engine.ledger import MemoryOverTicks, MemoryTruth
from engine.lifecycle import Lifecycle
from engine.places import QueuePlaces, Room
from engine.prefix import PrefixHasher
from engine.recorder import Stages, TickRecord, TickRecorder
from engine.request import (
    ChosenLogprob,
    EngineStopped,
    Event,
    FinishReason,
    Request,
    Sequence,
    TokenLogprob,
)
from engine.scheduler import Plan, Scheduler
from engine.shadow import ShadowArms, ShadowStats

log = logging.getLogger(__name__)

Found = TypeVar("Found")

MAX_RESTARTS = 1
"""Device faults that are survived. One that comes again is no accident."""


class Runner(Protocol):
    """Computes a batch: the model, its KV memory and the sampler."""

    def execute(self, batch: Batch) -> StepOutput:
        """Reads and writes KV memory only at the batch's slots and copies, and through its block tables. Any
        exception is a fault of the device: KV memory can no longer be trusted.
        """
        ...

    def reset(self) -> None:
        """Throw KV memory away and make it anew."""
        ...


@dataclass(frozen=True, slots=True)
class EngineStats:
    num_running: int
    num_waiting: int
    """In the queue and on the way to it, preempted ones included."""
    num_blocks: int
    num_free_blocks: int
    """Those kept for their content included."""
    num_preemptions: int
    num_ticks: int
    num_restarts: int
    num_queried_tokens: int
    """Prompt tokens of all that entered."""
    num_hit_tokens: int
    """Of these, found computed."""
    memory: MemoryTruth
    """At the end of the last tick."""
    memory_over_ticks: MemoryOverTicks
    shadow: dict[Admission, ShadowStats]
    """What other policies would have taken."""
    failure: str | None
    """Why the engine takes no more requests; None while it does."""


@dataclass(frozen=True, slots=True)
class _Add:
    sequences: list[Sequence]


@dataclass(frozen=True, slots=True)
class _Fork:
    parent_id: str
    child: Request


@dataclass(frozen=True, slots=True)
class _Abort:
    request_id: str


@dataclass(frozen=True, slots=True)
class _Inspect:
    look: Callable[[], None]


_Command = _Add | _Fork | _Abort | _Inspect


class Engine:
    """Runs requests in company.

    `submit`, `fork`, `abort`, `room`, `stats`, `inspect`, `start` and `shutdown` may be called from any
    thread. `tick` belongs to the engine thread; without `start`, the caller is that thread and drives tick by
    tick.

    Args:
        publish: is given the events of a tick, in order, once per tick and from the engine thread.
        clock: seconds, monotonic; the one that `Request.arrival` was read from.
        scheduler: made from the same `config`. None: a new one.
    """

    def __init__(
        self,
        runner: Runner,
        vocabulary: Vocabulary,
        config: EngineConfig,
        publish: Callable[[list[Event]], None],
        clock: Callable[[], float] = time.monotonic,
        scheduler: Scheduler | None = None,
    ) -> None:
        self.config = config
        self.vocabulary = vocabulary
        self.scheduler = scheduler or Scheduler(config)
        self.recorder = TickRecorder(config.recorded_ticks)
        self._runner = runner
        self._publish = publish
        self._clock = clock
        self._batches = BatchBuilder(
            config.max_num_seqs, blocks_for(config.max_model_len), vocabulary.eos_ids
        )
        hasher = PrefixHasher() if config.prefix_cache else None
        self._intake = Intake(len(vocabulary.token_bytes), config.max_model_len, hasher)
        self._places = QueuePlaces(config.max_queue, config.max_queue_per_session)
        self._shadow = ShadowArms(config.num_blocks, config.max_model_len, config.max_num_seqs)
        self._lives = Lifecycle(self.scheduler, vocabulary, self._intake, self._places, self._shadow, clock)
        self._memory = self.scheduler.ledger.truth(self.scheduler.pool)
        self._inbox: deque[_Command] = deque()
        self._wake = threading.Condition(threading.RLock())
        self._stopped: str | None = None
        self._failure: str | None = None
        self._is_over = False
        self._num_arriving = 0
        """Sequences in the inbox."""
        self._num_ticks = 0
        self._num_restarts = 0
        self._thread = threading.Thread(target=self._run, name="tickwire-engine", daemon=True)

    # -- from any thread ------------------------------------------------------------------------------

    def start(self) -> None:
        self._thread.start()

    def submit(self, request: Request) -> None:
        """Queues a request. Each of its answers gets token events and then exactly one finished event.

        Raises:
            ContextLengthExceeded: it can never fit. Nothing was queued.
            EngineStopped: the engine was shut down or failed. Nothing was queued.
            QueueFull: too many wait. Nothing was queued.
            ValueError: the prompt is empty, an id is not in the vocabulary, or there are never places for so
                many answers; the message names the field.
        """
        places = min(self.config.max_queue, self.config.max_queue_per_session)
        if request.sampling.n > places:
            raise ValueError(
                f"n: got {request.sampling.n}, allowed: at most {places}, a session's places here"
            )
        sequences = self._intake.sequences(request)
        self._queue(request.session, _Add(sequences), len(sequences))

    def fork(self, parent_id: str, child: Request) -> None:
        """Begins another answer where the first answer of request `parent_id` stands when the engine takes
        this up: the child's prompt becomes all of its tokens, and computed memory is shared. If that answer
        has ended, or the child could not fit any more, the child ends with an error.

        Raises:
            EngineStopped, QueueFull, ValueError: as in `submit`; n must be 1.
        """
        if child.sampling.n != 1:
            raise ValueError(f"n: got {child.sampling.n}, allowed: 1 in a fork")
        self._intake.check_ids(child)
        self._queue(child.session, _Fork(parent_id, child), 1)

    def abort(self, request_id: str) -> None:
        """Ends all answers of a request within a tick, wherever they stand. One that is unknown or has ended
        is left alone: a client's cancel and the answer's end may cross."""
        with self._wake:
            self._inbox.append(_Abort(request_id))
            self._wake.notify()

    def inspect(self, look: Callable[[Scheduler], Found]) -> Future[Found]:
        """What `look` finds, called by the engine's thread at a moment when all books agree. It must be quick
        and must not change anything. The future may be cancelled."""
        future: Future[Found] = Future()

        def run() -> None:
            if not future.set_running_or_notify_cancel():
                return  # whoever asked has gone
            try:
                future.set_result(look(self.scheduler))
            except Exception as error:
                future.set_exception(error)

        with self._wake:
            if self._is_over:
                run()
            else:
                self._inbox.append(_Inspect(run))
                self._wake.notify()
        return future

    def shutdown(self) -> None:
        """Ends every request with ABORT and the thread with them; returns when all is done."""
        self._stop("the engine was shut down")
        if self._thread.is_alive():
            self._thread.join()
        else:
            self._end_all(FinishReason.ABORT, None)

    def room(self, session: str) -> Room:
        """What `session` may still have of the queue."""
        return self._places.room(session, self._clock())

    def stats(self) -> EngineStats:
        scheduler = self.scheduler
        return EngineStats(
            num_running=len(scheduler.running),
            num_waiting=len(scheduler.waiting) + self._num_arriving,
            num_blocks=scheduler.pool.num_blocks,
            num_free_blocks=scheduler.pool.num_free,
            num_preemptions=scheduler.num_preemptions,
            num_ticks=self._num_ticks,
            num_restarts=self._num_restarts,
            num_queried_tokens=scheduler.num_queried_tokens,
            num_hit_tokens=scheduler.num_hit_tokens,
            memory=self._memory,
            memory_over_ticks=scheduler.ledger.over_ticks(),
            shadow=self._shadow.stats(),
            failure=self._failure,
        )

    def _queue(self, session: str, command: _Add | _Fork, count: int) -> None:
        self._places.take(session, count, self._clock())
        with self._wake:
            if self._stopped is None:
                self._inbox.append(command)
                self._num_arriving += count
                self._wake.notify()
                return
        for _ in range(count):
            self._places.free(session, self._clock())
        raise EngineStopped(self._stopped)

    # -- the engine thread ----------------------------------------------------------------------------

    def tick(self) -> bool:
        """One iteration. False: there was nothing to do.

        Raises:
            Exception: a fault that the engine does not survive. KV memory is then in an unknown state.
        """
        marks = [time.monotonic()]
        self._take_commands()
        self._lives.expire()
        marks.append(time.monotonic())
        plan = self.scheduler.schedule()
        self._enter(plan)
        marks.append(time.monotonic())
        if not plan.scheduled:
            self._shadow.rest()
            self._memory = self.scheduler.ledger.truth(self.scheduler.pool)
            self._flush_events()
            return bool(plan.preempted)
        self._num_ticks += 1
        batch = self._batches.build(plan)
        marks.append(time.monotonic())
        try:
            output = self._runner.execute(batch)
        except Exception as fault:
            self._recover(fault)
            return True
        if self.config.chaos.slow_tick_ms:
            time.sleep(self.config.chaos.slow_tick_ms / 1000)
        marks.append(time.monotonic())
        self._take_commands()
        self._apply(plan, batch, output)
        self._shadow.tick()
        self._memory = self.scheduler.ledger.tick(self.scheduler.pool)
        marks.append(time.monotonic())
        self._flush_events()
        marks.append(time.monotonic())
        self._record(plan, len(output.ids), marks)
        return True

    def _run(self) -> None:
        try:
            while True:
                with self._wake:
                    while not (self._inbox or self._lives.live or self._stopped):
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
                case _Add(sequences):
                    self._num_arriving -= len(sequences)
                    for sequence in sequences:
                        self._lives.begin(sequence)
                case _Fork(parent_id, child):
                    self._num_arriving -= 1
                    self._lives.begin_fork(parent_id, child)
                case _Abort(request_id):
                    self._lives.abort(request_id)
                case _Inspect(look):
                    look()

    def _enter(self, plan: Plan) -> None:
        """Makes newcomers known to the batch. One that cannot be prepared ends alone."""
        for sequence in plan.admitted:
            self._lives.entered(sequence)
            try:
                self._batches.enter(sequence)
            except Exception:
                log.exception("a request could not be prepared")
                plan.num_tokens -= plan.scheduled.pop(sequence, 0)
                self._lives.fail(sequence, "the request could not be prepared")

    def _apply(self, plan: Plan, batch: Batch, output: StepOutput) -> None:
        tokens = output.ids.tolist()
        logprobs = _by_sampled_row(batch, output)
        now = self._clock()
        lives, advance = self._lives, self.scheduler.advance
        row = -1
        for sequence, count in plan.scheduled.items():
            is_sampled = len(sequence.tokens) - sequence.num_computed == count
            row += is_sampled
            live = lives.live.get(sequence.id)
            if live is None:
                continue  # it left during the forward pass, or is padding
            if not is_sampled:
                advance(sequence, count)
                continue
            token = tokens[row]
            if token < 0:
                lives.fail(sequence, _MEANING[token], is_sound=False)
                continue
            advance(sequence, count)
            try:
                lives.append(live, token, None if logprobs is None else logprobs[row], now)
            except Exception:
                log.exception("a token could not be turned into text")
                lives.fail(sequence, "the answer could not be written")

    def _recover(self, fault: Exception) -> None:
        """The device failed: what it computed is lost, and with it the answers that were running. Those that
        wait are kept. Readiness is red meanwhile.

        Raises:
            Exception: the fault, if the engine has survived as many as it may, or what the reset raised.
        """
        if self._num_restarts == MAX_RESTARTS:
            raise fault
        log.critical("the device failed; the engine restarts", exc_info=fault)
        self._num_restarts += 1
        self._failure = f"the engine restarts after a fault: {type(fault).__name__}: {fault}"
        for sequence in list(self.scheduler.running.values()):
            self._lives.fail(sequence, "the device failed while computing this answer", is_sound=False)
        self.scheduler.forget_all()
        self._memory = self.scheduler.ledger.truth(self.scheduler.pool)
        self._flush_events()
        self._runner.reset()
        self._failure = None

    def _stop(self, why: str) -> None:
        with self._wake:
            self._stopped = self._stopped or why
            self._wake.notify()

    def _end_all(self, reason: FinishReason, error: str | None) -> None:
        with self._wake:
            self._take_commands()
            self._lives.end_all(reason, error)
            self._is_over = True
        self._flush_events()

    def _flush_events(self) -> None:
        if events := self._lives.take_events():
            self._publish(events)

    def _record(self, plan: Plan, num_sampled: int, marks: list[float]) -> None:
        self.recorder.add(
            TickRecord(
                number=self._num_ticks,
                start=marks[0],
                stages=Stages(*((b - a) * 1e6 for a, b in pairwise(marks))),
                rows=len(plan.scheduled),
                tokens=plan.num_tokens,
                sampled=num_sampled,
                admitted=tuple(sequence.id for sequence in plan.admitted),
                ended=self._lives.take_ended(),
                preempted=tuple(sequence.id for sequence in plan.preempted),
                waiting=len(self.scheduler.waiting),
                memory=self._memory,
            )
        )


_MEANING = {
    NOT_A_NUMBER: "the model's output was not a number",
    NOTHING_ALLOWED: "allowed_token_ids, bad_words, min_tokens and logit_bias leave no token to choose",
}


def _by_sampled_row(batch: Batch, output: StepOutput) -> list[ChosenLogprob | None] | None:
    """For each of the R sampled rows what it wanted to be told; None if no row did."""
    found = output.logprobs
    if found is None:
        return None
    by_row: list[ChosenLogprob | None] = [None] * len(output.ids)
    wanted = batch.num_logprobs
    for i, row in enumerate(found.rows.tolist()):
        ids, values = found.top_ids[i, : wanted[row]].tolist(), found.top[i, : wanted[row]].tolist()
        top = tuple(TokenLogprob(*pair) for pair in zip(ids, values, strict=True) if pair[0] >= 0)
        chosen = TokenLogprob(int(output.ids[row]), float(found.chosen[i]))
        by_row[row] = ChosenLogprob(chosen, top)
    return by_row
