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
    connection_of,
    error_response,
    read_body,
    while_connected,
)
from app.caller import Caller, caller
from app.logs import get_logger
from app.protocol.chat import ChatBuilder, ChatRequest, parse_chat
from app.protocol.endings import failure
from app.protocol.errors import ApiError
from app.service import Service
from app.settings import Settings
from app.streams import Answer, Delta, ends, read
from engine.request import FinishReason

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
            body = await read_body(receive, headers, self.settings.max_message_bytes)
            request = await self.service.json.do(len(body), lambda: parse_chat(body))
            self.service.check_model(request.model)
        except ApiError as error:
            await error_response(error)(scope, receive, send)
            return
        except ClientGone:
            return
        exchange = _Exchange(self, request, caller(headers, connection_of(scope)), scope, receive, send)
        await while_connected(receive, exchange.run(arrival))


class _Exchange:
    """One request and its answer."""

    def __init__(
        self,
        endpoint: ChatCompletions,
        request: ChatRequest,
        caller: Caller,
        scope: Scope,
        receive: Receive,
        send: Send,
    ) -> None:
        self._keep_alive = endpoint.keep_alive
        self._send_timeout = endpoint.settings.send_timeout_s
        self._service = endpoint.service
        self._request = request
        self._caller = caller
        self._asgi = scope, receive, send

    async def run(self, arrival: float) -> None:
        """Cancelled when the client leaves; the answer ends with it."""
        request, model = self._request, self._service.model
        with self._service.delivering():
            try:
                answer = await self._service.start(
                    request.conversation, request, self._caller, arrival=arrival, field="messages"
                )
            except ApiError as error:
                await self._respond(error_response(error))
                return
            builder = ChatBuilder(answer, request, model.name, model.vocabulary)
            try:
                await (self._stream(answer, builder) if request.stream else self._whole(answer, builder))
            finally:
                self._service.bridge.cancel(answer)

    async def _whole(self, answer: Answer, builder: ChatBuilder) -> None:
        """If one choice fails, nobody waits for the others: an answer with a part missing is none."""
        async with aclosing(ends(answer.streams)) as each_end:
            async for end in each_end:
                if error := failure(end):
                    response = error_response(error)
                    if end.reason is not FinishReason.TIMEOUT or any(s.num_deltas for s in answer.streams):
                        response.headers["x-should-retry"] = "false"
                    await self._respond(response)
                    return
        # Log probabilities make it large.
        size = sum(64 * (1 + len(each.top)) for stream in answer.streams for each in stream.logprobs)
        content = await self._service.json.do(size, lambda: orjson.dumps(builder.completion()))
        headers = {"x-should-retry": "false"}
        await self._respond(Response(content, headers=headers, media_type="application/json"))

    async def _respond(self, response: Response) -> None:
        await response(*self._asgi)

    async def _stream(self, answer: Answer, builder: ChatBuilder) -> None:
        """If one choice fails, the stream ends with its error: [DONE] would call it complete."""
        _, _, send = self._asgi
        head = Response(headers=STREAM_HEADERS, media_type="text/event-stream")
        del head.headers["content-length"]
        await send({"type": "http.response.start", "status": 200, "headers": head.raw_headers})
        try:
            await self._write(b"".join(_data(builder.role(stream.choice)) for stream in answer.streams))
            async with aclosing(read(answer.streams, self._keep_alive)) as events:
                async for news in events:
                    body = b""
                    for choice, event in news:
                        if isinstance(event, Delta):
                            body += _data(builder.text(choice, event))
                        elif error := failure(event):
                            await self._write(body + _data({"error": error.body()}), more=False)
                            return
                        else:
                            body += _data(builder.finish(event))
                    await self._write(body or b": keep-alive\n\n")
            usage = builder.usage()
            await self._write((_data(usage) if usage else b"") + b"data: [DONE]\n\n", more=False)
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
