"""/v1/responses over HTTP: create, retrieve, resume, cancel, delete; JSON or server-sent events.

Knows: HTTP, which request may do what with a response. Does not know: how answers come about, what events
look like, how long responses are kept.
"""

from __future__ import annotations

import time
from contextlib import aclosing

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from app.api import sse
from app.api.http import (
    ClientGone,
    check_origin,
    connection_of,
    error_response,
    json_response,
    rate_headers,
    read_body,
    told,
    while_connected,
)
from app.caller import Caller
from app.logs import get_logger
from app.protocol.endings import failure
from app.protocol.errors import ApiError, server_failed
from app.protocol.payload import decode
from app.protocol.responses import CreateResponse, parse_count, parse_create
from app.protocol.stored_responses import (
    RetrieveQuery,
    check_included,
    item_list,
    parse_items,
    parse_retrieve,
)
from app.responses import KeptResponse, Responses
from app.settings import Settings
from app.streams import ends

log = get_logger()

BEGUN = {"x-should-retry": "false"}
"""What was generated must not be generated again by an SDK that did not like its end."""


class ResponsesEndpoint:
    """All HTTP endpoints of the Responses API."""

    def __init__(
        self, responses: Responses, settings: Settings, keep_alive: float = sse.KEEP_ALIVE_S
    ) -> None:
        self.responses = responses
        self.service = responses.service
        self.settings = settings
        self.keep_alive = keep_alive

    def routes(self) -> list[BaseRoute]:
        one = "/v1/responses/{response_id}"
        return [
            Route("/v1/responses", told(self._create), methods=["POST"]),
            Route("/v1/responses/input_tokens", told(self._count_tokens), methods=["POST"]),
            Route(one, told(self._retrieve), methods=["GET"]),
            Route(one, told(self._delete), methods=["DELETE"]),
            Route(f"{one}/cancel", told(self._cancel), methods=["POST"]),
            Route(f"{one}/input_items", told(self._list_items), methods=["GET"]),
        ]

    async def _create(self, request: Request) -> ASGIApp:
        arrival = time.monotonic()
        caller = self._caller(request)
        body = await read_body(request.receive, request.headers, self.settings.max_message_bytes)
        wanted = await self.service.json.do(len(body), lambda: parse_create(decode(body)))
        return _Creation(self, wanted, caller, arrival)

    async def _retrieve(self, request: Request) -> ASGIApp:
        caller = self._caller(request)
        response_id = request.path_params["response_id"]
        query = parse_retrieve(request.query_params.multi_items())
        if query.stream:
            return _Resumption(self, response_id, caller, query)
        kept = self.responses.find(response_id, caller)
        check_included(query, kept.view)
        with self.responses.shelf.reading(kept):
            return _json(await self.responses.snapshot(kept))

    async def _cancel(self, request: Request) -> ASGIApp:
        """Returns when it has ended, within a tick."""
        kept = self._find(request)
        with self.responses.shelf.reading(kept):
            self.service.bridge.cancel(kept.answer)
            async for _ in ends(kept.answer.streams):
                pass
            return _json(await self.responses.snapshot(kept))

    async def _delete(self, request: Request) -> ASGIApp:
        kept = self._find(request)
        self.responses.shelf.discard(kept)
        return json_response({"id": kept.id, "object": "response", "deleted": True})

    async def _list_items(self, request: Request) -> ASGIApp:
        kept = self._find(request)
        query = parse_items(request.query_params.multi_items())
        return json_response(item_list(kept.conversation, kept.id, query))

    async def _count_tokens(self, request: Request) -> ASGIApp:
        caller = self._caller(request)
        body = await read_body(request.receive, request.headers, self.settings.max_message_bytes)
        wanted = await self.service.json.do(len(body), lambda: parse_count(decode(body)))
        count = await self.responses.count_tokens(wanted, caller)
        return json_response({"object": "response.input_tokens", "input_tokens": count})

    def _caller(self, request: Request) -> Caller:
        """Raises ApiError."""
        check_origin(request.headers, self.settings.allowed_origins)
        return self.service.callers.of_headers(request.headers, connection_of(request.scope))

    def _find(self, request: Request) -> KeptResponse:
        """Raises ApiError."""
        return self.responses.find(request.path_params["response_id"], self._caller(request))


