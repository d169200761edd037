"""POST /v1/chat/completions: JSON, or server-sent events with `stream: true`.

Knows: HTTP and SSE framing. Does not know: how answers come about, what chunks look like.
"""

from __future__ import annotations

import time
from contextlib import aclosing

import orjson
from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from app.api import sse
from app.api.http import (
    ClientGone,
    check_origin,
    connection_of,
    error_response,
    read_body,
    while_connected,
)
from app.caller import Caller
from app.protocol.chat import ChatBuilder, ChatRequest, parse_chat
from app.protocol.endings import failure
from app.protocol.errors import ApiError
from app.service import Service
from app.settings import Settings
from app.streams import Answer, Delta, ends, read
from engine.request import FinishReason


class ChatCompletions:
    """The endpoint, as an ASGI application."""

    def __init__(self, service: Service, settings: Settings, keep_alive: float = sse.KEEP_ALIVE_S) -> None:
        self.service = service
        self.settings = settings
        self.keep_alive = keep_alive

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        arrival = time.monotonic()
        headers = Headers(scope=scope)
        try:
            check_origin(headers, self.settings.allowed_origins)
            asker = self.service.callers.of_headers(headers, connection_of(scope))
            body = await read_body(receive, headers, self.settings.max_message_bytes)
            request = await self.service.json.do(len(body), lambda: parse_chat(body))
            self.service.check_model(request.model)
        except ApiError as error:
            await error_response(error)(scope, receive, send)
            return
        except ClientGone:
            return
        exchange = _Exchange(self, request, asker, scope, receive, send)
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
                prompt = self._service.chat(request.conversation, "messages")
                answer = await self._service.start(prompt, request, self._caller, arrival=arrival)
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
        scope, _, send = self._asgi
        stream = sse.EventStream(scope, send, self._send_timeout)
        await stream.open()
        try:
            await stream.write(b"".join(sse.event(builder.role(each.choice)) for each in answer.streams))
            async with aclosing(read(answer.log, idle=self._keep_alive)) as events:
                async for news in events:
                    body = b""
                    for _, (choice, event) in news:
                        if isinstance(event, Delta):
                            body += sse.event(builder.text(choice, event))
                        elif error := failure(event):
                            await stream.write(body + sse.event({"error": error.body()}), more=False)
                            return
                        else:
                            body += sse.event(builder.finish(event))
                    await stream.write(body or sse.KEEP_ALIVE)
            usage = builder.usage()
            await stream.write((sse.event(usage) if usage else b"") + b"data: [DONE]\n\n", more=False)
        except ClientGone:
            return
