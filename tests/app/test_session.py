"""The socket's state machine: lanes, limits, cancels, steering, what is taken up; in any order."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from app.caller import Caller
from app.protocol.errors import ApiError
from app.protocol.lanes import Limits
from app.protocol.responses import CreateResponse
from app.protocol.session import (
    Begin,
    CutShort,
    Effect,
    Look,
    Pong,
    Send,
    SignIn,
    SocketSession,
    Turn,
)
from app.protocol.socket_messages import ResumeResponse, understand
from app.streams import Cut

TALK = ({"role": "user", "content": "x"}, {"role": "assistant", "content": "y"})


ADA, BOB = Caller("key a", "a"), Caller("key b", "b")


def new_session(**limits: int) -> SocketSession:
    return SocketSession(ADA, Limits(**limits))


def create(session: SocketSession, lane: object = None, **fields: Any) -> list[Effect]:
    message = {"type": "response.create", "input": "x"} | fields
    return receive(session, message if lane is None else message | {"stream_id": lane})


def receive(session: SocketSession, message: dict[str, Any]) -> list[Effect]:
    return session.take(understand(orjson.dumps(message).decode()))


def begun(effects: list[Effect]) -> list[Turn]:
    assert all(isinstance(effect, Begin) for effect in effects), effects
    return [effect.turn for effect in effects if isinstance(effect, Begin)]


def begin(
    session: SocketSession, turn: Turn, response_id: str, request: CreateResponse | None = None
) -> None:
    """A turn's response exists, or was found: then `request` is what it had been asked for with."""
    if request is None:
        assert isinstance(turn.request, CreateResponse)
        request = turn.request
    assert session.began(turn, response_id, request) == []


def cancel(session: SocketSession, response_id: object, **fields: Any) -> list[Effect]:
    message = {"type": "response.cancel", "response_id": response_id} | fields
    return receive(session, message)


def error_of(effects: list[Effect]) -> dict[str, Any]:
    (effect,) = effects
    assert isinstance(effect, Send)
    assert effect.event["type"] == "error"
    return effect.event


def test_a_lane_is_first_in_first_out() -> None:
    session = new_session()
    (first,) = begun(create(session, "a", metadata={"n": "1"}))
    assert create(session, "a", metadata={"n": "2"}) == create(session, "a", metadata={"n": "3"}) == []
    begin(session, first, "r1")
    (second,) = begun(session.ended(first, TALK))
    (third,) = begun(session.failed(second, ApiError(400, "no", code="x"))[1:])
    assert [t.request.metadata for t in (first, second, third)] == [{"n": "1"}, {"n": "2"}, {"n": "3"}]


def test_lanes_run_at_once_and_no_name_is_a_lane_too() -> None:
    session = new_session()
    turns = [begun(create(session, lane))[0] for lane in ("a", "b", None)]
    assert [turn.lane for turn in turns] == ["a", "b", None]
    assert session.num_active == 3


def test_more_than_the_active_limit_wait_in_the_order_they_came() -> None:
    session = new_session(max_active=2)
    first, _ = (begun(create(session, lane))[0] for lane in ("a", "b"))
    assert create(session, "c") == create(session, "d") == create(session, "a") == []
    (next_one,) = begun(session.ended(first, None))
    assert next_one.lane == "c"


def test_an_ended_lane_makes_room_for_another() -> None:
    session = new_session(max_lanes=2)
    first, _ = (begun(create(session, lane))[0] for lane in ("a", "b"))
    event = error_of(create(session, "c"))
    assert event["error"]["code"] == "websocket_stream_limit_reached"
    assert event["stream_id"] == "c"
    begun(create(session))  # the lane without a name is not counted
    session.ended(first, None)
    assert begun(create(session, "c"))


def test_what_waits_is_bounded_in_number_and_size() -> None:
    session = new_session(max_waiting=2, max_waiting_bytes=400)
    begun(create(session))
    assert create(session) == create(session) == []
    event = error_of(create(session))
    assert (event["status"], event["error"]["code"]) == (429, "too_many_pending_requests")

    session = new_session(max_waiting=2, max_waiting_bytes=400)
    begun(create(session))
    assert create(session, input="x" * 300) == []
    assert error_of(create(session, input="x" * 300))["error"]["code"] == "too_many_pending_requests"


