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
import sys
from array import array
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from engine.request import ChosenLogprob, FinishedEvent, TokenLogprob

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
        self._sealed = _Sealed()
        self._open_text: list[str] = []
        self._open_logprobs: list[ChosenLogprob] = []
        self._listeners: list[Callable[[], None]] = []
        self._end_listeners: list[Callable[[], None]] = []

    @property
    def text(self) -> str:
        """All that was said so far."""
        return self._sealed.text + "".join(self._open_text)

    @property
    def logprobs(self) -> list[ChosenLogprob]:
        """Of all tokens so far."""
        return [*self._sealed.logprobs, *self._open_logprobs]

    @property
    def num_deltas(self) -> int:
        """Deltas in the log, the open one included. Final once `end` is set."""
        return len(self._sealed) + self._is_open

    @property
    def num_sealed(self) -> int:
        """Deltas that some reader may have taken."""
        return len(self._sealed)

    @property
    def size(self) -> int:
        """Bytes that the log takes once it is compact."""
        return self._sealed.size

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
            return self._seal()
        if index > self.num_deltas:
            raise StreamError(
                f"stream {self.request_id}: event {index} was asked for, but the log has {self.num_deltas}"
            )
        return self.end

    def compact(self) -> None:
        """Keep the ended log in little more memory than its text takes. Nothing changes for readers."""
        if self.end is None:
            raise StreamError(f"stream {self.request_id}: was to be made compact before its end")
        if self._is_open:
            self._seal()
        self._sealed.join()

    def _seal(self) -> Delta:
        delta = Delta("".join(self._open_text), tuple(self._open_logprobs))
        self._sealed.append(delta)
        self._open_text.clear()
        self._open_logprobs.clear()
        return delta

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


class _Sealed:
    """Deltas that change no more, as a sequence of their texts and numbers. An object for each token's log
    probabilities would take ten times the memory."""

    def __init__(self) -> None:
        self._texts: list[str] | str = []
        """One by one, or joined."""
        self._ends = array("I")
        """Delta -> where its text ends in all of the text."""
        self._logprobs: _Logprobs | None = None
        """None where there are none."""

    @property
    def text(self) -> str:
        return self._texts if isinstance(self._texts, str) else "".join(self._texts)

    @property
    def logprobs(self) -> Iterator[ChosenLogprob]:
        if self._logprobs is not None:
            for index in range(len(self)):
                yield from self._logprobs[index]

    @property
    def size(self) -> int:
        logprobs = 0 if self._logprobs is None else self._logprobs.size
        return sys.getsizeof(self.text) + sys.getsizeof(self._ends) + logprobs

    def __len__(self) -> int:
        return len(self._ends)

    def __getitem__(self, index: int) -> Delta:
        if isinstance(self._texts, str):
            text = self._texts[self._ends[index - 1] if index else 0 : self._ends[index]]
        else:
            text = self._texts[index]
        return Delta(text, () if self._logprobs is None else self._logprobs[index])

    def append(self, delta: Delta) -> None:
        if isinstance(self._texts, str):
            raise StreamError("a log grew after it had been made compact")
        if delta.logprobs and self._logprobs is None:
            self._logprobs = _Logprobs(deltas_before=len(self))
        if self._logprobs is not None:
            self._logprobs.append(delta.logprobs)
        self._texts.append(delta.text)
        self._ends.append(len(delta.text) + (self._ends[-1] if self._ends else 0))

    def join(self) -> None:
        self._texts = self.text


class _Logprobs:
    """Those of several deltas, as numbers: of each token its own first, then those of the likeliest."""

    def __init__(self, deltas_before: int) -> None:
        self._ids = array("I")
        self._values = array("d")
        self._token_ends = array("I")
        """Token -> where its numbers end."""
        self._delta_ends = array("I", [0] * deltas_before)
        """Delta -> where its tokens end."""

    @property
    def size(self) -> int:
        return sum(map(sys.getsizeof, (self._ids, self._values, self._token_ends, self._delta_ends)))

    def append(self, logprobs: Sequence[ChosenLogprob]) -> None:
        for chosen, top in logprobs:
            for token_id, value in (chosen, *top):
                self._ids.append(token_id)
                self._values.append(value)
            self._token_ends.append(len(self._ids))
        self._delta_ends.append(len(self._token_ends))

    def __getitem__(self, delta: int) -> tuple[ChosenLogprob, ...]:
        first = self._delta_ends[delta - 1] if delta else 0
        return tuple(self._token(token) for token in range(first, self._delta_ends[delta]))

    def _token(self, token: int) -> ChosenLogprob:
        start = self._token_ends[token - 1] if token else 0
        end = self._token_ends[token]
        chosen, *top = map(TokenLogprob, self._ids[start:end], self._values[start:end])
        return ChosenLogprob(chosen, tuple(top))


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
    with news_of(log.streams) as signal:
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
    with news_of(streams) as news:
        while waiting:
            news.clear()
            ended = [stream.end for stream in waiting if stream.end]
            waiting = [stream for stream in waiting if not stream.end]
            for end in ended:
                yield end
            if not ended:
                await news.wait()


@contextmanager
def news_of(streams: Sequence[Stream]) -> Iterator[asyncio.Event]:
    """An event that is set whenever one of the streams has news, and at first."""
    news = asyncio.Event()
    for stream in streams:
        stream.listen(news.set)
    try:
        yield news
    finally:
        for stream in streams:
            stream.unlisten(news.set)
