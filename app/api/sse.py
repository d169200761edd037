"""Server-sent events to one client: the head, bodies, and a client that takes nothing.

Knows: HTTP, the event-stream framing. Does not know: what the events are.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from types import MappingProxyType

import orjson
from starlette.responses import Response
from starlette.types import Scope, Send

from app import transport
from app.api.http import ClientGone
from app.logs import get_logger

log = get_logger()

KEEP_ALIVE_S = 15.0
"""A stream without news for this long sends a comment, so that proxies do not take it for dead."""
KEEP_ALIVE = b": keep-alive\n\n"

HEADERS = {
    "cache-control": "no-cache",
    "x-accel-buffering": "no",
    # What has begun must not be begun again by an SDK whose connection broke.
    "x-should-retry": "false",
}


class EventStream:
    """
    Args:
        send_timeout: seconds after which a client that took nothing is cut.
        keep_alive: seconds without news after which whoever writes should write KEEP_ALIVE.
    """

    def __init__(
        self, scope: Scope, send: Send, send_timeout: float, keep_alive: float = KEEP_ALIVE_S
    ) -> None:
        self.keep_alive = keep_alive
        self._scope = scope
        self._send = send
        self._send_timeout = send_timeout

    async def open(self, headers: Mapping[str, str] = MappingProxyType({})) -> None:
        head = Response(headers={**HEADERS, **headers}, media_type="text/event-stream")
        del head.headers["content-length"]
        await self._send({"type": "http.response.start", "status": 200, "headers": head.raw_headers})

    async def write(self, body: bytes, more: bool = True) -> None:
        """Raises ClientGone when the client took nothing for too long; its connection is cut then."""
        while True:
            unsent = transport.num_unsent(self._scope)
            try:
                async with asyncio.timeout(self._send_timeout):
                    await self._send({"type": "http.response.body", "body": body, "more_body": more})
                return
            except TimeoutError as error:
                # The server waits until there is room, and writes then: nothing of this body has gone out.
                if transport.num_unsent(self._scope) < unsent:
                    continue  # it is slow, and reads
                log.warning("reader_cut", path=self._scope["path"], seconds=self._send_timeout)
                transport.abort(self._scope)
                raise ClientGone from error


def event(content: object, *, name: str | None = None, number: int | None = None) -> bytes:
    """One event; `content` is what orjson takes. `number` becomes its id."""
    head = b"" if name is None else b"event: " + name.encode() + b"\n"
    if number is not None:
        head += b"id: %d\n" % number
    return head + b"data: " + orjson.dumps(content) + b"\n\n"
