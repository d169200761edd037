"""A stream's log: order, merging, any number of readers."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from app.streams import MAX_DELTA_LOGPROBS, Answer, Delta, Log, Step, Stream, StreamError, ends, read
from engine.request import ChosenLogprob, FinishedEvent, FinishReason, Timings, TokenLogprob


def make_stream(choice: int = 0) -> Stream:
    return Stream("abc", choice)


def make_end(reason: FinishReason = FinishReason.STOP, choice: int = 0) -> FinishedEvent:
    return FinishedEvent("abc", choice, reason, None, None, 3, 0, 2, 0, Timings(0.0, 0.1, 0.2, 0.3))


def chosen(token_id: int) -> ChosenLogprob:
    """Each id with as many alternatives, and other numbers, as its last digit says."""
    top = tuple(TokenLogprob(token_id + i, -0.1 * i) for i in range(token_id % 10))
    return ChosenLogprob(TokenLogprob(token_id, -1 / (token_id + 1)), top)


def test_text_that_nobody_took_yet_is_one_delta() -> None:
    stream = make_stream()
    for text in "abc":
        stream.append(text)
    assert stream.take(0) == Delta("abc")
    stream.append("d")
    stream.append("e")
    assert stream.take(0) == Delta("abc")
    assert stream.take(1) == Delta("de")
    assert stream.take(2) is None


def test_log_probabilities_stay_with_their_text_when_deltas_merge() -> None:
    stream = make_stream()
    stream.append("a", (chosen(1),))
    stream.append("", (chosen(2),))
    stream.append("b")
    assert stream.take(0) == Delta("ab", (chosen(1), chosen(2)))
    stream.append("c", (chosen(3), chosen(4)))
    assert stream.logprobs == [chosen(i) for i in (1, 2, 3, 4)]
    assert stream.take(1) == Delta("c", (chosen(3), chosen(4)))
    assert stream.logprobs == [chosen(i) for i in (1, 2, 3, 4)]


def test_a_delta_has_a_bounded_number_of_log_probabilities() -> None:
    stream = make_stream()
    for token in range(MAX_DELTA_LOGPROBS + 10):
        stream.append("a", (chosen(token),))
    first, second = stream.take(0), stream.take(1)
    assert isinstance(first, Delta)
    assert isinstance(second, Delta)
    assert (len(first.logprobs), len(first.text)) == (MAX_DELTA_LOGPROBS, MAX_DELTA_LOGPROBS)
    assert second == Delta("a" * 10, tuple(chosen(MAX_DELTA_LOGPROBS + n) for n in range(10)))


def test_log_probabilities_without_text_are_told_too() -> None:
    stream = make_stream()
    stream.append("", (chosen(1),))
    stream.finish(make_end())
    assert stream.num_deltas == 1
    assert [stream.take(0), stream.take(1)] == [Delta("", (chosen(1),)), make_end()]


def test_a_late_reader_gets_what_the_first_one_got() -> None:
    stream = make_stream()
    first = []
    for index, text in enumerate(("ab", "c", "def")):
        stream.append(text)
        first.append(stream.take(index))
    stream.finish(make_end())
    assert [stream.take(index) for index in range(3)] == first == [Delta("ab"), Delta("c"), Delta("def")]
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


def test_an_ended_log_takes_little_more_than_its_text() -> None:
    stream = make_stream()
    for index in range(10_000):
        stream.append("word "[index % 5])
        stream.take(index)
    stream.finish(make_end())
    stream.compact()
    assert stream.size < 10_000 * (1 + 5)
    assert stream.take(7) == Delta("r")


def test_log_probabilities_are_kept_as_numbers() -> None:
    stream = make_stream()
    for index in range(1000):
        stream.append("a", (chosen(19),))  # nine alternatives
        stream.take(index)
    stream.finish(make_end())
    stream.compact()
    assert 1000 * 10 * 12 < stream.size < 1000 * 10 * 15
    assert stream.logprobs == [chosen(19)] * 1000


def test_a_log_that_runs_is_not_made_compact() -> None:
    with pytest.raises(StreamError, match="before its end"):
        make_stream().compact()


def test_an_event_that_skips_others_is_refused() -> None:
    stream = make_stream()
    stream.append("a")
    with pytest.raises(StreamError, match="event 2"):
        stream.take(2)


async def test_reading_follows_the_stream_to_its_end() -> None:
    stream = make_stream()
    got: list[Any] = []

    async def follow() -> None:
        got.extend([event async for news in read(Log([stream])) for _, (_, event) in news])

    async def wait() -> list[FinishedEvent]:
        return [end async for end in ends([stream])]

    reader, waiter = asyncio.create_task(follow()), asyncio.create_task(wait())
    for text in ("a", "b"):
        stream.append(text)
        stream.notify()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    stream.append("c")
    stream.finish(make_end())
    stream.notify()
    await reader
    assert got == [Delta("a"), Delta("b"), Delta("c"), make_end()]
    assert await waiter == [make_end()]


async def test_several_streams_are_read_together_each_to_its_end() -> None:
    answer = Answer("abc", 0.0, 1, n=3)
    streams = answer.streams
    assert [stream.choice for stream in streams] == [0, 1, 2]
    for stream in streams[:2]:
        stream.append("a")
    streams[0].finish(make_end(choice=0))
    streams[2].finish(make_end(choice=2))
    first = [(0, Delta("a")), (1, Delta("a")), (2, make_end(choice=2)), (0, make_end(choice=0))]
    news = read(answer.log)
    assert await anext(news) == list(enumerate(first))
    streams[1].append("b")
    streams[1].finish(make_end(choice=1))
    rest = [(1, Delta("b")), (1, make_end(choice=1))]
    assert [each async for each in news] == [list(enumerate(rest, 4))]
    # Whoever comes later, and wherever he begins, gets the same.
    assert [each async for each in read(answer.log, 2)] == [list(enumerate(first + rest))[2:]]
    assert [end.choice async for end in ends(streams)] == [0, 1, 2]


def test_an_answer_has_ended_when_all_its_choices_have() -> None:
    answer = Answer("abc", 0.0, 1, n=2)
    answer.streams[1].finish(make_end(choice=1))
    assert (answer.has_ended, answer.ends) == (False, [make_end(choice=1)])
    answer.streams[0].finish(make_end(choice=0))
    assert (answer.has_ended, answer.ends) == (True, [make_end(choice=0), make_end(choice=1)])


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
    events = read(Log([stream]), idle=0)
    assert await anext(events) == []
    stream.append("a")
    assert await anext(events) == [(0, (0, Delta("a")))]
    await events.aclose()


class StreamMachine(RuleBasedStateMachine):
    """Any interleaving of writing and reading: every reader sees the same gapless events, whose joined
    text is the text written, and so with the log probabilities."""

    def __init__(self) -> None:
        super().__init__()
        self.stream = make_stream()
        self.written = Delta("")
        self.readers: list[list[Delta | FinishedEvent]] = [[], [], []]

    @rule(text=st.text(max_size=3), tokens=st.lists(st.integers(0, 99), max_size=2))
    @precondition(lambda self: self.stream.end is None)
    def write(self, text: str, tokens: list[int]) -> None:
        logprobs = tuple(map(chosen, tokens))
        self.stream.append(text, logprobs)
        self.written = joined([self.written, Delta(text, logprobs)])

    @rule(reason=st.sampled_from(FinishReason))
    @precondition(lambda self: self.stream.end is None)
    def finish(self, reason: FinishReason) -> None:
        self.stream.finish(make_end(reason))

    @rule()
    @precondition(lambda self: self.stream.end is not None)
    def compact(self) -> None:
        self.stream.compact()

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
        assert Delta("") not in longest

    @invariant()
    def nothing_is_lost(self) -> None:
        assert Delta(self.stream.text, tuple(self.stream.logprobs)) == self.written
        for got in self.readers:
            read = joined([event for event in got if isinstance(event, Delta)])
            assert self.written.text.startswith(read.text)
            assert self.written.logprobs[: len(read.logprobs)] == read.logprobs
            if got and isinstance(got[-1], FinishedEvent):
                assert read == self.written


def joined(deltas: list[Delta]) -> Delta:
    return Delta("".join(d.text for d in deltas), tuple(each for d in deltas for each in d.logprobs))


StreamMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40)
TestStreamMachine = StreamMachine.TestCase


class LogMachine(RuleBasedStateMachine):
    """Three streams in one order: it is the same for every reader, whoever asks first, and each stream's own
    order is kept in it."""

    def __init__(self) -> None:
        super().__init__()
        self.answer = Answer("abc", 0.0, 1, n=3)
        self.log = self.answer.log
        self.written = ["", "", ""]
        self.readers: list[list[Step]] = [[], [], []]

    @rule(choice=st.integers(0, 2), text=st.text(min_size=1, max_size=3))
    def write(self, choice: int, text: str) -> None:
        if not self.answer.streams[choice].end:
            self.answer.streams[choice].append(text)
            self.written[choice] += text

    @rule(choice=st.integers(0, 2), compact=st.booleans())
    def finish(self, choice: int, compact: bool) -> None:
        stream = self.answer.streams[choice]
        if not stream.end:
            stream.finish(make_end(choice=choice))
        if compact:
            stream.compact()

    @rule(reader=st.integers(0, 2))
    def take(self, reader: int) -> None:
        got = self.readers[reader]
        if self.log.is_complete and len(got) == self.log.num_taken:
            with pytest.raises(StreamError):
                self.log.take(len(got))
            return
        step = self.log.take(len(got))
        if step is not None:
            got.append(step)

    @rule(ahead=st.integers(1, 3))
    def skip(self, ahead: int) -> None:
        with pytest.raises(StreamError):
            self.log.take(self.log.num_taken + ahead)

    @invariant()
    def readers_agree(self) -> None:
        longest = max(self.readers, key=len)
        assert len(longest) == self.log.num_taken
        for got in self.readers:
            assert got == longest[: len(got)]
        for choice in range(3):
            events = [step.event for step in longest if step.choice == choice]
            text = "".join(event.text for event in events if isinstance(event, Delta))
            assert self.written[choice].startswith(text)
            is_over = any(isinstance(event, FinishedEvent) for event in events)
            if is_over:
                assert events[-1] == make_end(choice=choice)
                assert text == self.written[choice]
            assert [isinstance(event, FinishedEvent) for event in events].count(True) == is_over
        assert self.log.is_complete == (
            sum(isinstance(step.event, FinishedEvent) for step in longest) == len(self.readers)
        )


LogMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40)
TestLogMachine = LogMachine.TestCase
