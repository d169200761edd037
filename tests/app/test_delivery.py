"""What a socket is given to write, in which order, and when its client is cut."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

import pytest

from app import delivery
from app.delivery import MAX_MESSAGE_BYTES, MAX_MESSAGES, Delivery
from app.transport import HOOK, MAX_UNSENT
from tests.app.harness import PATIENCE, eventually


class FakeConnection:
    """Takes what it is given until it is full."""

    def __init__(self) -> None:
        self.on_writable: Callable[[], None] | None = None
        self.is_open = True
        self.is_full = False
        self.num_unsent = 0
        self.num_deferred = 0
        self.was_cut = False
        self.writes: list[list[bytes]] = []
        self.full_after: int | None = None
        """Writes."""

    def write(self, messages: Sequence[bytes]) -> None:
        assert self.is_open
        assert not self.is_full
        self.writes.append(list(messages))
        self.is_full = self.full_after is not None and len(self.writes) >= self.full_after

    def count_deferred(self) -> None:
        self.num_deferred += 1

    def cut(self) -> None:
        self.was_cut = True
        self.lose()

    def lose(self) -> None:
        self.is_open = False
        if self.on_writable:
            self.on_writable()

    def take(self) -> None:
        """What was unsent is taken."""
        self.is_full, self.full_after = False, None
        assert self.on_writable
        self.on_writable()

    @property
    def frames(self) -> list[bytes]:
        return [frame for write in self.writes for frame in write]


class Words:
    """A source of some frames; `during` is called in the middle of each."""

    def __init__(self, *frames: bytes, during: Callable[[], None] = lambda: None) -> None:
        self.left = list(frames)
        self.during = during
        self.is_over = False
        self.num_delivered = 0

    def next_frame(self) -> bytes | None:
        self.during()
        frame = self.left.pop(0) if self.left else None
        self.is_over = not self.left
        return frame

    def delivered(self) -> None:
        self.num_delivered += 1


@asynccontextmanager
async def running(
    connection: FakeConnection, send_timeout: float = PATIENCE
) -> AsyncIterator[tuple[Delivery, asyncio.Task[None]]]:
    a_delivery = Delivery({HOOK: connection, "path": "/"}, send_timeout)
    task = asyncio.create_task(a_delivery.run())
    yield a_delivery, task
    task.cancel()
    await asyncio.wait({task})


async def test_sources_take_turns_and_each_round_is_one_write() -> None:
    connection = FakeConnection()
    async with running(connection) as (it, _):
        first, second = Words(b"a1", b"a2", b"a3"), Words(b"b1")
        it.add(first)
        it.add(second)
        await eventually(lambda: first.num_delivered)
    assert connection.writes == [[b"a1", b"b1"], [b"a2"], [b"a3"]]
    assert (first.num_delivered, second.num_delivered) == (1, 1)


async def test_messages_are_written_at_once_and_never_overtake_a_frame_that_was_given_out() -> None:
    connection = FakeConnection()
    async with running(connection) as (it, _):
        it.put(b"at once")
        assert connection.writes == [[b"at once"]]
        source = Words(b"a1", b"a2", during=lambda: it.put(b"meanwhile"))
        it.add(source)
        it.put(b"before")
        await eventually(lambda: source.num_delivered)
    assert connection.frames == [b"at once", b"before", b"a1", b"meanwhile", b"a2", b"meanwhile"]


async def test_nobody_is_asked_for_frames_while_the_connection_is_full() -> None:
    connection = FakeConnection()
    connection.full_after = 1
    async with running(connection) as (it, _):
        source = Words(b"1", b"2", b"3")
        it.add(source)
        await eventually(lambda: connection.writes)
        for _ in range(3):
            it.wake()
            it.put(b"message")
            await asyncio.sleep(0)
        assert (connection.writes, source.left) == ([[b"1"]], [b"2", b"3"])
        assert connection.num_deferred == 3
        connection.take()
        await eventually(lambda: source.num_delivered)
    assert connection.writes[1:] == [[b"message"] * 3 + [b"2"], [b"3"]]


async def test_a_round_stops_when_it_is_large_and_the_next_one_goes_on_from_there() -> None:
    connection = FakeConnection()
    large = b"x" * (MAX_UNSENT + 1)
    async with running(connection) as (it, _):
        sources = [Words(large, b"%d" % each) for each in range(3)]
        for each in sources:
            it.add(each)
        await eventually(lambda: all(each.num_delivered for each in sources))
    assert connection.writes[:3] == [[large], [large], [large]]
    assert connection.frames[3:] == [b"0", b"1", b"2"]


async def test_a_socket_with_much_to_say_lets_others_have_their_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delivery, "FRAMES_AT_ONCE", 2)
    order: list[str] = []
    async with running(FakeConnection()) as (it, _), running(FakeConnection()) as (other, _):
        await asyncio.sleep(0)
        long = Words(*[b"x"] * 5, during=lambda: order.append("long"))
        short = Words(b"x", during=lambda: order.append("short"))
        it.add(long)
        other.add(short)
        await eventually(lambda: long.num_delivered and short.num_delivered)
    assert order == ["long", "long", "short", "long", "long", "long"]


@pytest.mark.parametrize(
    "messages",
    [[b"x"] * (MAX_MESSAGES + 1), [b"x" * (MAX_MESSAGE_BYTES // 2)] * 3],
    ids=["too many", "too large"],
)
async def test_a_client_that_causes_messages_and_reads_none_is_cut(messages: list[bytes]) -> None:
    connection = FakeConnection()
    connection.is_full = True
    async with running(connection) as (it, task):
        await asyncio.sleep(0)
        for message in messages[:-1]:
            it.put(message)
        assert not connection.was_cut
        it.put(messages[-1])
        assert connection.was_cut
        await task


async def test_one_message_may_be_larger_than_all_that_are_kept() -> None:
    connection = FakeConnection()
    connection.is_full = True
    async with running(connection) as (it, _):
        await asyncio.sleep(0)
        it.put(b"x" * 2 * MAX_MESSAGE_BYTES)
        assert not connection.was_cut
        connection.take()
        await eventually(lambda: connection.writes)


async def test_it_ends_with_the_connection_and_keeps_nothing_for_it() -> None:
    connection = FakeConnection()
    async with running(connection) as (it, task):
        await asyncio.sleep(0)
        connection.lose()
        await task
        it.put(b"too late")
        it.add(Words(b"too late"))
        await asyncio.sleep(0)
    assert connection.writes == []
    assert connection.on_writable is None


async def test_nothing_is_written_once_it_was_cancelled() -> None:
    connection = FakeConnection()
    async with running(connection) as (it, task):
        await asyncio.sleep(0)
        source = Words(b"x", b"y")
        it.add(source)
        task.cancel()
        await asyncio.wait({task})
        it.put(b"too late")
        it.wake()
        await asyncio.sleep(0)
    assert (connection.writes, source.left) == ([], [b"x", b"y"])


async def test_a_fault_of_a_source_is_a_fault_of_the_delivery() -> None:
    def fail() -> None:
        raise ZeroDivisionError

    async with running(FakeConnection()) as (it, task):
        it.add(Words(b"x", during=fail))
        with pytest.raises(ZeroDivisionError):
            await task


async def test_a_source_without_frames_is_over_at_once() -> None:
    async with running(FakeConnection()) as (it, _):
        source = Words()
        it.add(source)
        await eventually(lambda: source.num_delivered)


class Draining(FakeConnection):
    """A full connection whose client takes a little, `times` times, and then nothing."""

    def __init__(self, times: int) -> None:
        super().__init__()
        self.is_full = True
        self.levels = list(range(times, 0, -1))

    @property
    def num_unsent(self) -> int:
        return self.levels.pop(0) if self.levels else 0

    @num_unsent.setter
    def num_unsent(self, value: int) -> None: ...


async def test_only_who_takes_nothing_is_cut_and_not_who_takes_little() -> None:
    connection = Draining(times=10)
    async with running(connection, send_timeout=0.001) as (it, task):
        it.add(Words(b"x"))
        async with asyncio.timeout(PATIENCE):
            await task
    assert connection.was_cut
    assert connection.levels == []


async def test_who_takes_something_again_has_all_its_time_from_then_on() -> None:
    connection = FakeConnection()
    connection.is_full = True
    async with running(connection) as (it, _):
        await asyncio.sleep(0)
        first = it._patience
        connection.take()
        assert first
        assert first.cancelled()
        connection.is_full = True
        it.put(b"x")
        assert it._patience
        assert it._patience is not first
