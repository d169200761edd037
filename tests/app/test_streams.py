"""A stream's log: order, merging, any number of readers."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from app.streams import Stream, StreamError, ended, read
from engine.request import FinishedEvent, FinishReason, Timings


def make_stream() -> Stream:
    return Stream("abc", arrival=0.0, created=1)


def make_end(reason: FinishReason = FinishReason.STOP) -> FinishedEvent:
    return FinishedEvent("abc", 0, reason, None, None, 3, 0, 2, 0, Timings(0.0, 0.1, 0.2, 0.3))


def test_text_that_nobody_took_yet_is_one_delta() -> None:
    stream = make_stream()
    for text in "abc":
        stream.append(text)
    assert stream.take(0) == "abc"
    stream.append("d")
    stream.append("e")
    assert stream.take(0) == "abc"
    assert stream.take(1) == "de"
    assert stream.take(2) is None


def test_a_late_reader_gets_what_the_first_one_got() -> None:
    stream = make_stream()
    first = []
    for index, text in enumerate(("ab", "c", "def")):
        stream.append(text)
        first.append(stream.take(index))
    stream.finish(make_end())
    assert [stream.take(index) for index in range(3)] == first == ["ab", "c", "def"]
    assert stream.take(3) == make_end()


def test_empty_text_is_no_event() -> None:
    stream = make_stream()
    stream.append("")
    assert stream.num_deltas == 0
    assert stream.take(0) is None


def test_nothing_comes_after_the_end() -> None:
    stream = make_stream()
    stream.finish(make_end())
    with pytest.raises(StreamError, match="after its end"):
        stream.append("x")
    with pytest.raises(StreamError, match="after the end"):
        stream.finish(make_end())


def test_an_event_that_skips_others_is_refused() -> None:
    stream = make_stream()
    stream.append("a")
    with pytest.raises(StreamError, match="event 2"):
        stream.take(2)


async def test_reading_follows_the_stream_to_its_end() -> None:
    stream = make_stream()
    got: list[Any] = []

    async def follow() -> None:
        got.extend([event async for event in read(stream)])

    reader = asyncio.create_task(follow())
    waiter = asyncio.create_task(ended(stream))
    for text in ("a", "b"):
        stream.append(text)
        stream.notify()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    stream.append("c")
    stream.finish(make_end())
    stream.notify()
    await reader
    assert got == ["a", "b", "c", make_end()]
    assert await waiter == make_end()


async def test_a_reader_that_leaves_is_not_woken_any_more() -> None:
    stream = make_stream()
    woken = 0

    def wake() -> None:
        nonlocal woken
        woken += 1

    stream.listen(wake)
    stream.unlisten(wake)
    stream.notify()
    assert woken == 1  # at once when it began to listen


async def test_silence_is_told_to_a_reader_that_asks_for_it() -> None:
    stream = make_stream()
    events = read(stream, idle=0)
    assert await anext(events) is None
    stream.append("a")
    assert await anext(events) == "a"
    await events.aclose()


class StreamMachine(RuleBasedStateMachine):
    """Any interleaving of writing and reading: every reader sees the same gapless events, whose joined
    text is the text written."""

    def __init__(self) -> None:
        super().__init__()
        self.stream = make_stream()
        self.written = ""
        self.readers: list[list[str | FinishedEvent]] = [[], [], []]

    @rule(text=st.text(max_size=3))
    @precondition(lambda self: self.stream.end is None)
    def write(self, text: str) -> None:
        self.stream.append(text)
        self.written += text

    @rule(reason=st.sampled_from(FinishReason))
    @precondition(lambda self: self.stream.end is None)
    def finish(self, reason: FinishReason) -> None:
        self.stream.finish(make_end(reason))

    @rule(reader=st.integers(0, 2))
    def take(self, reader: int) -> None:
        got = self.readers[reader]
        if got and isinstance(got[-1], FinishedEvent):
            return
        event = self.stream.take(len(got))
        if event is not None:
            got.append(event)

    @invariant()
    def readers_agree(self) -> None:
        longest = max(self.readers, key=len)
        for got in self.readers:
            assert got == longest[: len(got)]
        assert "" not in longest

    @invariant()
    def nothing_is_lost(self) -> None:
        assert self.stream.text == self.written
        for got in self.readers:
            text = "".join(event for event in got if isinstance(event, str))
            assert self.written.startswith(text)
            if got and isinstance(got[-1], FinishedEvent):
                assert text == self.written


StreamMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestStreamMachine = StreamMachine.TestCase
