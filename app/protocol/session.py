"""One client's socket as a state machine: what each message means, and what it leads to.

Knows: limits, which responses are told here, what waits to be said to them. Does not know: sockets, the
engine, time, tasks, keys. The caller feeds it what happened and carries out the effects that it returns, in
order.

    take(understand(text)) / receive_binary()      a message came
    began(turn, response_id, request)              a turn's response exists, or was found, and is told now
    failed(turn, error)                            a turn could not begin
    ended(turn, conversation)                      a turn's last event is being written
    signed_in(caller)                              whoever sends messages is somebody else from now on
    looked()                                       an answer to `Look` was written

A turn creates a response, or takes up one that runs or is kept. Turns are in lanes (lanes.py), each FIFO, and
two things change what waits there. A steered response is cut, and its successor has the lane next, before all
that wait. And a turn that generates cuts the warm-ups of its lane before it: nobody needs them any more.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from app.protocol.errors import ApiError, shown
from app.protocol.lanes import Lanes, Limits
from app.protocol.responses import CreateResponse
from app.protocol.socket_messages import (
    AskStats,
    CancelResponse,
    Create,
    Event,
    Ping,
    Refused,
    Resume,
    ResumeResponse,
    SessionAuth,
    Steer,
    SteerCode,
    Understood,
    error_event,
    steer_accepted,
    steer_failed,
    successor,
)
from app.store import Conversation, ConversationStore
from app.streams import Cut

if TYPE_CHECKING:
    from app.caller import Caller

REMEMBERED_ENDED = 256
"""Ended responses whose lane, and that they have ended, is still known."""
RECENT_CONVERSATIONS = 64
RECENT_BYTES = 8 * 1024 * 1024
"""What one connection may keep of its own conversations, stored elsewhere or not."""


@dataclass(frozen=True, slots=True)
class Accepted:
    """What waits to steer a response."""

    id: str
    steer: Steer


@dataclass(eq=False, slots=True)
class Turn:
    """A response on its way through a lane."""

    request: CreateResponse | ResumeResponse
    lane: str | None
    size: int
    caller: Caller
    """Whoever sent the message."""
    response_id: str | None = None
    """None until it exists."""
    settings: CreateResponse | None = None
    """What the response was asked for with; None until the turn has begun."""
    is_replay: bool = False
    """The response had ended when the turn began."""
    next_number: int = 0
    """Of the response's events, the one to be told next. The caller's to count."""
    commits: tuple[Accepted, ...] = ()
    """Of a successor: what had waited to steer the response before."""
    steers: list[Accepted] = field(default_factory=list)
    is_cancelled: bool = False
    is_dropped: bool = False
    """It is a warm-up that nobody needs any more."""

    @property
    def parent(self) -> str | None:
        return None if isinstance(self.request, ResumeResponse) else self.request.previous_response_id

    @property
    def warms_up(self) -> bool:
        return isinstance(self.request, CreateResponse) and self.request.warms_up


@dataclass(frozen=True, slots=True)
class Send:
    """An event for the client."""

    event: Event


@dataclass(frozen=True, slots=True)
class Begin:
    """Start this turn; answer with `began` or `failed`, and after `began`, when its last event is being
    written, with `ended`."""

    turn: Turn


@dataclass(frozen=True, slots=True)
class CutShort:
    """End this turn's response early; its own last event will say so. If it is one that is to be taken up, it
    may not have begun."""

    turn: Turn
    why: Cut


@dataclass(frozen=True, slots=True)
class SignIn:
    """Find out whose key this is; answer with `signed_in`, or tell the client."""

    token: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class Pong:
    id: str | None


@dataclass(frozen=True, slots=True)
class Look:
    """Tell the client the statistics of a response, and then `looked`."""

    response_id: str
    lane: str | None
    """In which it is told, or was."""
    caller: Caller


Effect = Send | Begin | CutShort | SignIn | Pong | Look


@dataclass(frozen=True, slots=True)
class _Past:
    """A response that was told here."""

    lane: str | None
    is_complete: bool
    """It came to an end of its own."""


class SocketSession:
    """See the module's docstring. Not thread-safe, and never waits."""

    def __init__(self, caller: Caller, limits: Limits | None = None) -> None:
        self.caller = caller
        self._limits = limits or Limits()
        self._lanes: Lanes[Turn] = Lanes(self._limits)
        self._by_response: dict[str, list[Turn]] = {}
        """One response may be told in several lanes."""
        self._past: dict[str, _Past] = {}
        """By response, oldest first."""
        self._recent = ConversationStore(RECENT_CONVERSATIONS, RECENT_BYTES)
        self._steer_bytes = 0
        """Size of what waits to steer."""
        self._num_steers = 0
        """All that were ever accepted."""
        self._num_looks = 0

    @property
    def num_active(self) -> int:
        return self._lanes.num_active

    @property
    def num_waiting(self) -> int:
        return self._lanes.num_waiting

    @property
    def is_idle(self) -> bool:
        """Nothing is told, nothing waits."""
        return self._lanes.is_idle and not (self._by_response or self._steer_bytes or self._num_looks)

    # -- what happened ----------------------------------------------------------------------------------

    def take(self, message: Understood) -> list[Effect]:
        try:
            return self._meaning(message)
        except ApiError as error:
            return [Send(error_event(error, _lane_of(message)))]

    def receive_binary(self) -> list[Effect]:
        error = ApiError(
            400, "got a binary message, allowed: text messages with one JSON object each", code="invalid_type"
        )
        return [Send(error_event(error, None))]

    def began(
        self, turn: Turn, response_id: str, request: CreateResponse, *, has_ended: bool = False
    ) -> list[Effect]:
        turn.settings = request
        turn.is_replay = has_ended
        if turn.response_id is None:
            turn.response_id = response_id
            self._by_response.setdefault(response_id, []).append(turn)
        return [CutShort(turn, Cut.CANCELLED)] if turn.is_dropped else []

    def failed(self, turn: Turn, error: ApiError) -> list[Effect]:
        if turn.commits:
            why = f"the successor could not be created: {error.message}"
            effects = [_steer_failed(each, turn.lane, -1, why) for each in turn.commits]
        else:
            self._evict_parent(turn)
            effects = [Send(error_event(error, turn.lane))]
        self._forget(turn)
        return [*effects, *self._begin(self._lanes.leave(turn))]

    def ended(self, turn: Turn, conversation: Conversation | None) -> list[Effect]:
        """`conversation` is what a next turn may build on; None if the response failed."""
        effects: list[Effect] = []
        if conversation is None:
            self._evict_parent(turn)
            effects = self._give_back(turn, "the response failed")
        elif turn.response_id is not None:
            self._recent.put(turn.response_id, conversation)
        is_complete = conversation is not None and not (turn.steers or turn.is_cancelled)
        self._forget(turn, _Past(turn.lane, is_complete))
        if turn.steers:
            return [Begin(self._succeed(turn))]
        return [*effects, *self._begin(self._lanes.leave(turn))]

    def recall(self, response_id: str) -> Conversation | None:
        """The conversation of a recent response of this connection."""
        return self._recent.get(response_id)

    def signed_in(self, caller: Caller) -> list[Effect]:
        self.caller = caller
        return [Send({"type": "session.authenticated"})]

    def looked(self) -> None:
        self._num_looks -= 1

    # -- messages ---------------------------------------------------------------------------------------

    def _meaning(self, message: Understood) -> list[Effect]:
        """Raises ApiError."""
        match message:
            case Create():
                return self._create(message)
            case Resume():
                return self._resume(message)
            case Steer():
                return self._steer(message)
            case CancelResponse():
                return self._cancel(message)
            case SessionAuth():
                return [SignIn(message.token)]
            case Ping():
                return [Pong(message.id)]
            case AskStats():
                return self._look(message)
            case Refused():
                return [Send(message.event)]

    def _create(self, create: Create) -> list[Effect]:
        turn = Turn(create.request, create.lane, create.size, self.caller)
        self._lanes.check_room(turn, self._steer_bytes)
        effects = [] if turn.warms_up else self._drop_warm_ups(turn.lane)
        return [*effects, *self._begin(self._lanes.enqueue(turn))]

    def _resume(self, resume: Resume) -> list[Effect]:
        request = resume.request
        turn = Turn(request, resume.lane, resume.size, self.caller)
        self._lanes.check_room(turn, self._steer_bytes)
        # Known from now on, so that it can be cancelled while it waits.
        turn.response_id = request.response_id
        self._by_response.setdefault(request.response_id, []).append(turn)
        return self._begin(self._lanes.enqueue(turn))

    def _cancel(self, cancel: CancelResponse) -> list[Effect]:
        turns = self._by_response.get(cancel.response_id, [])
        here = [turn for turn in turns if cancel.stream_id in (None, turn.lane)]
        if here:
            effects: list[Effect] = []
            for turn in turns:
                turn.is_cancelled = True
                effects += self._give_back(turn, "the response was cancelled")
            return [*effects, CutShort(here[0], Cut.CANCELLED)]
        if not turns and cancel.response_id in self._past:
            return []  # the cancel and the end crossed; the end has been told
        raise ApiError(
            404,
            f"response_id: got {shown(cancel.response_id)}, allowed: a response of this connection"
            + (f" in the lane {shown(cancel.stream_id)}" if turns else ""),
            code="response_not_found",
            param="response_id",
        )

    def _look(self, ask: AskStats) -> list[Effect]:
        if self._num_looks >= self._limits.max_looks:
            raise ApiError(
                429,
                f"{self._num_looks} questions for statistics wait, allowed: {self._limits.max_looks}",
                code="too_many_pending_requests",
                kind="rate_limit_error",
            )
        self._num_looks += 1
        if turns := self._by_response.get(ask.response_id):
            return [Look(ask.response_id, turns[0].lane, self.caller)]
        past = self._past.get(ask.response_id)
        return [Look(ask.response_id, past.lane if past else None, self.caller)]

    # -- steering ---------------------------------------------------------------------------------------

    def _steer(self, steer: Steer) -> list[Effect]:
        turns = self._by_response.get(steer.previous_response_id, [])
        turn = next((each for each in turns if each.settings is not None), None)
        if refusal := self._refuse_steer(steer, turn):
            where = turn or self._past.get(steer.previous_response_id)
            number = turn.next_number - 1 if turn else -1
            return [Send(steer_failed(steer, None, *refusal, number, where.lane if where else None))]
        assert turn is not None, "it would have been refused"
        steer_id = f"steer_{steer.previous_response_id.removeprefix('resp_')}_{self._num_steers}"
        accepted = Accepted(steer_id, steer)
        self._num_steers += 1
        is_first = not turn.steers
        turn.steers.append(accepted)
        self._steer_bytes += steer.size
        event = steer_accepted(accepted.id, steer.previous_response_id, turn.next_number - 1, turn.lane)
        return [Send(event), *([CutShort(turn, Cut.STEERED)] if is_first else [])]

    def _refuse_steer(self, steer: Steer, turn: Turn | None) -> tuple[SteerCode, str] | None:
        """Why this cannot steer the response of this turn, which has begun; None: it can."""
        if steer.error is not None:
            return "invalid_input", steer.error.message
        response_id = steer.previous_response_id
        if past := self._past.get(response_id):
            if past.is_complete:
                return "response_already_completed", "previous_response_id: it has ended"
            return "response_not_active", "previous_response_id: it has ended before its time"
        if turn is None:
            if response_id in self._by_response:
                return "response_not_active", "previous_response_id: its events are not told here yet"
            allowed = "allowed: a running response of this connection"
            return "response_not_found", f"previous_response_id: got {shown(response_id)}, {allowed}"
        if turn.is_replay:
            return "response_already_completed", "previous_response_id: it has ended"
        if turn.is_cancelled:
            return "response_not_active", "previous_response_id: it was cancelled"
        if turn.settings is not None and turn.settings.warms_up:
            return "steering_not_supported", "previous_response_id: it generates nothing"
        limits, waiting = self._limits, self._lanes.waiting_bytes + self._steer_bytes
        if len(turn.steers) >= limits.max_steers or waiting + steer.size > limits.max_waiting_bytes:
            return (
                "too_many_pending_steers",
                f"{len(turn.steers)} wait for this response, and {waiting} bytes on this connection, "
                f"allowed: {limits.max_steers}, and {limits.max_waiting_bytes} bytes",
            )
        return None

    def _give_back(self, turn: Turn, why: str) -> list[Effect]:
        """What was accepted for a response will not be used."""
        return [_steer_failed(each, turn.lane, turn.next_number - 1, why) for each in self._take_steers(turn)]

    def _take_steers(self, turn: Turn) -> tuple[Accepted, ...]:
        steers = tuple(turn.steers)
        turn.steers.clear()
        self._steer_bytes -= sum(each.steer.size for each in steers)
        return steers

    def _succeed(self, turn: Turn) -> Turn:
        """The steered turn's place and lane go to its successor."""
        assert turn.settings is not None, "it has ended, so it had begun"
        assert turn.response_id is not None
        commits = self._take_steers(turn)
        request = successor(turn.settings, turn.response_id, (each.steer for each in commits))
        following = Turn(request, turn.lane, 0, turn.caller, commits=commits)
        self._lanes.hand_over(turn, following)
        return following

    # -- turns ------------------------------------------------------------------------------------------

    def _begin(self, turns: list[Turn]) -> list[Effect]:
        return [
            Send(error_event(_dropped(), turn.lane)) if turn.is_dropped else Begin(turn) for turn in turns
        ]

    def _drop_warm_ups(self, lane: str | None) -> list[Effect]:
        effects: list[Effect] = []
        for turn in self._lanes.of(lane):
            if turn.warms_up:
                turn.is_dropped = True
                effects += [CutShort(turn, Cut.CANCELLED)] if turn.settings else []
        return effects

    def _forget(self, turn: Turn, past: _Past | None = None) -> None:
        """It is not told any more. `past`: unless it never was."""
        if turn.response_id is None:
            return
        turns = self._by_response[turn.response_id]
        turns.remove(turn)
        if not turns:
            del self._by_response[turn.response_id]
        if past is not None:
            self._past.pop(turn.response_id, None)
            self._past[turn.response_id] = past
            if len(self._past) > REMEMBERED_ENDED:
                del self._past[next(iter(self._past))]

    def _evict_parent(self, turn: Turn) -> None:
        """A turn that fails takes its parent with it, if both are of one lane: the client's idea of that
        conversation and ours may differ by then. A fork in another lane leaves it alone."""
        past = None if turn.parent is None else self._past.get(turn.parent)
        if turn.parent is not None and past is not None and past.lane == turn.lane:
            self._recent.discard(turn.parent)


def _lane_of(message: Understood) -> str | None:
    if isinstance(message, CancelResponse):
        return message.stream_id
    return message.lane if isinstance(message, Create | Resume) else None


def _steer_failed(accepted: Accepted, lane: str | None, number: int, why: str) -> Effect:
    event = steer_failed(accepted.steer, accepted.id, "successor_creation_failed", why, number, lane)
    return Send(event)


def _dropped() -> ApiError:
    return ApiError(
        409,
        "a warm-up was not begun: a later request of its lane generates, and does not wait for it",
        code="warm_up_superseded",
    )
