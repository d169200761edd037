"""Clients whose connection breaks, and what a socket that takes a response up must tell them."""

from __future__ import annotations

import socket as sockets
import struct
from typing import Any

from tests.app.harness import RunningServer, Socket, eventually, text_of

TERMINAL = ("response.completed", "response.incomplete", "response.failed")

Events = list[dict[str, Any]]


def reset(socket: Socket) -> None:
    """The connection is gone without a word, and what is on its way is lost."""
    transport = socket.connection.transport
    raw = transport.get_extra_info("socket")
    raw.setsockopt(sockets.SOL_SOCKET, sockets.SO_LINGER, struct.pack("ii", 1, 0))
    transport.abort()


async def without_readers(server: RunningServer, response_id: str) -> None:
    """Waits until the server knows that nobody reads a response."""
    kept = server.app.state.responses.shelf._by_id[response_id]
    await eventually(lambda: not kept.num_readers)


async def read_to(socket: Socket, number: int) -> Events:
    """All events up to the one of this number."""
    events = [await socket.event()]
    while events[-1]["sequence_number"] < number:
        events.append(await socket.event())
    return events


async def taken_up(socket: Socket, response_id: str, **fields: Any) -> Events:
    """The events that follow `response.resumed`, to the last, or the error alone."""
    await socket.send(type="response.resume", response_id=response_id, **fields)
    first = await socket.event()
    if first["type"] == "error":
        return [first]
    assert first == {
        "type": "response.resumed",
        "response_id": response_id,
        "starting_after": fields.get("starting_after", -1),
        "status": first["status"],
    } | ({"stream_id": fields["stream_id"]} if "stream_id" in fields else {})
    return await socket.until(*TERMINAL)


def check_whole(events: Events, text: str) -> None:
    """One response, from its first event to its last, whatever connections it was read on."""
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert [event["type"] in TERMINAL for event in events] == [False] * (len(events) - 1) + [True]
    assert text_of(events) == text
    ids = {event["response"]["id"] for event in events if "response" in event}
    assert len(ids) == 1
    (item,) = events[-1]["response"]["output"]
    assert item["content"][0]["text"] == text
