"""A proxy that breaks WebSocket connections at a frame of one's choice.

Knows: TCP, and where the frames of a server begin and end. Does not know: what is in them.

A client says in its address what is to become of its connections:
`ws://HOST:PORT/PATH?name=N&after=3&how=reset&times=1` breaks the first connection of that name instead of
letting its fourth message from the server pass, and leaves those that come later alone.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import parse_qsl, urlsplit

CONTROL = 0x8
"""Opcodes from here on are the protocol's own frames, which do not count."""


class CuttingProxy:
    """
    `how`: "reset" ends with a TCP reset, "half" does so in the middle of the message, "silence" lets nothing
    pass any more, either way, and leaves the connection open.
    """

    def __init__(self, port: int) -> None:
        self._upstream = port
        self.port = 0
        self.cuts: Counter[str] = Counter()
        """By name."""
        self.connections: Counter[str] = Counter()

    @property
    def url(self) -> str:
        return f"ws://127.0.0.1:{self.port}/v1/responses"

    async def relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        first, rest = (await reader.readuntil(b"\r\n\r\n")).split(b"\r\n", 1)
        method, target, version = first.split()
        address = urlsplit(target.decode())
        wish = dict(parse_qsl(address.query))
        self.connections[wish["name"]] += 1
        up_reader, up_writer = await asyncio.open_connection("127.0.0.1", self._upstream)
        up_writer.write(b" ".join((method, address.path.encode(), version)) + b"\r\n" + rest)
        upwards = asyncio.create_task(_pump(reader, up_writer))
        try:
            writer.write(await up_reader.readuntil(b"\r\n\r\n"))
            await self._downwards(up_reader, writer, upwards, wish)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            upwards.cancel()
            for each in (writer, up_writer):
                each.close()

    async def _downwards(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        upwards: asyncio.Task[None],
        wish: dict[str, str],
    ) -> None:
        name, passed = wish["name"], 0
        while True:
            opcode, frame = await _frame(reader)
            if opcode < CONTROL:
                if passed == int(wish["after"]) and self.cuts[name] < int(wish.get("times", "1")):
                    self.cuts[name] += 1
                    break
                passed += 1
            writer.write(frame)
            await writer.drain()
        if wish["how"] == "silence":
            upwards.cancel()
            while await reader.read(4096):
                pass
            return
        if wish["how"] == "half":
            writer.write(frame[: len(frame) // 2])
        _reset(writer)


def _reset(writer: asyncio.StreamWriter) -> None:
    connection: socket.socket = writer.get_extra_info("socket")
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65536):
        writer.write(data)
    writer.close()


async def _frame(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    """The opcode and all bytes of a server's frame, which is not masked."""
    head = await reader.readexactly(2)
    length = head[1] & 0x7F
    if length >= 126:
        extended = await reader.readexactly(2 if length == 126 else 8)
        head, length = head + extended, int.from_bytes(extended, "big")
    return head[0] & 0x0F, head + await reader.readexactly(length)


@asynccontextmanager
async def cutting(port: int) -> AsyncIterator[CuttingProxy]:
    """A proxy for the server on this port."""
    proxy = CuttingProxy(port)
    server = await asyncio.start_server(proxy.relay, "127.0.0.1", 0)
    proxy.port = server.sockets[0].getsockname()[1]
    try:
        yield proxy
    finally:
        server.close()