@pytest.mark.parametrize("lane", ["", "a b", "ä", "x" * 257, "a\n", 7, ["a"], {}])
def test_a_bad_lane_name_is_refused(lane: object) -> None:
    session = new_session()
    event = error_of(create(session, lane))
    assert event["error"]["code"] == "invalid_stream_id"
    assert event["error"]["param"] == "stream_id"
    assert "stream_id" not in event
    assert session.num_active == 0


def test_errors_name_the_lane_they_belong_to() -> None:
    assert error_of(create(new_session(), "a", temperature=9))["stream_id"] == "a"
    assert "stream_id" not in error_of(create(new_session(), temperature=9))


@pytest.mark.parametrize(
    ("text", "param", "code"),
    [
        ("{", None, "invalid_json"),
        ("[]", None, "invalid_type"),
        ("{}", "type", "missing_required_parameter"),
        ('{"type": 5}', "type", "unknown_message_type"),
        ('{"type": "response.create"}', "input", "missing_required_parameter"),
        ('{"type": "response.cancel"}', "response_id", "missing_required_parameter"),
        ('{"type": "response.cancel", "response_id": "resp_1"}', "response_id", "response_not_found"),
        ('{"type": "response.cancel", "response_id": 5}', "response_id", "invalid_type"),
        ('{"type": "response.cancel", "response_id": "r", "why": 1}', "why", "unknown_parameter"),
        ('{"type": "response.resume"}', "response_id", "missing_required_parameter"),
        (
            '{"type": "response.resume", "response_id": "r", "starting_after": -2}',
            "starting_after",
            "out_of_range",
        ),
        (
            '{"type": "response.resume", "response_id": "r", "starting_after": "2"}',
            "starting_after",
            "invalid_type",
        ),
        ('{"type": "response.resume", "response_id": "r", "lane": "a"}', "lane", "unknown_parameter"),
        ('{"type": "response.stats"}', "response_id", "missing_required_parameter"),
        ('{"type": "response.stats", "response_id": "r", "all": true}', "all", "unknown_parameter"),
        ('{"type": "session.auth"}', "token", "missing_required_parameter"),
        ('{"type": "session.auth", "token": ""}', "token", "empty_value"),
        ('{"type": "ping", "id": 5}', "id", "invalid_type"),
        ('{"type": "ping", "stamp": 5}', "stamp", "unknown_parameter"),
        ('{"type": "response.create", "generate": false}', "input", "missing_required_parameter"),
    ],
)
def test_a_message_that_makes_no_sense_is_answered_with_an_error(
    text: str, param: str | None, code: str
) -> None:
    event = error_of(new_session().take(understand(text)))
    assert (event["error"]["param"], event["error"]["code"]) == (param, code)
    assert event["status"] in (400, 404)


def test_a_binary_message_is_answered_with_an_error() -> None:
    assert error_of(new_session().receive_binary())["error"]["code"] == "invalid_type"


def test_stream_and_background_are_ignored_as_in_the_published_protocol() -> None:
    assert begun(create(new_session(), stream=True, background=False))


def test_a_cancel_aborts_the_live_response_and_a_late_one_nothing() -> None:
    session = new_session()
    (turn,) = begun(create(session, "a"))
    begin(session, turn, "r1")
    assert error_of(cancel(session, "r1", stream_id="b"))["error"]["code"] == "response_not_found"
    assert cancel(session, "r1", stream_id="a") == [CutShort(turn, Cut.CANCELLED)]
    assert cancel(session, "r1") == [CutShort(turn, Cut.CANCELLED)]
    session.ended(turn, TALK)
    assert cancel(session, "r1") == []
    assert error_of(cancel(session, "r2"))["status"] == 404


