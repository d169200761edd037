"""The state machine without a socket: whatever breaks, each event comes exactly once."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tickwire_client.conversation import Conversation, Turn
from tickwire_client.errors import (
    AnswerFailed,
    AnswerInterrupted,
    ConnectionRefused,
    ProtocolViolation,
    RequestRefused,
    ResponseGone,
    SteerRefused,
    Unreachable,
)
from tickwire_client.events import OutputTextDelta, Stats, UnknownEvent
from tickwire_client.session import MAX_ACTIVE, Call, Gap, Session, State
from tickwire_client.testing import Backend, Json, Script, Wire, error_event

TEXT = "Every token goes to its session the moment it exists."


class Tries(Backend):
    """Says something else each time that it is asked the same, in pieces of the sizes it is told."""

    def __init__(self, sizes: list[int]) -> None:
        super().__init__()
        self.sizes = sizes or [1]
        self.tries: Counter[str] = Counter()
        self.said: dict[str, list[str]] = {}

    def _script(self, request: Json) -> Script:
        given = request["input"]
        content = given if isinstance(given, str) else given[-1]["content"]
        self.tries[content] += 1
        text = f"({content}, {self.tries[content]}) {TEXT}"
        self.said.setdefault(content, []).append(text)
        deltas: list[str] = []
        while text:
            size = self.sizes[len(deltas) % len(self.sizes)]
            deltas.append(text[:size])
            text = text[size:]
        return Script(tuple(deltas))


class World:
    """A session, a server, and what is between them."""

    def __init__(self, backend: Backend | None = None) -> None:
        self.session = Session()
        self.backend = backend or Backend()
        self.wire: Wire | None = None
        self.up: deque[str] = deque()
        self.frames: list[dict[str, Any]] = []
        """All that the server has got."""

    def connect(self) -> None:
        self.wire = Wire(self.backend)
        self.session.connected()

    def cut(self) -> None:
        self.wire = None
        self.up.clear()
        self.session.lost()

    def send(self, most: int = 1000) -> None:
        """From the client to the server."""
        self.up.extend(self.session.outgoing())
        for _ in range(min(most, len(self.up))):
            self.frames.append(orjson.loads(self.up.popleft()))
            assert self.wire
            self.wire.receive(self.frames[-1])

    def receive(self, most: int = 1000) -> None:
        """From the server to the client."""
        for _ in range(most):
            frame = self.wire and self.wire.next_frame()
            if not frame:
                return
            self.session.receive(orjson.dumps(frame), 0.0)

    def run(self) -> None:
        """Until nothing happens any more."""
        if self.wire is None:
            self.connect()
        while True:
            self.send()
            frame = self.wire and self.wire.next_frame()
            if not frame:
                return
            self.session.receive(orjson.dumps(frame), 0.0)

    def ask(self, content: str, conversation: Conversation | None = None, lane: str = "lane") -> Call:
        call = Call(lane, Turn(conversation or Conversation({}), content, {}))
        self.session.add(call)
        return call


def is_whole(call: Call) -> bool:
    numbers = [event.sequence_number for event in call.events]
    text = "".join(event.delta for event in call.events if isinstance(event, OutputTextDelta))
    return numbers == list(range(len(numbers))) and text == call.text


OPERATIONS = st.one_of(
    st.tuples(st.just("send"), st.integers(1, 3)),
    st.tuples(st.just("receive"), st.integers(1, 12)),
    st.just(("cut", 0)),
    st.just(("cut", 0)),
)


@settings(deadline=None)
@given(
    sizes=st.lists(st.integers(1, 20), max_size=6),
    turns=st.lists(st.integers(0, 2), min_size=1, max_size=6),
    operations=st.lists(OPERATIONS, max_size=60),
)
def test_cut_anywhere_each_answer_is_whole_and_of_one_try(
    sizes: list[int], turns: list[int], operations: list[tuple[str, int]]
) -> None:
    backend = Tries(sizes)
    world = World(backend)
    chats = [Conversation({}) for _ in range(3)]
    calls = [
        (chat, content, world.ask(content, chats[chat], f"chat-{chat}"))
        for content, chat in ((f"question {index}", chat) for index, chat in enumerate(turns))
    ]
    for operation, count in operations:
        if world.wire is None:
            world.connect()
        elif operation == "cut":
            world.cut()
        else:
            {"send": world.send, "receive": world.receive}[operation](count)
    world.run()
    for chat, content, call in calls:
        assert call.has_ended
        assert call.error is None
        assert is_whole(call)
        assert call.text in backend.said[content], "not one try, but parts of several"
        question = chats[chat].messages.index({"role": "user", "content": content})
        assert chats[chat].messages[question + 1] == {"role": "assistant", "content": call.text}
    assert sum(len(chat.messages) for chat in chats) == 2 * len(calls)
    assert not world.session.has_work


@settings(deadline=None)
@given(
    sizes=st.lists(st.integers(1, 20), max_size=6),
    operations=st.lists(
        st.one_of(
            OPERATIONS,
            st.tuples(st.sampled_from(["cancel", "steer"]), st.integers(0, 9)),
            st.just(("restart", 0)),
        ),
        max_size=60,
    ),
)
def test_whatever_is_done_everything_ends_and_nothing_partial_counts_as_whole(
    sizes: list[int], operations: list[tuple[str, int]]
) -> None:
    backend = Tries(sizes)
    world = World(backend)
    calls = [world.ask(f"{index}", lane=f"chat-{index % 2}") for index in range(4)]
    for operation, count in operations:
        if operation == "cancel":
            world.session.cancel(calls[count % len(calls)])
        elif operation == "steer":
            call = calls[count % len(calls)]
            if not (call.has_ended or call.successor or call.cancel_wanted):
                assert call.turn
                turn = Turn(call.turn.conversation, f"steer {len(calls)}", {})
                calls.append(world.session.steer(call, turn))
        elif world.wire is None:
            world.connect()
        elif operation in ("cut", "restart"):
            world.cut()
            if operation == "restart":
                backend.forget()
        else:
            {"send": world.send, "receive": world.receive}[operation](count)
    world.run()
    for call in calls:
        assert call.has_ended
        assert is_whole(call)
        assert call.error is None or isinstance(call.error, ResponseGone | SteerRefused)
        content = call.turn.content if call.turn else None
        assert content is not None
        assert any(text.startswith(call.text) for text in [*backend.said.get(content, []), ""])
        if call.response is None:
            assert call.error or call.cancel_wanted
        elif call.response.status == "completed":
            assert call.text in backend.said[content]
    assert not world.session.has_work


def test_a_resume_names_the_last_number_and_no_event_comes_twice() -> None:
    world = World()
    world.backend.scripts.append(Script(("a", "b", "c")))
    call = world.ask("hello")
    world.connect()
    world.send()
    world.receive(6)  # up to "b"
    world.cut()
    assert call.state is State.LOST
    world.run()
    resume = world.frames[-1]
    assert resume == {
        "type": "response.resume",
        "response_id": call.id,
        "stream_id": "lane",
        "starting_after": 5,
    }
    assert call.text == "abc"
    assert is_whole(call)


def test_an_event_that_comes_again_is_dropped_and_one_that_is_missing_is_a_gap() -> None:
    world = World()
    call = world.ask("hello")
    world.connect()
    world.send()
    world.receive(5)
    delta = {"type": "response.output_text.delta", "delta": "x", "stream_id": "lane"}
    text = call.text
    world.session.receive(orjson.dumps(delta | {"sequence_number": 4}), 0.0)
    assert call.text == text
    with pytest.raises(Gap):
        world.session.receive(orjson.dumps(delta | {"sequence_number": 6}), 0.0)
    assert call.text == text
    world.cut()
    world.run()
    assert call.text == "You said: hello"


def test_text_that_is_not_that_of_its_deltas_is_never_taken_for_whole() -> None:
    world = World()
    call = world.ask("hello")
    world.connect()
    world.send()
    world.receive(5)
    done = {"type": "response.output_text.done", "text": "else", "stream_id": "lane", "sequence_number": 5}
    world.session.receive(orjson.dumps(done), 0.0)
    assert isinstance(call.error, ProtocolViolation)


def test_a_request_in_doubt_is_sent_again_and_what_the_first_one_says_is_nobodys() -> None:
    backend = Tries([5])
    world = World(backend)
    call = world.ask("hello")
    world.connect()
    world.send()
    assert world.wire
    assert world.wire.next_frame()  # response.created, which gets lost
    world.cut()
    world.run()
    assert backend.tries["hello"] == 2
    assert call.text == backend.said["hello"][1]


def test_a_turn_names_the_response_before_and_sends_everything_when_that_is_forgotten() -> None:
    world = World()
    conversation = Conversation({"instructions": "Be brief."})
    first = world.ask("one", conversation)
    world.run()
    second = world.ask("two", conversation)
    world.run()
    assert world.frames[-1]["previous_response_id"] == first.id
    assert world.frames[-1]["input"] == [{"role": "user", "content": "two"}]
    world.backend.forget()
    world.ask("three", conversation)
    world.run()
    healed = world.frames[-1]
    assert "previous_response_id" not in healed
    assert healed["instructions"] == "Be brief."
    assert [each["content"] for each in healed["input"]] == [
        "one", first.text, "two", second.text, "three"
    ]  # fmt: skip
    assert healed["on_disconnect"] == "continue"


def test_forgotten_without_having_been_named_is_an_error_like_others() -> None:
    world = World()
    world.backend.scripts.append(Script((), refusal=error_event(400, "previous_response_not_found")))
    call = world.ask("one")
    world.run()
    assert isinstance(call.error, RequestRefused)


def test_turns_of_a_lane_wait_for_each_other_and_lanes_for_a_place() -> None:
    world = World()
    calls = [world.ask("hello", lane=f"lane-{index % 20}") for index in range(40)]
    world.connect()
    world.send()
    assert len(world.frames) == MAX_ACTIVE
    assert [call.state for call in calls].count(State.SENT) == MAX_ACTIVE
    world.run()
    assert all(call.text == "You said: hello" for call in calls)
    assert [frame["stream_id"] for frame in world.frames[:20]] == [f"lane-{index}" for index in range(20)]


def test_a_cancel_reaches_a_running_answer_and_one_that_waits_is_never_asked() -> None:
    world = World()
    running, waiting = world.ask("one"), world.ask("two")
    world.session.cancel(waiting)
    assert waiting.has_ended
    world.connect()
    world.send()
    world.receive(5)
    world.session.cancel(running)
    world.session.cancel(running)
    world.run()
    assert [frame["type"] for frame in world.frames] == ["response.create", "response.cancel"]
    assert running.response
    assert running.response.status == "cancelled"
    assert running.text == "You"


@pytest.mark.parametrize("begun", [False, True])
def test_a_cancel_during_a_cut_is_told_as_soon_as_it_can_be(begun: bool) -> None:
    world = World()
    call = world.ask("one")
    world.connect()
    world.send()
    if begun:
        world.receive(5)
    world.cut()
    world.session.cancel(call)
    world.run()
    kinds = [frame["type"] for frame in world.frames]
    if begun:
        assert kinds == ["response.create", "response.resume", "response.cancel"]
    else:
        assert kinds == ["response.create"], "nobody wants it, and nothing was told of it"
    assert call.has_ended
    assert call.error is None


def test_gone_is_an_error_with_what_there_was() -> None:
    world = World()
    call = world.ask("one")
    world.connect()
    world.send()
    world.receive(6)
    world.cut()
    world.backend.forget()
    world.run()
    assert isinstance(call.error, ResponseGone)
    assert call.error.partial == "You said:"
    assert call.error.response_id == call.id
    assert isinstance(call.error.__cause__, RequestRefused)


def test_an_answer_that_was_abandoned_meanwhile_is_gone_too() -> None:
    world = World()
    call = world.ask("one")
    world.connect()
    world.send()
    world.receive(6)
    world.cut()
    told = world.backend.find(call.id)
    assert told
    told.cut("cancelled", "abandoned")
    world.run()
    assert isinstance(call.error, ResponseGone)
    assert call.error.partial == "You said:"


def test_no_connection_any_more_ends_everything_each_in_its_way() -> None:
    world = World()
    running, waiting = world.ask("one"), world.ask("two")
    world.connect()
    world.send()
    world.receive(5)
    world.cut()
    why = ConnectionRefused("too large", 1009)
    world.session.fail(why)
    assert isinstance(running.error, AnswerInterrupted)
    assert running.error.partial == "You"
    assert running.error.__cause__ is why
    assert waiting.error is why
    assert not world.session.has_work
    later = world.ask("three")
    world.run()
    assert later.text == "You said: three"


def test_a_failed_turn_leaves_the_conversation_as_it_was() -> None:
    world = World()
    world.backend.scripts.append(Script(("a",), failure={"code": "server_error", "message": "a fault"}))
    conversation = Conversation({})
    call = world.ask("one", conversation)
    world.run()
    assert isinstance(call.error, AnswerFailed)
    assert (call.error.code, call.error.partial) == ("server_error", "a")
    assert conversation.messages == []


def test_a_steered_answer_is_followed_by_its_successor() -> None:
    world = World()
    conversation = Conversation({})
    call = world.ask("one", conversation)
    later = world.ask("three", conversation)
    world.connect()
    world.send()
    world.receive(5)
    assert call.turn
    successor = world.session.steer(call, Turn(conversation, "two", {}))
    with pytest.raises(SteerRefused):
        world.session.steer(call, Turn(conversation, "two", {}))
    world.run()
    assert [frame["type"] for frame in world.frames] == [
        "response.create", "response.steer", "response.create"
    ]  # fmt: skip
    assert call.response
    assert call.response.reason == "steered"
    assert [message["content"] for message in conversation.messages] == [
        "one", "You", "two", "You said: two", "three", "You said: three"
    ]  # fmt: skip
    assert later.has_ended
    assert successor.id != call.id


def test_steering_that_comes_too_late_is_what_is_said_next() -> None:
    world = World()
    call = world.ask("one")
    world.connect()
    world.send()
    world.receive(5)
    assert call.turn
    successor = world.session.steer(call, Turn(call.turn.conversation, "two", {}))
    world.receive()  # to the end, before the server hears of it
    world.run()
    assert world.frames[-1]["type"] == "response.create"
    assert world.frames[-1]["previous_response_id"] == call.id
    assert successor.text == "You said: two"


def test_steering_of_an_answer_that_is_gone_is_refused() -> None:
    world = World()
    call = world.ask("one")
    world.connect()
    world.send()
    world.receive(5)
    assert call.turn
    successor = world.session.steer(call, Turn(call.turn.conversation, "two", {}))
    world.send()
    world.cut()
    world.backend.forget()
    world.run()
    assert isinstance(call.error, ResponseGone)
    assert isinstance(successor.error, SteerRefused)
    assert not world.session.has_work


def test_without_a_connection_a_successor_ends_for_the_reason_of_all() -> None:
    world = World()
    call = world.ask("one")
    world.connect()
    world.send()
    assert call.turn
    successor = world.session.steer(call, Turn(call.turn.conversation, "two", {}))
    world.cut()
    why = Unreachable("nobody there")
    world.session.fail(why)
    assert call.error is successor.error is why


def test_what_was_cancelled_before_it_began_is_not_asked_again() -> None:
    world = World()
    call = world.ask("one")
    world.connect()
    world.send()
    world.session.cancel(call)
    assert not call.has_ended, "its end may still be told"
    world.cut()
    world.run()
    assert call.has_ended
    assert [frame["type"] for frame in world.frames] == ["response.create"]


def test_a_beginning_that_comes_again_begins_nothing() -> None:
    world = World()
    call = world.ask("one")
    world.connect()
    world.send()
    world.receive(5)
    call_id = call.id
    world.session.cancel(call)
    response = {"id": "resp_else", "status": "in_progress"}
    again = {"type": "response.created", "sequence_number": 0, "stream_id": "lane", "response": response}
    world.session.receive(orjson.dumps(again), 0.0)
    world.run()
    assert call.id == call_id
    assert [frame["type"] for frame in world.frames] == ["response.create", "response.cancel"]


def asked(ask: Callable[[Callable[[Any], None]], None]) -> list[Any]:
    replies: list[Any] = []
    ask(replies.append)
    return replies


def test_stats_pings_and_their_errors() -> None:
    world = World()
    [unreachable] = asked(lambda tell: world.session.ask_stats("resp_1", tell))
    assert isinstance(unreachable, Unreachable)
    call = world.ask("one")
    world.connect()
    world.send()
    world.receive(5)
    assert call.id
    call_id = call.id
    of_none = asked(lambda tell: world.session.ask_stats("resp_none", tell))
    of_one = asked(lambda tell: world.session.ask_stats(call_id, tell))
    times = asked(lambda tell: world.session.ask_time(-1.5, tell))
    world.run()
    assert isinstance(of_none[0], RequestRefused)
    assert isinstance(of_one[0], Stats)
    assert of_one[0].status == "generating"
    assert times == [1.5]
    lost = asked(lambda tell: world.session.ask_time(0.0, tell))
    world.cut()
    assert isinstance(lost[0], Unreachable)


def test_a_connection_that_answers_no_pings_is_dead_and_one_that_says_anything_is_not() -> None:
    world = World()
    world.connect()
    assert [world.session.beat() for _ in range(3)] == [True, True, False]
    world.cut()
    world.connect()
    for _ in range(5):
        assert world.session.beat()
        world.run()


def test_unknown_events_pass_and_malformed_ones_do_not() -> None:
    world = World()
    call = world.ask("one")
    world.connect()
    world.send()
    world.receive(5)
    more = {"type": "response.reasoning.delta", "stream_id": "lane", "sequence_number": 5, "text": "hm"}
    world.session.receive(orjson.dumps(more), 0.0)
    assert call.events[-1] == UnknownEvent(5, "response.reasoning.delta", more)
    for text in ("no JSON", "[]", '{"type": "error", "stream_id": "lane"}'):
        with pytest.raises(ProtocolViolation):
            world.session.receive(text, 0.0)
    with pytest.raises(ProtocolViolation):
        world.session.receive('{"type": "response.output_text.delta", "stream_id": "lane"}', 0.0)