def _json(content: bytes, headers: dict[str, str] | None = None) -> Response:
    return Response(content, headers=headers, media_type="application/json")


class _Creation:
    """A response in the making, and how its first reader gets it."""

    def __init__(
        self, endpoint: ResponsesEndpoint, request: CreateResponse, caller: Caller, arrival: float
    ) -> None:
        self._endpoint = endpoint
        self._request = request
        self._caller = caller
        self._arrival = arrival

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def respond(response: Response) -> None:
            response.headers.update(self._rates())
            await response(scope, receive, send)

        async def run() -> None:
            with self._endpoint.service.delivering():
                try:
                    kept = await self._endpoint.responses.create(
                        self._request, self._caller, arrival=self._arrival
                    )
                except ApiError as error:
                    await respond(error_response(error))
                    return
                with self._endpoint.responses.shelf.reading(kept):
                    if self._request.stream:
                        await _tell(self._endpoint, kept, 0, scope, send, self._rates())
                    else:
                        await respond(await self._whole(kept))

        # The shelf knows what becomes of the response when its client leaves.
        await while_connected(receive, run())

    async def _whole(self, kept: KeptResponse) -> Response:
        if not self._request.in_background:
            async for end in ends(kept.answer.streams):
                if kept.view.has_failed and (error := failure(end)):
                    response = error_response(error)
                    if end.num_output_tokens:
                        response.headers.update(BEGUN)
                    return response
        return _json(await self._endpoint.responses.snapshot(kept), BEGUN)

    def _rates(self) -> dict[str, str]:
        return rate_headers(self._endpoint.service.bridge.engine.room(self._caller.session))


class _Resumption:
    """A response that is told from some number on, to one reader more."""

    def __init__(
        self, endpoint: ResponsesEndpoint, response_id: str, caller: Caller, query: RetrieveQuery
    ) -> None:
        self._endpoint = endpoint
        self._response_id = response_id
        self._caller = caller
        self._query = query

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        responses = self._endpoint.responses

        async def run() -> None:
            with self._endpoint.service.delivering():
                # From here to `reading` in one step: its time to be taken up must not pass in between.
                try:
                    kept = responses.find(self._response_id, self._caller)
                    check_included(self._query, kept.view)
                    start = kept.view.first_after(self._query.starting_after)
                except ApiError as error:
                    await error_response(error)(scope, receive, send)
                    return
                with responses.shelf.reading(kept):
                    await _tell(self._endpoint, kept, start, scope, send)

        await while_connected(receive, run())


async def _tell(
    endpoint: ResponsesEndpoint,
    kept: KeptResponse,
    start: int,
    scope: Scope,
    send: Send,
    headers: dict[str, str] | None = None,
) -> None:
    """All events from number `start` on."""
    stream = sse.EventStream(scope, send, endpoint.settings.send_timeout_s)
    await stream.open(headers or {})
    number = start
    try:
        async with aclosing(endpoint.responses.events(kept, start, endpoint.keep_alive)) as news:
            async for events in news:
                body = b"".join(sse.event(event, name=event["type"]) for event in events)
                await stream.write(body or sse.KEEP_ALIVE)
                number += len(events)
        await stream.write(b"", more=False)
    except ClientGone:
        return
    except Exception:
        # A stream that just ended would look complete.
        log.exception("request_failed")
        fault = server_failed()
        event = {"type": "error", "code": fault.code, "message": fault.message, "param": None}
        await stream.write(sse.event(event | {"sequence_number": number}, name="error"), more=False)