def test_a_turn_that_fails_takes_its_parent_along_in_its_own_lane_only() -> None:
    session = new_session()
    (parent,) = begun(create(session, "a"))
    begin(session, parent, "r1")
    session.ended(parent, TALK)
    assert session.recall("r1") == TALK
    (fork,) = begun(create(session, "b", previous_response_id="r1"))
    session.failed(fork, ApiError(400, "no", code="x"))
    assert session.recall("r1") == TALK
    (child,) = begun(create(session, "a", previous_response_id="r1"))
    begin(session, child, "r2")
    session.ended(child, None)
    assert session.recall("r1") is None


def test_an_unknown_type_is_answered_with_those_that_are_known() -> None:
    message = error_of(new_session().take(understand('{"type": "response.stop"}')))["error"]["message"]
    for kind in (
        "response.create",
        "response.cancel",
        "response.resume",
        "response.steer",
        "response.stats",
        "session.auth",
        "ping",
    ):
        assert repr(kind) in message


def test_an_error_about_a_token_never_repeats_it() -> None:
    secret = "sk-" + "x" * 2000
    for fields in ({"token": secret}, {"token": [secret]}, {"token": None}, {"token": {"key": secret}}):
        (effect,) = receive(new_session(), {"type": "session.auth"} | fields)
        assert "sk-" not in repr(effect)
        assert error_of([effect])["error"]["param"] == "token"
    (effect,) = receive(new_session(), {"type": "session.auth", "token": "sk-short"})
    assert isinstance(effect, SignIn)
    assert "sk-short" not in repr(effect)


def test_pings_and_questions_do_not_wait_for_a_lane() -> None:
    session = new_session(max_looks=1)
    (turn,) = begun(create(session, "a"))
    begin(session, turn, "r1")
    assert receive(session, {"type": "ping", "id": "x"}) == [Pong("x")]
    assert receive(session, {"type": "ping"}) == [Pong(None)]
    ask = {"type": "response.stats", "response_id": "r1"}
    assert receive(session, ask) == [Look("r1", "a", ADA)]
    assert error_of(receive(session, ask))["status"] == 429
    session.looked()
    session.ended(turn, TALK)
    assert receive(session, ask) == [Look("r1", "a", ADA)]
    session.looked()
    assert receive(session, ask | {"response_id": "r2"}) == [Look("r2", None, ADA)]


def test_another_caller_is_that_of_later_messages_only() -> None:
    session = new_session()
    (first,) = begun(create(session, "a"))
    assert create(session, "a") == []
    assert session.signed_in(BOB) == [Send({"type": "session.authenticated"})]
    (later,) = begun(create(session, "b"))
    begin(session, first, "r1")
    (waited,) = begun(session.ended(first, TALK))
    assert (first.caller, waited.caller, later.caller) == (ADA, ADA, BOB)


# -- warm-ups --------------------------------------------------------------------------------------------


def test_a_turn_that_generates_cuts_the_warm_up_before_it() -> None:
    session = new_session()
    (warm_up,) = begun(create(session, "a", generate=False))
    begin(session, warm_up, "r1")
    assert create(session, "b") != []  # another lane's business
    assert create(session, "a", generate=False) == []  # neither is a newer warm-up's
    assert create(session, "a") == [CutShort(warm_up, Cut.CANCELLED)]
    dropped, beginning = session.ended(warm_up, TALK)
    assert error_of([dropped])["error"]["code"] == "warm_up_superseded"
    assert error_of([dropped])["stream_id"] == "a"
    assert isinstance(beginning, Begin)
    assert not beginning.turn.warms_up


def test_a_warm_up_that_is_just_beginning_is_cut_when_it_has_begun() -> None:
    session = new_session()
    (warm_up,) = begun(create(session, generate=False))
    assert create(session) == []
    assert isinstance(warm_up.request, CreateResponse)
    assert session.began(warm_up, "r1", warm_up.request) == [CutShort(warm_up, Cut.CANCELLED)]


def test_a_warm_up_needs_no_input_if_something_else_is_to_be_computed() -> None:
    for fields in ({"instructions": "be brief"}, {"previous_response_id": "r1"}):
        for nothing in ({}, {"input": ""}, {"input": []}, {"input": None}):
            message = {"type": "response.create", "generate": False} | fields | nothing
            (turn,) = begun(receive(new_session(), message))
            assert isinstance(turn.request, CreateResponse)
            assert turn.request.messages == []


