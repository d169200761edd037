"""ws /api/chat: chats of pages made with the AI SDK, over its `WebSocketChatTransport`.

Knows: one socket's requests and what it may keep in memory. Does not know: what frames look like, how answers
come about, what becomes of them without a reader.

Two tasks live as long as the socket. One always reads, the other one delivers.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from starlette.datastructures import Headers
from starlette.types import Receive, Scope, Send

from app import transport
from app.api.handshake import accept
from app.api.sign_in import NO_KEY_IN_TIME
from app.caller import Caller, bearer
from app.chats import Beginning, Chats, KeptChat, outcome_of
from app.delivery import Delivery
from app.logs import get_logger
from app.metrics import Metrics
from app.protocol.errors import ApiError, server_failed
from app.protocol.ui_chat import (
    AbortRequest,
    Refused,
    ResumeRequest,
    Turn,
    Understood,
    chunk_frame,
    end_frame,
    error_frame,
    no_active_frame,
    start_frame,
    understand,
)
from app.service import Service
from app.settings import Settings

log = get_logger()

MAX_REQUESTS = 32
"""Of one connection, at once."""
BEGINNING_FRAMES = 4
"""Frames of the largest size whose answers may be about to begin, for one connection."""


class _Reading:
    """An answer on its way to the client, from chunk `number` on: a source of frames."""

    def __init__(self, kept: KeptChat, request_id: str, number: int) -> None:
        self.kept = kept
        self._request_id = request_id
        self._number = number
        self._is_over = False
        self.written = asyncio.Event()
        """Set when the last frame has been handed to the connection."""

    @property
    def is_over(self) -> bool:
        return self._is_over

    def next_frame(self) -> bytes | None:
        if self._number == self.kept.view.num_chunks:
            self._is_over = True
            return end_frame(self._request_id)
        chunk = self.kept.view.chunk(self._number)
        if chunk is None:
            return None
        self._number += 1
        return chunk_frame(self._request_id, self._number - 1, chunk)

    def delivered(self) -> None:
        self.written.set()


@dataclass(eq=False, slots=True)
class _Request:
    """A send or resume request whose `end` has not been written."""

    id: str
    task: asyncio.Task[None] | None = None
    turn: Turn | None = None
    beginning: Beginning | None = None
    """Of this turn's answer, until somebody has seen what came of it."""
    reading: _Reading | None = None

    @property
    def num_waiting_bytes(self) -> int:
        return self.turn.size if self.turn and self.beginning else 0


class _Close(NamedTuple):
    code: int
    reason: str


class UiChatSocket:
    """The endpoint, as an ASGI application.

    A browser cannot send an Authorization header with the handshake. Where keys are asked for, a connection
    without one is let in, and has to send a request with a good key in its `headers` within
    `handshake_timeout_s`. A key in a request counts for this request, whatever the handshake's was.
    """

    def __init__(self, service: Service, metrics: Metrics, settings: Settings) -> None:
        self.service = service
        self.chats = Chats(service, settings)
        self.settings = settings
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        # While the server ends, too: answers that are still coming can be taken up.
        accepted = await accept(self.service, self.settings, scope, receive, send, for_new_work=False)
        if accepted is None:
            return
        with self._metrics.websocket_connections.track_inprogress():
            await _Connection(self, *accepted, scope, receive, send).run()


