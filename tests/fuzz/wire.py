"""A WebSocket client that says whatever it is told to, valid or not."""

from __future__ import annotations

import asyncio
import os
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from websockets.frames import apply_mask

from tests.app.harness import PATIENCE

CONT, TEXT, BINARY, CLOSE, PING, PONG = 0, 1, 2, 8, 9, 10
HANDSHAKE = (
    "GET {path} HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
)


def frame(
    opcode: int,
    payload: bytes = b"",
    *,
    fin: bool = True,
    rsv: int = 0,
    masked: bool = True,
    length_bits: int | None = None,
    claimed: int | None = None,
) -> bytes:
    """
    Args:
        rsv: the three reserved bits.
        length_bits: 7, 16 or 64; None is the shortest form.
        claimed: the length that the header tells.
    """
    size = len(payload) if claimed is None else claimed
    bits = length_bits or (7 if size < 126 else 16 if size < 1 << 16 else 64)
    first, mask_bit = fin << 7 | rsv << 4 | opcode, masked << 7
    if bits == 7:
        head = bytes((first, mask_bit | size))
    elif bits == 16:
        head = struct.pack("!BBH", first, mask_bit | 126, size)
    else:
        head = struct.pack("!BBQ", first, mask_bit | 127, size)
    if not masked:
        return head + payload
    key = os.urandom(4)
    return head + key + apply_mask(payload, key)


def close(code: int, reason: bytes = b"") -> bytes:
    return frame(CLOSE, struct.pack("!H", code) + reason)


class Raw:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def send(self, *data: bytes) -> None:
        self.writer.write(b"".join(data))

    async def read(self) -> tuple[int, bytes]:
        """The next frame: opcode, payload.

        Raises:
            asyncio.IncompleteReadError: the connection ended.
        """
        async with asyncio.timeout(PATIENCE):
            first, size = await self.reader.readexactly(2)
            assert first & 0x70 == 0
            assert first & 0x80, "we never send fragments"
            if size == 126:
                (size,) = struct.unpack("!H", await self.reader.readexactly(2))
            elif size == 127:
                (size,) = struct.unpack("!Q", await self.reader.readexactly(8))
            return first & 15, await self.reader.readexactly(size)

    async def until(self, *opcodes: int) -> tuple[int, bytes]:
        while (got := await self.read())[0] not in opcodes:
            pass
        return got

    async def closed_with(self) -> tuple[int | None, str]:
        """The close frame that comes, and then the end of the connection: code (None: none in it), reason."""
        _, payload = await self.until(CLOSE)
        self.send(frame(CLOSE, payload))
        async with asyncio.timeout(PATIENCE):
            with suppress(ConnectionResetError):  # it had got our close already
                assert await self.reader.read() == b"", "something came after the close"
        if not payload:
            return None, ""
        return struct.unpack("!H", payload[:2])[0], payload[2:].decode()

    async def is_alive(self) -> bool:
        """It answers a ping."""
        token = os.urandom(8)
        self.send(frame(PING, token))
        while (got := await self.until(PONG, CLOSE)) != (PONG, token):
            if got[0] == CLOSE:
                return False
        return True


@asynccontextmanager
async def raw_socket(port: int, path: str, early: bytes = b"") -> AsyncIterator[Raw]:
    """An open WebSocket connection. `early` is sent with the handshake."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(HANDSHAKE.format(path=path).encode() + early)
    async with asyncio.timeout(PATIENCE):
        head = await reader.readuntil(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 101"), head
    try:
        yield Raw(reader, writer)
    finally:
        writer.transport.abort()
