"""The client against a server that breaks when it is told to."""

from __future__ import annotations

import asyncio
import gc
import random
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from tickwire_client import (
    Answer,
    AnswerFailed,
    AnswerInterrupted,
    AuthenticationFailed,
    Client,
    ClientClosed,
    ConnectionRefused,
    OutputTextDelta,
    Overloaded,
    ProtocolViolation,
    Reconnect,
    RequestRefused,
    ResponseCompleted,
    ResponseCreated,
    ResponseGone,
    Result,
    Status,
    SteerRefused,
    Unreachable,
)
from tickwire_client.client import socket_url
from tickwire_client.testing import FakeServer

PATIENCE = 20.0
"""Seconds after which a test that waits has failed. No test depends on how long anything takes."""
AT_ONCE = Reconnect(first=0.0)
WORDS = ("Every", " token", " goes", " to", " its", " session.")
NUM_FRAMES = 4 + len(WORDS) + 4


@pytest.fixture(autouse=True)
async def patience() -> AsyncIterator[None]:
    """Not a timeout around a fixture: tests are tasks of their own."""
    loop = asyncio.get_running_loop()
    handle = loop.call_later(PATIENCE, lambda: [task.cancel() for task in asyncio.all_tasks(loop)])
    yield
    handle.cancel()


@pytest.fixture
async def server() -> AsyncIterator[FakeServer]:
    async with FakeServer() as server:
        yield server


@pytest.fixture
async def client(server: FakeServer) -> AsyncIterator[Client]:
    async with Client(server.url, reconnect=AT_ONCE) as client:
        yield client


async def read(answer: Answer, at: str, act: Callable[[], Any]) -> str:
    """To the end. `act` when `at` comes."""
    text = ""
    async for delta in answer:
        text += delta
        if delta == at:
            await act()
    return text


async def test_a_conversation_of_several_turns(server: FakeServer, client: Client) -> None:
    chat = client.chat(instructions="Be brief.", model="fake-model", temperature=0.0)
    server.say("Hel", "lo")
    assert [delta async for delta in chat.send("Hi")] == ["Hel", "lo"]
    answer = chat.send("More", temperature=None, seed=7)
    result = await answer
    assert result.text == answer.text == "You said: More"
    assert result.status is Status.COMPLETED
    assert result.usage
    assert result.usage.output_tokens == 3
    first, second = server.requests
    assert (first["instructions"], first["model"], first["temperature"]) == ("Be brief.", "fake-model", 0.0)
    assert second["previous_response_id"].startswith("resp_")
    assert second["seed"] == 7
    assert "temperature" not in second
    assert [message["role"] for message in chat.messages] == ["user", "assistant"] * 2
    again = client.chat(messages=chat.messages)
    await again.send("And?")
    assert [message["content"] for message in server.requests[-1]["input"]] == [
        "Hi", "Hello", "More", "You said: More", "And?"
    ]  # fmt: skip


async def test_typed_events_and_several_readers(server: FakeServer, client: Client) -> None:
    server.say(*WORDS)
    answer = client.chat().send("Hi")

    async def text() -> str:
        return "".join([delta async for delta in answer])

    one, other, result = await asyncio.gather(text(), text(), answer.result())
    assert one == other == result.text == "".join(WORDS)
    events = [event async for event in answer.events()]
    assert [event.sequence_number for event in events] == list(range(NUM_FRAMES))
    assert isinstance(events[0], ResponseCreated)
    assert events[0].response.id == answer.id
    assert [event.delta for event in events if isinstance(event, OutputTextDelta)] == list(WORDS)
    assert isinstance(events[-1], ResponseCompleted)


@pytest.mark.parametrize("frames", range(NUM_FRAMES))
async def test_cut_after_every_frame_and_nobody_notices(
    server: FakeServer, client: Client, frames: int
) -> None:
    server.cut_after(frames)
    server.say(*WORDS)
    server.say(*WORDS)  # for the request that is sent again if nothing of it came back
    answer = client.chat().send("Hi")
    assert [delta async for delta in answer] == list(WORDS)
    numbers = [event.sequence_number async for event in answer.events()]
    assert numbers == list(range(NUM_FRAMES))
    assert len(server.api_keys) == 2, "it was cut once"


async def test_cut_again_and_again_with_many_lanes(server: FakeServer, client: Client) -> None:
    server.cut_after(*range(1, 40))
    answers = [client.chat().send(f"I am {number}, and go on for a while") for number in range(24)]
    results = await asyncio.gather(*answers)
    assert [result.text for result in results] == [
        f"You said: I am {number}, and go on for a while" for number in range(24)
    ]
    assert len(server.api_keys) > 20