# -- taking up -------------------------------------------------------------------------------------------


def resume(session: SocketSession, response_id: str, lane: str | None = None, **fields: Any) -> list[Effect]:
    message = {"type": "response.resume", "response_id": response_id} | fields
    return receive(session, message if lane is None else message | {"stream_id": lane})


def asked(**fields: Any) -> CreateResponse:
    (turn,) = begun(create(new_session(), **fields))
    assert isinstance(turn.request, CreateResponse)
    return turn.request


def test_taking_up_a_response_is_a_turn_of_its_lane() -> None:
    session = new_session()
    (first,) = begun(create(session, "a"))
    begin(session, first, "r1")
    assert resume(session, "r0", "a", starting_after=7) == []
    assert create(session, "a") == []
    (taken_up,) = begun(session.ended(first, TALK))
    assert taken_up.request == ResumeResponse(response_id="r0", starting_after=7, stream_id="a")
    begin(session, taken_up, "r0", asked())
    assert cancel(session, "r0") == [CutShort(taken_up, Cut.CANCELLED)]
    (last,) = begun(session.ended(taken_up, TALK))
    assert session.recall("r0") == TALK
    assert isinstance(last.request, CreateResponse)


def test_one_that_waits_to_be_taken_up_can_be_cancelled_already() -> None:
    session = new_session()
    (first,) = begun(create(session, "a"))
    resume(session, "r0", "a")
    (effect,) = cancel(session, "r0", stream_id="a")
    assert isinstance(effect, CutShort)
    assert effect.turn.response_id == "r0"
    assert session.failed(first, ApiError(400, "no", code="x"))[1:] == [Begin(effect.turn)]


def test_one_that_cannot_be_taken_up_leaves_its_lane() -> None:
    session = new_session()
    (turn,) = begun(resume(session, "r0", "a"))
    event = error_of(session.failed(turn, ApiError(410, "gone", code="response_gone")))
    assert (event["error"]["code"], event["stream_id"]) == ("response_gone", "a")
    assert session.is_idle
    assert error_of(cancel(session, "r0"))["status"] == 404


def test_a_response_may_be_told_in_two_lanes() -> None:
    session = new_session()
    (first,) = begun(create(session, "a"))
    begin(session, first, "r1")
    (second,) = begun(resume(session, "r1", "b"))
    assert isinstance(first.request, CreateResponse)
    begin(session, second, "r1", first.request)
    assert len(steer(session, "r1")) == 2  # it goes to the lane that was first
    assert len(first.steers) == 1
    given_back, cut = cancel(session, "r1", stream_id="b")
    assert failure_of([given_back])["stream_id"] == "a"
    assert cut == CutShort(second, Cut.CANCELLED)
    assert error_of(cancel(session, "r1", stream_id="c"))["status"] == 404
    session.ended(first, TALK)
    assert cancel(session, "r1") == [CutShort(second, Cut.CANCELLED)]
    session.ended(second, TALK)
    assert cancel(session, "r1") == []
    assert session.is_idle


# -- steering --------------------------------------------------------------------------------------------


def steer(session: SocketSession, response_id: object, text: Any = "no, stop", **fields: Any) -> list[Effect]:
    message = {"type": "response.steer", "previous_response_id": response_id, "input": text}
    return receive(session, message | fields)


def failure_of(effects: list[Effect]) -> dict[str, Any]:
    (effect,) = effects
    assert isinstance(effect, Send)
    assert effect.event["type"] == "response.steer.failed"
    assert effect.event["error"]["type"] == "invalid_request_error"
    assert effect.event["error"]["message"]
    return effect.event


def steered(session: SocketSession, lane: str | None = "a", **fields: Any) -> Turn:
    """A turn that has begun, with the id r1, of which five events have been told."""
    (turn,) = begun(create(session, lane, **fields))
    begin(session, turn, "r1")
    turn.next_number = 5
    return turn


