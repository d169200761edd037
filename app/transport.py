"""Our additions to uvicorn's connections: frames written at once, clients that are cut, limits for what they
send, a close that they get to see.

Knows: uvicorn's protocol classes, TCP's habits, the framing of what the server says. Does not know: what is
said on a connection.

A graceful close waits until everything written before was taken, which a client that reads nothing
prevents for ever; so does uvicorn's own close. `abort` drops such a connection at once.
"""

from __future__ import annotations

import asyncio
import enum
import struct
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import httptools
import orjson
from starlette.types import Message, Scope
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.frames import Close, CloseCode, Frame, Opcode
from websockets.protocol import State

from app.protocol.errors import ApiError

HOOK = "tickwire.connection"
LINGER_S = 2.0
"""How long a client that was told why it is closed on may go on sending before the connection is dropped."""

MAX_UNSENT = 64 * 1024
"""Bytes of one connection that may wait for the kernel to take them. One write, of one frame or of several
that are no larger than this together, may go beyond it."""

MAX_HEAD_BYTES = 32 * 1024
MAX_HEADERS = 128
"""Of a request's head, and of what else comes beside its body."""
MAX_PIPELINED = 16
"""Requests that may wait on one connection for the answers to those before them."""
BODY_BYTES_PER_S = 1024
"""A body that comes slower, or pauses for the handshake timeout, is not waited for."""

PIECE = 1024
FRAMES_AT_ONCE = 64
"""What one client may have read of its frames before the others' turn comes."""


@dataclass(slots=True)
class Wire:
    """What the connections of one server have in common: a limit, and what is counted about them.

    Args:
        handshake_timeout: seconds that a client has to send its request's head.
    """

    handshake_timeout: float
    sockets: int = 0
    """WebSocket connections accepted, ever. So for all counts."""
    frames: int = 0
    """Text frames handed to connections, with `frame_bytes`."""
    frame_bytes: int = 0
    deferred: int = 0
    """News of a stream that found its socket full."""
    cut: Counter[str] = field(default_factory=Counter)
    """Clients that took nothing, by the kind of connection: "http" or "websocket"."""
    closes: Counter[int] = field(default_factory=Counter)
    """WebSocket connections by close code, of whoever closed first; 1006: the connection broke."""
    refused: Counter[int] = field(default_factory=Counter)
    """Requests that never became whole ones, by HTTP status."""
    on_closed: Callable[[float], None] = lambda seconds: None
    """Told how long a WebSocket connection lasted, at its end."""


def abort(scope: Scope) -> None:
    """Drop the connection of a client that takes nothing, whatever is still unsent. Nothing happens where
    there is no connection, as in tests that call the application directly."""
    if connection := scope.get(HOOK):
        connection.cut()


def num_unsent(scope: Scope) -> int:
    """Bytes of the connection that the kernel has not taken yet; 0 where there is no connection."""
    connection = scope.get(HOOK)
    return connection.num_unsent if connection else 0


