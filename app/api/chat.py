"""POST /v1/chat/completions: JSON, or server-sent events with `stream: true`.

Knows: HTTP and SSE framing. Does not know: how answers come about, what chunks look like.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import aclosing

import orjson
from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from app import transport
from app.api.http import (
    ClientGone,
    check_origin,
    error_response,
    json_response,
    read_body,
    while_connected,
)
from app.logs import get_logger
from app.protocol.chat import ChatRequest, ChunkBuilder, completion, failure, parse_chat
from app.protocol.errors import ApiError
from app.service import Service
from app.settings import Settings
from app.streams import Stream, ended, read
from engine.request import FinishedEvent

log = get_logger()

KEEP_ALIVE_S = 15.0
"""A stream without news for this long sends a comment, so that proxies do not take it for dead."""

STREAM_HEADERS = {
    "cache-control": "no-cache",
    "x-accel-buffering": "no",
    # What has begun must not be begun again by an SDK whose connection broke.
    "x-should-retry": "false",
}


class ChatCompletions:
    """The endpoint, as an ASGI application."""

    def __init__(self, service: Service, settings: Settings, keep_alive: float = KEEP_ALIVE_S) -> None:
        self.service = service
        self.settings = settings
        self.keep_alive = keep_alive

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        arrival = time.monotonic()
        headers = Headers(scope=scope)
        try:
            check_origin(headers, self.settings.allowed_origins)
            request = parse_chat(await read_body(receive, headers, self.settings.max_message_bytes))
            self.service.check_model(request.model)
        except ApiError as error:
            await error_response(error)(scope, receive, send)
            return
        except ClientGone:
            return
        exchange = _Exchange(self, request, scope, receive, send)
        await while_connected(receive, exchange.run(arrival))


class _Exchange:
    """One request and its answer."""

    def __init__(
        self, endpoint: ChatCompletions, request: ChatRequest, scope: Scope, receive: Receive, send: Send
    ) -> None:
        self._keep_alive = endpoint.keep_alive
        self._send_timeout = endpoint.settings.send_timeout_s
        self._service = endpoint.service
        self._request = request
        self._asgi = scope, receive, send

    async def run(self, arrival: float) -> None:
        """Cancelled when the client leaves; the answer ends with it."""
        request = self._request
        with self._service.delivering():
            try:
                stream = await self._service.start(
                    request.conversation(),
                    request.params(request.token_limit),
                    arrival=arrival,
                    field="messages",
                    user=request.end_user,
                )
            except ApiError as error:
                await self._respond(error_response(error))
                return
            try:
                await (self._stream(stream) if request.stream else self._whole(stream))
            finally:
                self._service.bridge.cancel(stream)

    async def _whole(self, stream: Stream) -> None:
        end = await ended(stream)
        if error := failure(end):
            response = error_response(error)
            response.headers["x-should-retry"] = "false"
        else:
            answer = completion(stream, end, self._service.model.name)
            response = json_response(answer, headers={"x-should-retry": "false"})
        await self._respond(response)

    async def _respond(self, response: Response) -> None:
        await response(*self._asgi)

    async def _stream(self, stream: Stream) -> None:
        _, _, send = self._asgi
        head = Response(headers=STREAM_HEADERS, media_type="text/event-stream")
        del head.headers["content-length"]
        await send({"type": "http.response.start", "status": 200, "headers": head.raw_headers})
        chunks = ChunkBuilder(stream, self._service.model.name, self._request.include_usage)
        try:
            await self._write(_data(chunks.role()))
            async with aclosing(read(stream, self._keep_alive)) as events:
                async for event in events:
                    if event is None:
                        await self._write(b": keep-alive\n\n")
                    elif isinstance(event, FinishedEvent):
                        await self._write(_ending(chunks, event), more=False)
                    else:
                        await self._write(_data(chunks.text(event)))
        except ClientGone:
            return

    async def _write(self, body: bytes, more: bool = True) -> None:
        """Raises ClientGone when the client took nothing for too long; its connection is cut then."""
        scope, _, send = self._asgi
        try:
            async with asyncio.timeout(self._send_timeout):
                await send({"type": "http.response.body", "body": body, "more_body": more})
        except TimeoutError as error:
            log.warning("reader_cut", path=scope["path"], seconds=self._send_timeout)
            transport.abort(scope)
            raise ClientGone from error


def _data(content: object) -> bytes:
    return b"data: " + orjson.dumps(content) + b"\n\n"


def _ending(chunks: ChunkBuilder, end: FinishedEvent) -> bytes:
    """After a failure the stream ends with the error: [DONE] would call it complete."""
    if error := failure(end):
        return _data({"error": error.body()})
    return b"".join(map(_data, chunks.finish(end))) + b"data: [DONE]\n\n"
