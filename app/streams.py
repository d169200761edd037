"""A stream: what one choice of an answer has said so far, in order, for any number of readers at their own
speed; an answer, the streams of all choices of one request; and a log, several streams in one numbered order.

Knows: the log of one choice (deltas, then exactly one end) and who wants to hear of news. Does not know: the
engine's thread, wire formats, sockets, how long a log is kept.

The log only grows. A reader is a number, the index of the next event it wants, never a queue: a slow
reader costs nobody anything. The last delta stays open, and what is new is added to it, until some reader
takes it or it has MAX_DELTA_LOGPROBS; then it is sealed and what is next opens a new one. So a lone reader
that falls behind gets fewer and bigger deltas, while the numbers stay gapless and the same for all readers.
"""

from __future__ import annotations

import asyncio
import enum
from array import array
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple, overload

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
        self._sealed: list[Delta] | _Compact = []
        self._open_text: list[str] = []
        self._open_logprobs: list[ChosenLogprob] = []
        self._listeners: list[Callable[[], None]] = []
        self._end_listeners: list[Callable[[], None]] = []

    @property
    def text(self) -> str:
        """All that was said so far."""
        if isinstance(self._sealed, _Compact):
            return self._sealed.text
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
        for tell in self._end_listeners:
            tell()
        self._end_listeners.clear()

    def on_end(self, tell: Callable[[], None]) -> None:
        """Have `tell` called once, as soon as the end is set. It must not raise."""
        if self.end is not None:
            tell()
        else:
            self._end_listeners.append(tell)

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

    def compact(self) -> None:
        """Keep the ended log in little more memory than its text takes. Nothing changes for readers. A log
        with log probabilities stays as it is."""
        if self.end is None:
            raise StreamError(f"stream {self.request_id}: was to be made compact before its end")
        if self._is_open:
            self._seal()
        if isinstance(self._sealed, list) and not any(delta.logprobs for delta in self._sealed):
            self._sealed = _Compact([delta.text for delta in self._sealed])

    def _seal(self) -> None:
        if isinstance(self._sealed, _Compact):
            raise StreamError(f"stream {self.request_id}: grew after its end")
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


class _Compact(Sequence[Delta]):
    """Texts of deltas as one text and the places between them."""

    def __init__(self, texts: Sequence[str]) -> None:
        self.text = "".join(texts)
        self._ends = array("I")
        end = 0
        for text in texts:
            end += len(text)
            self._ends.append(end)

    def __len__(self) -> int:
        return len(self._ends)

    @overload
    def __getitem__(self, index: int) -> Delta: ...
    @overload
    def __getitem__(self, index: slice) -> list[Delta]: ...
    def __getitem__(self, index: int | slice) -> Delta | list[Delta]:
        if isinstance(index, slice):
            return [self[each] for each in range(*index.indices(len(self)))]
        return Delta(self.text[self._ends[index - 1] if index else 0 : self._ends[index]])


class Step(NamedTuple):
    """One event of a log."""

    choice: int
    """Index of the stream among the log's."""
    event: Delta | FinishedEvent


class Log:
    """The events of several streams in one order, numbered from 0: each stream's in its own order, the
    streams mixed as they come. Which event has which number is settled when the first reader takes it, so
    any reader may ask for any number, at any time, and gets what every other reader got.
    """

    def __init__(self, streams: Sequence[Stream]) -> None:
        self.streams = tuple(streams)
        self._choices = array("H")
        self._numbers = array("I")
        """Event -> its stream, and its number there."""
        self._next_events = [0] * len(self.streams)
        self._open = list(range(len(self.streams)))
        """Streams whose end was not taken yet, whose turn it is first."""

    @property
    def num_taken(self) -> int:
        return len(self._choices)

    @property
    def is_complete(self) -> bool:
        """All events have been taken, by whomever; `num_taken` is final."""
        return not self._open

    def take(self, number: int) -> Step | None:
        """Event `number`, or None if it has not happened yet.

        Raises:
            StreamError: there is, or will be, no such event, or one before it was not taken yet.
        """
        if number < self.num_taken:
            choice = self._choices[number]
            event = self.streams[choice].take(self._numbers[number])
            assert event is not None, "it was taken before"
            return Step(choice, event)
        if number > self.num_taken or not self._open:
            raise StreamError(f"event {number} was asked for, but {self.num_taken} were taken")
        for choice in self._open:  # the loop is left as soon as it changes
            event = self.streams[choice].take(self._next_events[choice])
            if event is not None:
                self._settle(choice, is_end=isinstance(event, FinishedEvent))
                return Step(choice, event)
        return None

    def _settle(self, choice: int, is_end: bool) -> None:
        self._choices.append(choice)
        self._numbers.append(self._next_events[choice])
        self._next_events[choice] += 1
        self._open.remove(choice)
        if not is_end:
            self._open.append(choice)


class Cut(enum.Enum):
    """Why an answer was ended early, where that is its client's doing."""

    CANCELLED = "cancelled"
    STEERED = "steered"
    """Its client has more to say, and another answer goes on from here."""
    ABANDONED = "abandoned"
    """It went on without a reader, and none came back in time."""


class Answer:
    """What one request gets: a stream for each of its `n` choices. They begin together, and a cut ends
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
        self.log = Log(self.streams)
        self.cut: Cut | None = None
        """What tells an answer that its client has ended from one that the server cut short."""

    @property
    def has_ended(self) -> bool:
        return all(stream.end for stream in self.streams)

    @property
    def ends(self) -> list[FinishedEvent]:
        """Of the choices that have ended, in their order."""
        return [stream.end for stream in self.streams if stream.end]


MAX_NEWS = 64
"""Events that a reader is given at once. Whoever writes them out should not hold up the loop for long."""

News = list[tuple[int, Step]]
"""Events with their numbers, gapless."""


async def read(log: Log, start: int = 0, idle: float | None = None) -> AsyncGenerator[News, None]:
    """All events of a log from number `start` to the last, as they come. No news stands for `idle` seconds
    without any.

    Raises:
        StreamError: `start` is a number that nobody was ever given.
    """
    number = start
    with _news_of(log.streams) as signal:
        while not (log.is_complete and number == log.num_taken):
            signal.clear()
            news: News = []
            while len(news) < MAX_NEWS and not (log.is_complete and number == log.num_taken):
                step = log.take(number)
                if step is None:
                    break
                news.append((number, step))
                number += 1
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
