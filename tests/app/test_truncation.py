"""Conversations that do not fit: which messages go, and how soon that is found; and over HTTP, that a client
is told."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.store import Message
from app.truncation import GUESSES, Truncation
from tests.app.harness import expected, fake_prompt, running, text_of

LETTER = {"system": "s", "user": "u", "assistant": "a"}


def talk(*messages: str) -> list[Message]:
    """ "u3": a user's message of 3 characters. Each is filled with its own number, so all differ."""
    roles = {letter: role for role, letter in LETTER.items()}
    return [{"role": roles[m[0]], "content": chr(65 + n % 60) * int(m[1:])} for n, m in enumerate(messages)]


class Encoder:
    """A token for each character, and three for each message."""

    def __init__(self) -> None:
        self.asked: list[list[Message]] = []

    def __call__(self, messages: list[Message]) -> list[int]:
        self.asked.append(messages)
        return [ord(c) for m in messages for c in "<" + LETTER[m["role"]] + m["content"] + ">"]


def cut(messages: list[Message], fits: int, room: int | None = None) -> tuple[int, list[int], Encoder]:
    encoder = Encoder()
    truncation = Truncation(messages, encoder, fits, fits if room is None else room)
    ids = truncation.encode()
    return truncation.num_dropped, ids, encoder


def test_what_fits_is_left_alone() -> None:
    messages = talk("s5", "u5", "a5", "u5")
    dropped, ids, encoder = cut(messages, fits=32, room=1)
    assert (dropped, ids) == (0, Encoder()(messages))
    assert len(encoder.asked) == 1


def test_the_oldest_turns_go_and_no_more_than_must() -> None:
    messages = talk("s5", "u5", "a5", "u5", "a5", "u5")
    dropped, ids, _ = cut(messages, fits=40)
    assert dropped == 2
    assert ids == Encoder()([messages[0], *messages[3:]])


def test_once_something_must_go_there_is_room_for_an_answer() -> None:
    messages = talk("u5", "a5", "u5", "a5", "u5")
    assert cut(messages, fits=39, room=24)[0] == 2
    assert cut(messages, fits=40, room=24)[0] == 0


def test_instructions_and_the_last_question_never_go() -> None:
    messages = talk("s50", "u5", "s50", "a5", "u50", "a1")
    dropped, ids, _ = cut(messages, fits=10)
    assert dropped == 2
    assert ids == Encoder()([messages[0], messages[2], *messages[4:]])


def test_a_single_message_that_is_too_long_stays_whole() -> None:
    messages = talk("s5", "u50")
    assert cut(messages, fits=10)[:2] == (0, Encoder()(messages))


@given(
    st.lists(
        st.tuples(st.sampled_from("sua"), st.sampled_from([0, 1, 5, 400]) | st.integers(0, 400)),
        min_size=1,
        max_size=200,
    ),
    st.integers(1, 5000),
    st.integers(1, 5000),
)
def test_the_cut_is_the_smallest_and_found_in_few_encodings(
    shape: list[tuple[str, int]], fits: int, room: int
) -> None:
    messages = talk(*(f"{role}{size}" for role, size in shape))
    room = min(fits, room)
    dropped, ids, encoder = cut(messages, fits, room)
    assert len(encoder.asked) <= 1 + GUESSES + len(messages).bit_length()

    def left(count: int) -> list[Message]:
        users = [at for at, m in enumerate(messages) if m["role"] == "user"]
        last = users[-1] if users else len(messages) - 1
        gone = [at for at in range(last) if messages[at]["role"] != "system"][:count]
        return [m for at, m in enumerate(messages) if at not in gone]

    most = next(n for n in range(len(messages) + 1) if left(n) == left(n + 1))
    assert ids == Encoder()(left(dropped))
    if len(Encoder()(messages)) <= fits or not most:
        assert dropped == 0
        return

    def is_whole_turn(count: int) -> bool:
        said = [m for m in left(count) if m["role"] != "system"]
        return count == most or said[0]["role"] == "user"

    enough = [n for n in range(1, most + 1) if is_whole_turn(n) and len(Encoder()(left(n))) <= room]
    assert dropped == (enough[0] if enough else most)


@pytest.mark.parametrize("room", range(100, 4000, 150))
def test_a_conversation_that_changes_its_pace_is_cut_as_little(room: int) -> None:
    """Many short messages and then long ones: what a character costs is no guide."""
    messages = talk(*["u1", "a1"] * 100, *["u300", "a300"] * 6, "u20")
    dropped, ids, _ = cut(messages, room)
    assert len(ids) <= room
    assert len(Encoder()(messages[dropped - 2 :])) > room


