"""One client's side of the socket as a state machine: whose turn it is, what has come, what to do after a
cut.

Knows: lanes and their limits, numbers, resuming, cancelling, steering. Does not know: sockets, time, tasks.
Its caller feeds it what happened and sends what `outgoing` returns, in order.

    connected() / lost()            a connection is there; it is gone, but another one may come
    fail(error)                     no connection will come by itself: whatever waits for one has failed
    receive(text, now)              a message came
    add, cancel, steer, ask_...     what its user wants; at any time, connected or not

A call is a request and what came of it:

    WAITING --> SENT --> RUNNING --> ENDED      SENT and cut: sent again with the next connection
                           |   ^
                       cut v   | response.resumed
                         LOST --> RESUMING      and cut again: LOST

    EXPECTED --> RUNNING    the successor of a steered answer, which the server begins by itself; where the
                            steering came too late, or got lost, it is an ordinary turn: WAITING or SENT

A lane has one call at the server at a time, and the lanes together MAX_ACTIVE; the others wait here, in the
order in which they came, so that the server never has to refuse one. While a call is SENT only its own
`response.created` counts, so nothing of an earlier one can get into it.

Whether a request that was SENT when the connection broke has reached the server, nobody can know. It is sent
again: nothing of it was shown yet, and what the server may have begun the first time has an id that this
client never learns, so two texts are never mixed. That one ends by itself after the server's grace time.
"""

from __future__ import annotations

import enum
import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import orjson

from tickwire_client.conversation import Turn
from tickwire_client.errors import (
    AnswerFailed,
    AnswerInterrupted,
    ProtocolViolation,
    RequestRefused,
    ResponseGone,
    SteerRefused,
    TickwireError,
    Unreachable,
    refusal,
)
from tickwire_client.events import (
    Event,
    OutputTextDelta,
    OutputTextDone,
    Response,
    ResponseCreated,
    ResponseEnded,
    ResponseFailed,
    Stats,
    parse,
    parse_stats,
)

log = logging.getLogger("tickwire_client")

MAX_ACTIVE = 16
"""Responses that a server runs at once for one connection."""
MAX_UNANSWERED = 2
"""Pings after which a silent connection counts as dead."""
ABANDONED = "abandoned"
"""The reason of an answer that the server ended because nobody came back in time."""

Frame = dict[str, Any]
Reply = TypeVar("Reply")


class Gap(Exception):
    """An event is missing. Another connection can fetch it."""


class State(enum.Enum):
    WAITING = enum.auto()
    """For its lane, for a free place, or for a connection."""
    SENT = enum.auto()
    """The request is on its way."""
    EXPECTED = enum.auto()
    """The server is to begin it, after the answer that was steered."""
    RUNNING = enum.auto()
    LOST = enum.auto()
    """It was running, and there is no connection."""
    RESUMING = enum.auto()
    """The request to go on with it is on its way."""
    ENDED = enum.auto()


@dataclass(eq=False, slots=True)
class Call:
    """One request and what came of it. Its `events` only grow."""

    lane: str
    turn: Turn | None
    """None: a response that is known by its id alone."""
    state: State = State.WAITING
    id: str | None = None
    events: list[Event] = field(default_factory=list)
    last: int = -1
    """The highest number that has come."""
    response: Response | None = None
    """As its last event had it."""
    error: TickwireError | None = None
    steers: Call | None = None
    """The one before, if this is its successor."""
    successor: Call | None = None
    steer_sent: bool = False
    """On this connection."""
    cancel_wanted: bool = False
    listeners: list[Callable[[], None]] = field(default_factory=list)
    """Called at news. They must be cheap and must not raise."""
    _texts: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        return "".join(self._texts)

    @property
    def has_ended(self) -> bool:
        return self.state is State.ENDED

    def take(self, event: Event) -> None:
        """
        Raises:
            ProtocolViolation: the text is not what its deltas make.
        """
        if isinstance(event, OutputTextDelta):
            self._texts.append(event.delta)
        elif isinstance(event, OutputTextDone) and event.text != self.text:
            raise ProtocolViolation(f"response {self.id}: its text is not that of its deltas")
        self.events.append(event)
        self.notify()

    def notify(self) -> None:
        for tell in self.listeners:
            tell()


