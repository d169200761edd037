"""Our client for Python against the whole server: from its wheel alone, and through breaks of every kind."""

from __future__ import annotations

import asyncio
import hashlib
import json
import random
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from websockets.asyncio.client import connect

from app.protocol.responses import CreateResponse
from tests.app.harness import PATIENCE, eventually, expected, running, said
from tests.clients.cutting import cutting
from tests.clients.environments import ENVIRONMENTS, environment
from tests.clients.serving import ServerProcess, run_script, serving
from tickwire_client import (
    Answer,
    AnswerInterrupted,
    AuthenticationFailed,
    Chat,
    Client,
    ConnectionRefused,
    Reconnect,
    RequestRefused,
    ResponseGone,
    Settings,
    Status,
    Unreachable,
)
from tickwire_client.client import socket_url
from tickwire_client.testing import FakeServer

PACKAGE = Path(__file__).resolve().parents[2] / "sdk" / "python"
AT_ONCE = Reconnect(first=0.001, longest=0.05, attempts=1000)
EXACT: Settings = {"temperature": 0.0, "max_output_tokens": 12}
LONG: Settings = {"temperature": 0.0, "max_output_tokens": 5000}


@pytest.fixture(scope="session")
def python() -> Path:
    """A Python that has the client's wheel, and what that says it needs."""
    digest = hashlib.sha256()
    for path in sorted([PACKAGE / "pyproject.toml", PACKAGE / "README.md", *PACKAGE.glob("src/*/*.*")]):
        digest.update(path.read_bytes())
    place = ENVIRONMENTS / "wheels" / digest.hexdigest()
    if not list(place.glob("*.whl")):
        shutil.rmtree(place.parent, ignore_errors=True)
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "wheel", "--quiet", "--no-deps"]
        subprocess.run([*pip, "--wheel-dir", str(place), str(PACKAGE)], check=True)
    (wheel,) = place.glob("*.whl")
    return environment("tickwire-client", [str(wheel)])


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    with serving() as server:
        yield server


@pytest.fixture(autouse=True)
async def patience() -> AsyncIterator[None]:
    """Not a timeout around a fixture: tests are tasks of their own."""
    loop = asyncio.get_running_loop()
    handle = loop.call_later(PATIENCE, lambda: [task.cancel() for task in asyncio.all_tasks(loop)])
    yield
    handle.cancel()


@pytest.fixture
async def client(server: ServerProcess) -> AsyncIterator[Client]:
    async with Client(server.base_url, reconnect=AT_ONCE) as client:
        yield client


def test_the_wheel_alone(python: Path, server: ServerProcess) -> None:
    result = run_script(python, "tickwire_client_script.py", server.base_url)
    assert result["installed"] == ["orjson", "tickwire-client", "websockets"]
    talk = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hello"}]
    assert result["streamed"] == expected(talk, 30)
    talk += [{"role": "assistant", "content": result["streamed"]}, {"role": "user", "content": "more"}]
    assert result["second"] == [expected(talk, 30), "incomplete", "max_output_tokens", 30]
    assert result["lanes"] == [said(f"lane {n}", 40) for n in range(20)]
    assert result["numbers"] == list(range(len(result["numbers"])))
    assert result["deltas"] == result["lanes"][0]
    assert result["warm"][0] > len("and then")
    assert result["warm"][1] == 0
    assert result["ping"] >= 0
    assert result["of_fake"] == "You said: Hi"


async def begun(answer: Answer) -> None:
    """Returns after its first text. It goes on if somebody else reads it."""
    async for _ in answer:
        return


async def test_a_cancelled_answer_ends_within_a_tick_and_the_chat_goes_on(
    server: ServerProcess, client: Client
) -> None:
    chat = client.chat(**LONG)
    answer = chat.send("hello")
    other = client.chat(**EXACT).send("other")
    async for _ in answer:
        answer.cancel()
    result = await answer
    assert result.status is Status.CANCELLED
    assert result.usage
    assert result.text == said("hello", result.usage.output_tokens)
    assert (await other).text == said("other", 12)
    line = await asyncio.to_thread(server.line)
    assert line["reason"] == "abort"
    assert line["ended"] - line["aborted"] <= 1
    more = await chat.send("more", **EXACT)
    talk = [
        {"role": "user", "content": "hello"},
        {"role": "assistant", "content": result.text},
        {"role": "user", "content": "more"},
    ]
    assert more.text == expected(talk, 12)


async def test_leaving_early_cancels_within_a_tick(server: ServerProcess, client: Client) -> None:
    await begun(client.chat(**LONG).send("hello"))
    line = await asyncio.to_thread(server.line)
    assert line["reason"] == "abort"
    assert line["ended"] - line["aborted"] <= 1


