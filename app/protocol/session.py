"""One client's socket as a state machine: what each message means, and whose turn it is.

Knows: the client's messages, lanes, limits, which responses are live. Does not know: sockets, the engine,
time, tasks. The caller feeds it what happened and carries out the effects that it returns, in order.

    take(understand(text)) / receive_binary()      a message came
    began(turn, response_id)                       a turn's response exists now
    failed(turn, error)                            a turn could not begin
    ended(turn, conversation)                      a turn's last event is being written
    closed()                                       the client is gone

What takes time that grows with a message, `understand` does; it needs no session and may run anywhere.

A lane is FIFO: its next turn begins when the last event of the one before was written. Turns of different
lanes run at once, up to `max_active`; beyond that they wait, in the order in which they came.
"""

from __future__ import annotations

import re
from collections import deque
from dataclasses import dataclass, field
from typing import Annotated, Any

from pydantic import Field

from app.protocol.errors import ApiError, shown
from app.protocol.payload import StrictObject, decode, parse
from app.protocol.responses import CreateResponse, parse_create
from app.store import Conversation, ConversationStore

LANE_NAME = re.compile(r"[A-Za-z0-9_.-]{1,256}")
IGNORED_IN_SOCKET_MODE = ("stream", "background")
REMEMBERED_ENDED = 256
"""Ended responses whose lane, and that they have ended, is still known."""
RECENT_CONVERSATIONS = 64
RECENT_BYTES = 8 * 1024 * 1024
"""What one connection may keep of its own conversations, stored elsewhere or not."""


@dataclass(frozen=True, slots=True)
class Limits:
    max_active: int = 16
    """Responses that run at once."""
    max_lanes: int = 32
    """Named lanes with something to do."""
    max_waiting: int = 64
    """Turns that wait for their lane or for a free place."""
    max_waiting_bytes: int = 4 * 1024 * 1024
    """Size of the messages of all these turns."""


@dataclass(eq=False, slots=True)
class Turn:
    """One response.create on its way through its lane."""

    request: CreateResponse
    lane: str | None
    size: int
    response_id: str | None = None

    @property
    def parent(self) -> str | None:
        return self.request.previous_response_id


@dataclass(frozen=True, slots=True)
class Send:
    """An event for the client."""

    event: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Begin:
    """Start this turn's response; answer with `began` or `failed`, then, after its last event, `ended`."""

    turn: Turn


@dataclass(frozen=True, slots=True)
class Abort:
    """End this turn's response early; its own last event will say so."""

    turn: Turn


Effect = Send | Begin | Abort


class CancelResponse(StrictObject):
    response_id: Annotated[str, Field(max_length=128)] = Field(description="the id of a live response")
    stream_id: str | None = Field(None, description="the lane of that response")


Understood = Turn | CancelResponse | Send
"""What a message asks for, or the event that says what is wrong with it."""


def understand(text: str) -> Understood:
    lane: str | None = None
    try:
        message = decode(text)
        lane = _lane_of(message)
        return _meaning(message, lane, len(text))
    except ApiError as error:
        return Send(error_event(error, lane))


def _meaning(message: dict[str, Any], lane: str | None, size: int) -> Turn | CancelResponse:
    """Raises ApiError."""
    kind = message.get("type")
    fields = {name: value for name, value in message.items() if name != "type"}
    if kind == "response.create":
        for name in (*IGNORED_IN_SOCKET_MODE, "stream_id"):
            fields.pop(name, None)
        return Turn(parse_create(fields), lane, size)
    if kind == "response.cancel":
        return parse(CancelResponse, fields, {})
    code = "missing_required_parameter" if kind is None else "unknown_message_type"
    raise ApiError(
        400,
        f"type: got {shown(kind)}, allowed: 'response.create' or 'response.cancel'",
        code=code,
        param="type",
    )


@dataclass(slots=True)
class _Lane:
    active: Turn | None = None
    waiting: deque[Turn] = field(default_factory=deque)