async def test_two_chats_at_once_and_each_in_its_order(server: FakeServer, client: Client) -> None:
    server.say("left", " one", pause_after=1)
    left, right = client.chat(), client.chat()
    first, second = left.send("1"), left.send("2")
    reading = asyncio.ensure_future(first.result())
    assert (await right.send("3")).text == "You said: 3"
    assert not second.id
    server.release()
    assert (await reading).text == "left one"
    assert (await second).text == "You said: 2"
    assert (
        server.requests[0]["stream_id"] == server.requests[2]["stream_id"] != server.requests[1]["stream_id"]
    )


async def test_cancel_ends_an_answer_with_what_there_is(server: FakeServer, client: Client) -> None:
    chat = client.chat()
    server.say(*WORDS, pause_after=2)
    answer = chat.send("Hi")
    texts = []
    async for delta in answer:
        texts.append(delta)
        if len(texts) == 2:
            answer.cancel()
    result = await answer
    assert result.status is Status.CANCELLED
    assert result.text == "".join(texts) == "Every token"
    assert chat.messages[-1] == {"role": "assistant", "content": "Every token"}
    answer.cancel()
    assert (await chat.send("More")).text == "You said: More"


async def leave_early(client: Client) -> None:
    async for _ in client.chat().send("Hi"):
        break
    gc.collect()


async def be_cancelled(client: Client) -> None:
    answer = client.chat().send("Hi")
    task = asyncio.ensure_future(answer.result())
    await anext(aiter(answer))
    task.cancel()


@pytest.mark.parametrize("leave", [leave_early, be_cancelled])
async def test_who_leaves_has_the_answer_cancelled(
    server: FakeServer, client: Client, leave: Callable[[Client], Any]
) -> None:
    server.say(*WORDS, pause_after=1)
    await leave(client)
    [cancel] = await server.received("response.cancel")
    assert cancel["response_id"] == "resp_00000001"


async def test_one_of_two_readers_may_leave(server: FakeServer, client: Client) -> None:
    server.say(*WORDS, pause_after=1)
    answer = client.chat().send("Hi")
    task = asyncio.ensure_future(answer.result())
    async for _ in answer:
        break
    await answer.stats()  # so long that a cancel would have come
    server.release()
    assert (await task).text == "".join(WORDS)
    assert not [message for message in server.messages if message["type"] == "response.cancel"]


async def test_closing_the_client_cancels_what_runs(server: FakeServer) -> None:
    server.say(*WORDS, pause_after=1)
    async with Client(server.url) as client:
        answer = client.chat().send("Hi")
        await answer.stats()
    assert len(await server.received("response.cancel")) == 1
    assert (await answer).status is Status.CANCELLED
    for use in (lambda: client.chat().send("Hi"), lambda: client.resume("resp_1")):
        with pytest.raises(ClientClosed):
            use()
    with pytest.raises(ClientClosed):
        await client.ping()
    with pytest.raises(RuntimeError):
        await client.open()


async def test_steering(server: FakeServer, client: Client) -> None:
    chat = client.chat()
    server.say(*WORDS, pause_after=2)
    answer = chat.send("Hi")
    async for delta in answer:
        if delta == " token":
            successor = answer.steer("Shorter")
    assert (await answer).reason == "steered"
    assert (await successor).text == "You said: Shorter"
    assert server.requests[1]["previous_response_id"] == answer.id
    with pytest.raises(SteerRefused):
        answer.steer("Again")


async def test_a_response_of_another_process_is_told_from_its_beginning(
    server: FakeServer, client: Client
) -> None:
    first = client.chat().send("Hi")
    await first
    assert first.id
    async with Client(server.url) as other:
        again = other.resume(first.id)
        assert [delta async for delta in again] == [delta async for delta in first]
        with pytest.raises(ResponseGone):
            await other.resume("resp_none")


async def test_stats_warming_up_and_pings(server: FakeServer, client: Client) -> None:
    chat = client.chat(instructions="Be brief.")
    usage = await chat.warm_up("Hello, how")
    assert usage
    assert usage.output_tokens == 0
    await chat.warm_up()
    assert [request["generate"] for request in server.requests] == [False, False]
    assert "input" not in server.requests[1]
    assert chat.messages == ()
    answer = chat.send("Hi")
    stats = await answer.stats()
    assert stats.prompt_tokens == 1
    assert await client.ping() >= 0.0
    await answer