async def test_a_steered_answer_goes_on_from_its_text(client: Client) -> None:
    chat = client.chat(temperature=0.0, max_output_tokens=200)
    answer = chat.send("hello")
    successor = None
    async for _ in answer:
        successor = successor or answer.steer("shorter")
    assert successor
    first, second = await answer, await successor
    assert first.reason == "steered"
    talk = [
        {"role": "user", "content": "hello"},
        {"role": "assistant", "content": first.text},
        {"role": "user", "content": "shorter"},
    ]
    assert second.text == expected(talk, 200)
    assert [message["content"] for message in chat.messages][-1] == second.text


async def test_stats_of_a_running_and_of_an_ended_answer(client: Client) -> None:
    answer = client.chat(**LONG).send("hello")
    reading = asyncio.ensure_future(answer.result())
    stats = await answer.stats()
    assert stats.status in ("queued", "prefilling", "generating")
    assert stats.max_output_tokens == 5000
    answer.cancel()
    await reading
    stats = await answer.stats()
    assert (stats.status, stats.prompt_tokens) == ("ended", len("user:hello;"))
    with pytest.raises(RequestRefused) as refused:
        await client.chat(temperature=3.0).send("hello")
    assert (refused.value.code, refused.value.param) == ("out_of_range", "temperature")


FRAMES = 2 * (4 + 12 + 4)
"""Of two answers of 12 tokens; fewer where a frame carries two."""


@pytest.mark.parametrize("how", ["reset", "half", "silence"])
async def test_cut_after_every_frame_each_event_comes_exactly_once(server: ServerProcess, how: str) -> None:
    async def talk(url: str) -> None:
        async with Client(url, reconnect=AT_ONCE, ping_interval=0.1) as client:
            chats = [client.chat(**EXACT), client.chat(**EXACT)]
            answers = [chat.send(name) for chat, name in zip(chats, ("left", "right"), strict=True)]
            for answer, name in zip(answers, ("left", "right"), strict=True):
                assert "".join([delta async for delta in answer]) == said(name, 12)
                numbers = [event.sequence_number async for event in answer.events()]
                assert numbers == list(range(len(numbers)))
            assert (await chats[0].send("more")).text == expected(list(chats[0].messages[:-1]), 12)

    async with cutting(server.port) as proxy:
        urls = [f"{proxy.url}?name={after}&after={after}&how={how}" for after in range(FRAMES)]
        beside = talk(server.base_url)
        await asyncio.gather(beside, *map(talk, urls))
        assert sum(proxy.cuts.values()) > FRAMES / 2
        assert proxy.cuts["0"] == 1, "before the first token"


async def test_a_line_that_breaks_all_the_time_still_brings_everything(server: ServerProcess) -> None:
    async with cutting(server.port) as proxy:
        url = f"{proxy.url}?name=always&after=40&how=reset&times=1000"
        async with Client(url, reconnect=AT_ONCE) as client:
            answers = [client.chat(**EXACT).send(f"{number}") for number in range(20)]
            texts = [result.text for result in await asyncio.gather(*answers)]
        assert texts == [said(f"{number}", 12) for number in range(20)]
        assert proxy.cuts["always"] > 5


async def converse(chat: Chat, rng: random.Random) -> None:
    """Three turns, each with something done to it after some pieces."""
    for turn in range(3):
        deed, pieces = rng.choice(["read", "cancel", "steer", "look"]), rng.randrange(20)
        answer, successor = chat.send(f"turn {turn}"), None
        async for _ in answer:
            pieces -= 1
            if pieces >= 0:
                continue
            match deed:
                case "cancel":
                    answer.cancel()
                case "steer" if not (successor or answer.has_ended):
                    successor = answer.steer("more")
                case "look" if pieces == -1:
                    with suppress(Unreachable, RequestRefused):
                        await answer.stats()
        await answer
        if successor:
            await successor
        numbers = [event.sequence_number async for event in answer.events()]
        assert numbers == list(range(len(numbers)))


async def test_whatever_is_done_over_lines_that_break_conversations_are_the_models_own(
    server: ServerProcess,
) -> None:
    rng = random.Random(3)

    async def talk(url: str) -> None:
        async with Client(url, reconnect=AT_ONCE) as client:
            chats = [client.chat(temperature=0.0, max_output_tokens=30) for _ in range(4)]
            await asyncio.gather(*(converse(chat, rng) for chat in chats))
        for chat in chats:
            messages = list(chat.messages)
            assert len(messages) >= 6
            for index in range(1, len(messages), 2):
                assert expected(messages[:index], 30).startswith(messages[index]["content"])

    async with cutting(server.port) as proxy:
        lines = ((name, rng.randrange(12, 80), rng.choice(["reset", "half"])) for name in range(6))
        urls = [f"{proxy.url}?name={name}&after={after}&how={how}&times=1000" for name, after, how in lines]
        await asyncio.gather(*map(talk, urls))
        assert sum(proxy.cuts.values()) > 20
    # What was asked twice because nothing came back may run a little longer.
    await eventually(lambda: server.metrics()["tickwire:num_requests_running"] == 0)