def test_a_steered_response_is_cut_and_followed_by_its_successor() -> None:
    session = new_session()
    turn = steered(
        session, max_output_tokens=77, instructions="be brief", metadata={"n": "1"}, stop=["."], seed=3
    )
    assert create(session, "a", metadata={"n": "2"}) == []
    accepted, cut = steer(session, "r1")
    assert accepted == Send(
        {
            "type": "response.steer.accepted",
            "sequence_number": 4,
            "steer": {"id": "steer_r1_0", "previous_response_id": "r1"},
            "stream_id": "a",
        }
    )
    assert cut == CutShort(turn, Cut.STEERED)
    more = [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": "and be quick"}]}]
    (accepted,) = steer(session, "r1", more)  # it is cut once
    assert isinstance(accepted, Send)
    assert accepted.event["steer"]["id"] == "steer_r1_1"

    (following,) = begun(session.ended(turn, TALK))
    request, before = following.request, turn.request
    assert isinstance(request, CreateResponse)
    assert isinstance(before, CreateResponse)
    assert request.previous_response_id == "r1"
    assert request.messages == [
        {"role": "user", "content": "no, stop"},
        {"role": "user", "content": "and be quick"},
    ]
    assert request.sampling == before.sampling
    assert request.instructions == "be brief"
    assert request.metadata == {"n": "1"}
    assert session.recall("r1") == TALK
    begin(session, following, "r2")
    (waited,) = begun(session.ended(following, TALK))
    assert isinstance(waited.request, CreateResponse)
    assert waited.request.metadata == {"n": "2"}
    session.failed(waited, ApiError(400, "no", code="x"))
    assert session.is_idle


def test_a_successor_can_be_steered_too() -> None:
    session = new_session()
    turn = steered(session)
    steer(session, "r1", "one")
    (second,) = begun(session.ended(turn, TALK))
    begin(session, second, "r2")
    steer(session, "r2", "two")
    (third,) = begun(session.ended(second, TALK))
    assert isinstance(third.request, CreateResponse)
    assert third.request.messages == [{"role": "user", "content": "two"}]
    assert third.parent == "r2"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": ""}, "input"),
        ({"input": []}, "input"),
        ({"input": None}, "input"),
        ({"input": 5}, "input"),
        ({"input": [{"role": "assistant", "content": "x"}]}, "input.0.role"),
        ({"input": [{"role": "user", "content": ""}]}, "input.0.content"),
        ({"input": [{"role": "user", "content": "x", "id": "msg_1"}]}, "input.0.id"),
        ({"input": [{"role": "user", "content": [{"type": "output_text", "text": "x"}]}]}, "input.0.content"),
        ({"stream_id": "a"}, "stream_id"),
        ({"stream_id": "not a lane"}, "stream_id"),
        ({"max_output_tokens": 5}, "max_output_tokens"),
        ({"previous_response_id": None}, "previous_response_id"),
    ],
)
def test_input_that_cannot_steer_is_given_back(fields: dict[str, Any], param: str) -> None:
    session = new_session()
    steered(session)
    event = failure_of(steer(session, **({"response_id": "r1", "text": "x"} | fields_for_steer(fields))))
    assert event["error"]["code"] == "invalid_input"
    assert event["error"]["message"].startswith(param)
    assert event["steer"]["input"] == fields.get("input", "x")
    assert "id" not in event["steer"]
    is_known = "previous_response_id" not in fields
    assert event["steer"]["previous_response_id"] == ("r1" if is_known else "")
    assert event.get("stream_id") == ("a" if is_known else None)
    assert event["sequence_number"] == (4 if is_known else -1)


def fields_for_steer(fields: dict[str, Any]) -> dict[str, Any]:
    names = {"input": "text", "previous_response_id": "response_id"}
    return {names.get(name, name): value for name, value in fields.items()}


def test_a_steer_without_input_is_given_back_too() -> None:
    event = failure_of(receive(new_session(), {"type": "response.steer", "previous_response_id": "r1"}))
    assert event["error"]["code"] == "invalid_input"
    assert event["steer"] == {"input": None, "previous_response_id": "r1"}