async def test_a_turn_ends_the_warming_up_before_it(server: FakeServer, client: Client) -> None:
    chat = client.chat()
    server.is_mute = True
    warming = asyncio.ensure_future(chat.warm_up("How"))
    await server.received("response.create")
    answer = chat.send("How are you?")
    await server.received("response.create", 2)
    server.is_mute = False
    server.release()
    assert (await answer).text == "You said: How are you?"
    await server.received("response.cancel")
    await warming


async def test_empty_deltas_are_no_text(server: FakeServer, client: Client) -> None:
    server.say("", "a", "", "b")
    assert [delta async for delta in client.chat().send("Hi")] == ["a", "b"]


async def test_a_connection_that_has_lost_something_is_left_for_another(
    server: FakeServer, client: Client
) -> None:
    late = (
        '{"type": "response.output_text.delta", "delta": "x", "sequence_number": 99, "stream_id": "chat-1"}'
    )

    async def skip() -> None:
        await server.send_raw(late)
        await server.received("response.resume")
        server.release()

    server.say(*WORDS, pause_after=2)
    assert await read(client.chat().send("Hi"), " token", skip) == "".join(WORDS)


async def test_closing_while_the_server_says_nothing_leaves_nobody_waiting(
    server: FakeServer, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tickwire_client.client.FAREWELL_S", 0.0)
    server.say(*WORDS, pause_after=2)
    begun, waiting = client.chat().send("Hi"), client.chat().send("Hi")
    await begun.stats()
    server.is_mute = True
    reading = asyncio.gather(begun, client.chat().send("More"), return_exceptions=True)
    await server.received("response.create", 3)
    await client.close()
    interrupted, never_begun = await reading
    assert isinstance(interrupted, AnswerInterrupted)
    assert isinstance(interrupted.__cause__, ClientClosed)
    assert isinstance(never_begun, Result)
    assert never_begun.status is Status.CANCELLED
    assert waiting.has_ended


async def test_a_server_that_was_started_anew(server: FakeServer, client: Client) -> None:
    chat = client.chat()
    await chat.send("one")

    async def restart() -> None:
        server.restart()

    server.say(*WORDS, pause_after=2)
    lost = client.chat().send("two")
    with pytest.raises(ResponseGone) as caught:
        await read(lost, " token", restart)
    assert caught.value.partial == "Every token"
    assert caught.value.response_id == lost.id
    assert (await chat.send("three")).text == "You said: three"
    healed = server.requests[-1]
    assert "previous_response_id" not in healed
    assert [message["content"] for message in healed["input"]][:2] == ["one", "You said: one"]


@pytest.mark.parametrize("code", [1001, 1011, 1012, 1013])
async def test_a_close_code_that_says_come_back(server: FakeServer, client: Client, code: int) -> None:
    server.say(*WORDS, pause_after=2)

    async def close() -> None:
        await server.close_with(code)
        server.release()

    assert await read(client.chat().send("Hi"), " token", close) == "".join(WORDS)


@pytest.mark.parametrize(
    ("code", "kind"), [(1008, ConnectionRefused), (1009, ConnectionRefused), (4401, AuthenticationFailed)]
)
async def test_a_close_code_that_says_do_not(
    server: FakeServer, client: Client, code: int, kind: type[Exception]
) -> None:
    server.say(*WORDS, pause_after=2)
    chat = client.chat()
    answer, waiting = chat.send("Hi"), chat.send("More")
    with pytest.raises(AnswerInterrupted) as caught:
        await read(answer, " token", lambda: server.close_with(code, "no"))
    assert caught.value.partial == "Every token"
    assert isinstance(caught.value.__cause__, kind)
    with pytest.raises(kind, match=f"{code}: no"):
        await waiting
    assert len(server.api_keys) == 1, "it did not come back by itself"
    assert (await chat.send("Again")).text == "You said: Again", "and does when it is asked to"


async def test_a_connection_that_is_dead_is_left(server: FakeServer) -> None:
    async with Client(server.url, reconnect=AT_ONCE, ping_interval=0.01) as client:
        server.say(*WORDS, pause_after=2)

        async def be_mute() -> None:
            server.is_mute = True
            await server.received("response.resume")
            server.is_mute = False
            server.release()

        assert await read(client.chat().send("Hi"), " token", be_mute) == "".join(WORDS)


async def test_a_handshake_that_is_refused(server: FakeServer) -> None:
    for status, kind in ((401, AuthenticationFailed), (403, ConnectionRefused), (503, Unreachable)):
        server.refuse_handshakes(status)
        with pytest.raises(kind, match=str(status)):
            async with Client(server.url, api_key="a-key"):
                pass
    assert server.api_keys == ["a-key"] * 3


async def test_coming_back_takes_several_attempts_and_not_for_ever(server: FakeServer) -> None:
    async with Client(server.url, reconnect=Reconnect(first=0.0, attempts=3)) as client:
        server.refuse_handshakes(503, 503)
        server.cut_after(6)
        server.say(*WORDS)
        assert (await client.chat().send("Hi")).text == "".join(WORDS)
        server.refuse_handshakes(503, 503, 503)
        server.cut_after(6)
        server.say(*WORDS)
        with pytest.raises(AnswerInterrupted) as caught:
            await client.chat().send("Hi")
        assert isinstance(caught.value.__cause__, Unreachable)
        server.refuse_handshakes(401)
        with pytest.raises(AuthenticationFailed):
            await client.chat().send("Hi")
        server.refuse_handshakes(503, 401)
        server.cut_after(6)
        server.say(*WORDS)
        with pytest.raises(AuthenticationFailed):
            await client.chat().send("Hi")


async def test_an_idle_client_comes_back_with_the_next_request(server: FakeServer, client: Client) -> None:
    await client.chat().send("Hi")
    server.cut()
    async with Client(server.url) as other:
        await other.chat().send("Hi")
        assert len(server.api_keys) == 2, "it came back for nothing"
        assert (await client.chat().send("More")).text == "You said: More"


async def test_nobody_there() -> None:
    async with FakeServer() as server:
        url = server.url
    with pytest.raises(Unreachable, match="no server at"):
        async with Client(url):
            pass


async def test_errors_of_requests(server: FakeServer, client: Client) -> None:
    chat = client.chat()
    server.refuse(400, "out_of_range", "temperature: got 3", "temperature")
    with pytest.raises(RequestRefused, match="got 3") as refused:
        await chat.send("Hi")
    error = refused.value
    assert (error.status, error.code, error.param) == (400, "out_of_range", "temperature")
    server.refuse(429, "rate_limit_exceeded", retry_after=3)
    with pytest.raises(Overloaded) as overloaded:
        async for _ in chat.send("Hi"):
            pass
    assert overloaded.value.retry_after == 3
    server.fail("a", "b", message="a fault")
    with pytest.raises(AnswerFailed, match="a fault") as failed:
        await chat.send("Hi")
    assert (failed.value.partial, failed.value.code) == ("ab", "server_error")
    assert chat.messages == ()
    with pytest.raises(TypeError, match="'temprature'"):
        chat.send("Hi", temprature=1.0)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="'stream_id'"):
        client.chat(stream_id="left")  # type: ignore[call-arg]


