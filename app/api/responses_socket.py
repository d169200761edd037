"""ws /v1/responses: the Responses WebSocket mode, with what docs/protocol.md adds to it.

Knows: one socket's tasks and what it may keep in memory. Does not know: what messages mean (the session
does), what events look like, how answers come about.

Two tasks live as long as the socket. One always reads: a socket whose messages wait unread shows neither
pongs nor the client's going. The other one delivers.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any

import orjson
from starlette.types import Receive, Scope, Send

from app.api.handshake import accept
from app.api.sign_in import sign_in
from app.caller import Caller
from app.delivery import Delivery
from app.logs import get_logger
from app.metrics import Metrics
from app.progress import progress
from app.protocol.errors import ApiError, server_failed
from app.protocol.lanes import Limits
from app.protocol.session import (
    Begin,
    CutShort,
    Effect,
    Look,
    Pong,
    SignIn,
    SocketSession,
    Turn,
)
from app.protocol.session import Send as SendEvent
from app.protocol.socket_messages import ResumeResponse, Understood, error_event, in_lane, understand
from app.responses import KeptResponse, Responses, conversation_of
from app.settings import Settings
from app.streams import Cut

log = get_logger()

WAITING_MESSAGES = 4
"""How many messages of the largest size may wait for their turn."""


class _Reading:
    """A response on its way to the client: a source of frames. The turn counts what was told.

    Args:
        prepare: called once if the last events need work that should not be done on the loop; there are no
            frames until it has been done.
        ended: called when the last frame is made, before it is given out.
    """

    def __init__(
        self, kept: KeptResponse, turn: Turn, prepare: Callable[[], None], ended: Callable[[], None]
    ) -> None:
        self.kept = kept
        self._turn = turn
        self._prepare = prepare
        self._ended = ended
        self._is_preparing = False
        self._is_opened = not isinstance(turn.request, ResumeResponse)
        self.written = asyncio.Event()
        """Set when the last event has been handed to the connection."""

    @property
    def is_over(self) -> bool:
        return self._is_opened and self._turn.next_number == self.kept.view.num_events

    def next_frame(self) -> bytes | None:
        if self._must_wait():
            return None
        if self._is_opened:
            event = self.kept.view.event(self._turn.next_number)
            if event is None:
                return None
            self._turn.next_number += 1
        else:
            event = self._resumed()
            self._is_opened = True
        if self._turn.lane is not None:
            event["stream_id"] = self._turn.lane
        if self.is_over:
            # Before it is written: who has read it may build on the response at once, from anywhere.
            self._ended()
        return orjson.dumps(event)

    def _must_wait(self) -> bool:
        view = self.kept.view
        if view.num_events is None or not view.unwritten_size:
            return False
        if not self._is_preparing:
            self._is_preparing = True
            self._prepare()
        return True

    def _resumed(self) -> dict[str, Any]:
        return {
            "type": "response.resumed",
            "response_id": self.kept.id,
            "starting_after": self._turn.next_number - 1,
            "status": self.kept.view.response()["status"],
        }

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
        accepted = await accept(self.service, self.settings, scope, receive, send, for_new_work=True)
        if accepted is None:
            return
        connection, caller = accepted
        with self._metrics.websocket_connections.track_inprogress():
            if caller is None:
                caller = await sign_in(
                    self.service.callers, connection, receive, send, self.settings.handshake_timeout_s
                )
            if caller is not None:
                await _Connection(self, caller, connection, scope, receive).run()


class _Connection:
    """
    Args:
        connection: its name, which no other open one has.
    """

    def __init__(
        self,
        endpoint: ResponsesSocket,
        caller: Caller,
        connection: str,
        scope: Scope,
        receive: Receive,
    ) -> None:
        self._service = endpoint.service
        self._responses = endpoint.responses
        waiting_bytes = WAITING_MESSAGES * endpoint.settings.max_message_bytes
        self._name = connection
        self._session = SocketSession(caller, Limits(max_waiting_bytes=waiting_bytes))
        self._receive = receive
        self._delivery = Delivery(scope, endpoint.settings.send_timeout_s)
        self._readings: dict[Turn, _Reading] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        tasks = {asyncio.create_task(self._read()), asyncio.create_task(self._delivery.run())}
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            tasks |= self._tasks
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

    # -- what the session wants done --------------------------------------------------------------------

    def _carry_out(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case SendEvent(event):
                    self._put(event)
                case Begin(turn):
                    self._spawn(self._run_turn(turn, time.monotonic()))
                case CutShort(turn, why):
                    self._cut_short(turn, why)
                case SignIn(token):
                    self._sign_in(token)
                case Pong(ping):
                    self._put({"type": "pong", **({} if ping is None else {"id": ping}), "time": time.time()})
                case Look():
                    self._spawn(self._look(effect))

    def _put(self, event: dict[str, Any]) -> None:
        self._delivery.put(orjson.dumps(event))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (fault := task.exception()):
            log.error("socket_failed", exc_info=fault)
            self._delivery.cut("a fault of ours")  # rather than let the client wait for ever

    def _cut_short(self, turn: Turn, why: Cut) -> None:
        try:
            self._service.bridge.cut(self._kept(turn).answer, why)
        except ApiError as error:
            self._put(error_event(error, turn.lane))

    def _kept(self, turn: Turn) -> KeptResponse:
        """The response of a turn that has begun, or is to take one up. Raises ApiError: it is not there."""
        if turn in self._readings:
            return self._readings[turn].kept
        assert turn.response_id is not None, "nobody can know of it"
        return self._responses.find(turn.response_id, turn.caller)

    def _sign_in(self, token: str) -> None:
        try:
            caller = self._service.callers.of_token(token, self._name)
        except ApiError as error:
            self._put(error_event(error, None))
        else:
            self._carry_out(self._session.signed_in(caller))

    async def _look(self, look: Look) -> None:
        try:
            kept = self._responses.find(look.response_id, look.caller)
            stats = await progress(kept, self._service.bridge.engine)
        except ApiError as error:
            self._put(error_event(error, None))
        else:
            event = {"type": "response.stats", "response_id": kept.id, "stats": stats}
            self._put(in_lane(event, look.lane))
        finally:
            self._session.looked()

    # -- turns ------------------------------------------------------------------------------------------

    async def _run_turn(self, turn: Turn, arrival: float) -> None:
        with self._service.delivering():
            try:
                kept = await self._response(turn, arrival)
            except ApiError as error:
                self._carry_out(self._session.failed(turn, error))
                return
            except Exception:
                log.exception("request_failed")
                self._carry_out(self._session.failed(turn, server_failed()))
                return
            await self._tell(turn, kept)

    async def _response(self, turn: Turn, arrival: float) -> KeptResponse:
        """Begun, or found. Raises ApiError."""
        request = turn.request
        if isinstance(request, ResumeResponse):
            kept = self._responses.find(request.response_id, turn.caller)
            turn.next_number = kept.view.first_after(request.starting_after)
            return kept
        return await self._responses.create(
            request, turn.caller, arrival=arrival, recall=self._session.recall
        )

    async def _tell(self, turn: Turn, kept: KeptResponse) -> None:
        reading = self._readings[turn] = _Reading(
            kept, turn, lambda: self._spawn(self._prepare(kept)), lambda: self._end_turn(turn)
        )
        stream = kept.view.stream
        with self._responses.shelf.reading(kept):
            has_ended = kept.answer.has_ended
            self._carry_out(self._session.began(turn, kept.id, kept.view.request, has_ended=has_ended))
            stream.listen(self._delivery.wake)
            self._delivery.add(reading)
            try:
                await reading.written.wait()
            finally:
                self._delivery.remove(reading)
                stream.unlisten(self._delivery.wake)

    async def _prepare(self, kept: KeptResponse) -> None:
        await self._responses.prepare(kept.view)
        self._delivery.wake()

    def _end_turn(self, turn: Turn) -> None:
        reading = self._readings.pop(turn)
        self._carry_out(self._session.ended(turn, conversation_of(reading.kept)))
