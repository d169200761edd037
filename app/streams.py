"""A stream: what one answer has said so far, in order, for any number of readers at their own speed.

Knows: the log of one answer (text deltas, then exactly one end) and who wants to hear of news. Does not
know: the engine's thread, wire formats, sockets.

The log only grows. A reader is a number, the index of the next event it wants, never a queue: a slow
reader costs nobody anything. The last delta stays open, and new text is added to it, until some reader
takes it; then it is sealed and the next text opens a new one. So a lone reader that falls behind gets
fewer and bigger deltas, while the numbers stay gapless and the same for all readers.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable

from engine.request import FinishedEvent


class StreamError(RuntimeError):
    """An illegal step in a stream's life: something after its end, or an index it never promised."""


class Stream:
    """The answer to one request.

    Args:
        request_id: the engine's name of the request; the ids on the wire are made from it.
        arrival: `time.monotonic()` seconds when the client's request was read.
        created: Unix seconds, for the wire.

    Invariants: events `0 .. len(deltas) - 1` are non-empty texts and never change once taken; the event
    after them, if any, is the end; the deltas joined are the whole text.
    """

    def __init__(self, request_id: str, arrival: float, created: int) -> None:
        self.request_id = request_id
        self.arrival = arrival
        self.created = created
        self.end: FinishedEvent | None = None
        self.cancelled = False
        """The client asked for the end. It tells a cancelled answer from one that the server cut short."""
        self._sealed: list[str] = []
        self._open: list[str] = []
        self._listeners: list[Callable[[], None]] = []

    @property
    def text(self) -> str:
        """All that was said so far."""
        return "".join(self._sealed) + "".join(self._open)

    @property
    def num_deltas(self) -> int:
        """Deltas in the log, the open one included. Final once `end` is set."""
        return len(self._sealed) + bool(self._open)

    def append(self, text: str) -> None:
        """Add text. The empty text is no event and changes nothing."""
        if self.end is not None:
            raise StreamError(f"stream {self.request_id}: got text after its end {self.end.reason}")
        if text:
            self._open.append(text)

    def finish(self, end: FinishedEvent) -> None:
        """Set the one end."""
        if self.end is not None:
            raise StreamError(
                f"stream {self.request_id}: got the end {end.reason} after the end {self.end.reason}"
            )
        self.end = end

    def take(self, index: int) -> str | FinishedEvent | None:
        """Event number `index`: a delta, the end, or None if it has not happened yet.

        Taking a delta seals it.
        """
        if index < len(self._sealed):
            return self._sealed[index]
        if index == len(self._sealed) and self._open:
            self._sealed.append("".join(self._open))
            self._open.clear()
            return self._sealed[index]
        if index > self.num_deltas:
            raise StreamError(
                f"stream {self.request_id}: event {index} was asked for, but the log has {self.num_deltas}"
            )
        return self.end

    def listen(self, wake: Callable[[], None]) -> None:
        """Have `wake` called at every `notify`, and at once: something may be there already. It must be
        cheap and must not raise."""
        self._listeners.append(wake)
        wake()

    def unlisten(self, wake: Callable[[], None]) -> None:
        self._listeners.remove(wake)

    def notify(self) -> None:
        """Wake the readers: there is news."""
        for wake in self._listeners:
            wake()


async def read(stream: Stream, idle: float | None = None) -> AsyncGenerator[str | FinishedEvent | None, None]:
    """All events of a stream from the first to its end, as they come. None stands for `idle` seconds
    without news."""
    news = asyncio.Event()
    stream.listen(news.set)
    try:
        index = 0
        while True:
            news.clear()
            event = stream.take(index)
            if event is None:
                try:
                    async with asyncio.timeout(idle):
                        await news.wait()
                except TimeoutError:
                    yield None
                continue
            yield event
            if isinstance(event, FinishedEvent):
                return
            index += 1
    finally:
        stream.unlisten(news.set)


async def ended(stream: Stream) -> FinishedEvent:
    """The end of a stream, once it is there."""
    news = asyncio.Event()
    stream.listen(news.set)
    try:
        while stream.end is None:
            news.clear()
            await news.wait()
        return stream.end
    finally:
        stream.unlisten(news.set)