async def test_a_server_that_speaks_something_else(server: FakeServer, client: Client) -> None:
    server.say(*WORDS, pause_after=2)
    with pytest.raises(AnswerInterrupted) as caught:
        await read(client.chat().send("Hi"), " token", lambda: server.send_raw("no JSON"))
    assert isinstance(caught.value.__cause__, ProtocolViolation)
    assert len(server.api_keys) == 1


def test_delays_double_up_to_the_longest_and_depend_on_the_seed_alone() -> None:
    delays = list(Reconnect(first=1.0, longest=4.0, attempts=5, rng=random.Random(3)).delays())
    assert delays == list(Reconnect(first=1.0, longest=4.0, attempts=5, rng=random.Random(3)).delays())
    for delay, most in zip(delays, [1.0, 2.0, 4.0, 4.0, 4.0], strict=True):
        assert most / 2 <= delay <= most


@pytest.mark.parametrize(
    ("url", "socket"),
    [
        ("http://127.0.0.1:8000", "ws://127.0.0.1:8000/v1/responses"),
        ("https://example.org/", "wss://example.org/v1/responses"),
        ("http://127.0.0.1:8000/v1", "ws://127.0.0.1:8000/v1/responses"),
        ("https://example.org/llm/v1/", "wss://example.org/llm/v1/responses"),
        ("ws://localhost:1/v1/responses", "ws://localhost:1/v1/responses"),
    ],
)
def test_addresses(url: str, socket: str) -> None:
    assert socket_url(url) == socket


@pytest.mark.parametrize("url", ["", "127.0.0.1:8000", "ftp://example.org", "http://", "http://a:99999"])
def test_what_is_no_address(url: str) -> None:
    with pytest.raises(ValueError, match=r"got|[Pp]ort"):
        socket_url(url)