def test_only_a_running_response_of_this_connection_can_be_steered() -> None:
    session = new_session(max_steers=2)

    def code(response_id: str, **fields: Any) -> str:
        return str(failure_of(steer(session, response_id, **fields))["error"]["code"])

    assert code("r0") == "response_not_found"
    turn = steered(session)
    assert len(steer(session, "r1")) == 2
    assert len(steer(session, "r1")) == 1
    assert code("r1") == "too_many_pending_steers"
    (following,) = begun(session.ended(turn, TALK))
    assert code("r1") == "response_not_active"
    assert failure_of(steer(session, "r1"))["stream_id"] == "a"
    begin(session, following, "r2")
    session.ended(following, TALK)
    assert code("r2") == "response_already_completed"

    (warm_up,) = begun(create(session, generate=False))
    begin(session, warm_up, "r3")
    assert code("r3") == "steering_not_supported"
    session.ended(warm_up, TALK)

    (kept,) = begun(resume(session, "r4"))
    assert code("r4") == "response_not_active"
    session.began(kept, "r4", asked(), has_ended=True)
    assert code("r4") == "response_already_completed"
    session.ended(kept, TALK)

    (cancelled,) = begun(create(session))
    begin(session, cancelled, "r5")
    cancel(session, "r5")
    assert code("r5") == "response_not_active"


def test_what_waits_to_steer_is_bounded_in_size() -> None:
    session = new_session(max_waiting_bytes=400)
    turn = steered(session)
    assert len(steer(session, "r1", "x" * 200)) == 2
    assert failure_of(steer(session, "r1", "x" * 200))["error"]["code"] == "too_many_pending_steers"
    assert error_of(create(session, "b", input="x" * 200))["error"]["code"] == "too_many_pending_requests"
    session.ended(turn, TALK)
    assert begun(create(session, "b", input="x" * 200))


@pytest.mark.parametrize("end", ["failed", "cancelled", "not created"])
def test_accepted_input_that_will_not_be_used_is_given_back(end: str) -> None:
    session = new_session()
    turn = steered(session)
    steer(session, "r1", "one")
    steer(session, "r1", "two")
    if end == "failed":
        effects = session.ended(turn, None)
    elif end == "cancelled":
        *effects, cut = cancel(session, "r1")
        assert cut == CutShort(turn, Cut.CANCELLED)
        assert session.ended(turn, TALK) == []
    else:
        (following,) = begun(session.ended(turn, TALK))
        effects = session.failed(following, ApiError(400, "it is too long", code="context_length_exceeded"))
        assert session.recall("r1") == TALK
    failures = [failure_of([effect]) for effect in effects]
    assert [each["steer"]["id"] for each in failures] == ["steer_r1_0", "steer_r1_1"]
    assert [each["steer"]["input"] for each in failures] == ["one", "two"]
    assert {each["error"]["code"] for each in failures} == {"successor_creation_failed"}
    assert {each["stream_id"] for each in failures} == {"a"}
    assert session.is_idle


# -- any message -----------------------------------------------------------------------------------------

KINDS = (
    "response.create",
    "response.cancel",
    "response.resume",
    "response.steer",
    "response.stats",
    "session.auth",
    "ping",
)
FIELDS = (
    "type", "stream_id", "response_id", "previous_response_id", "input", "starting_after", "token", "id",
    "generate", "instructions", "metadata", "store", "stream", "x",
)  # fmt: skip
LEAVES = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"]))
    | st.sampled_from(["r1", "a", "user", "hello"])
)
VALUES = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["type", "role", "content", "text", "y"]), inner, max_size=4)
    ),
    max_leaves=8,
)
MESSAGES = st.dictionaries(st.sampled_from(FIELDS), VALUES, max_size=6).flatmap(
    lambda message: st.sampled_from(KINDS).map(lambda kind: {"type": kind} | message)
)


@settings(max_examples=150)
@given(st.lists(MESSAGES | VALUES, min_size=1, max_size=4))
def test_no_message_is_without_an_effect_that_can_be_written(messages: list[Any]) -> None:
    session = new_session()
    steered(session)
    for message in messages:
        effects = session.take(understand(orjson.dumps(message).decode()))
        assert effects or session.num_waiting
        for effect in effects:
            if isinstance(effect, Send):
                orjson.dumps(effect.event)


