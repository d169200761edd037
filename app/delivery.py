"""The outgoing side of one socket: frames of several sources in turn, to a client that reads at its own
speed.

Knows: one socket's writing, what it may keep unsent, when a client is cut. Does not know: what frames mean,
who the client is.

A source is asked for its next frame only when the socket can take it. Until then its stream merges what
comes, so a client that falls behind gets fewer and bigger frames, and its lag costs no memory. Messages that
belong to no source (errors, pongs) are kept, up to MAX_MESSAGES; a client that causes so many and reads none
is cut.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Protocol

from starlette.types import Scope, Send

from app import transport
from app.api.http import ClientGone
from app.logs import get_logger

log = get_logger()

MAX_MESSAGES = 256


class Source(Protocol):
    """Something that has frames for a client, in an order of its own."""

    def next_frame(self) -> bytes | None:
        """The next frame, JSON in UTF-8; None: there is none yet, and `Delivery.wake` will tell of one."""
        ...

    @property
    def is_over(self) -> bool:
        """The last frame has been given out."""
        ...

    def delivered(self) -> None:
        """The last frame has been handed to the connection. Called once; the source is forgotten then."""
        ...


class Delivery:
    """
    Args:
        send_timeout: seconds after which a client that took nothing is cut.
    """

    def __init__(self, scope: Scope, send: Send, send_timeout: float) -> None:
        self._scope = scope
        self._send = send
        self._send_timeout = send_timeout
        self._messages: deque[bytes] = deque()
        self._sources: list[Source] = []
        self._news = asyncio.Event()

    def put(self, message: bytes) -> None:
        """A message that is next, before those of all sources."""
        self._messages.append(message)
        if len(self._messages) > MAX_MESSAGES:
            self.cut("unread messages")
        self.wake()

    def add(self, source: Source) -> None:
        self._sources.append(source)
        self.wake()

    def remove(self, source: Source) -> None:
        """Its frames are wanted no more. One that is over, or was never added, is left alone."""
        if source in self._sources:
            self._sources.remove(source)

    def wake(self) -> None:
        """Some source may have a frame. Cheap; for `Stream.listen`."""
        self._news.set()

    async def run(self) -> None:
        """Writes until the client is gone, or took nothing for too long. To be cancelled otherwise."""
        try:
            while True:
                self._news.clear()
                if not await self._round():
                    await self._news.wait()
        except ClientGone:
            return

    async def _round(self) -> bool:
        """One frame of each source that has one. False: there was nothing to write."""
        wrote = bool(self._messages)
        await self._write_messages()
        for source in list(self._sources):
            frame = source.next_frame()
            if frame is None:
                continue
            wrote = True
            is_over = source.is_over
            if is_over:
                self.remove(source)
            await self._write(frame)
            if is_over:
                source.delivered()
            await self._write_messages()
        return wrote

    async def _write_messages(self) -> None:
        while self._messages:
            await self._write(self._messages.popleft())

    async def _write(self, frame: bytes) -> None:
        """Raises ClientGone."""
        try:
            async with asyncio.timeout(self._send_timeout):
                await self._send({"type": "websocket.send", "text": frame.decode()})
        except TimeoutError as error:
            self.cut(f"it took nothing for {self._send_timeout} s")
            raise ClientGone from error
        except (OSError, RuntimeError) as error:
            # OSError: the connection broke. RuntimeError: it was closed under us, by a violation of the
            # protocol or a missing pong. Either way whoever reads the socket is told as well.
            raise ClientGone from error

    def cut(self, why: str) -> None:
        """Drop the connection, whatever is still unsent."""
        log.warning("reader_cut", path=self._scope["path"], why=why)
        transport.abort(self._scope)