class _Connection:
    """
    Args:
        name: which no other open connection has.
        caller: None: each request has to say who it is.
    """

    def __init__(
        self,
        endpoint: UiChatSocket,
        name: str,
        caller: Caller | None,
        scope: Scope,
        receive: Receive,
        send: Send,
    ) -> None:
        settings = endpoint.settings
        self._service = endpoint.service
        self._chats = endpoint.chats
        self._name = name
        self._caller = caller
        self._scope, self._receive, self._send = scope, receive, send
        self._send_timeout = settings.send_timeout_s
        self._delivery = Delivery(scope, settings.send_timeout_s)
        self._requests: dict[str, _Request] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._max_beginning_bytes = BEGINNING_FRAMES * settings.max_message_bytes
        self._patience = asyncio.timeout(settings.handshake_timeout_s if caller is None else None)
        """Until its client has shown a key."""

    async def run(self) -> None:
        reader = asyncio.create_task(self._read())
        tasks: set[asyncio.Task[None] | asyncio.Task[_Close | None]] = {reader}
        tasks.add(asyncio.create_task(self._delivery.run()))
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for request in self._requests.values():
                if request.turn and request.beginning:
                    self._chats.leave(request.beginning, request.turn)
            tasks |= self._tasks
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        for task in done:
            if close := task.result():  # a fault of ours must be seen
                await self._close(close)

    async def _close(self, close: _Close) -> None:
        try:
            async with asyncio.timeout(self._send_timeout):
                await self._send({"type": "websocket.close", "code": close.code, "reason": close.reason})
        except (TimeoutError, OSError, RuntimeError):
            transport.abort(self._scope)

    async def _read(self) -> _Close | None:
        """Ends when the client is gone, or is to go."""
        try:
            async with self._patience:
                while (message := await self._receive())["type"] != "websocket.disconnect":
                    text = message.get("text")
                    if text is None:
                        return _Close(1008, "a binary message; allowed: text")
                    if close := self._take(await self._understand(text)):
                        return close
        except ApiError as error:
            return _Close(1008, error.message[:120].encode("ascii", "replace").decode())
        except TimeoutError:
            return _Close(NO_KEY_IN_TIME, "no key in time")
        return None

    async def _understand(self, text: str) -> Understood:
        return await self._service.json.do(len(text), lambda: understand(text))

    # -- requests -----------------------------------------------------------------------------------------

    def _take(self, frame: Understood) -> _Close | None:
        match frame:
            case Refused(request_id, error):
                self._delivery.put(error_frame(request_id, error))
            case AbortRequest():
                self._abort(frame.requestId)
            case Turn():
                return self._admit(frame.request.requestId, frame.request.headers, frame)
            case ResumeRequest():
                return self._admit(frame.requestId, frame.headers, frame)
        return None

    def _admit(self, request_id: str, headers: dict[str, str], frame: Turn | ResumeRequest) -> _Close | None:
        if request_id in self._requests:
            # Whatever was said of the new one, its client would take for news of the earlier one.
            return _Close(1008, "requestId: it is in use on this connection")
        try:
            caller = self._caller_of(headers)
            self._patience.reschedule(None)
            self._check_room(frame.size if isinstance(frame, Turn) else 0)
        except ApiError as error:
            self._delivery.put(error_frame(request_id, error))
            return None
        request = self._requests[request_id] = _Request(request_id)
        if isinstance(frame, Turn):
            # At once, whatever becomes of the connection: what a client has sent is not lost with it.
            request.turn = frame
            request.beginning = self._chats.begin(frame, caller, time.monotonic(), self._readers)
            work = partial(self._answer, request, request.beginning)
        else:
            work = partial(self._resume, request, frame, caller)
        request.task = asyncio.create_task(self._run(request, work))
        self._tasks.add(request.task)
        request.task.add_done_callback(self._tasks.discard)
        return None

    def _caller_of(self, headers: dict[str, str]) -> Caller:
        """Raises ApiError."""
        key = bearer(Headers(headers))
        if key is None and self._caller is not None:
            return self._caller
        return self._service.callers.of_key(key, self._name)

    def _check_room(self, size: int) -> None:
        """Raises ApiError."""
        waiting = sum(request.num_waiting_bytes for request in self._requests.values())
        if len(self._requests) >= MAX_REQUESTS or waiting + size > self._max_beginning_bytes:
            raise ApiError(
                429,
                f"this connection has {len(self._requests)} requests, and {waiting} bytes of them have not "
                f"begun, allowed: {MAX_REQUESTS} and {self._max_beginning_bytes} bytes",
                code="too_many_pending_requests",
                kind="rate_limit_error",
            )

    async def _run(self, request: _Request, work: Callable[[], Awaitable[None]]) -> None:
        with self._service.delivering():
            try:
                await work()
            except ApiError as error:
                self._delivery.put(error_frame(request.id, error))
            except Exception:
                log.exception("request_failed")
                self._delivery.put(error_frame(request.id, server_failed()))
            finally:
                self._forget(request)

    async def _answer(self, request: _Request, beginning: Beginning) -> None:
        await asyncio.wait({beginning})
        request.beginning = None
        if beginning.cancelled():
            self._delivery.put(end_frame(request.id))
            return
        kept, reading = beginning.result()
        with reading:
            await self._tell(request, kept, 0)

    async def _resume(self, request: _Request, frame: ResumeRequest, caller: Caller) -> None:
        kept = await self._chats.latest(frame.id, caller)
        if kept is None or frame.messageId not in (None, kept.view.message_id):
            self._delivery.put(no_active_frame(request.id))
            return
        number = 0 if frame.lastSequence is None else frame.lastSequence + 1
        if number > kept.view.num_given:
            raise ApiError(
                400,
                f"lastSequence: got {frame.lastSequence}, allowed: at most "
                f"{kept.view.num_given - 1}, the last number that somebody was given of this answer",
                code="out_of_range",
                param="lastSequence",
            )
        self._delivery.put(start_frame(request.id))
        with self._chats.shelf.reading(kept):
            await self._tell(request, kept, number)

    async def _tell(self, request: _Request, kept: KeptChat, number: int) -> None:
        reading = request.reading = _Reading(kept, request.id, number)
        (stream,) = kept.answer.streams
        stream.listen(self._delivery.wake)
        self._delivery.add(reading)
        try:
            await reading.written.wait()
        finally:
            self._delivery.remove(reading)
            stream.unlisten(self._delivery.wake)

    def _abort(self, request_id: str) -> None:
        """One that has ended is left alone: its end and the abort have crossed."""
        request = self._requests.get(request_id)
        if request is None or request.task is None:
            return
        if request.beginning is not None:
            request.beginning.cancel()
            if answer := outcome_of(request.beginning):
                self._service.bridge.cancel(answer.kept.answer)
        elif request.reading is not None and self._readers(request.reading.kept) == 1:
            self._service.bridge.cancel(request.reading.kept.answer)
        else:
            # The SDK drops a resume request by aborting it when a newer one has taken its place.
            request.task.cancel()
            self._forget(request)
            self._delivery.put(end_frame(request_id))

    def _readers(self, kept: KeptChat) -> int:
        """On this connection."""
        readings = (request.reading for request in self._requests.values())
        return sum(reading is not None and reading.kept is kept for reading in readings)

    def _forget(self, request: _Request) -> None:
        if self._requests.get(request.id) is request:
            del self._requests[request.id]