def test_a_usual_conversation_takes_three_or_four_encodings() -> None:
    sizes = [20, 300, 15, 500, 80, 350, 10, 250] * 20
    messages = talk(*(f"{'ua'[n % 2]}{size}" for n, size in enumerate([*sizes, 30])))
    for room in (100, 1000, 5000, 20_000, 30_000):
        assert len(cut(messages, room)[2].asked) <= 4


# -- over HTTP -------------------------------------------------------------------------------------------

TURNS: list[Message] = [
    {"role": "user" if n % 2 == 0 else "assistant", "content": f"number {n} " + "x" * 40} for n in range(9)
]
SYSTEM: Message = {"role": "system", "content": "be brief"}
BODY: dict[str, Any] = {
    "input": TURNS,
    "instructions": "be brief",
    "temperature": 0,
    "max_output_tokens": 16,
}


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_is_told_what_was_left_out(stream: bool) -> None:
    async with running(num_blocks=16) as server, server.http() as http:
        body = BODY | {"truncation": "auto", "stream": stream}
        reply = await http.post("/v1/responses", json=body)
        assert reply.status_code == 200
        shown = (
            expected([SYSTEM, *TURNS[6:]], 16),
            '"truncation":"auto"',
            '"truncated_items":6',
        )
        for each in shown:
            assert each in reply.text
        refused = await http.post("/v1/responses", json=BODY | {"stream": stream})
    assert refused.status_code == 400
    error = refused.json()["error"]
    assert (error["code"], error["param"]) == ("context_length_exceeded", "input")
    for count in (len(fake_prompt([SYSTEM, *TURNS])), 16, 256):
        assert f" {count} " in error["message"]


async def test_what_was_left_out_of_one_turn_is_there_for_the_next() -> None:
    async with running(num_blocks=16) as server, server.http() as http:
        first = (await http.post("/v1/responses", json=BODY | {"truncation": "auto"})).json()
        next_turn = {"input": "go on", "previous_response_id": first["id"], "temperature": 0}
        refused = await http.post("/v1/responses", json=next_turn)
        assert refused.json()["error"]["code"] == "context_length_exceeded"
        second = (await http.post("/v1/responses", json=next_turn | {"truncation": "auto"})).json()
    assert second["truncated_items"] == 8
    assert second["usage"]["input_tokens"] <= 256


async def test_what_can_never_fit_is_refused_all_the_same() -> None:
    async with running(num_blocks=16) as server, server.http() as http:
        body = {"input": "x" * 300, "truncation": "auto"}
        refused = await http.post("/v1/responses", json=body)
        assert refused.status_code == 400
        assert " 306 tokens" in refused.json()["error"]["message"]
        body = {"input": "x", "truncation": "auto"}
        fits = (await http.post("/v1/responses", json=body)).json()
    assert (fits["truncation"], fits["truncated_items"]) == ("auto", 0)


@pytest.mark.parametrize("truncation", ["auto", "disabled"])
async def test_the_context_is_used_to_its_last_token(truncation: str) -> None:
    """One message, of which nothing can be left out: both ways refuse the same, before any work."""
    cases = [(255, None, 1), (256, None, None), (2560, None, None), (246, 10, 10), (246, 11, None)]
    async with running(num_blocks=16) as server, server.http() as http:
        for prompt_tokens, limit, generated in cases:
            text = "x" * (prompt_tokens - len("user:;"))
            body = {"input": text, "max_output_tokens": limit, "truncation": truncation}
            ticks = server.stats().num_ticks
            reply = await http.post("/v1/responses", json=body)
            if generated is None:
                assert reply.json()["error"]["code"] == "context_length_exceeded"
                assert server.stats().num_ticks == ticks
            else:
                usage = reply.json()["usage"]
                assert (usage["input_tokens"], usage["output_tokens"]) == (prompt_tokens, generated)


async def test_a_socket_is_told_as_well() -> None:
    async with running(num_blocks=16) as server, server.socket() as socket:
        fields = {"instructions": "be brief", "max_output_tokens": 16, "truncation": "auto"}
        events = await socket.answer(TURNS, **fields)
    assert events[0]["response"]["truncated_items"] == events[-1]["response"]["truncated_items"] == 6
    assert text_of(events) == expected([SYSTEM, *TURNS[6:]], 16)
