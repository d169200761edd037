"""Responses: what the HTTP and socket endpoints of that API share.

Knows: how a request and the turns before it become a running response, and where responses are kept. Does not
know: HTTP, sockets, lanes, what events look like.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from app.caller import Caller
from app.protocol.errors import ApiError
from app.protocol.responses import CreateResponse, ResponseEvents
from app.service import Service
from app.settings import Settings
from app.shelf import Kept, OnDisconnect, Shelf
from app.store import Conversation, Message
from engine.request import Priority

STORED_RESPONSES = 10_000
STORED_BYTES = 256 * 1024 * 1024

KeptResponse = Kept[ResponseEvents]
Recall = Callable[[str], Conversation | None]
"""The id of a response -> the conversation up to and including it, if somebody still has it."""


class Responses:
    def __init__(self, service: Service, settings: Settings) -> None:
        self.service = service
        self.shelf: Shelf[ResponseEvents] = Shelf(
            service.bridge.cut, settings.resume_grace_s, STORED_RESPONSES, STORED_BYTES
        )
        self._on_disconnect = settings.on_disconnect

    async def create(
        self, request: CreateResponse, caller: Caller, *, arrival: float, recall: Recall = lambda _: None
    ) -> KeptResponse:
        """Begin a response. `recall` is asked first for what came before.

        Raises:
            ApiError: there is no such model or earlier response, or as `Service.start`.
        """
        service = self.service
        service.check_model(request.model)
        conversation = self._earlier(request, caller, recall) + tuple(request.messages)
        instructions: list[Message] = (
            [{"role": "system", "content": request.instructions}] if request.instructions else []
        )
        prompt = service.chat([*instructions, *conversation], "input")
        if request.warms_up:
            # Whoever reads along goes first. The one token that is sampled is told to nobody.
            sampling = replace(request.sampling, max_tokens=1, logprobs=None)
            answer = await service.start(
                prompt, request, caller, arrival=arrival, sampling=sampling, priority=Priority.BATCH
            )
        else:
            answer = await service.start(prompt, request, caller, arrival=arrival)
        kept = Kept(
            ResponseEvents(answer, request, service.model.name, service.model.vocabulary),
            caller.key,
            OnDisconnect(request.on_disconnect or self._on_disconnect),
            stored=request.stored,
            conversation=conversation,
        )
        self.shelf.add(kept)
        return kept

    def find(self, response_id: str, caller: Caller, param: str = "response_id") -> KeptResponse:
        """
        Raises:
            ApiError: 404, there is none of this caller; 410, it was here once.
        """
        return self.shelf.find(response_id, caller.key, param)

    def _earlier(self, request: CreateResponse, caller: Caller, recall: Recall) -> Conversation:
        response_id = request.previous_response_id
        if response_id is None:
            return ()
        if (recalled := recall(response_id)) is not None:
            return recalled
        try:
            earlier = conversation_of(self.find(response_id, caller))
        except ApiError:
            earlier = None
        if earlier is None:
            raise ApiError(
                400,
                f"previous_response_id: got {response_id!r}, allowed: a response that has ended, "
                "with store=true or on this connection, and not too long ago",
                code="previous_response_not_found",
                param="previous_response_id",
            )
        return earlier


def conversation_of(kept: KeptResponse) -> Conversation | None:
    """What a next turn builds on: all messages, the answer included. None: it runs, or it failed."""
    events = kept.view
    end = events.stream.end
    if end is None or events.has_failed:
        return None
    if events.request.warms_up:
        return kept.conversation
    return (*kept.conversation, {"role": "assistant", "content": events.stream.text})
