"""POST /v1/chat/completions: JSON, or server-sent events with `stream: true`; and GET of one by its id.

Knows: HTTP, which answers can be taken up again and by whom. Does not know: how answers come about, what
chunks look like.
"""

from __future__ import annotations

import time

from starlette.datastructures import Headers, QueryParams
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
from app.protocol.chat import ChatBuilder, ChatRequest, parse_chat
from app.protocol.errors import ApiError, response_gone
from app.protocol.retrieval import Retrieval, check_start, parse_retrieval
from app.service import Service
from app.settings import Settings
from app.shelf import Kept, OnDisconnect, Shelf
from app.streams import Cut

KEPT_ANSWERS = 2_000
KEPT_BYTES = 64 * 1024 * 1024
"""Of answers that have ended and that somebody may still take up."""

KeptChat = Kept[ChatBuilder]


class ChatCompletions:
    """The endpoints, as one ASGI application: with a `completion_id` in the path, that one is wanted."""

    def __init__(self, service: Service, settings: Settings, keep_alive: float = sse.KEEP_ALIVE_S) -> None:
        self.service = service
        self.settings = settings
        self.keep_alive = keep_alive
        self.shelf: Shelf[ChatBuilder] = Shelf(
            service.bridge.cut, settings.resume_grace_s, KEPT_ANSWERS, KEPT_BYTES
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        arrival = time.monotonic()
        headers = Headers(scope=scope)
        try:
            check_origin(headers, self.settings.allowed_origins)
            caller = self.service.callers.of_headers(headers, connection_of(scope))
            exchange = _Exchange(self, caller, scope, receive, send)
            if (completion_id := scope["path_params"].get("completion_id")) is not None:
                query = QueryParams(scope["query_string"])
                wanted = parse_retrieval(query, headers.get("last-event-id"))
                work = exchange.retrieve(completion_id, wanted)
            else:
                body = await read_body(receive, headers, self.settings.max_message_bytes)
                request = await self.service.json.do(len(body), lambda: parse_chat(body))
                self.service.check_model(request.model)
                work = exchange.create(request, arrival)
        except ApiError as error:
            await error_response(error)(scope, receive, send)
            return
        except ClientGone:
            return
        await while_connected(receive, work)

    def find(self, completion_id: str, caller: Caller, wanted: Retrieval) -> KeptChat:
        """For whoever reads it before anything else happens on the loop.

        Raises:
            ApiError: there is none of this caller, it is gone, or not so far yet.
        """
        kept = self.shelf.find(completion_id, caller.key, "completion_id")
        # One that goes on without a reader is cancelled only if a choice of it has failed; that is told.
        if kept.answer.cut is Cut.ABANDONED or (
            kept.answer.cut and kept.on_disconnect is OnDisconnect.CANCEL
        ):
            raise response_gone(completion_id, "its last reader left before its end", "completion_id")
        check_start(wanted, kept.answer.log.num_taken)
        return kept


class _Exchange:
    """One request, and the answer that it gets."""

    def __init__(
        self, endpoint: ChatCompletions, caller: Caller, scope: Scope, receive: Receive, send: Send
    ) -> None:
        self._endpoint = endpoint
        self._service = endpoint.service
        self._caller = caller
        self._asgi = scope, receive, send

    async def create(self, request: ChatRequest, arrival: float) -> None:
        """Cancelled when the client leaves; the shelf knows what becomes of the answer then."""
        model = self._service.model
        with self._service.delivering():
            try:
                prompt = self._service.chat(
                    request.conversation,
                    "messages",
                    continue_final_message=bool(request.continue_final_message),
                )
                answer = await self._service.start(prompt, request, self._caller, arrival=arrival)
            except ApiError as error:
                await self._respond(error_response(error), self._rates())
                return
            kept = Kept(
                ChatBuilder(answer, request, model.name, model.vocabulary),
                self._caller.key,
                self._on_disconnect(request),
            )
            self._endpoint.shelf.add(kept)
            await self._tell(kept, Retrieval(bool(request.stream), None), self._rates())

    async def retrieve(self, completion_id: str, wanted: Retrieval) -> None:
        """Cancelled when the client leaves."""
        with self._service.delivering():
            try:
                kept = self._endpoint.find(completion_id, self._caller, wanted)
            except ApiError as error:
                await self._respond(error_response(error), {})
                return
            await self._tell(kept, wanted, {})

    def _on_disconnect(self, request: ChatRequest) -> OnDisconnect:
        if not request.stream:  # nobody would know its id
            return OnDisconnect.CANCEL
        return OnDisconnect(request.on_disconnect or self._endpoint.settings.on_disconnect)

    def _rates(self) -> dict[str, str]:
        return rate_headers(self._service.bridge.engine.room(self._caller.session))

    async def _tell(self, kept: KeptChat, wanted: Retrieval, headers: dict[str, str]) -> None:
        with self._endpoint.shelf.reading(kept):
            if wanted.stream:
                is_whole = await self._stream(kept, wanted, headers)
            else:
                is_whole = await self._whole(kept)
            if not is_whole:
                self._service.bridge.cancel(kept.answer)

    async def _whole(self, kept: KeptChat) -> bool:
        """False: a choice failed."""
        streams = kept.answer.streams
        failed = await failure_among(streams)
        response = failed or await in_one_piece(streams, kept.view.completion, self._service.json)
        await self._respond(response, self._rates())
        return failed is None

    async def _stream(self, kept: KeptChat, wanted: Retrieval, headers: dict[str, str]) -> bool:
        """False: a choice failed."""
        endpoint, (scope, _, send) = self._endpoint, self._asgi
        stream = sse.EventStream(scope, send, endpoint.settings.send_timeout_s, endpoint.keep_alive)
        await stream.open(headers)
        try:
            return await send_chunks(
                stream,
                kept.answer.log,
                kept.view,
                start=wanted.start,
                opened=wanted.starting_after is not None,
                numbered=kept.on_disconnect is OnDisconnect.CONTINUE,
            )
        except ClientGone:
            return True

    async def _respond(self, response: Response, headers: dict[str, str]) -> None:
        response.headers.update(headers)
        await response(*self._asgi)
