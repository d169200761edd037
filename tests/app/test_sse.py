"""Server-sent events to a client that reads slowly, or not at all."""

from __future__ import annotations

import asyncio

import pytest
from starlette.types import Message

from app import transport
from app.api.http import ClientGone
from app.api.sse import EventStream


class Reader:
    """A connection that is full until its client has read what was written before, so much at a time."""

    def __init__(self, unsent: int, reads: int) -> None:
        self.num_unsent = unsent
        self.reads = reads
        self.got: list[Message] = []
        self.is_cut = False

    async def send(self, message: Message) -> None:
        if self.num_unsent:
            self.num_unsent -= self.reads
            await asyncio.Event().wait()
        self.got.append(message)

    def cut(self) -> None:
        self.is_cut = True


def stream_to(reader: Reader) -> EventStream:
    return EventStream({"path": "/", transport.HOOK: reader}, reader.send, send_timeout=0.001)


async def test_a_client_that_reads_slowly_is_waited_for_and_gets_each_event_once() -> None:
    reader = Reader(unsent=300, reads=100)
    await stream_to(reader).write(b"data: 1\n\n")
    assert [each["body"] for each in reader.got] == [b"data: 1\n\n"]
    assert not reader.is_cut


async def test_a_client_that_takes_nothing_is_cut() -> None:
    reader = Reader(unsent=300, reads=0)
    with pytest.raises(ClientGone):
        await stream_to(reader).write(b"data: 1\n\n")
    assert (reader.is_cut, reader.got) == (True, [])