@dataclass(eq=False, slots=True)
class Question(Generic[Reply]):
    """Something asked outside of any lane."""

    key: str
    asked: float
    tell: Callable[[Reply | TickwireError], None]
    """Called once. Must be cheap and must not raise."""


class Session:
    """See the module's docstring. Never waits, and is for one thread."""

    def __init__(self, max_active: int = MAX_ACTIVE) -> None:
        self._max_active = max_active
        self._lanes: dict[str, deque[Call]] = {}
        """The first of each is with the server, or will be next."""
        self._ready: deque[str] = deque()
        """Lanes whose first call waits for a place, each once."""
        self._active: dict[str, Call] = {}
        """Lane -> what the server has, or had before the cut, or is about to begin."""
        self._outbox: deque[Frame] = deque()
        self._stats: deque[Question[Stats]] = deque()
        self._pings: dict[str, Question[float]] = {}
        self._num_pings = 0
        self._unanswered = 0
        self.is_connected = False
        self.num_taken = 0
        """Events so far: what tells a connection that serves from one that does not."""

    @property
    def has_work(self) -> bool:
        """Something needs a connection."""
        return bool(self._lanes)

    @property
    def calls(self) -> list[Call]:
        """All that have not ended."""
        return [call for lane in self._lanes.values() for call in lane]

    def outgoing(self) -> list[str]:
        """What is to be sent now. Each message is given out once."""
        frames = [orjson.dumps(frame).decode() for frame in self._outbox]
        self._outbox.clear()
        return frames

    # -- what the user wants ----------------------------------------------------------------------------

    def add(self, call: Call) -> None:
        """A call that waits; or one that is LOST from the beginning, to be taken up in a lane of its own."""
        lane = self._lanes.setdefault(call.lane, deque())
        lane.append(call)
        if lane[0] is call:
            self._ready.append(call.lane)
        self._begin()

    def cancel(self, call: Call) -> None:
        """End it as soon as possible. One that has ended stays as it is."""
        if call.cancel_wanted or call.has_ended:
            return
        call.cancel_wanted = True
        if call.state is State.WAITING:
            self._leave(call)
        elif call.state is State.RUNNING:
            self._send_cancel(call)
        elif call.state is State.SENT and not self.is_connected:
            self._leave(call)

    def steer(self, call: Call, turn: Turn) -> Call:
        """End the call at its next token, and have `turn` answered from there: the call that is returned.

        Raises:
            SteerRefused: it has been steered, cancelled, or has ended before.
        """
        if call.successor is not None:
            raise SteerRefused("this answer is steered already: steer the one that follows it")
        if call.has_ended or call.cancel_wanted:
            raise SteerRefused("this answer has ended, or is about to")
        call.successor = successor = Call(call.lane, turn, State.EXPECTED, steers=call)
        lane = self._lanes[call.lane]
        lane.insert(lane.index(call) + 1, successor)
        if call.state is State.RUNNING:
            self._send_steer(call)
        return successor

    def ask_stats(self, response_id: str, tell: Callable[[Stats | TickwireError], None]) -> None:
        if self._can_ask(tell):
            self._stats.append(Question(response_id, 0.0, tell))
            self._outbox.append({"type": "response.stats", "response_id": response_id})

    def ask_time(self, now: float, tell: Callable[[float | TickwireError], None]) -> None:
        """`tell` gets the round trip time in seconds."""
        if self._can_ask(tell):
            self._num_pings += 1
            key = str(self._num_pings)
            self._pings[key] = Question(key, now, tell)
            self._outbox.append({"type": "ping", "id": key})

    def beat(self) -> bool:
        """To be called now and then while connected. False: the connection is dead."""
        if self._unanswered >= MAX_UNANSWERED:
            return False
        self._unanswered += 1
        self._outbox.append({"type": "ping"})
        return True

    # -- what happened ----------------------------------------------------------------------------------

    def connected(self) -> None:
        self.is_connected = True
        self._unanswered = 0
        for call in self._active.values():
            self._send_again(call)
        self._begin()

    def lost(self) -> None:
        self.is_connected = False
        self._outbox.clear()
        self._fail_questions(Unreachable("the connection was lost"))
        for call in list(self._active.values()):
            if call.state in (State.RUNNING, State.RESUMING):
                call.state, call.steer_sent = State.LOST, False
            elif call.cancel_wanted:  # it has no id, so that nobody can cancel it, or miss it
                self._leave(call)
            else:
                call.state = State.SENT

    def fail(self, error: TickwireError) -> None:
        """Ends every call; those that had begun say what there was of them."""
        self._fail_questions(error)
        for call in reversed(self.calls):  # so that none follows another
            if call.id is None:
                self._leave(call, error)
            else:
                broken = AnswerInterrupted(f"the answer broke off: {error}", call.text, call.id)
                broken.__cause__ = error
                self._leave(call, broken)

    def receive(self, text: str | bytes, now: float) -> None:
        """
        Raises:
            Gap: this connection has lost something; `lost`, and a new one, will make it good.
            ProtocolViolation: the server does not speak this protocol.
        """
        self._unanswered = 0
        try:
            message = orjson.loads(text)
        except orjson.JSONDecodeError as error:
            raise ProtocolViolation(f"got a message that is no JSON: {error}") from error
        if not isinstance(message, dict):
            raise ProtocolViolation(f"got a message that is no object: {message!r:.80}")
        lane = message.get("stream_id")
        call = self._active.get(lane) if isinstance(lane, str) else None
        match message.get("type"):
            case "error":
                self._on_error(call, refusal(message))
            case "pong":
                if question := self._pings.pop(str(message.get("id")), None):
                    question.tell(now - question.asked)
            case "response.stats":
                self._on_stats(message)
            case "response.resumed":
                if call and call.state is State.RESUMING:
                    self._run(call)
            case "response.steer.failed":
                self._on_steer_failed(message)
            case "response.steer.accepted" | "response.steer.pending":
                pass  # the successor's own beginning is what counts
            case _ if call:
                self._on_event(call, parse(message))

    def _on_event(self, call: Call, event: Event) -> None:
        if isinstance(event, ResponseCreated) and call.state in (State.SENT, State.EXPECTED):
            call.id = event.response.id
            self._run(call)
        if call.state is not State.RUNNING:
            return
        number = event.sequence_number
        if number is not None:
            if number <= call.last:
                return
            if number > call.last + 1:
                raise Gap(f"response {call.id}: after event {call.last} came {number}")
            call.last = number
        self.num_taken += 1
        try:
            call.take(event)
        except ProtocolViolation as error:
            self._leave(call, error)
            return
        if isinstance(event, ResponseEnded):
            self._on_end(call, event)

    def _on_end(self, call: Call, event: ResponseEnded) -> None:
        call.response = response = event.response
        error: TickwireError | None = None
        if isinstance(event, ResponseFailed):
            message = response.error_message or "the server failed"
            error = AnswerFailed(message, call.text, call.id, response.error_code)
        elif response.reason == ABANDONED and not call.cancel_wanted:
            error = ResponseGone(
                "the server ended the answer, for nobody came back to it in time", call.text, call.id
            )
        elif call.turn:
            call.turn.record(call.text, response.id)
        self._leave(call, error)

    def _on_stats(self, message: Frame) -> None:
        for question in self._stats:
            if question.key == message.get("response_id"):
                self._stats.remove(question)
                question.tell(parse_stats(message))
                return

    def _on_error(self, call: Call | None, error: RequestRefused) -> None:
        if call is None:
            self._on_error_without_lane(error)
        elif call.state is State.SENT:
            forgotten = error.code == "previous_response_not_found"
            if forgotten and call.turn and call.turn.forget():
                self._send_create(call)
            else:
                self._leave(call, error)
        elif call.state is State.EXPECTED:
            self._make_ordinary(call)
        elif call.state is State.RESUMING:
            gone = ResponseGone(f"the answer cannot be taken up any more: {error}", call.text, call.id)
            gone.__cause__ = error
            self._leave(call, gone)
        elif call.cancel_wanted:
            log.debug("a cancel crossed the end: %s", error)
        elif call.successor and call.successor.state is State.EXPECTED:
            self._make_ordinary(call.successor)
        else:
            self._send_cancel(call)
            self._leave(call, AnswerFailed(str(error), call.text, call.id, error.code))

    def _on_error_without_lane(self, error: RequestRefused) -> None:
        for question in self._stats:
            if question.key in str(error):  # it says what it got, and nothing else says whose it is
                self._stats.remove(question)
                question.tell(error)
                break
        else:
            log.warning("the server refused a message: %s", error)

    def _on_steer_failed(self, message: Frame) -> None:
        """It came too late: the successor becomes the next turn."""
        steer = message.get("steer")
        steered_id = steer.get("previous_response_id") if isinstance(steer, dict) else None
        for call in self.calls:
            if call.state is State.EXPECTED and call.steers and call.steers.id == steered_id:
                self._make_ordinary(call)
                return

    # -- calls ------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        while self.is_connected and self._ready and len(self._active) < self._max_active:
            call = self._lanes[self._ready.popleft()][0]
            self._active[call.lane] = call
            self._send_again(call)

    def _run(self, call: Call) -> None:
        """Say what could not be said before."""
        call.state = State.RUNNING
        if call.cancel_wanted:
            self._send_cancel(call)
        elif call.successor:
            self._send_steer(call)

    def _make_ordinary(self, successor: Call) -> None:
        """The server will not begin it by itself."""
        successor.state = State.WAITING
        if successor.cancel_wanted:
            self._leave(successor)
        elif self._active.get(successor.lane) is successor:
            self._send_create(successor)

    def _leave(self, call: Call, error: TickwireError | None = None) -> None:
        """It has ended, and the next one of its lane may come."""
        had_reached_server = call.state not in (State.SENT, State.RESUMING)
        call.state, call.error = State.ENDED, error
        lane = self._lanes[call.lane]
        was_first = lane[0] is call
        lane.remove(call)
        if self._active.get(call.lane) is call:
            del self._active[call.lane]
        elif was_first:
            self._ready.remove(call.lane)
        if not lane:
            del self._lanes[call.lane]
        elif was_first:
            self._ready.append(call.lane)
            if lane[0].state is State.EXPECTED:
                self._succeed(lane[0], call, is_lost=error is not None and not had_reached_server)
        call.notify()
        self._begin()

    def _succeed(self, successor: Call, call: Call, is_lost: bool) -> None:
        """`call` was steered, or was to be, and has ended."""
        if call.steer_sent:
            self._ready.remove(call.lane)
            self._active[call.lane] = successor
        elif is_lost:
            self._leave(successor, SteerRefused(f"the answer that it was to steer was lost: {call.error}"))
        else:
            self._make_ordinary(successor)

    # -- messages ---------------------------------------------------------------------------------------

    def _send_again(self, call: Call) -> None:
        """With a new connection, or for the first time."""
        if call.id is None:
            self._send_create(call)
        else:
            self._send_resume(call)

    def _send_create(self, call: Call) -> None:
        assert call.turn is not None, "it has no id yet"
        call.state = State.SENT
        fields = {"stream_id": call.lane, "on_disconnect": "continue", **call.turn.body()}
        self._outbox.append({"type": "response.create", **fields})

    def _send_resume(self, call: Call) -> None:
        call.state = State.RESUMING
        frame: Frame = {"type": "response.resume", "response_id": call.id, "stream_id": call.lane}
        if call.last >= 0:
            frame["starting_after"] = call.last
        self._outbox.append(frame)

    def _send_cancel(self, call: Call) -> None:
        frame = {"type": "response.cancel", "response_id": call.id, "stream_id": call.lane}
        self._outbox.append(frame)

    def _send_steer(self, call: Call) -> None:
        successor = call.successor
        if successor and successor.turn and successor.state is State.EXPECTED:
            call.steer_sent = True
            frame = {"previous_response_id": call.id, "input": successor.turn.content}
            self._outbox.append({"type": "response.steer", **frame})

    # -- questions --------------------------------------------------------------------------------------

    def _can_ask(self, tell: Callable[[Any], None]) -> bool:
        if not self.is_connected:
            tell(Unreachable("there is no connection just now"))
        return self.is_connected

    def _fail_questions(self, error: TickwireError) -> None:
        questions: list[Question[Any]] = [*self._stats, *self._pings.values()]
        self._stats.clear()
        self._pings.clear()
        for question in questions:
            question.tell(error)