class HttpConnection(HttpToolsProtocol):
    """What is waited for has its time: a whole head comes within the handshake timeout, a body does not pause
    for as long nor come slower than BODY_BYTES_PER_S. Between two requests it is uvicorn's keep-alive timeout
    that counts."""

    def __init__(self, *args: Any, wire: Wire, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._wire = wire
        self._phase = _Phase.BETWEEN
        self._timer: asyncio.TimerHandle | None = None
        self._lingering: asyncio.TimerHandle | None = None
        self._refusal: ApiError | None = None
        self._num_aside = 0
        """Bytes since the last request ended, the head of this one, or a piece of its body."""
        self._body_began = self._body_progress = 0.0
        self._num_body = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        transport.set_write_buffer_limits(high=MAX_UNSENT)
        self._wait(self._wire.handshake_timeout)

    def connection_lost(self, exc: Exception | None) -> None:
        if isinstance(exc, TimeoutError):
            self._wire.cut["http"] += 1  # by the system
        self._stop_waiting()
        if self._lingering is not None:
            self._lingering.cancel()
        super().connection_lost(exc)

    @property
    def num_unsent(self) -> int:
        return self.transport.get_write_buffer_size()

    def cut(self) -> None:
        self._wire.cut["http"] += 1
        self.transport.abort()

    # -- what comes ---------------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        if self._lingering is not None:
            return
        self._unset_keepalive_if_required()
        self._num_aside += len(data)
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._stop_waiting()
            if self._should_upgrade():
                self._upgrade(data[upgrade.args[0] :])
            else:
                self._unsupported_upgrade_warning()
            return
        except httptools.HttpParserError as error:
            self._refuse(
                self._refusal or ApiError(400, f"not an HTTP request: {error}", code="invalid_request")
            )
            return
        if self._phase is not _Phase.BETWEEN and self._num_aside > MAX_HEAD_BYTES:
            self._refuse(_too_large_head(f"more than {MAX_HEAD_BYTES} bytes"))
        elif self._timer is None and (self._phase is not _Phase.BETWEEN or self._is_idle):
            self._wait(self._wire.handshake_timeout)

    @property
    def _is_idle(self) -> bool:
        """No request is being answered. What came then was no request either, such as an empty line."""
        return self.cycle is None or self.cycle.response_complete

    def _upgrade(self, early: bytes) -> None:
        self.handle_websocket_upgrade()
        if early and not self.transport.is_closing():
            self.transport.get_protocol().data_received(early)  # type: ignore[attr-defined]

    def on_message_begin(self) -> None:
        super().on_message_begin()
        scope: dict[str, Any] = self.scope  # type: ignore[assignment]
        scope[HOOK] = self
        self._phase = _Phase.HEAD

    def on_header(self, name: bytes, value: bytes) -> None:
        super().on_header(name, value)
        if len(self.headers) > MAX_HEADERS:
            self._refusal = _too_large_head(f"more than {MAX_HEADERS} fields")
            raise self._refusal

    def on_headers_complete(self) -> None:
        size = len(self.url) + sum(len(name) + len(value) for name, value in self.headers)
        if size > MAX_HEAD_BYTES:
            self._refusal = _too_large_head(f"{size} bytes")
            raise self._refusal
        if len(self.pipeline) >= MAX_PIPELINED:
            message = f"more than {MAX_PIPELINED} requests wait on this connection"
            self._refusal = ApiError(400, message, code="invalid_request")
            raise self._refusal
        self._stop_waiting()
        self._phase = _Phase.BODY
        self._body_began = self._body_progress = self.loop.time()
        self._num_body = self._num_aside = 0
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._num_body += len(body)
        self._num_aside = 0
        self._body_progress = self.loop.time()
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._stop_waiting()
        self._phase = _Phase.BETWEEN
        self._num_aside = 0
        super().on_message_complete()

    # -- what does not come -------------------------------------------------------------------------------

    def _wait(self, seconds: float) -> None:
        self._timer = self.loop.call_later(seconds, self._look)

    def _stop_waiting(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        """Has what was waited for come?"""
        self._timer = None
        if self.transport.is_closing():
            return
        patience = self._wire.handshake_timeout
        if self.flow.read_paused:
            self._wait(patience)  # it is we who keep it waiting
        elif self._phase is _Phase.BODY and (left := self._body_due - self.loop.time()) > 0:
            self._wait(left)
        elif self._phase is _Phase.BETWEEN:
            self.transport.close()  # it never began
        else:
            what = "body" if self._phase is _Phase.BODY else "head"
            message = f"the request's {what} did not come in time, allowed: {patience:g} s"
            self._refuse(ApiError(408, message, code="request_timeout"))

    @property
    def _body_due(self) -> float:
        patience = self._wire.handshake_timeout
        by_rate = self._body_began + self._num_body / BODY_BYTES_PER_S
        return min(self._body_progress, by_rate) + patience

    def _refuse(self, error: ApiError) -> None:
        """Say why, if nothing else is being said, and close."""
        self._stop_waiting()
        self._wire.refused[error.status] += 1
        begun = self._phase is _Phase.BODY and self.cycle.response_started
        if begun or not (self._is_idle or self._phase is _Phase.BODY):
            self.transport.abort()
            return
        if self._phase is _Phase.BODY and not self.cycle.response_complete:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        body = orjson.dumps({"error": error.body()})
        head = (
            f"HTTP/1.1 {error.status} {_REASONS[error.status]}\r\ncontent-type: application/json\r\n"
            f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
        )
        self.flow.resume_reading()
        self._lingering = _close_after(self.transport, self.loop, head.encode() + body)


class _Phase(enum.Enum):
    """Which part of a request is expected from the client."""

    BETWEEN = "between"
    HEAD = "head"
    BODY = "body"


_REASONS = {400: "Bad Request", 408: "Request Timeout", 431: "Request Header Fields Too Large"}


def _too_large_head(got: str) -> ApiError:
    allowed = f"{MAX_HEAD_BYTES} bytes in {MAX_HEADERS} fields"
    return ApiError(431, f"the request's head has {got}, allowed: {allowed}", code="request_head_too_large")


def _close_after(
    transport: asyncio.Transport, loop: asyncio.AbstractEventLoop, last: bytes
) -> asyncio.TimerHandle:
    """Say a last thing, read and throw away what the client is still sending for a moment, and close. Closing
    with unread bytes would reset the connection, and the client might never see what was said."""
    transport.write(last)
    transport.write_eof()
    return loop.call_later(LINGER_S, transport.abort)


class SocketConnection(WebSocketsSansIOProtocol):
    """A WebSocket connection.

    What comes is read a piece at a time, so that a client with thousands of tiny frames holds up nobody. What
    goes out does not pass through ASGI: `write` is one call for all frames that are ready.
    """

    def __init__(self, *args: Any, wire: Wire, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._wire = wire
        self._lingering: asyncio.TimerHandle | None = None
        self._unread = bytearray()
        self._reading: asyncio.Handle | None = None
        """The next piece is about to be read."""
        self._num_read = 0
        self._owed_pong: bytes | None = None
        self._accepted_at: float | None = None
        self.on_writable: Callable[[], None] | None = None
        """Called when a connection that was full takes something again."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.transport.set_write_buffer_limits(high=MAX_UNSENT)

    def connection_lost(self, exc: Exception | None) -> None:
        if isinstance(exc, TimeoutError):
            self._wire.cut["websocket"] += 1  # by the system
        if self._lingering is not None:
            self._lingering.cancel()
        if self._reading is not None:
            self._reading.cancel()
        self._unread.clear()
        if self._accepted_at is not None:
            self._wire.closes[self._code] += 1
            self._wire.on_closed(self.loop.time() - self._accepted_at)
        super().connection_lost(exc)
        if self.on_writable is not None:
            self.on_writable()

    @property
    def _code(self) -> int:
        sent, received = self.conn.close_sent, self.conn.close_rcvd
        first = received if self.conn.close_rcvd_then_sent else sent or received
        return first.code if first else 1006

    async def run_asgi(self) -> None:
        scope: dict[str, Any] = self.scope  # type: ignore[assignment]
        scope[HOOK] = self
        await super().run_asgi()

    def start_keepalive(self) -> None:
        """The connection has just been accepted."""
        super().start_keepalive()
        self._accepted_at = self.loop.time()
        self._wire.sockets += 1
        self._read_on()

    def shutdown(self) -> None:
        if self.handshake_complete and self.conn.state is not State.OPEN and not self.close_sent:
            # It is being closed already, and there is nothing more to say.
            self.transport.abort()
        else:
            super().shutdown()

    # -- what goes out ------------------------------------------------------------------------------------

    @property
    def is_open(self) -> bool:
        return self.conn.state is State.OPEN and not self.close_sent and not self.transport.is_closing()

    @property
    def is_full(self) -> bool:
        """More than MAX_UNSENT is unsent, and has not been taken yet. `on_writable` will tell."""
        return not self.writable.is_set()

    @property
    def num_unsent(self) -> int:
        return self.transport.get_write_buffer_size()

    def write(self, messages: Sequence[bytes]) -> None:
        """Text messages, UTF-8, one frame each. To an open connection only; whether it is full is up to the
        caller."""
        parts: list[bytes] = []
        for message in messages:
            parts += (_text_head(len(message)), message)
        data = b"".join(parts)
        self._wire.frames += len(messages)
        self._wire.frame_bytes += len(data)
        self.transport.write(data)

    def count_deferred(self) -> None:
        self._wire.deferred += 1

    def cut(self) -> None:
        self._wire.cut["websocket"] += 1
        self.transport.abort()

    def resume_writing(self) -> None:
        super().resume_writing()
        pong, self._owed_pong = self._owed_pong, None
        if pong is not None and self.is_open:
            self.transport.write(pong)
        if self.on_writable is not None:
            self.on_writable()

    def handle_ping(self) -> None:
        """A client that takes nothing is owed the answer to its last ping only, else its pings would pile up
        as pongs."""
        if self.conn.state is not State.OPEN:
            return  # whatever closes it takes the answer along
        if self.is_full:
            *_, self._owed_pong = self._owed_pong, *self.conn.data_to_send()
        else:
            super().handle_ping()

    # -- what comes ---------------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        if self._lingering is not None:
            return
        if self._unread or len(data) > PIECE or (self.handshake_initiated and not self.handshake_complete):
            self._unread += data
            if self._reading is None:
                self._read_on()
        else:
            self._read(data)

    def _read_on(self) -> None:
        self._reading = None
        self._num_read = 0
        if self.handshake_initiated and not self.handshake_complete:
            # Nothing may be said before the handshake is answered, not even a pong.
            self.transport.pause_reading()
            return
        while self._unread and self._num_read < FRAMES_AT_ONCE:
            piece = bytes(self._unread[:PIECE])
            del self._unread[:PIECE]
            self._read(piece)
            if self._lingering is not None or self.transport.is_closing():
                self._unread.clear()
                return
        if self._unread:
            self.transport.pause_reading()
            self._reading = self.loop.call_soon(self._read_on)
        elif not self.read_paused:
            self.transport.resume_reading()

    def _read(self, piece: bytes) -> None:
        self.conn.receive_data(piece)
        self.handle_events()
        if self.conn.parser_exc is not None and self._lingering is None:
            self.handle_parser_exception()
        if self.conn.handshake_exc is not None and not self.transport.is_closing():
            # A head that the library refuses. uvicorn would leave its client waiting.
            self.transport.write(b"".join(self.conn.data_to_send()))
            self.transport.close()

    def handle_events(self) -> None:
        self._num_read += len(self.conn.events)
        super().handle_events()

    async def receive(self) -> Message:  # type: ignore[override]
        message: Message = await self.queue.get()  # type: ignore[assignment]
        if self.read_paused and self.queue.empty():
            self.read_paused = False
            if not self._unread:
                self.transport.resume_reading()
        return message

    def handle_text(self, event: Frame) -> None:
        # As one growing array: as a list, a message in a million fragments would take many times its size.
        super().handle_text(event if event.fin else _growing(event))

    def handle_bytes(self, event: Frame) -> None:
        super().handle_bytes(event if event.fin else _growing(event))

    def handle_cont(self, event: Frame) -> None:
        if self.frames:  # else it was given up
            self.frames[0] += event.data
            if event.fin:
                self.send_receive_event_to_app()

    def send_receive_event_to_app(self) -> None:
        (data,), self.frames = self.frames, []
        if self.close_sent:
            return
        message: dict[str, Any] = {"type": "websocket.receive"}
        if self.curr_msg_data_type == "text":
            try:
                message["text"] = data.decode()
            except UnicodeDecodeError as error:
                self._end(Close(CloseCode.INVALID_DATA, f"{error.reason} at position {error.start}"))
                return
        else:
            message["bytes"] = bytes(data)
        self.queue.put_nowait(message)  # type: ignore[arg-type]
        if not self.read_paused:
            self.read_paused = True
            self.transport.pause_reading()

    def handle_close(self, event: Frame) -> None:
        if self._lingering is None:
            super().handle_close(event)

    def handle_parser_exception(self) -> None:
        sent, received = self.conn.close_sent, self.conn.close_rcvd
        if received is not None and self.conn.close_rcvd_then_sent:
            self._end(received)  # it came in the middle of a fragmented message, which is no violation
        else:
            self._end(sent or Close(CloseCode.ABNORMAL_CLOSURE, ""))

    def _end(self, close: Close) -> None:
        """After a violation of the protocol, such as a message over the limit, the client gets to see the
        close frame that says what was wrong."""
        self.conn.data_to_send()  # it may have an answer to what came after the violation
        last = b""
        if not self.close_sent:
            last = _close_frame(close)
            self.conn.close_sent = close
            self.close_sent = True
            self.queue.put_nowait(
                {"type": "websocket.disconnect", "code": close.code, "reason": close.reason}
            )
        if self.close_timer is not None:
            self.close_timer.cancel()
        self.read_paused = False
        self.transport.resume_reading()
        self._lingering = self.close_timer = _close_after(self.transport, self.loop, last)


def _text_head(size: int) -> bytes:
    """Of a final, unmasked text frame."""
    if size < 126:
        return bytes((0x81, size))
    if size < 1 << 16:
        return struct.pack("!BBH", 0x81, 126, size)
    return struct.pack("!BBQ", 0x81, 127, size)


def _close_frame(close: Close) -> bytes:
    if close.code == CloseCode.ABNORMAL_CLOSURE:
        return b""
    data = b"" if close.code == CloseCode.NO_STATUS_RCVD else close.serialize()
    return Frame(Opcode.CLOSE, data).serialize(mask=False)


def _growing(event: Frame) -> Frame:
    return Frame(event.opcode, bytearray(event.data), fin=False)
