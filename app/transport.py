"""Our additions to uvicorn's connections: a way to cut one, and a close that the client gets to see.

Knows: uvicorn's protocol classes. Does not know: what is said on a connection.

A graceful close waits until everything written before was taken, which a client that reads nothing
prevents for ever; so does uvicorn's own close. `scope["tickwire.abort"]` drops such a connection at once.
"""

from __future__ import annotations

import asyncio
from typing import Any

from starlette.types import Scope
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

ABORT = "tickwire.abort"
LINGER_S = 2.0


def abort(scope: Scope) -> None:
    """Drop the connection, whatever is still unsent. Nothing happens where there is no connection, as in
    tests that call the application directly."""
    if hook := scope.get(ABORT):
        hook()


class HttpConnection(HttpToolsProtocol):
    def on_message_begin(self) -> None:
        super().on_message_begin()
        scope: dict[str, Any] = self.scope  # type: ignore[assignment]
        scope[ABORT] = self.transport.abort


class SocketConnection(WebSocketsSansIOProtocol):
    """After a violation of the protocol, such as a message over the limit, the rest that the client is
    still sending is read and thrown away for a moment. Closing with unread bytes would reset the
    connection, and the client would never see the close frame that says what was wrong."""

    _lingering: asyncio.TimerHandle | None = None

    async def run_asgi(self) -> None:
        scope: dict[str, Any] = self.scope  # type: ignore[assignment]
        scope[ABORT] = self.transport.abort
        await super().run_asgi()

    def data_received(self, data: bytes) -> None:
        if self._lingering is None:
            super().data_received(data)

    def handle_parser_exception(self) -> None:
        closed = self.conn.close_sent
        code, reason = (closed.code, closed.reason) if closed else (1006, "")
        self.queue.put_nowait({"type": "websocket.disconnect", "code": code, "reason": reason})
        self.transport.write(b"".join(self.conn.data_to_send()))
        self.close_sent = True
        self._lingering = self.close_timer = self.loop.call_later(LINGER_S, self.transport.abort)
        if self.read_paused:
            self.read_paused = False
            self.transport.resume_reading()
        self.transport.write_eof()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._lingering is not None:
            self._lingering.cancel()
        super().connection_lost(exc)
