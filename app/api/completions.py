"""POST /v1/completions: texts to be continued; JSON, or server-sent events with `stream: true`.

Knows: HTTP, how several prompts are one request. Does not know: how answers come about, what chunks look
like.
"""

from __future__ import annotations

import time

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from app.api import sse
from app.api.chunked import failure_among, in_one_piece, send_chunks
from app.api.http import (
    ClientGone,
    check_origin,
    connection_of,
    error_response,
    rate_headers,
    read_body,
    while_connected,
)
from app.caller import Caller
from app.protocol.completions import CompletionBuilder, CompletionRequest, Given, parse_completion
from app.protocol.errors import ApiError, invalid_value
from app.service import Prompt, Service
from app.settings import Settings
from app.streams import Answer, Log


class Completions:
    """The endpoint, as an ASGI application."""

    def __init__(self, service: Service, settings: Settings) -> None:
        self.service = service
        self.settings = settings

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        arrival = time.monotonic()
        headers = Headers(scope=scope)
        try:
            check_origin(headers, self.settings.allowed_origins)
            caller = self.service.callers.of_headers(headers, connection_of(scope))
            body = await read_body(receive, headers, self.settings.max_message_bytes)
            request = await self.service.json.do(len(body), lambda: parse_completion(body))
            self.service.check_model(request.model)
        except ApiError as error:
            await error_response(error)(scope, receive, send)
            return
        except ClientGone:
            return
        exchange = _Exchange(self, request, caller, scope, receive, send)
        await while_connected(receive, exchange.run(arrival))


class _Exchange:
    """One request and the answers to its prompts."""

    def __init__(
        self,
        endpoint: Completions,
        request: CompletionRequest,
        caller: Caller,
        scope: Scope,
        receive: Receive,
        send: Send,
    ) -> None:
        self._service = endpoint.service
        self._send_timeout = endpoint.settings.send_timeout_s
        self._request = request
        self._caller = caller
        self._asgi = scope, receive, send
        self._answers: list[Answer] = []

    async def run(self, arrival: float) -> None:
        """Cancelled when the client leaves; all answers end with it."""
        with self._service.delivering():
            try:
                await self._begin(arrival)
                model = self._service.model
                builder = CompletionBuilder(self._answers, self._request, model.name, model.vocabulary)
                await (self._stream(builder) if self._request.stream else self._whole(builder))
            except ApiError as error:
                await self._respond(error_response(error))
            finally:
                for answer in self._answers:
                    self._service.bridge.cancel(answer)

    async def _begin(self, arrival: float) -> None:
        """
        Raises:
            ApiError: one of the prompts cannot be continued, so none is.
        """
        request = self._request
        limit = self._service.bridge.engine.room(self._caller.session).limit
        if len(request.prompt) > 1 and len(request.prompt) * request.sampling.n > limit:
            raise invalid_value(
                "prompt",
                f"got {len(request.prompt)} prompts with n={request.sampling.n}, allowed: at most {limit} "
                "choices in all, a session's places here",
            )
        for index, given in enumerate(request.prompt):
            prompt = self._prompt(given, self._request.field(index))
            answer = await self._service.start(prompt, self._request, self._caller, arrival=arrival)
            self._answers.append(answer)

    def _prompt(self, given: Given, field: str) -> Prompt:
        if isinstance(given, str):
            return self._service.text(given, field)
        return Prompt(field, len(given), lambda: given)

    async def _whole(self, builder: CompletionBuilder) -> None:
        failed = await failure_among(builder.streams)
        await self._respond(
            failed or await in_one_piece(builder.streams, builder.completion, self._service.json)
        )

    async def _stream(self, builder: CompletionBuilder) -> None:
        scope, _, send = self._asgi
        stream = sse.EventStream(scope, send, self._send_timeout)
        await stream.open(self._rates())
        try:
            await send_chunks(stream, Log(builder.streams), builder)
        except ClientGone:
            return

    async def _respond(self, response: Response) -> None:
        response.headers.update(self._rates())
        await response(*self._asgi)

    def _rates(self) -> dict[str, str]:
        return rate_headers(self._service.bridge.engine.room(self._caller.session))
