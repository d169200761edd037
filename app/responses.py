"""Responses: what the HTTP and socket endpoints of that API share.

Knows: how a request and the turns before it become a running response, where responses are kept, and how one
is read. Does not know: HTTP, sockets, lanes, what events look like.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from dataclasses import replace
from functools import partial

import orjson

from app.caller import Caller
from app.protocol.errors import ApiError
from app.protocol.messages import check_continued, joined
from app.protocol.responses import CreateResponse, Event, ResponseEvents
from app.service import Prompt, Service
from app.settings import Settings
from app.shelf import Kept, OnDisconnect, Shelf
from app.store import Conversation, Message
from app.streams import MAX_NEWS, news_of
from app.truncation import Truncation
from engine.request import Priority

STORED_RESPONSES = 10_000
STORED_BYTES = 256 * 1024 * 1024
ROOM_FOR_ANSWERS = 4
"""A conversation that is cut for an answer of no particular length leaves one so many-th of the context."""

KeptResponse = Kept[ResponseEvents]
Recall = Callable[[str], Conversation | None]
"""The id of a response -> the conversation up to and including it, if somebody still has it."""


class Responses:
    def __init__(self, service: Service, settings: Settings) -> None:
        self.service = service
        self.shelf: Shelf[ResponseEvents] = Shelf(
            service.bridge.cut,
            settings.resume_grace_s,
            STORED_RESPONSES,
            STORED_BYTES,
            ResponseEvents.rest,
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
        conversation = self._conversation(request, caller, recall)
        prompt, truncation = self._prompt(request, conversation)
        if request.warms_up:
            # Whoever reads along goes first. The one token that is sampled is told to nobody.
            sampling = replace(request.sampling, min_tokens=0, max_tokens=1, logprobs=None)
            answer = await service.start(
                prompt, request, caller, arrival=arrival, sampling=sampling, priority=Priority.BATCH
            )
        else:
            answer = await service.start(prompt, request, caller, arrival=arrival)
        num_dropped = truncation.num_dropped if truncation else 0
        view = ResponseEvents(answer, request, service.model.name, service.model.vocabulary, num_dropped)
        kept = Kept(
            view,
            caller.key,
            OnDisconnect(request.on_disconnect or self._on_disconnect),
            stored=request.stored,
            background=request.in_background,
            conversation=conversation,
            extra_size=view.size,
        )
        self.shelf.add(kept)
        return kept

    def find(self, response_id: str, caller: Caller, param: str = "response_id") -> KeptResponse:
        """
        Raises:
            ApiError: 404, there is none of this caller; 410, it was here once.
        """
        return self.shelf.find(response_id, caller.key, param)

    async def events(
        self, kept: KeptResponse, start: int, idle: float | None = None
    ) -> AsyncGenerator[list[Event], None]:
        """All events from number `start` to the last, as they come. No events stand for `idle` seconds
        without any."""
        view, number = kept.view, start
        most = 1 if view.request.with_logprobs else MAX_NEWS
        with news_of(view.answer.streams) as news:
            while number != view.num_events:
                news.clear()
                await self.prepare(view)
                events: list[Event] = []
                while len(events) < most and number != view.num_events:
                    event = view.event(number)
                    if event is None:
                        break
                    events.append(event)
                    number += 1
                if events:
                    yield events
                    continue
                try:
                    async with asyncio.timeout(idle):
                        await news.wait()
                except TimeoutError:
                    yield []

    async def snapshot(self, kept: KeptResponse) -> bytes:
        """The response object as it stands, as JSON."""
        view = kept.view
        await self.prepare(view)
        return await self.service.json.do(view.json_size, lambda: orjson.dumps(view.response()))

    async def prepare(self, view: ResponseEvents) -> None:
        """So that none of its events takes long."""
        if view.num_events is not None and (size := view.unwritten_size):
            view.adopt(await self.service.json.do(size, view.write_logprobs))

    async def count_tokens(
        self, request: CreateResponse, caller: Caller, *, recall: Recall = lambda _: None
    ) -> int:
        """How long the prompt of a response would be.

        Raises:
            ApiError: as `create`.
        """
        self.service.check_model(request.model)
        conversation = self._conversation(request, caller, recall)
        prompt, _ = self._prompt(request, conversation)
        return len(await self.service.encode(prompt))

    def _prompt(
        self, request: CreateResponse, conversation: Conversation
    ) -> tuple[Prompt, Truncation | None]:
        """And what cuts it, if it may be cut."""
        instructions: list[Message] = (
            [{"role": "system", "content": request.instructions}] if request.instructions else []
        )
        messages = [*instructions, *conversation]
        prompt = self.service.chat(messages, "input", continue_final_message=request.continues)
        if not request.may_be_truncated:
            return prompt, None
        context, answer = self.service.context, request.max_output_tokens
        truncation = Truncation(
            messages,
            partial(self.service.model.encode, continue_final_message=request.continues),
            fits=context - (answer or 1),
            room=context - (answer or context // ROOM_FOR_ANSWERS),
        )
        return replace(prompt, encode=truncation.encode), truncation

    def _conversation(self, request: CreateResponse, caller: Caller, recall: Recall) -> Conversation:
        """
        Raises:
            ApiError: there is no such earlier response, or it does not end with what is to be continued.
        """
        conversation = self._earlier(request, caller, recall) + tuple(request.messages)
        if request.continues:
            check_continued(conversation)
        return conversation

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
    if events.request.continues:
        return joined(kept.conversation, events.stream.text)
    return (*kept.conversation, {"role": "assistant", "content": events.stream.text})
