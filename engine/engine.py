"""The engine: one thread, one iteration per tick.

Knows: the inbox, the order of a tick, how sequences begin and end, and the events that tell about it.
Does not know: asyncio, sockets, formats, torch (a `Runner` computes), how text is written to anyone.

A tick: take commands, schedule, build the batch, run it, take commands again (whoever left during the
forward pass gets no token), apply the new tokens, publish. Each ending passes through `_finish`, which frees
the memory in this same tick, so that a queued request can use it in the next.
"""

from __future__ import annotations

import heapq
import logging
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from itertools import repeat
from typing import Protocol, TypeVar

from engine.answer import Answer, Ending
from engine.batch import NOT_A_NUMBER, NOTHING_ALLOWED, Batch, BatchBuilder, StepOutput
from engine.blocks import BLOCK_SIZE, blocks_for
from engine.config import EngineConfig
from engine.detokenizer import Vocabulary
from engine.ledger import MemoryOverTicks, MemoryTruth
from engine.places import QueuePlaces
from engine.prefix import PrefixHasher
from engine.request import (
    ChosenLogprob,
    ContextLengthExceeded,
    EngineStopped,
    Event,
    FinishedEvent,
    FinishReason,
    Request,
    Sequence,
    Timings,
    TokenEvent,
    TokenLogprob,
)
from engine.scheduler import Plan, Scheduler

log = logging.getLogger(__name__)

Found = TypeVar("Found")

MAX_RESTARTS = 1
"""Device faults that are survived. One that comes again is no accident."""

_ODD = 0x9E3779B97F4A7C15
"""2**64 over the golden ratio: spreads the seeds of a request's answers far from those of other requests."""


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


@dataclass(slots=True)
class _Live:
    """A sequence that has not ended, and its answer so far."""

    sequence: Sequence
    answer: Answer
    has_place: bool = True
    """It has a place in the queue: it has never run."""


@dataclass(order=True, frozen=True, slots=True)
class _Deadline:
    at: float
    sequence_id: str
    limit: str = field(compare=False)
    """The name of the request's field."""


