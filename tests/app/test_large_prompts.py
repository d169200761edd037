"""Large requests are worked on in threads: the loop serves everyone else meanwhile."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from app.protocol.chat import parse_chat
from app.protocol.socket_messages import understand
from app.store import Message
from tests.app.harness import PATIENCE, RunningServer, eventually, fake_encode, running, said, text_of

LONG = "long " * 1000
HUGE = "long " * 8000


def body(text: str, **fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}], "temperature": 0, "max_tokens": 8} | fields


class StuckEncoder:
    """Holds whoever encodes a long conversation until it is released."""

    def __init__(self) -> None:
        self.num_inside = 0
        self.release = threading.Event()

    def __call__(self, messages: list[Message], *ends: bool) -> list[int]:
        if sum(len(message["content"]) for message in messages) > 2000:
            self.num_inside += 1
            assert self.release.wait(PATIENCE)
        return fake_encode(messages, *ends)


@contextmanager
def stuck(server: RunningServer) -> Iterator[StuckEncoder]:
    encoder = StuckEncoder()
    object.__setattr__(server.service.model, "encode", encoder)
    try:
        yield encoder
    finally:
        encoder.release.set()


async def test_everyone_else_is_served_while_long_prompts_are_encoded() -> None:
    async with running(num_blocks=1024) as server, server.http() as http, server.socket() as socket:
        with stuck(server) as encoder:
            posted = [asyncio.create_task(http.post("/v1/chat/completions", json=body(LONG))) for _ in "ab"]
            await socket.create(LONG, stream_id="long")
            await eventually(lambda: encoder.num_inside == 2)
            # All threads for prompts are taken. The loop is free, the engine ticks, and so does the reader
            # of the socket whose prompt waits; large messages are still understood.
            short = (await http.post("/v1/chat/completions", json=body("short"))).json()
            assert short["choices"][0]["message"]["content"] == said("short", 8)
            assert text_of(await socket.answer("short", stream_id="short")) == said("short", 8)
            bad = await http.post("/v1/chat/completions", json=body(HUGE, colour="red"))
            assert bad.json()["error"]["code"] == "unknown_parameter"
            await socket.create(HUGE, colour="red")
            assert (await socket.event())["error"]["code"] == "unknown_parameter"
            assert not any(task.done() for task in posted)
            encoder.release.set()
            for task in posted:
                answer = (await task).json()
                assert answer["choices"][0]["message"]["content"] == said(LONG, 8)
            assert text_of(await socket.until("response.incomplete")) == said(LONG, 8)


async def test_many_words_to_avoid_are_encoded_beside_the_loop_too() -> None:
    async with running() as server, server.http() as http:
        threads: list[str] = []

        def encode_text(text: str) -> list[int]:
            threads.append(threading.current_thread().name)
            return [1]

        object.__setattr__(server.service.model, "encode_text", encode_text)
        for count in (2, 64):
            words = [f"{n}".rjust(40, "x") for n in range(count)]
            assert (
                await http.post("/v1/chat/completions", json=body("x", bad_words=words))
            ).status_code == 200
        few, many = threads[:4], threads[4:]
    assert not any(name.startswith("tickwire-encode") for name in few)
    assert many
    assert all(name.startswith("tickwire-encode") for name in many)


async def test_all_that_grows_with_a_request_happens_beside_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    understood: list[str] = []

    def noted(work: Any) -> Any:
        def note(*arguments: Any) -> Any:
            understood.append(threading.current_thread().name)
            return work(*arguments)

        return note

    monkeypatch.setattr("app.api.chat.parse_chat", noted(parse_chat))
    monkeypatch.setattr("app.api.responses_socket.understand", noted(understand))
    async with running(num_blocks=8192) as server, server.http() as http, server.socket() as socket:
        loop = threading.current_thread().name
        for text in ("short", HUGE):
            assert (await http.post("/v1/chat/completions", json=body(text))).status_code == 200
            assert text_of(await socket.answer(text)) == said(text, 8)
    begun = [thread for _, thread in server.engine.submitted]
    assert understood[:2] == begun[:2] == [loop, loop]
    assert all(name.startswith("tickwire-json") for name in understood[2:])
    assert all(name.startswith("tickwire-encode") for name in begun[2:])
    assert len(understood) == len(begun) == 4


async def test_a_client_that_leaves_while_its_request_is_handed_over_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with running(num_blocks=1024) as server, server.socket() as other:
        submit, entered, release = server.engine.submit, threading.Event(), threading.Event()

        def slow_submit(request: Any) -> None:
            entered.set()
            assert release.wait(PATIENCE)
            submit(request)

        monkeypatch.setattr(server.engine, "submit", slow_submit)
        async with server.socket() as socket:
            await socket.create(LONG, max_output_tokens=4000)
            await eventually(entered.is_set)
        await eventually(lambda: server.service._deliveries == 0)
        release.set()
        await eventually(lambda: server.engine.ended)
        monkeypatch.undo()
        assert text_of(await other.answer("still here")) == said("still here", 8)
    assert [end.reason.value for _, end in server.engine.ended.values()] == ["abort", "length"]
