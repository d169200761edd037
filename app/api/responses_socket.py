"""ws /v1/responses: the Responses WebSocket mode, with `response.cancel` added.

Knows: one socket's tasks and what it may keep in memory. Does not know: what messages mean (the session
does), what events look like, how answers come about.

Two tasks live as long as the socket. One always reads: a socket whose messages wait unread shows neither
pongs nor the client's going. The other one delivers.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable

import orjson
from starlette.datastructures import Headers
from starlette.types import Receive, Scope, Send

from app.api.http import check_origin, error_response
from app.caller import Caller
from app.delivery import Delivery
from app.logs import get_logger
from app.metrics import Metrics
from app.protocol.errors import ApiError
from app.protocol.session import Abort, Begin, Effect, Limits, SocketSession, Turn, Understood, understand
from app.protocol.session import Send as SendEvent
from app.responses import KeptResponse, Responses, conversation_of
from app.settings import Settings

log = get_logger()

WAITING_MESSAGES = 4
"""How many messages of the largest size may wait for their turn."""


class _Reading:
    """A response on its way to the client: a source of frames."""

    def __init__(self, kept: KeptResponse, lane: str | None, ended: Callable[[], None]) -> None:
        self.kept = kept
        self._lane = lane
        self._ended = ended
        self._number = 0
        self.written = asyncio.Event()
        """Set when the last event has been handed to the connection."""

    @property
    def is_over(self) -> bool:
        return self._number == self.kept.view.num_events

    def next_frame(self) -> bytes | None:
        event = self.kept.view.event(self._number)
        if event is None:
            return None
        self._number += 1
        if self._lane is not None:
            event["stream_id"] = self._lane
        if self.is_over:
            # Before it is written: who has read it may build on the response at once, from anywhere.
            self._ended()
        return orjson.dumps(event)

    def delivered(self) -> None:
        self.written.set()


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
        waiting_bytes = WAITING_MESSAGES * endpoint.settings.max_message_bytes
        self._caller = caller
        self._session = SocketSession(Limits(max_waiting_bytes=waiting_bytes))
        self._receive = receive
        self._delivery = Delivery(scope, send, endpoint.settings.send_timeout_s)
        self._readings: dict[Turn, _Reading] = {}
        self._turns: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        tasks = {asyncio.create_task(self._read()), asyncio.create_task(self._delivery.run())}
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            tasks |= self._turns
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        for task in done:
            task.result()  # a fault of ours must be seen

    async def _read(self) -> None:
        """Ends when the client is gone."""
        while (message := await self._receive())["type"] != "websocket.disconnect":
            text = message.get("text")
            if text is None:
                effects = self._session.receive_binary()
            else:
                effects = self._session.take(await self._understand(text))
            self._carry_out(effects)

    async def _understand(self, text: str) -> Understood:
        return await self._service.json.do(len(text), lambda: understand(text))

    def _carry_out(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case SendEvent(event):
                    self._delivery.put(orjson.dumps(event))
                case Begin(turn):
                    task = asyncio.create_task(self._run_turn(turn, time.monotonic()))
                    self._turns.add(task)
                    task.add_done_callback(self._turns.discard)
                case Abort(turn):
                    self._service.bridge.cancel(self._readings[turn].kept.answer)

    async def _run_turn(self, turn: Turn, arrival: float) -> None:
        with self._service.delivering():
            try:
                kept = await self._responses.create(
                    turn.request, self._caller, arrival=arrival, recall=self._session.recall
                )
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
            reading = self._readings[turn] = _Reading(kept, turn.lane, lambda: self._end_turn(turn))
            self._session.began(turn, kept.id)
            stream = kept.view.stream
            with self._responses.shelf.reading(kept):
                stream.listen(self._delivery.wake)
                self._delivery.add(reading)
                try:
                    await reading.written.wait()
                finally:
                    self._delivery.remove(reading)
                    stream.unlisten(self._delivery.wake)

    def _end_turn(self, turn: Turn) -> None:
        reading = self._readings.pop(turn)
        self._carry_out(self._session.ended(turn, conversation_of(reading.kept)))