class Engine:
    """Runs requests in company.

    `submit`, `fork`, `abort`, `stats`, `inspect`, `start` and `shutdown` may be called from any thread.
    `tick` belongs to the engine thread; without `start`, the caller is that thread and drives tick by tick.

    Args:
        publish: is given the events of a tick, in order, once per tick and from the engine thread.
        clock: seconds, monotonic; the one that `Request.arrival` was read from.
    """

    def __init__(
        self,
        runner: Runner,
        vocabulary: Vocabulary,
        config: EngineConfig,
        publish: Callable[[list[Event]], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.config = config
        self.scheduler = Scheduler(config)
        self.vocabulary = vocabulary
        self._runner = runner
        self._publish = publish
        self._clock = clock
        self._hasher = PrefixHasher() if config.prefix_cache else None
        self._batches = BatchBuilder(
            config.max_num_seqs, blocks_for(config.max_model_len), vocabulary.eos_ids
        )
        self._places = QueuePlaces(config.max_queue, config.max_queue_per_session)
        self._live: dict[str, _Live] = {}
        self._requests: dict[str, list[_Live]] = {}
        """Request id -> its answers that have not ended."""
        self._deadlines: list[_Deadline] = []
        self._events: list[Event] = []
        self._inbox: deque[_Command] = deque()
        self._wake = threading.Condition(threading.RLock())
        self._stopped: str | None = None
        self._failure: str | None = None
        self._is_over = False
        self._num_arriving = 0
        """Sequences in the inbox."""
        self._num_ticks = 0
        self._num_restarts = 0
        self._memory = self.scheduler.ledger.truth(self.scheduler.pool)
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
            ValueError: the prompt is empty, or an id is not in the vocabulary; the message names the field.
        """
        if not request.prompt:
            raise ValueError("prompt: got no tokens, allowed: at least 1")
        self._check_ids(request)
        first = self._sequence(request)
        rest = [self._sequence(request, choice, first) for choice in range(1, request.sampling.n)]
        self._queue(request.session, _Add([first, *rest]), len(rest) + 1)

    def fork(self, parent_id: str, child: Request) -> None:
        """Begins another answer where the first answer of request `parent_id` stands when the engine takes
        this up: the child's prompt becomes all of its tokens, and computed memory is shared. If that answer
        has ended, or the child could not fit any more, the child ends with an error.

        Raises:
            EngineStopped, QueueFull, ValueError: as in `submit`; n must be 1.
        """
        if child.sampling.n != 1:
            raise ValueError(f"n: got {child.sampling.n}, allowed: 1 in a fork")
        self._check_ids(child)
        self._queue(child.session, _Fork(parent_id, child), 1)

    def abort(self, request_id: str) -> None:
        """Ends all answers of a request within a tick, wherever they stand. One that is unknown or has ended
        is left alone: a client's cancel and the answer's end may cross."""
        with self._wake:
            self._inbox.append(_Abort(request_id))
            self._wake.notify()

    def inspect(self, look: Callable[[Scheduler], Found]) -> Future[Found]:
        """What `look` finds, called by the engine's thread between two ticks, when all books agree. It must
        be quick and must not change anything."""
        future: Future[Found] = Future()

        def run() -> None:
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
            failure=self._failure,
        )

    def _check_ids(self, request: Request) -> None:
        """Raises ValueError, naming the field."""
        size = len(self.vocabulary.token_bytes)
        sampling = request.sampling
        for name, ids in (
            ("prompt", request.prompt),
            ("logit_bias", [token for token, _ in sampling.logit_bias]),
            ("allowed_token_ids", sampling.allowed_token_ids or ()),
            ("bad_words", [token for word in sampling.bad_words for token in word]),
            ("stop_token_ids", sampling.stop_token_ids),
        ):
            if ids and not 0 <= min(ids) <= max(ids) < size:
                wrong = next(each for each in ids if not 0 <= each < size)
                raise ValueError(f"{name}: got the token id {wrong}, allowed: 0 to {size - 1}")

    def _sequence(self, request: Request, choice: int = 0, source: Sequence | None = None) -> Sequence:
        """Raises ContextLengthExceeded."""
        length, sampling = len(request.prompt), request.sampling
        room = self.config.max_model_len - length
        if room < (sampling.max_tokens or 1):
            raise ContextLengthExceeded(length, sampling.max_tokens, self.config.max_model_len)
        seed = secrets.randbits(63) if sampling.seed is None else sampling.seed
        sequence = Sequence(
            request,
            seed=(seed + choice * _ODD + 2**63) % 2**64 - 2**63,
            max_output_tokens=sampling.max_tokens or room,
            choice=choice,
            source=source,
        )
        if choice and source is not None:
            sequence.block_hashes = list(source.block_hashes)
        elif self._hasher is not None:
            self._hasher.extend(sequence.block_hashes, sequence.tokens, request.cache_salt)
        return sequence

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
        self._take_commands()
        self._expire()
        plan = self.scheduler.schedule()
        self._enter(plan)
        if plan.scheduled:
            self._num_ticks += 1
            if self.config.chaos.slow_tick_ms:
                time.sleep(self.config.chaos.slow_tick_ms / 1000)
            batch = self._batches.build(plan)
            try:
                output = self._runner.execute(batch)
            except Exception as fault:
                self._recover(fault)
                return True
            self._take_commands()
            self._apply(plan, batch, output)
            self._memory = self.scheduler.ledger.tick(self.scheduler.pool)
        else:
            self._memory = self.scheduler.ledger.truth(self.scheduler.pool)
        self._flush_events()
        return bool(plan.scheduled or plan.preempted)

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
                case _Add(sequences):
                    self._num_arriving -= len(sequences)
                    for sequence in sequences:
                        self._begin(sequence)
                case _Fork(parent_id, child):
                    self._num_arriving -= 1
                    self._begin_fork(parent_id, child)
                case _Abort(request_id):
                    for live in list(self._requests.get(request_id, ())):
                        self._finish(live, Ending(FinishReason.ABORT))
                case _Inspect(look):
                    look()

    def _begin(self, sequence: Sequence) -> None:
        """A request that cannot be prepared ends alone."""
        request = sequence.request
        try:
            answer = Answer(self.vocabulary, request.sampling, sequence.max_output_tokens)
            self.scheduler.add(sequence)
        except Exception:
            log.exception("a request could not be prepared")
            self._refuse(sequence, "the request could not be prepared")
            return
        live = self._live[sequence.id] = _Live(sequence, answer)
        self._requests.setdefault(request.id, []).append(live)
        for limit in ("max_queue_ms", "max_time_ms"):
            milliseconds = getattr(request, limit)
            if milliseconds is not None:
                deadline = _Deadline(request.arrival + milliseconds / 1000, sequence.id, limit)
                heapq.heappush(self._deadlines, deadline)

    def _begin_fork(self, parent_id: str, child: Request) -> None:
        parent = self._live.get(parent_id)
        if parent is None:
            self._refuse(Sequence(child, 0, 1), f"the answer {parent_id} to be continued has ended")
            return
        child = replace(child, prompt=tuple(parent.sequence.tokens))
        try:
            sequence = self._sequence(child, source=parent.sequence)
        except ContextLengthExceeded as error:
            self._refuse(Sequence(child, 0, 1), str(error))
        else:
            self._begin(sequence)

    def _expire(self) -> None:
        """Ends those whose time is over."""
        if not self._deadlines:
            return
        now = self._clock()
        while self._deadlines and self._deadlines[0].at <= now:
            deadline = heapq.heappop(self._deadlines)
            live = self._live.get(deadline.sequence_id)
            if live is not None and (live.has_place or deadline.limit == "max_time_ms"):
                self._finish(live, Ending(FinishReason.TIMEOUT, deadline.limit))

    def _enter(self, plan: Plan) -> None:
        """Makes newcomers known to the batch. One that cannot be prepared ends alone."""
        if not plan.admitted:
            return
        now = self._clock()
        for sequence in plan.admitted:
            live = self._live[sequence.id]
            if live.has_place:
                live.has_place = False
                self._places.free(sequence.request.session, now)
                sequence.admitted = now
            try:
                self._batches.enter(sequence)
            except Exception:
                log.exception("a request could not be prepared")
                plan.num_tokens -= plan.scheduled.pop(sequence, 0)
                self._finish(live, Ending(FinishReason.ERROR), error="the request could not be prepared")

    def _apply(self, plan: Plan, batch: Batch, output: StepOutput) -> None:
        tokens = iter(output.ids.tolist())
        logprobs = _by_sampled_row(batch, output)
        now = self._clock()
        for sequence, count in plan.scheduled.items():
            is_sampled = len(sequence.tokens) - sequence.num_computed == count
            token = next(tokens) if is_sampled else None
            logprob = next(logprobs) if is_sampled else None
            live = self._live.get(sequence.id)
            if live is None:
                continue  # it left during the forward pass, or is padding
            if token is not None and token < 0:
                self._finish(live, Ending(FinishReason.ERROR), error=_MEANING[token], is_sound=False)
                continue
            self.scheduler.advance(sequence, count)
            if token is not None:
                try:
                    self._append(live, token, logprob, now)
                except Exception:
                    log.exception("a token could not be turned into text")
                    self._finish(live, Ending(FinishReason.ERROR), error="the answer could not be written")

    def _append(self, live: _Live, token: int, logprob: ChosenLogprob | None, now: float) -> None:
        """One new token: its text, and whether it is the last."""
        sequence, answer = live.sequence, live.answer
        sequence.tokens.append(token)
        if self._hasher is not None and not len(sequence.tokens) % BLOCK_SIZE:
            self._hasher.extend(sequence.block_hashes, sequence.tokens, sequence.request.cache_salt)
        if sequence.first_token is None:
            sequence.first_token = now
        count = len(sequence.tokens) - sequence.num_prompt_tokens
        text, ending = answer.push(token, count, logprob)
        told = () if logprob is None else answer.logprobs(at_end=ending is not None)
        self._events.append(TokenEvent(sequence.request.id, sequence.choice, text, count, now, told))
        if ending is not None:
            self._finish(live, ending)

    def _finish(
        self, live: _Live, ending: Ending, *, error: str | None = None, is_sound: bool = True
    ) -> None:
        """The one way out: frees the memory, releases held text, tells the client."""
        sequence, answer = live.sequence, live.answer
        del self._live[sequence.id]
        self._requests[sequence.request.id].remove(live)
        if not self._requests[sequence.request.id]:
            del self._requests[sequence.request.id]
        if live.has_place:
            self._places.free(sequence.request.session, self._clock())
        is_own_end = ending.reason in (FinishReason.STOP, FinishReason.LENGTH)
        self.scheduler.finish(sequence, is_own_end=is_own_end, is_sound=is_sound)
        now = self._clock()
        text, told = answer.flush(), answer.logprobs(at_end=True)
        if text or told:
            count = sequence.num_output_tokens
            self._events.append(TokenEvent(sequence.request.id, sequence.choice, text, count, now, told))
        self._tell_end(sequence, ending, error, now)

    def _refuse(self, sequence: Sequence, error: str) -> None:
        """Ends one that the scheduler never knew."""
        now = self._clock()
        self._places.free(sequence.request.session, now)
        self._tell_end(sequence, Ending(FinishReason.ERROR), error, now)

    def _tell_end(self, sequence: Sequence, ending: Ending, error: str | None, now: float) -> None:
        self._events.append(
            FinishedEvent(
                request_id=sequence.request.id,
                choice=sequence.choice,
                reason=ending.reason,
                stop=ending.stop,
                error=error,
                num_prompt_tokens=sequence.num_prompt_tokens,
                num_cached_tokens=sequence.num_cached_tokens,
                num_output_tokens=sequence.num_output_tokens,
                num_preemptions=sequence.num_preemptions,
                timings=Timings(sequence.request.arrival, sequence.admitted, sequence.first_token, now),
            )
        )

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
            error = "the device failed while computing this answer"
            self._finish(self._live[sequence.id], Ending(FinishReason.ERROR), error=error, is_sound=False)
        self.scheduler.forget_all()
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
            for live in list(self._live.values()):
                self._finish(live, Ending(reason), error=error)
            self._is_over = True
        self._flush_events()

    def _flush_events(self) -> None:
        if self._events:
            events, self._events = self._events, []
            self._publish(events)


_MEANING = {
    NOT_A_NUMBER: "the model's output was not a number",
    NOTHING_ALLOWED: "allowed_token_ids, bad_words, min_tokens and logit_bias leave no token to choose",
}


def _by_sampled_row(batch: Batch, output: StepOutput) -> Iterator[ChosenLogprob | None]:
    """For each of the R sampled rows what it wanted to be told."""
    found = output.logprobs
    if found is None:
        return repeat(None)
    by_row: list[ChosenLogprob | None] = [None] * len(output.ids)
    wanted = batch.num_logprobs
    for i, row in enumerate(found.rows.tolist()):
        ids, values = found.top_ids[i, : wanted[row]].tolist(), found.top[i, : wanted[row]].tolist()
        top = tuple(TokenLogprob(*pair) for pair in zip(ids, values, strict=True) if pair[0] >= 0)
        chosen = TokenLogprob(int(output.ids[row]), float(found.chosen[i]))
        by_row[row] = ChosenLogprob(chosen, top)
    return iter(by_row)
