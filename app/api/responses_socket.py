"""ws /v1/responses: the Responses WebSocket mode, with `response.cancel` added.

Knows: one socket's tasks and what it may keep in memory. Does not know: what messages mean (the session
does), what events look like, how answers come about.

Two tasks live as long as the socket. The reader always reads: a socket whose messages wait unread shows
neither pongs nor the client's going. The writer serves all lanes in turn, one event each, and is the only
one that writes; while it waits for a slow client, the streams merge what comes.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections import deque
from dataclasses import dataclass, field

import orjson
from starlette.datastructures import Headers
from starlette.types import Receive, Scope, Send

from app import transport
from app.api.http import ClientGone, check_origin, error_response
from app.caller import Caller
from app.logs import get_logger
from app.metrics import Metrics
from app.protocol.errors import ApiError
from app.protocol.responses import TERMINAL, Event, ResponseEvents
from app.protocol.session import Abort, Begin, Effect, Limits, SocketSession, Turn, Understood, understand
from app.protocol.session import Send as SendEvent
from app.responses import KeptResponse, Responses, conversation_of
from app.settings import Settings

log = get_logger()

MAX_UNSENT_ERRORS = 256
"""A client that makes this many errors and reads none of them is not worth talking to."""
WAITING_MESSAGES = 4
"""How many messages of the largest size may wait for their turn."""


@dataclass(slots=True)
class _Live:
    """A response on its way to the client."""

    kept: KeptResponse
    number: int = 0
    """The next event to write."""
    written: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the last event has been handed to the connection."""

    @property
    def events(self) -> ResponseEvents:
        return self.kept.view


class ResponsesSocket:
    """The endpoint, as an ASGI application."""

    def __init__(self, responses: Responses, metrics: Metrics, settings: Settings) -> None:
        self.responses = responses
        self.service = responses.service
        self.settings = settings
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            headers = Headers(scope=scope)
            check_origin(headers, self.settings.allowed_origins)
            caller = self.service.callers.of_headers(headers, secrets.token_hex(8))
            self.service.check_ready()
        except ApiError as error:
            await error_response(error)(scope, receive, send)
            return
        await receive()  # websocket.connect
        await send({"type": "websocket.accept"})
        with self._metrics.websocket_connections.track_inprogress():
            await _Connection(self, caller, scope, receive, send).run()


class _Connection:
    def __init__(
        self, endpoint: ResponsesSocket, caller: Caller, scope: Scope, receive: Receive, send: Send
    ) -> None:
        self._service = endpoint.service
        self._responses = endpoint.responses
        self._send_timeout = endpoint.settings.send_timeout_s
        waiting_bytes = WAITING_MESSAGES * endpoint.settings.max_message_bytes
        self._caller = caller
        self._session = SocketSession(Limits(max_waiting_bytes=waiting_bytes))
        self._scope, self._receive, self._send = scope, receive, send
        self._errors: deque[Event] = deque()
        self._live: dict[Turn, _Live] = {}
        self._turns: set[asyncio.Task[None]] = set()
        self._news = asyncio.Event()

    async def run(self) -> None:
        tasks = {asyncio.create_task(self._read()), asyncio.create_task(self._write())}
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            tasks |= self._turns
            for task in tasks:
                task.cancel()
            for live in self._live.values():
                live.events.stream.unlisten(self._news.set)
            await asyncio.gather(*tasks, return_exceptions=True)
        for task in done:
            task.result()  # a fault of ours must be seen

    # -- reading ----------------------------------------------------------------------------------------

    async def _read(self) -> None:
        """Ends when the client is gone."""
        while (message := await self._receive())["type"] != "websocket.disconnect":
            text = message.get("text")
            if text is None:
                effects = self._session.receive_binary()
            else:
                effects = self._session.take(await self._understand(text))
            self._carry_out(effects)
            if len(self._errors) > MAX_UNSENT_ERRORS:
                self._cut("unread errors")
                return

    async def _understand(self, text: str) -> Understood:
        return await self._service.json.do(len(text), lambda: understand(text))

    def _carry_out(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case SendEvent(event):
                    self._errors.append(event)
                    self._news.set()
                case Begin(turn):
                    task = asyncio.create_task(self._begin(turn, time.monotonic()))
                    self._turns.add(task)
                    task.add_done_callback(self._turns.discard)
                case Abort(turn):
                    self._service.bridge.cancel(self._live[turn].events.answer)

    # -- a turn -----------------------------------------------------------------------------------------

    async def _begin(self, turn: Turn, arrival: float) -> None:
        with self._service.delivering():
            try:
                live = await self._start(turn, arrival)
            except ApiError as error:
                self._carry_out(self._session.failed(turn, error))
                return
            except Exception:
                log.exception("request_failed")
                fault = ApiError(
                    500, "the server failed on this request", code="server_error", kind="server_error"
                )
                self._carry_out(self._session.failed(turn, fault))
                return
            with self._responses.shelf.reading(live.kept):
                self._live[turn] = live
                self._session.began(turn, live.events.id)
                live.events.stream.listen(self._news.set)
                await live.written.wait()

    async def _start(self, turn: Turn, arrival: float) -> _Live:
        return _Live(
            await self._responses.create(
                turn.request, self._caller, arrival=arrival, recall=self._session.recall
            )
        )

    # -- writing ----------------------------------------------------------------------------------------

    async def _write(self) -> None:
        """Ends when the client took nothing for too long, or is gone."""
        try:
            while True:
                self._news.clear()
                if not await self._write_round():
                    await self._news.wait()
        except ClientGone:
            return

    async def _write_round(self) -> bool:
        """One event of each lane that has one. False: there was nothing to write."""
        wrote = bool(self._errors)
        while self._errors:
            await self._send_event(self._errors.popleft())
        for turn, live in list(self._live.items()):
            event = live.events.event(live.number)
            if event is None:
                continue
            wrote = True
            live.number += 1
            if turn.lane is not None:
                event["stream_id"] = turn.lane
            if event["type"] in TERMINAL:
                await self._write_last(turn, live, event)
            else:
                await self._send_event(event)
        return wrote

    async def _write_last(self, turn: Turn, live: _Live, event: Event) -> None:
        # Before it is written: who has read it may build on the response at once, from anywhere.
        effects = self._session.ended(turn, conversation_of(live.kept))
        live.events.stream.unlisten(self._news.set)
        del self._live[turn]
        await self._send_event(event)
        live.written.set()
        self._carry_out(effects)

    async def _send_event(self, event: Event) -> None:
        """Raises ClientGone."""
        text = orjson.dumps(event).decode()
        try:
            async with asyncio.timeout(self._send_timeout):
                await self._send({"type": "websocket.send", "text": text})
        except TimeoutError as error:
            self._cut(f"it took nothing for {self._send_timeout} s")
            raise ClientGone from error
        except (OSError, RuntimeError) as error:
            # OSError: the connection broke. RuntimeError: it was closed under us, by a violation of the
            # protocol or a missing pong. Either way the reader is told as well.
            raise ClientGone from error

    def _cut(self, why: str) -> None:
        log.warning("reader_cut", path=self._scope["path"], why=why)
        transport.abort(self._scope)
