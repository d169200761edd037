"""How answers begin, grow and end.

Knows: the answers that have not ended, their places in the queue, their deadlines, and the events that tell
about them. Does not know: threads, ticks, batches, what computes.

Each ending passes through `finish`, which frees the memory at once, releases text that was held back, and
tells exactly one end.
"""

from __future__ import annotations

import heapq
import logging
from collections.abc import Callable
from dataclasses import dataclass, field

from engine.answer import Answer, Ending
from engine.blocks import BLOCK_SIZE
from engine.detokenizer import Vocabulary
from engine.intake import Intake
from engine.places import QueuePlaces
from engine.request import (
    ChosenLogprob,
    ContextLengthExceeded,
    Event,
    FinishedEvent,
    FinishReason,
    Request,
    Sequence,
    Timings,
    TokenEvent,
)
from engine.scheduler import Scheduler
from engine.shadow import ShadowArms

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Live:
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


class Lifecycle:
    """All of it belongs to the engine's thread.

    Args:
        clock: seconds, monotonic; the one that `Request.arrival` was read from.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        vocabulary: Vocabulary,
        intake: Intake,
        places: QueuePlaces,
        shadow: ShadowArms,
        clock: Callable[[], float],
    ) -> None:
        self.live: dict[str, Live] = {}
        """By sequence."""
        self.ended: list[str] = []
        """Sequences that ended since the last `take_ended`."""
        self._scheduler = scheduler
        self._vocabulary = vocabulary
        self._intake = intake
        self._places = places
        self._shadow = shadow
        self._clock = clock
        self._by_request: dict[str, list[Live]] = {}
        self._deadlines: list[_Deadline] = []
        self._events: list[Event] = []

    # -- beginning --------------------------------------------------------------------------------------

    def begin(self, sequence: Sequence) -> None:
        """Queues it. One that cannot be prepared ends alone."""
        request = sequence.request
        try:
            answer = Answer(self._vocabulary, request.sampling, sequence.max_output_tokens)
            self._scheduler.add(sequence)
        except Exception:
            log.exception("a request could not be prepared")
            self._refuse(sequence, "the request could not be prepared")
            return
        live = self.live[sequence.id] = Live(sequence, answer)
        self._by_request.setdefault(request.id, []).append(live)
        self._shadow.arrived(sequence.id, sequence.num_prompt_tokens, sequence.max_output_tokens)
        for limit, milliseconds in (
            ("max_queue_ms", request.max_queue_ms),
            ("max_time_ms", request.max_time_ms),
        ):
            if milliseconds is not None:
                at = request.arrival + milliseconds / 1000
                heapq.heappush(self._deadlines, _Deadline(at, sequence.id, limit))

    def begin_fork(self, parent_id: str, child: Request) -> None:
        parent = self.live.get(parent_id)
        if parent is None:
            self._refuse(Sequence(child, 0, 1), f"the answer {parent_id}, to be continued, has ended")
            return
        try:
            sequence = self._intake.fork(parent.sequence, child)
        except ContextLengthExceeded as error:
            self._refuse(Sequence(child, 0, 1), str(error))
        else:
            self.begin(sequence)

    def entered(self, sequence: Sequence) -> None:
        """It was admitted."""
        live = self.live[sequence.id]
        if live.has_place:
            live.has_place = False
            sequence.admitted = self._clock()
            self._places.free(sequence.request.session, sequence.admitted)

    # -- growing ----------------------------------------------------------------------------------------

    def append(self, live: Live, token: int, logprob: ChosenLogprob | None, now: float) -> None:
        """One new token: its text, and whether it is the last."""
        sequence, answer = live.sequence, live.answer
        sequence.tokens.append(token)
        if not len(sequence.tokens) % BLOCK_SIZE:
            self._intake.extend_hashes(sequence)
        if sequence.first_token is None:
            sequence.first_token = now
        count = len(sequence.tokens) - sequence.num_prompt_tokens
        text, ending = answer.push(token, count, logprob)
        told = () if logprob is None else answer.logprobs(at_end=ending is not None)
        self._events.append(TokenEvent(sequence.request.id, sequence.choice, text, count, now, told))
        if ending is not None:
            self.finish(live, ending)

    # -- ending -----------------------------------------------------------------------------------------

    def abort(self, request_id: str) -> None:
        """Ends all answers of a request that have not ended."""
        for live in list(self._by_request.get(request_id, ())):
            self.finish(live, Ending(FinishReason.ABORT))

    def expire(self) -> None:
        """Ends those whose time is over."""
        if not self._deadlines:
            return
        now = self._clock()
        while self._deadlines and self._deadlines[0].at <= now:
            deadline = heapq.heappop(self._deadlines)
            live = self.live.get(deadline.sequence_id)
            if live is not None and (live.has_place or deadline.limit == "max_time_ms"):
                self.finish(live, Ending(FinishReason.TIMEOUT, deadline.limit))

    def fail(self, sequence: Sequence, error: str, *, is_sound: bool = True) -> None:
        """Ends it with an error. See `Scheduler.finish` for `is_sound`."""
        self.finish(self.live[sequence.id], Ending(FinishReason.ERROR), error=error, is_sound=is_sound)

    def end_all(self, reason: FinishReason, error: str | None) -> None:
        for live in list(self.live.values()):
            self.finish(live, Ending(reason), error=error)

    def finish(self, live: Live, ending: Ending, *, error: str | None = None, is_sound: bool = True) -> None:
        """The one way out."""
        sequence, answer = live.sequence, live.answer
        del self.live[sequence.id]
        siblings = self._by_request[sequence.request.id]
        siblings.remove(live)
        if not siblings:
            del self._by_request[sequence.request.id]
        now = self._clock()
        if live.has_place:
            self._places.free(sequence.request.session, now)
        is_own_end = ending.reason in (FinishReason.STOP, FinishReason.LENGTH)
        self._scheduler.finish(sequence, is_own_end=is_own_end, is_sound=is_sound)
        self._shadow.ended(sequence.id, sequence.num_output_tokens)
        text, told = answer.flush(), answer.logprobs(at_end=True)
        if text or told:
            count = sequence.num_output_tokens
            self._events.append(TokenEvent(sequence.request.id, sequence.choice, text, count, now, told))
        self._tell_end(sequence, ending, error, now)

    def take_events(self) -> list[Event]:
        events, self._events = self._events, []
        return events

    def take_ended(self) -> tuple[str, ...]:
        ended, self.ended = self.ended, []
        return tuple(ended)

    def _refuse(self, sequence: Sequence, error: str) -> None:
        """Ends one that the scheduler never knew."""
        now = self._clock()
        self._places.free(sequence.request.session, now)
        self._tell_end(sequence, Ending(FinishReason.ERROR), error, now)

    def _tell_end(self, sequence: Sequence, ending: Ending, error: str | None, now: float) -> None:
        self.ended.append(sequence.id)
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
