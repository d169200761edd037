"""A stream: what one choice of an answer has said so far, in order, for any number of readers at their own
speed; and an answer, the streams of all choices of one request.

Knows: the log of one choice (deltas, then exactly one end) and who wants to hear of news. Does not know: the
engine's thread, wire formats, sockets.

The log only grows. A reader is a number, the index of the next event it wants, never a queue: a slow
reader costs nobody anything. The last delta stays open, and what is new is added to it, until some reader
takes it or it has MAX_DELTA_LOGPROBS; then it is sealed and what is next opens a new one. So a lone reader
that falls behind gets fewer and bigger deltas, while the numbers stay gapless and the same for all readers.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from engine.request import ChosenLogprob, FinishedEvent

MAX_DELTA_LOGPROBS = 256
"""A delta with log probabilities of so many tokens takes no more. Each is up to 21 tokens with their bytes,
and whoever writes them out should not do it for a whole answer at a time."""


class StreamError(RuntimeError):
    """An illegal step in a stream's life: something after its end, or an index it never promised."""


class Delta(NamedTuple):
    """What a choice said next. At least one of the two is not empty."""

    text: str
    logprobs: tuple[ChosenLogprob, ...] = ()
    """If they were asked for: of the tokens that begin in this text or, if it is the last delta, that add
    nothing to it."""


class Stream:
    """One choice of an answer.

    Invariants: events `0 .. num_deltas - 1` are deltas and never change once taken; the event after them, if
    any, is the end; their texts joined are the whole text, and so with their log probabilities.
    """

    def __init__(self, request_id: str, choice: int = 0) -> None:
        self.request_id = request_id
        self.choice = choice
        self.end: FinishedEvent | None = None
        self._sealed: list[Delta] = []
        self._open_text: list[str] = []
        self._open_logprobs: list[ChosenLogprob] = []
        self._listeners: list[Callable[[], None]] = []

    @property
    def text(self) -> str:
        """All that was said so far."""
        return "".join(delta.text for delta in self._sealed) + "".join(self._open_text)

    @property
    def logprobs(self) -> list[ChosenLogprob]:
        """Of all tokens so far."""
        return [each for delta in self._sealed for each in delta.logprobs] + self._open_logprobs

    @property
    def num_deltas(self) -> int:
        """Deltas in the log, the open one included. Final once `end` is set."""
        return len(self._sealed) + self._is_open

    @property
    def _is_open(self) -> bool:
        return bool(self._open_text or self._open_logprobs)

    def append(self, text: str, logprobs: Sequence[ChosenLogprob] = ()) -> None:
        """Add text and the log probabilities of its tokens. Nothing of either is no event and changes
        nothing."""
        if self.end is not None:
            raise StreamError(f"stream {self.request_id}: got text after its end {self.end.reason}")
        if len(self._open_logprobs) >= MAX_DELTA_LOGPROBS:
            self._seal()
        if text:
            self._open_text.append(text)
        self._open_logprobs.extend(logprobs)

    def finish(self, end: FinishedEvent) -> None:
        """Set the one end."""
        if self.end is not None:
            raise StreamError(
                f"stream {self.request_id}: got the end {end.reason} after the end {self.end.reason}"
            )
        self.end = end

    def take(self, index: int) -> Delta | FinishedEvent | None:
        """Event number `index`: a delta, the end, or None if it has not happened yet.

        Taking a delta seals it.
        """
        if index < len(self._sealed):
            return self._sealed[index]
        if index == len(self._sealed) and self._is_open:
            self._seal()
            return self._sealed[index]
        if index > self.num_deltas:
            raise StreamError(
                f"stream {self.request_id}: event {index} was asked for, but the log has {self.num_deltas}"
            )
        return self.end

    def _seal(self) -> None:
        self._sealed.append(Delta("".join(self._open_text), tuple(self._open_logprobs)))
        self._open_text.clear()
        self._open_logprobs.clear()

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


class Answer:
    """What one request gets: a stream for each of its `n` choices. They begin together, and a cancel ends
    all that have not ended.

    Args:
        request_id: the engine's name of the request; the ids on the wire are made from it.
        arrival: `time.monotonic()` seconds when the client's request was read.
        created: Unix seconds, for the wire.
    """

    def __init__(self, request_id: str, arrival: float, created: int, n: int = 1) -> None:
        self.request_id = request_id
        self.arrival = arrival
        self.created = created
        self.streams = tuple(Stream(request_id, choice) for choice in range(n))
        self.cancelled = False
        """The client asked for the end. It tells a cancelled answer from one that the server cut short."""

    @property
    def has_ended(self) -> bool:
        return all(stream.end for stream in self.streams)

    @property
    def ends(self) -> list[FinishedEvent]:
        """Of the choices that have ended, in their order."""
        return [stream.end for stream in self.streams if stream.end]


News = list[tuple[int, Delta | FinishedEvent]]
"""(index of a stream, its next event), at most one of each stream."""


async def read(streams: Sequence[Stream], idle: float | None = None) -> AsyncGenerator[News, None]:
    """All events of some streams, each from the first to its end, as they come. No news stands for `idle`
    seconds without any."""
    next_events = dict.fromkeys(range(len(streams)), 0)
    with _news_of(streams) as signal:
        while next_events:
            signal.clear()
            news: News = []
            for index, number in list(next_events.items()):
                event = streams[index].take(number)
                if event is None:
                    continue
                news.append((index, event))
                next_events[index] += 1
                if isinstance(event, FinishedEvent):
                    del next_events[index]
            if news:
                yield news
                continue
            try:
                async with asyncio.timeout(idle):
                    await signal.wait()
            except TimeoutError:
                yield []


async def ends(streams: Sequence[Stream]) -> AsyncGenerator[FinishedEvent, None]:
    """The ends of some streams, as they come."""
    waiting = list(streams)
    with _news_of(streams) as news:
        while waiting:
            news.clear()
            ended = [stream.end for stream in waiting if stream.end]
            waiting = [stream for stream in waiting if not stream.end]
            for end in ended:
                yield end
            if not ended:
                await news.wait()


@contextmanager
def _news_of(streams: Sequence[Stream]) -> Iterator[asyncio.Event]:
    """Set whenever one of the streams has news."""
    news = asyncio.Event()
    for stream in streams:
        stream.listen(news.set)
    try:
        yield news
    finally:
        for stream in streams:
            stream.unlisten(news.set)
