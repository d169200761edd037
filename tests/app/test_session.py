"""The socket's state machine: lanes, limits, cancels."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from app.protocol.errors import ApiError
from app.protocol.session import Abort, Begin, Effect, Limits, Send, SocketSession, Turn, understand

TALK = ({"role": "user", "content": "x"}, {"role": "assistant", "content": "y"})


def create(session: SocketSession, lane: object = None, **fields: Any) -> list[Effect]:
    message = {"type": "response.create", "input": "x"} | fields
    return receive(session, message if lane is None else message | {"stream_id": lane})


def receive(session: SocketSession, message: dict[str, Any]) -> list[Effect]:
    return session.take(understand(orjson.dumps(message).decode()))


def begun(effects: list[Effect]) -> list[Turn]:
    assert all(isinstance(effect, Begin) for effect in effects), effects
    return [effect.turn for effect in effects if isinstance(effect, Begin)]


def cancel(session: SocketSession, response_id: object, **fields: Any) -> list[Effect]:
    message = {"type": "response.cancel", "response_id": response_id} | fields
    return receive(session, message)


def error_of(effects: list[Effect]) -> dict[str, Any]:
    (effect,) = effects
    assert isinstance(effect, Send)
    assert effect.event["type"] == "error"
    return effect.event


def test_a_lane_is_first_in_first_out() -> None:
    session = SocketSession()
    (first,) = begun(create(session, "a", metadata={"n": "1"}))
    assert create(session, "a", metadata={"n": "2"}) == create(session, "a", metadata={"n": "3"}) == []
    session.began(first, "r1")
    (second,) = begun(session.ended(first, TALK))
    (third,) = begun(session.failed(second, ApiError(400, "no", code="x"))[1:])
    assert [t.request.metadata for t in (first, second, third)] == [{"n": "1"}, {"n": "2"}, {"n": "3"}]


def test_lanes_run_at_once_and_no_name_is_a_lane_too() -> None:
    session = SocketSession()
    turns = [begun(create(session, lane))[0] for lane in ("a", "b", None)]
    assert [turn.lane for turn in turns] == ["a", "b", None]
    assert session.num_active == 3


def test_more_than_the_active_limit_wait_in_the_order_they_came() -> None:
    session = SocketSession(Limits(max_active=2))
    first, _ = (begun(create(session, lane))[0] for lane in ("a", "b"))
    assert create(session, "c") == create(session, "d") == create(session, "a") == []
    (next_one,) = begun(session.ended(first, None))
    assert next_one.lane == "c"


def test_an_ended_lane_makes_room_for_another() -> None:
    session = SocketSession(Limits(max_lanes=2))
    first, _ = (begun(create(session, lane))[0] for lane in ("a", "b"))
    event = error_of(create(session, "c"))
    assert event["error"]["code"] == "websocket_stream_limit_reached"
    assert event["stream_id"] == "c"
    begun(create(session))  # the lane without a name is not counted
    session.ended(first, None)
    assert begun(create(session, "c"))


def test_what_waits_is_bounded_in_number_and_size() -> None:
    session = SocketSession(Limits(max_waiting=2, max_waiting_bytes=400))
    begun(create(session))
    assert create(session) == create(session) == []
    event = error_of(create(session))
    assert (event["status"], event["error"]["code"]) == (429, "too_many_pending_requests")

    session = SocketSession(Limits(max_waiting=2, max_waiting_bytes=400))
    begun(create(session))
    assert create(session, input="x" * 300) == []
    assert error_of(create(session, input="x" * 300))["error"]["code"] == "too_many_pending_requests"


@pytest.mark.parametrize("lane", ["", "a b", "ä", "x" * 257, "a\n", 7, ["a"], {}])
def test_a_bad_lane_name_is_refused(lane: object) -> None:
    session = SocketSession()
    event = error_of(create(session, lane))
    assert event["error"]["code"] == "invalid_stream_id"
    assert event["error"]["param"] == "stream_id"
    assert "stream_id" not in event
    assert session.num_active == 0


def test_errors_name_the_lane_they_belong_to() -> None:
    assert error_of(create(SocketSession(), "a", temperature=9))["stream_id"] == "a"
    assert "stream_id" not in error_of(create(SocketSession(), temperature=9))


@pytest.mark.parametrize(
    ("text", "param", "code"),
    [
        ("{", None, "invalid_json"),
        ("[]", None, "invalid_type"),
        ("{}", "type", "missing_required_parameter"),
        ('{"type": 5}', "type", "unknown_message_type"),
        ('{"type": "response.steer"}', "type", "unknown_message_type"),
        ('{"type": "response.create"}', "input", "missing_required_parameter"),
        ('{"type": "response.cancel"}', "response_id", "missing_required_parameter"),
        ('{"type": "response.cancel", "response_id": "resp_1"}', "response_id", "response_not_found"),
        ('{"type": "response.cancel", "response_id": 5}', "response_id", "invalid_type"),
        ('{"type": "response.cancel", "response_id": "r", "why": 1}', "why", "unknown_parameter"),
    ],
)
def test_a_message_that_makes_no_sense_is_answered_with_an_error(
    text: str, param: str | None, code: str
) -> None:
    event = error_of(SocketSession().take(understand(text)))
    assert (event["error"]["param"], event["error"]["code"]) == (param, code)
    assert event["status"] in (400, 404)


def test_a_binary_message_is_answered_with_an_error() -> None:
    assert error_of(SocketSession().receive_binary())["error"]["code"] == "invalid_type"


def test_stream_and_background_are_ignored_as_in_the_published_protocol() -> None:
    assert begun(create(SocketSession(), stream=True, background=False))


def test_a_cancel_aborts_the_live_response_and_a_late_one_nothing() -> None:
    session = SocketSession()
    (turn,) = begun(create(session, "a"))
    session.began(turn, "r1")
    assert error_of(cancel(session, "r1", stream_id="b"))["error"]["code"] == "response_not_found"
    assert cancel(session, "r1", stream_id="a") == [Abort(turn)]
    assert cancel(session, "r1") == [Abort(turn)]
    session.ended(turn, TALK)
    assert cancel(session, "r1") == []
    assert error_of(cancel(session, "r2"))["status"] == 404


def test_a_client_that_leaves_aborts_what_lives_and_drops_what_waits() -> None:
    session = SocketSession()
    one, two = (begun(create(session, lane))[0] for lane in ("a", "b"))
    create(session, "a")
    session.began(one, "r1")
    session.began(two, "r2")
    assert session.closed() == [Abort(one), Abort(two)]
    assert session.num_waiting == 0
    assert session.ended(one, None) == []


def test_a_turn_that_fails_takes_its_parent_along_in_its_own_lane_only() -> None:
    session = SocketSession()
    (parent,) = begun(create(session, "a"))
    session.began(parent, "r1")
    session.ended(parent, TALK)
    assert session.recall("r1") == TALK
    (fork,) = begun(create(session, "b", previous_response_id="r1"))
    session.failed(fork, ApiError(400, "no", code="x"))
    assert session.recall("r1") == TALK
    (child,) = begun(create(session, "a", previous_response_id="r1"))
    session.began(child, "r2")
    session.ended(child, None)
    assert session.recall("r1") is None


class SessionMachine(RuleBasedStateMachine):
    """Any order of messages, beginnings and ends: lanes stay FIFO, limits hold, nothing is forgotten."""

    def __init__(self) -> None:
        super().__init__()
        self.limits = Limits(max_active=3, max_lanes=4, max_waiting=5)
        self.session = SocketSession(self.limits)
        self.asked: dict[str | None, list[str]] = {}
        self.started: dict[str | None, list[str]] = {}
        self.beginning: list[Turn] = []
        self.live: list[Turn] = []
        self.count = 0

    def carry_out(self, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Begin):
                turn = effect.turn
                assert turn.request.metadata is not None
                assert turn.lane not in {each.lane for each in self.beginning + self.live}
                self.started.setdefault(turn.lane, []).append(turn.request.metadata["n"])
                self.beginning.append(turn)

    @rule(lane=st.sampled_from([None, "a", "b", "c", "d", "e"]))
    def ask(self, lane: str | None) -> None:
        self.count += 1
        effects = create(self.session, lane, metadata={"n": str(self.count)})
        if not any(isinstance(effect, Send) for effect in effects):
            self.asked.setdefault(lane, []).append(str(self.count))
        self.carry_out(effects)

    @rule(index=st.integers(0))
    @precondition(lambda self: self.beginning)
    def begin(self, index: int) -> None:
        turn = self.beginning.pop(index % len(self.beginning))
        self.session.began(turn, f"r{turn.request.metadata}")
        self.live.append(turn)

    @rule(index=st.integers(0))
    @precondition(lambda self: self.beginning)
    def fail(self, index: int) -> None:
        turn = self.beginning.pop(index % len(self.beginning))
        effects = self.session.failed(turn, ApiError(400, "no", code="x"))
        assert isinstance(effects[0], Send)
        self.carry_out(effects)

    @rule(index=st.integers(0))
    @precondition(lambda self: self.live)
    def end(self, index: int) -> None:
        self.carry_out(self.session.ended(self.live.pop(index % len(self.live)), TALK))

    @rule(index=st.integers(0))
    @precondition(lambda self: self.live)
    def cancel(self, index: int) -> None:
        turn = self.live[index % len(self.live)]
        assert cancel(self.session, turn.response_id) == [Abort(turn)]

    @invariant()
    def limits_hold(self) -> None:
        assert self.session.num_active == len(self.beginning) + len(self.live) <= self.limits.max_active
        assert self.session.num_waiting <= self.limits.max_waiting

    @invariant()
    def lanes_are_first_in_first_out(self) -> None:
        for lane, started in self.started.items():
            assert started == self.asked[lane][: len(started)]

    @invariant()
    def nobody_waits_while_there_is_a_place(self) -> None:
        active = {turn.lane for turn in self.beginning + self.live}
        if len(active) < self.limits.max_active:
            waiting = {lane for lane in self.asked if len(self.started.get(lane, [])) < len(self.asked[lane])}
            assert waiting <= active

    def teardown(self) -> None:
        while self.beginning or self.live:
            if self.beginning:
                self.begin(0)
            else:
                self.end(0)
        assert self.started == self.asked
        assert self.session.num_active == self.session.num_waiting == 0


SessionMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=50, deadline=None)
TestSessionMachine = SessionMachine.TestCase