async def start_anew(server: ServerProcess) -> ServerProcess:
    server.process.kill()
    await asyncio.to_thread(server.process.wait)
    return await asyncio.to_thread(lambda: ServerProcess(settings={"port": server.port}))


async def test_a_server_that_was_killed_and_started_anew() -> None:
    with serving() as first:
        async with Client(first.base_url, reconnect=AT_ONCE) as client:
            chat, other = client.chat(**EXACT), client.chat(**LONG)
            await chat.send("hello")
            answer = other.send("lost")
            reading = asyncio.ensure_future(answer.result())
            await begun(answer)
            second = await start_anew(first)
            try:
                with pytest.raises(ResponseGone) as gone:
                    await reading
                assert gone.value.partial
                assert said("lost", len(gone.value.partial)).startswith(gone.value.partial)
                assert other.messages == ()
                await chat.send("more")
                assert [message["role"] for message in chat.messages] == ["user", "assistant"] * 2
                assert chat.messages[-1]["content"] == expected(list(chat.messages[:-1]), 12)
            finally:
                await asyncio.to_thread(second.stop)


async def test_keys_and_messages_that_are_refused() -> None:
    async with running(api_keys=("right",), max_message_bytes=2000) as server:
        with pytest.raises(AuthenticationFailed, match="401"):
            await Client(server.url, api_key="wrong").open()
        async with Client(server.url, reconnect=AT_ONCE) as client:
            with pytest.raises(AuthenticationFailed, match="4401"):
                await client.chat(**EXACT).send("hello")
        async with Client(server.url, api_key="right", reconnect=AT_ONCE) as client:
            assert (await client.chat(**EXACT).send("hello")).text == said("hello", 12)
            with pytest.raises((ConnectionRefused, AnswerInterrupted), match="1009"):
                await client.chat(**EXACT).send("hello" * 1000)
            assert (await client.chat(**EXACT).send("hello")).text == said("hello", 12)


def is_like(fake: object, real: object) -> bool:
    """What a fake says has the shape of what is real, perhaps without all of its fields."""
    if isinstance(fake, dict) and isinstance(real, dict):
        return all(name in real and is_like(value, real[name]) for name, value in fake.items())
    numbers = isinstance(fake, int | float) and isinstance(real, int | float)
    return fake is None or real is None or numbers or type(fake) is type(real)


REPLIES = {"ping": "pong", "response.stats": "response.stats", "response.steer": "response.steer.failed"}


async def said_to(url: str, *messages: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The first frame of each type that comes back, until every message has its reply: that, or in its lane
    the end of a response."""
    frames: dict[str, dict[str, Any]] = {}
    async with connect(socket_url(url)) as connection:
        for message in messages:
            await connection.send(json.dumps(message))
        lanes = {message["stream_id"] for message in messages if "stream_id" in message}
        replies = {REPLIES[message["type"]] for message in messages if "stream_id" not in message}
        while lanes or not replies <= set(frames):
            frame = json.loads(await connection.recv())
            frames.setdefault(frame["type"], frame)
            if frame["type"] in ("response.completed", "response.incomplete", "error"):
                lanes.discard(frame.get("stream_id"))
    return frames


async def test_the_server_for_tests_speaks_like_the_real_one(server: ServerProcess) -> None:
    create = {"type": "response.create", "temperature": 0, "max_output_tokens": 5}

    async def dialogue(url: str) -> dict[str, dict[str, Any]]:
        frames = await said_to(
            url,
            create | {"input": "Hello", "stream_id": "told"},
            create | {"input": "Hello", "stream_id": "warm", "generate": False},
            create | {"input": "Hello", "stream_id": "no", "previous_response_id": "resp_none"},
            {"type": "response.resume", "response_id": "resp_none", "stream_id": "gone"},
            {"type": "response.steer", "previous_response_id": "resp_none", "input": "Hi"},
            {"type": "ping", "id": "1"},
        )
        response_id = frames["response.created"]["response"]["id"]
        return frames | await said_to(
            url,
            {"type": "response.resume", "response_id": response_id, "stream_id": "again"},
            {"type": "response.stats", "response_id": response_id},
        )

    async with FakeServer() as fake_server:
        fake, real = await dialogue(fake_server.url), await dialogue(server.base_url)
    # The real answer reaches its limit, that of the fake does not.
    assert set(fake) - set(real) <= {"response.completed"}
    assert {"response.resumed", "error", "response.output_text.delta"} <= set(fake)
    for kind in set(fake) & set(real):
        assert is_like(fake[kind], real[kind]), (fake[kind], real[kind])


def test_every_setting_is_one_of_the_server_and_none_is_missing() -> None:
    by_itself = {"input", "previous_response_id", "generate", "on_disconnect"}
    of_http = {"stream", "background"}
    # What a chat asks with ends with a user's words.
    of_an_answer = {"continue_final_message"}
    others = by_itself | of_http | of_an_answer
    assert set(Settings.__annotations__) == set(CreateResponse.model_fields) - others
