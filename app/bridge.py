"""The only place where the engine's thread and the event loop meet.

Knows: the engine, the loop, the open streams. Does not know: wire formats, sockets, text.

The engine's thread calls `publish` once per tick, and `start` may come from any thread; everything else
here runs on the loop.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from app.logs import get_logger
from app.metrics import Metrics
from app.streams import Answer, Cut, Stream
from engine.engine import Engine, EngineStats
from engine.request import Event, FinishedEvent, Request, TokenEvent

log = get_logger()


@dataclass(slots=True)
class _Open:
    """A stream that has not ended."""

    stream: Stream
    arrival: float
    user: str | None
    num_tokens: int = 0
    last_token: float | None = None


class Bridge:
    """Starts requests in the engine and brings what it says back to their streams.

    Set-up: `Bridge(metrics)`, then an engine made with `publish=bridge.publish`, then `attach(engine)`
    and, on the loop, `run_on(loop)`.
    """

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._open: dict[tuple[str, int], _Open] = {}
        """(request, choice) -> its stream."""
        self._engine: Engine | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def attach(self, engine: Engine) -> None:
        self._engine = engine
        self._metrics.watch(engine.stats)

    def run_on(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    @property
    def engine(self) -> Engine:
        if self._engine is None:
            raise RuntimeError("the bridge was used before an engine was attached to it")
        return self._engine

    def stats(self) -> EngineStats:
        return self.engine.stats()

    @property
    def num_open(self) -> int:
        """Streams that have not ended yet."""
        return len(self._open)

    def start(self, answer: Answer, request: Request, user: str | None = None) -> None:
        """Have the engine continue a prompt, for an answer of as many choices. `user` goes to the log only.
        From any thread. An answer that was cut before is not begun.

        Raises:
            ContextLengthExceeded, EngineStopped, QueueFull, ValueError: nothing was started.
        """
        if answer.cut:
            return
        keys = [(request.id, stream.choice) for stream in answer.streams]
        # Known before it is submitted: the engine may answer before `submit` returns. Each of these steps
        # is a single one for the loop, which only looks up what it was told of.
        for key, stream in zip(keys, answer.streams, strict=True):
            self._open[key] = _Open(stream, answer.arrival, user)
        try:
            self.engine.submit(request)
        except BaseException:
            for key in keys:
                del self._open[key]
            raise
        if answer.cut:
            # In the meantime. The abort of that moment may have come before there was anything to abort.
            self.engine.abort(request.id)

    def cancel(self, answer: Answer) -> None:
        self.cut(answer, Cut.CANCELLED)

    def cut(self, answer: Answer, why: Cut) -> None:
        """End an answer within one tick, wherever it stands. One that has ended is left alone, and the first
        reason stands."""
        if not answer.has_ended:
            answer.cut = answer.cut or why
            self.engine.abort(answer.request_id)

    def cut_all(self) -> None:
        """End all answers within one tick, not by their clients' wish."""
        for request_id in {request_id for request_id, _ in list(self._open)}:
            self.engine.abort(request_id)

    def publish(self, events: list[Event]) -> None:
        """Called by the engine's thread: all events of one tick, in order."""
        if self._loop is None:
            raise RuntimeError("the engine spoke before the bridge was given a loop")
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._deliver, events)

    def _deliver(self, events: list[Event]) -> None:
        touched: set[Stream] = set()
        for event in events:
            key = event.request_id, event.choice
            entry = self._open[key]
            touched.add(entry.stream)
            match event:
                case TokenEvent():
                    entry.stream.append(event.text, event.logprobs)
                    self._count_token(entry, event)
                case FinishedEvent():
                    del self._open[key]
                    entry.stream.finish(event)
                    self._metrics.finished(event)
                    _log_finished(event, entry.user)
        # Only now: a reader that is woken sees all that the tick brought, the end included.
        for stream in touched:
            stream.notify()

    def _count_token(self, entry: _Open, event: TokenEvent) -> None:
        if event.num_output_tokens == entry.num_tokens:
            return  # text that was held back, released at the end: no new token
        self._metrics.token(event.time, entry.arrival, entry.last_token)
        entry.num_tokens, entry.last_token = event.num_output_tokens, event.time


def _log_finished(end: FinishedEvent, user: str | None) -> None:
    """One line per choice, without a word of what was said."""
    at = end.timings
    generating = at.finished - at.first_token if at.first_token is not None else 0.0
    log.info(
        "response_finished",
        request_id=end.request_id,
        choice=end.choice,
        finish_reason=end.reason.value,
        prompt_tokens=end.num_prompt_tokens,
        cached_tokens=end.num_cached_tokens,
        output_tokens=end.num_output_tokens,
        queue_ms=_ms(at.arrival, at.admitted),
        ttft_ms=_ms(at.arrival, at.first_token),
        total_ms=_ms(at.arrival, at.finished),
        tokens_per_s=round((end.num_output_tokens - 1) / generating, 1) if generating else None,
        preemptions=end.num_preemptions,
        user=user,
        error=end.error,
    )


def _ms(since: float, until: float | None) -> float | None:
    return None if until is None else round((until - since) * 1000, 1)