@given(st.text())
@settings(max_examples=100)
def test_no_text_is_without_an_answer(text: str) -> None:
    (effect,) = new_session().take(understand(text))
    assert isinstance(effect, Send)


def test_input_that_is_nested_too_deeply_to_be_written_is_not_given_back() -> None:
    deep = "[" * 500 + "]" * 500
    for message in (
        f'{{"type": "response.steer", "previous_response_id": "r1", "input": {deep}}}',
        f'{{"type": "response.create", "input": {deep}}}',
        f'{{"type": "response.cancel", "response_id": {deep}}}',
    ):
        (effect,) = new_session().take(understand(message))
        assert isinstance(effect, Send)
        assert orjson.loads(orjson.dumps(effect.event))["error"]["message"]


# -- any order -------------------------------------------------------------------------------------------

LANES = st.sampled_from([None, "a", "b", "c", "d", "e"])


class SessionMachine(RuleBasedStateMachine):
    """Any order of messages, beginnings and ends: lanes stay FIFO but for successors, limits hold, each turn
    comes to exactly one end, each accepted steer is used or given back, nothing is forgotten."""

    def __init__(self) -> None:
        super().__init__()
        self.limits = Limits(max_active=3, max_lanes=4, max_waiting=5, max_steers=2, max_looks=2)
        self.session = SocketSession(ADA, self.limits)
        self.expected: dict[str | None, list[str]] = {}
        """Lane -> what is to begin, or to be dropped, next."""
        self.beginning: list[Turn] = []
        self.live: list[Turn] = []
        self.warm_ups: set[str] = set()
        self.superseded: set[str] = set()
        self.steers: set[str] = set()
        """Accepted, and neither used nor given back."""
        self.all_steers: set[str] = set()
        self.looks = 0
        self.count = 0

    def carry_out(self, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Begin):
                self.check_begin(effect.turn)
            elif isinstance(effect, Send) and effect.event["type"] == "response.steer.failed":
                self.steers.remove(effect.event["steer"]["id"])
            elif isinstance(effect, Send) and effect.event["error"]["code"] == "warm_up_superseded":
                assert self.expected[effect.event.get("stream_id")].pop(0) in self.superseded

    def check_begin(self, turn: Turn) -> None:
        assert turn.lane not in {each.lane for each in self.beginning + self.live}
        if turn.commits:
            for each in turn.commits:
                assert turn.parent == each.steer.previous_response_id
        else:
            wanted = self.expected[turn.lane].pop(0)
            assert wanted == (turn.response_id or turn.request.metadata["n"])  # type: ignore[union-attr,index]
        self.beginning.append(turn)

    def refused(self, effects: list[Effect]) -> bool:
        codes = {
            effect.event["error"]["code"]
            for effect in effects
            if isinstance(effect, Send) and effect.event["type"] == "error"
        }
        return bool(codes - {"warm_up_superseded"})

    @rule(lane=LANES, generate=st.booleans())
    def ask(self, lane: str | None, generate: bool) -> None:
        self.count += 1
        name = str(self.count)
        effects = create(self.session, lane, metadata={"n": name}, generate=generate)
        if self.refused(effects):
            return
        if generate:
            self.superseded |= self.warm_ups & set(self.expected.get(lane, []))
        else:
            self.warm_ups.add(name)
        self.expected.setdefault(lane, []).append(name)
        self.carry_out(effects)

    @rule(lane=LANES)
    def take_up(self, lane: str | None) -> None:
        self.count += 1
        effects = resume(self.session, f"kept{self.count}", lane)
        if not self.refused(effects):
            self.expected.setdefault(lane, []).append(f"kept{self.count}")
            self.carry_out(effects)

    @rule(lane=LANES, index=st.integers(0))
    @precondition(lambda self: self.live)
    def take_up_a_live_one(self, lane: str | None, index: int) -> None:
        response_id = self.live[index % len(self.live)].response_id
        assert response_id is not None
        effects = resume(self.session, response_id, lane)
        if not self.refused(effects):
            self.expected.setdefault(lane, []).append(response_id)
            self.carry_out(effects)

    @rule(index=st.integers(0))
    @precondition(lambda self: self.beginning)
    def begin(self, index: int) -> None:
        turn = self.beginning.pop(index % len(self.beginning))
        self.count += 1
        is_new = isinstance(turn.request, CreateResponse)
        request = turn.request if is_new else asked()
        self.steers -= {each.id for each in turn.commits}
        effects = self.session.began(turn, turn.response_id or f"r{self.count}", request)  # type: ignore[arg-type]
        assert effects in ([], [CutShort(turn, Cut.CANCELLED)])
        assert bool(effects) == turn.is_dropped
        self.live.append(turn)

    @rule(index=st.integers(0))
    @precondition(lambda self: self.beginning)
    def fail(self, index: int) -> None:
        turn = self.beginning.pop(index % len(self.beginning))
        effects = self.session.failed(turn, ApiError(400, "no", code="x"))
        told = effects[: len(turn.commits) or 1]
        kinds = {each.event["type"] for each in told if isinstance(each, Send)}
        assert kinds == {"response.steer.failed" if turn.commits else "error"}
        self.carry_out(effects if turn.commits else effects[1:])

    @rule(index=st.integers(0), failed=st.booleans())
    @precondition(lambda self: self.live)
    def end(self, index: int, failed: bool) -> None:
        turn = self.live.pop(index % len(self.live))
        has_successor = bool(turn.steers) and not failed
        effects = self.session.ended(turn, None if failed else TALK)
        self.carry_out(effects)
        if has_successor:
            assert self.beginning[-1].lane == turn.lane
            assert self.beginning[-1].commits

    @rule(index=st.integers(0))
    @precondition(lambda self: self.live)
    def cancel(self, index: int) -> None:
        turn = self.live[index % len(self.live)]
        *given_back, cut = cancel(self.session, turn.response_id, stream_id=turn.lane)
        assert isinstance(cut, CutShort)
        assert (cut.turn.response_id, cut.why) == (turn.response_id, Cut.CANCELLED)
        self.carry_out(given_back)
        assert not turn.steers

    @rule(index=st.integers(0))
    @precondition(lambda self: self.live)
    def steer(self, index: int) -> None:
        turn = self.live[index % len(self.live)]
        told, *cut = steer(self.session, turn.response_id)
        assert isinstance(told, Send)
        if told.event["type"] == "response.steer.accepted":
            assert told.event["steer"]["id"] not in self.all_steers
            self.steers.add(told.event["steer"]["id"])
            self.all_steers.add(told.event["steer"]["id"])
            assert all(isinstance(each, CutShort) and each.why is Cut.STEERED for each in cut)

    @rule()
    def look(self) -> None:
        effects = receive(self.session, {"type": "response.stats", "response_id": "r1"})
        assert isinstance(effects[0], Look) == (self.looks < 2)
        self.looks = min(2, self.looks + 1)

    @rule()
    @precondition(lambda self: self.looks)
    def looked(self) -> None:
        self.looks -= 1
        self.session.looked()

    @invariant()
    def limits_hold(self) -> None:
        assert self.session.num_active == len(self.beginning) + len(self.live) <= self.limits.max_active
        assert self.session.num_waiting <= self.limits.max_waiting
        assert self.session.num_waiting == sum(map(len, self.expected.values()))

    @invariant()
    def nobody_waits_while_there_is_a_place(self) -> None:
        active = {turn.lane for turn in self.beginning + self.live}
        if len(active) < self.limits.max_active:
            assert {lane for lane, names in self.expected.items() if names} <= active

    @invariant()
    def every_accepted_steer_is_somewhere(self) -> None:
        held = [each.id for turn in self.live for each in turn.steers]
        held += [each.id for turn in self.beginning for each in turn.commits]
        assert sorted(held) == sorted(self.steers)

    def teardown(self) -> None:
        while self.beginning or self.live:
            if self.beginning:
                self.begin(0)
            else:
                self.end(0, failed=False)
        while self.looks:
            self.looked()
        assert not any(self.expected.values())
        assert not self.steers
        assert self.session.num_active == self.session.num_waiting == 0
        assert self.session.is_idle


SessionMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=50)
TestSessionMachine = SessionMachine.TestCase
