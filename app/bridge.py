"""The only place where the engine's thread and the event loop meet.

Knows: the engine, the loop, the open streams. Does not know: wire formats, sockets, text.

The engine's thread calls `publish` once per tick; everything else here runs on the loop.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Iterable
from dataclasses import dataclass

from app.logs import get_logger
from app.metrics import Metrics
from app.streams import Stream
from engine.engine import Engine, EngineStats
from engine.request import Event, FinishedEvent, Request, TokenEvent
from engine.sampling import SamplingParams

log = get_logger()


@dataclass(slots=True)
class _Open:
    stream: Stream
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
        self._open: dict[str, _Open] = {}
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

    def start(
        self, prompt: Iterable[int], sampling: SamplingParams, arrival: float, user: str | None = None
    ) -> Stream:
        """Have the engine continue `prompt`. `user` goes to the log only.

        Raises:
            ContextLengthExceeded, EngineStopped: nothing was started.
        """
        stream = Stream(secrets.token_hex(16), arrival, int(time.time()))
        # Known before it is submitted: the engine may answer before `submit` returns.
        self._open[stream.request_id] = _Open(stream, user)
        try:
            self.engine.submit(Request(stream.request_id, tuple(prompt), sampling, arrival))
        except BaseException:
            del self._open[stream.request_id]
            raise
        return stream

    def cancel(self, stream: Stream) -> None:
        """End a stream within one tick, wherever it stands. One that has ended is left alone."""
        if stream.end is None:
            stream.cancelled = True
            self.engine.abort(stream.request_id)

    def cut_all(self) -> None:
        """End all streams within one tick, not by their clients' wish."""
        for request_id in self._open:
            self.engine.abort(request_id)

    def publish(self, events: list[Event]) -> None:
        """Called by the engine's thread: all events of one tick, in order."""
        if self._loop is None:
            raise RuntimeError("the engine spoke before the bridge was given a loop")
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._deliver, events)

    def _deliver(self, events: list[Event]) -> None:
        touched: dict[str, Stream] = {}
        for event in events:
            entry = self._open[event.request_id]
            touched[event.request_id] = entry.stream
            match event:
                case TokenEvent():
                    entry.stream.append(event.text)
                    self._count_token(entry, event)
                case FinishedEvent():
                    del self._open[event.request_id]
                    entry.stream.finish(event)
                    self._metrics.finished(event)
                    _log_finished(event, entry.user)
        # Only now: a reader that is woken sees all that the tick brought, the end included.
        for stream in touched.values():
            stream.notify()

    def _count_token(self, entry: _Open, event: TokenEvent) -> None:
        if event.num_output_tokens == entry.num_tokens:
            return  # text that was held back, released at the end: no new token
        self._metrics.token(event.time, entry.stream.arrival, entry.last_token)
        entry.num_tokens, entry.last_token = event.num_output_tokens, event.time


def _log_finished(end: FinishedEvent, user: str | None) -> None:
    """One line per response, without a word of what was said."""
    at = end.timings
    generating = at.finished - at.first_token if at.first_token is not None else 0.0
    log.info(
        "response_finished",
        request_id=end.request_id,
        finish_reason=end.reason.value,
        prompt_tokens=end.num_prompt_tokens,
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