class SocketSession:
    """See the module's docstring. Not thread-safe, and never waits."""

    def __init__(self, limits: Limits | None = None) -> None:
        self._limits = limits or Limits()
        self._lanes: dict[str | None, _Lane] = {}
        self._ready: deque[str | None] = deque()
        """Lanes whose next turn could begin if a place were free. Each at most once."""
        self._by_response: dict[str, Turn] = {}
        self._ended: dict[str, str | None] = {}
        """Response id -> lane, oldest first."""
        self._recent = ConversationStore(RECENT_CONVERSATIONS, RECENT_BYTES)
        self._waiting_bytes = 0
        self.num_active = 0
        self.num_waiting = 0

    # -- what happened ----------------------------------------------------------------------------------

    def take(self, message: Understood) -> list[Effect]:
        if isinstance(message, Send):
            return [message]
        try:
            return self._enqueue(message) if isinstance(message, Turn) else self._cancel(message)
        except ApiError as error:
            lane = message.lane if isinstance(message, Turn) else message.stream_id
            return [Send(error_event(error, lane))]

    def receive_binary(self) -> list[Effect]:
        error = ApiError(
            400, "got a binary message, allowed: text messages with one JSON object each", code="invalid_type"
        )
        return [Send(error_event(error, None))]

    def began(self, turn: Turn, response_id: str) -> None:
        turn.response_id = response_id
        self._by_response[response_id] = turn

    def failed(self, turn: Turn, error: ApiError) -> list[Effect]:
        self._evict_parent(turn)
        return [Send(error_event(error, turn.lane)), *self._leave(turn)]

    def ended(self, turn: Turn, conversation: Conversation | None) -> list[Effect]:
        """`conversation` is what a next turn may build on; None if the response failed."""
        if conversation is None:
            self._evict_parent(turn)
        elif turn.response_id is not None:
            self._recent.put(turn.response_id, conversation)
        return self._leave(turn)

    def recall(self, response_id: str) -> Conversation | None:
        """The conversation of a recent response of this connection."""
        return self._recent.get(response_id)

    def closed(self) -> list[Effect]:
        """Everything that waits is dropped, everything live is to be aborted."""
        for lane in self._lanes.values():
            lane.waiting.clear()
        self._ready.clear()
        self.num_waiting = self._waiting_bytes = 0
        return [Abort(turn) for turn in self._by_response.values()]

    # -- messages ---------------------------------------------------------------------------------------

    def _enqueue(self, turn: Turn) -> list[Effect]:
        self._check_room(turn)
        lane = self._lanes.setdefault(turn.lane, _Lane())
        if lane.active is None and not lane.waiting:
            self._ready.append(turn.lane)
        lane.waiting.append(turn)
        self.num_waiting += 1
        self._waiting_bytes += turn.size
        return self._begin_ready()

    def _check_room(self, turn: Turn) -> None:
        limits = self._limits
        named = sum(name is not None for name in self._lanes)
        if turn.lane is not None and turn.lane not in self._lanes and named >= limits.max_lanes:
            raise ApiError(
                400,
                f"stream_id: {named} named lanes of this connection are busy, allowed: {limits.max_lanes}",
                code="websocket_stream_limit_reached",
                param="stream_id",
            )
        size = self._waiting_bytes + turn.size
        if self.num_waiting >= limits.max_waiting or size > limits.max_waiting_bytes:
            raise ApiError(
                429,
                f"this connection has {self.num_waiting} requests of {self._waiting_bytes} bytes waiting, "
                f"allowed: {limits.max_waiting} of {limits.max_waiting_bytes} bytes in all",
                code="too_many_pending_requests",
                kind="rate_limit_error",
            )

    def _cancel(self, cancel: CancelResponse) -> list[Effect]:
        turn = self._by_response.get(cancel.response_id)
        if turn is not None and (cancel.stream_id is None or cancel.stream_id == turn.lane):
            return [Abort(turn)]
        if turn is None and cancel.response_id in self._ended:
            return []  # the cancel and the end crossed; the end has been told
        raise ApiError(
            404,
            f"response_id: got {shown(cancel.response_id)}, allowed: a response of this connection"
            + ("" if turn is None else f" in the lane {shown(cancel.stream_id)}"),
            code="response_not_found",
            param="response_id",
        )

    # -- turns ------------------------------------------------------------------------------------------

    def _begin_ready(self) -> list[Effect]:
        effects: list[Effect] = []
        while self._ready and self.num_active < self._limits.max_active:
            lane = self._lanes[self._ready.popleft()]
            turn = lane.active = lane.waiting.popleft()
            self.num_active += 1
            self.num_waiting -= 1
            self._waiting_bytes -= turn.size
            effects.append(Begin(turn))
        return effects

    def _leave(self, turn: Turn) -> list[Effect]:
        """A turn is over: its lane's next one may begin, or that of another lane."""
        lane = self._lanes[turn.lane]
        if lane.active is not turn:
            raise RuntimeError("a turn ended that had not begun")
        lane.active = None
        self.num_active -= 1
        if turn.response_id is not None:
            del self._by_response[turn.response_id]
            self._ended[turn.response_id] = turn.lane
            if len(self._ended) > REMEMBERED_ENDED:
                del self._ended[next(iter(self._ended))]
        if lane.waiting:
            self._ready.append(turn.lane)
        else:
            del self._lanes[turn.lane]
        return self._begin_ready()

    def _evict_parent(self, turn: Turn) -> None:
        """A turn that fails takes its parent with it, if both are of one lane: the client's idea of that
        conversation and ours may differ by then. A fork in another lane leaves it alone."""
        if turn.parent is not None and self._ended.get(turn.parent, ...) == turn.lane:
            self._recent.discard(turn.parent)


def error_event(error: ApiError, lane: str | None) -> dict[str, Any]:
    event = {"type": "error", "status": error.status, "error": error.body()}
    return event if lane is None else event | {"stream_id": lane}


def _lane_of(message: dict[str, Any]) -> str | None:
    lane = message.get("stream_id")
    if lane is None or (isinstance(lane, str) and LANE_NAME.fullmatch(lane)):
        return lane
    raise ApiError(
        400,
        f"stream_id: got {shown(lane)}, allowed: 1 to 256 characters of A-Z, a-z, 0-9, '_', '.' and '-'",
        code="invalid_stream_id",
        param="stream_id",
    )
