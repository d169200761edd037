"""A client of server-sent events on a bare connection, which can be cut wherever a test likes."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from types import MappingProxyType
from typing import Any

import orjson

from tests.app.harness import PATIENCE, RunningServer


class EventStream:
    """One request and what comes back."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._text = b""
        self.status = 0
        self.headers: dict[str, str] = {}
        self.comments: list[bytes] = []

    async def read_head(self) -> None:
        async with asyncio.timeout(PATIENCE):
            first, *lines = (await self._reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        self.status = int(first.split()[1])
        self.headers = {name.lower(): value for name, _, value in (each.partition(": ") for each in lines)}

    async def event(self) -> dict[str, Any] | None:
        """The next one; None: the body has come to its proper end."""
        while True:
            block, found, rest = self._text.partition(b"\n\n")
            if found:
                self._text = rest
                if block.startswith(b":"):
                    self.comments.append(block)
                    continue
                return _parsed(block)
            chunk = await self._chunk()
            if not chunk:
                assert not self._text, f"the body ended in the middle of an event: {self._text!r}"
                return None
            self._text += chunk

    async def until(self, kind: str) -> list[dict[str, Any]]:
        events = []
        while (event := await self.event()) is not None:
            events.append(event)
            if event["type"] == kind:
                return events
        raise AssertionError(f"expected {kind}, got the end after {events}")

    async def rest(self) -> list[dict[str, Any]]:
        events = []
        while (event := await self.event()) is not None:
            events.append(event)
        return events

    async def body(self) -> Any:
        """Of an answer that is JSON."""
        async with asyncio.timeout(PATIENCE):
            return orjson.loads(await self._reader.readexactly(int(self.headers["content-length"])))

    async def _chunk(self) -> bytes:
        async with asyncio.timeout(PATIENCE):
            size = int(await self._reader.readuntil(b"\r\n"), 16)
            return (await self._reader.readexactly(size + 2))[:-2]

    async def until_it_breaks(self) -> list[dict[str, Any]]:
        """The whole events that came before the connection was cut."""
        events = []
        try:
            while (event := await self.event()) is not None:
                events.append(event)
        except (ConnectionError, asyncio.IncompleteReadError):
            return events
        raise AssertionError("the body has come to its proper end")

    def pause(self) -> None:
        """Take nothing more from the connection."""
        self._writer.transport.pause_reading()  # type: ignore[attr-defined]

    def go_on(self) -> None:
        self._writer.transport.resume_reading()  # type: ignore[attr-defined]

    def cut(self) -> None:
        """Reset the connection, as a network that breaks does."""
        connection: socket.socket = self._writer.get_extra_info("socket")
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._writer.transport.abort()


def _parsed(block: bytes) -> dict[str, Any]:
    """Each event is its type and its data, a line each, and nothing else."""
    name, data = block.split(b"\n")
    event: dict[str, Any] = orjson.loads(data.removeprefix(b"data: "))
    assert name == b"event: " + event["type"].encode()
    return event


@asynccontextmanager
async def request(
    server: RunningServer,
    path: str,
    body: Mapping[str, Any] | None = None,
    headers: Mapping[str, str] = MappingProxyType({}),
    sock: socket.socket | None = None,
) -> AsyncIterator[EventStream]:
    """GET, or POST if there is a body. The head has not been read yet.

    Args:
        sock: connected already.
    """
    address = (None, None) if sock else ("127.0.0.1", server.port)
    reader, writer = await asyncio.open_connection(*address, sock=sock)
    content = b"" if body is None else orjson.dumps(body)
    lines = [
        f"{'GET' if body is None else 'POST'} {path} HTTP/1.1",
        "Host: x",
        f"Content-Length: {len(content)}",
    ]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    writer.write("\r\n".join([*lines, "", ""]).encode() + content)
    try:
        yield EventStream(reader, writer)
    finally:
        writer.close()


@asynccontextmanager
async def opened(
    server: RunningServer,
    path: str,
    body: Mapping[str, Any] | None = None,
    headers: Mapping[str, str] = MappingProxyType({}),
) -> AsyncIterator[EventStream]:
    """The same, and it is an event stream."""
    async with request(server, path, body, headers) as stream:
        await stream.read_head()
        assert (stream.status, stream.headers["content-type"]) == (200, "text/event-stream; charset=utf-8")
        yield stream
