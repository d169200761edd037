"""The outgoing side of one socket: frames of several sources in turn, to a client that reads at its own
speed.

Knows: one socket's writing, what it may keep unsent, when a client is cut. Does not know: what frames mean,
who the client is, how a frame is written.

A source is asked for its next frame only when the socket can take it. Until then its stream merges what
comes, so a client that falls behind gets fewer and bigger frames, and its lag costs no memory. Messages
that belong to no source (errors, pongs) are kept, up to MAX_MESSAGES and MAX_MESSAGE_BYTES; a client that
causes so many and reads none is cut.

Nothing here waits for the client. News is written in one callback of the loop, as far as the connection takes
it; the rest when the connection says that it takes something again.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

from starlette.types import Scope

from app import transport
from app.logs import get_logger

log = get_logger()

MAX_MESSAGES = 256
MAX_MESSAGE_BYTES = 1024 * 1024
"""Of those that are kept because the connection is full. One may be larger."""
FRAMES_AT_ONCE = 64
"""A socket with more to write lets others have their turn first."""


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


class Connection(Protocol):
    """What is needed of `transport.SocketConnection`."""

    on_writable: Callable[[], None] | None
    """To be called when a full connection takes something again, and when it is lost."""

    @property
    def is_open(self) -> bool: ...

    @property
    def is_full(self) -> bool: ...

    @property
    def num_unsent(self) -> int:
        """Bytes."""
        ...

    def write(self, messages: Sequence[bytes]) -> None: ...

    def count_deferred(self) -> None: ...


class Delivery:
    """
    Args:
        scope: of a connection that has been accepted.
        send_timeout: seconds after which a client that took nothing is cut.
    """

    def __init__(self, scope: Scope, send_timeout: float) -> None:
        self._scope = scope
        self._connection: Connection = scope[transport.HOOK]
        self._send_timeout = send_timeout
        self._messages: deque[bytes] = deque()
        self._num_message_bytes = 0
        self._sources: deque[Source] = deque()
        self._loop = asyncio.get_running_loop()
        self._gone = self._loop.create_future()
        self._in_round = False
        """Frames are being collected; what is said meanwhile goes out behind them."""
        self._next_turn: asyncio.Handle | None = None
        self._patience: asyncio.TimerHandle | None = None

    def put(self, message: bytes) -> None:
        """A message that is next, before what sources have. It is written at once if the connection takes
        it."""
        self._messages.append(message)
        self._num_message_bytes += len(message)
        if not self._in_round and self._may_write():
            self._write(self._kept_messages())
        many = self._num_message_bytes > MAX_MESSAGE_BYTES and len(self._messages) > 1
        if many or len(self._messages) > MAX_MESSAGES:
            self.cut("unread messages")

    def add(self, source: Source) -> None:
        self._sources.append(source)
        self.wake()

    def remove(self, source: Source) -> None:
        """Its frames are wanted no more. One that is over, or was never added, is left alone."""
        if source in self._sources:
            self._sources.remove(source)

    def wake(self) -> None:
        """Some source may have a frame. Cheap; for `Stream.listen`."""
        if self._connection.is_full:
            self._connection.count_deferred()
        elif self._next_turn is None:
            self._next_turn = self._loop.call_soon(self._take_turn)

    async def run(self) -> None:
        """Writes until the client is gone, or took nothing for too long. To be cancelled otherwise. Raises
        what a source raises."""
        self._connection.on_writable = self._on_writable
        self._on_writable()
        try:
            await self._gone
        finally:
            self._connection.on_writable = None
            if self._next_turn is not None:
                self._next_turn.cancel()
            self._stop_patience()

    def cut(self, why: str) -> None:
        """Drop the connection, whatever is still unsent."""
        log.warning("reader_cut", path=self._scope["path"], why=why)
        self._stop_patience()
        transport.abort(self._scope)

    # -- writing ------------------------------------------------------------------------------------------

    def _take_turn(self) -> None:
        self._next_turn = None
        try:
            num_frames = 0
            while self._may_write() and (written := self._round()):
                num_frames += written
                if num_frames >= FRAMES_AT_ONCE:
                    self.wake()
                    return
        except Exception as error:
            if not self._gone.done():
                self._gone.set_exception(error)

    def _round(self) -> int:
        """The messages, and one frame of each source that has one, in one write. It stops after MAX_UNSENT
        bytes; the next round goes on with the next source. Returns the number of frames."""
        frames = self._kept_messages()
        over: list[Source] = []
        self._in_round = True
        try:
            self._collect(frames, over)
        finally:
            self._in_round = False
        frames += self._kept_messages()
        self._write(frames)
        for source in over:
            source.delivered()
        return len(frames)

    def _collect(self, frames: list[bytes], over: list[Source]) -> None:
        size = sum(map(len, frames))
        for _ in range(len(self._sources)):
            if size > transport.MAX_UNSENT or not self._sources:
                break
            source = self._sources[0]
            self._sources.rotate(-1)
            frame = source.next_frame()
            if frame is not None:
                frames.append(frame)
                size += len(frame)
            if source.is_over:
                self.remove(source)
                over.append(source)

    def _kept_messages(self) -> list[bytes]:
        messages = list(self._messages)
        self._messages.clear()
        self._num_message_bytes = 0
        return messages

    def _write(self, frames: Sequence[bytes]) -> None:
        if frames:
            self._connection.write(frames)
            self._may_write()

    def _may_write(self) -> bool:
        """Whether the connection takes something now. Looks after what must happen if it does not."""
        if not self._connection.is_open and not self._gone.done():
            # It broke, or was closed under us. Whoever reads the socket is told as well.
            self._gone.set_result(None)
        if self._gone.done():
            self._messages.clear()
            self._num_message_bytes = 0
            return False
        if self._connection.is_full and self._patience is None:
            self._be_patient()
        return not self._connection.is_full

    # -- a client that takes nothing ----------------------------------------------------------------------

    def _be_patient(self) -> None:
        unsent = self._connection.num_unsent
        self._patience = self._loop.call_later(self._send_timeout, self._look, unsent)

    def _look(self, unsent_before: int) -> None:
        self._patience = None
        if not self._connection.is_open or not self._connection.is_full:
            return
        if self._connection.num_unsent < unsent_before:
            self._be_patient()  # it is slow, and reads
        else:
            self.cut(f"it took nothing for {self._send_timeout} s")

    def _stop_patience(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None

    def _on_writable(self) -> None:
        if self._may_write():
            self._stop_patience()
            self.wake()
