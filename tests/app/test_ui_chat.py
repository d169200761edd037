"""ws /api/chat over real sockets: what a client of the AI SDK gets, whatever happens to its connection."""

from __future__ import annotations

import asyncio
import socket as sockets
import struct
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import Any

import orjson
import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosedError, InvalidStatus

from app.protocol.ui_chat import CLOSING, OPENING
from engine.request import FinishReason
from tests.app.harness import PATIENCE, RunningServer, eventually, expected, running, said

TERMINAL = ("end", "error", "no-active")


def user(text: str) -> dict[str, Any]:
    return {"id": f"id of {text}"[:100], "role": "user", "parts": [{"type": "text", "text": text}]}


class Client:
    """One connection, speaking frames. `frames` are all that came, by request."""

    def __init__(self, connection: ClientConnection) -> None:
        self.connection = connection
        self.frames: dict[str, list[dict[str, Any]]] = {}

    async def say(self, frame: dict[str, Any] | str | bytes) -> None:
        await self.connection.send(orjson.dumps(frame).decode() if isinstance(frame, dict) else frame)

    async def send(self, text: str, chat: str = "chat", request: str = "r", **fields: Any) -> None:
        body = {"temperature": 0, "max_tokens": 8} | fields.pop("body", {})
        frame = {"type": "send", "requestId": request, "id": chat, "trigger": "submit-message"}
        await self.say(frame | {"messages": [user(text)], "headers": {}, "body": body} | fields)

    async def resume(self, last: int | None, chat: str = "chat", request: str = "r", **fields: Any) -> None:
        frame = {"type": "resume", "requestId": request, "id": chat, "headers": {}, "body": {}}
        await self.say(frame | ({} if last is None else {"lastSequence": last}) | fields)

    async def abort(self, request: str = "r") -> None:
        await self.say({"type": "abort", "requestId": request})

    async def frame(self) -> dict[str, Any]:
        async with asyncio.timeout(PATIENCE):
            frame: dict[str, Any] = orjson.loads(await self.connection.recv())
        self.frames.setdefault(frame["requestId"], []).append(frame)
        return frame

    async def read(self, count: int, request: str = "r") -> list[dict[str, Any]]:
        while len(self.frames.get(request, ())) < count:
            await self.frame()
        return self.frames[request]

    async def rest(self, request: str = "r") -> list[dict[str, Any]]:
        """All of a request's frames, when the last has come."""
        while not (frames := self.frames.get(request, [])) or frames[-1]["type"] not in TERMINAL:
            await self.frame()
        return frames

    async def answer(self, text: str, **fields: Any) -> list[dict[str, Any]]:
        await self.send(text, **fields)
        return await self.rest(fields.get("request", "r"))

    async def closed(self) -> tuple[int, str]:
        """How the server closes the connection, once it has."""
        async with asyncio.timeout(PATIENCE):
            with suppress(ConnectionClosedError):
                async for _ in self.connection:
                    pass
        assert self.connection.close_code is not None
        return self.connection.close_code, self.connection.close_reason or ""

    def cut(self) -> None:
        """The connection is reset, as by a network that is gone."""
        socket = self.connection.transport.get_extra_info("socket")
        socket.setsockopt(sockets.SOL_SOCKET, sockets.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.transport.abort()


@asynccontextmanager
async def client(server: RunningServer, key: str | None = None, **options: Any) -> AsyncIterator[Client]:
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    url = f"ws://127.0.0.1:{server.port}/api/chat"
    async with connect(url, max_size=None, compression=None, additional_headers=headers, **options) as each:
        yield Client(each)


def chunks_of(frames: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [frame["chunk"] for frame in frames if frame["type"] == "chunk"]


def text_of(frames: list[dict[str, Any]]) -> str:
    return "".join(chunk["delta"] for chunk in chunks_of(frames) if chunk["type"] == "text-delta")


def numbers_of(frames: list[dict[str, Any]]) -> list[int]:
    return [frame["sequence"] for frame in frames if frame["type"] == "chunk"]


def check_whole(frames: list[dict[str, Any]], text: str) -> None:
    """All that a client has seen of an answer, over however many connections."""
    kinds = [chunk["type"] for chunk in chunks_of(frames)]
    assert numbers_of(frames) == list(range(len(kinds)))
    assert kinds[:OPENING] == ["start", "start-step", "text-start"]
    assert kinds[-CLOSING:] == ["text-end", "finish-step", "finish"]
    assert set(kinds[OPENING:-CLOSING]) <= {"text-delta"}
    assert text_of(frames) == text
    assert [frame["type"] for frame in frames].count("end") == 1
    assert frames[-1]["type"] == "end"


# -- asking -----------------------------------------------------------------------------------------------


async def test_an_answer() -> None:
    async with running() as server, client(server) as chat:
        frames = await chat.answer("hello", body={"max_tokens": 40})
        check_whole(frames, said("hello", 40))
        assert {frame["requestId"] for frame in frames} == {"r"}
        finish = chunks_of(frames)[-1]
        assert finish["finishReason"] == "length"
        usage = finish["messageMetadata"]["usage"]
        assert (usage["inputTokens"], usage["outputTokens"]) == (len("user:hello;"), 40)


async def test_a_conversation_is_prompted_as_any_other() -> None:
    first = said("hello", 8)
    talk = [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "hello"},
        {"role": "assistant", "content": first},
        {"role": "user", "content": "more"},
    ]
    async with running() as server, client(server) as chat:
        frames = await chat.answer("hello")
        message = {"id": chunks_of(frames)[0]["messageId"], "role": "assistant"}
        message["parts"] = [
            {"type": "step-start"},
            {"type": "text", "text": text_of(frames), "state": "done"},
        ]
        body = {"system": "be brief"}
        messages = [user("hello"), message, user("more")]
        frames = await chat.answer("", request="r2", messages=messages, body=body)
        check_whole(frames, expected(talk, 8))


async def test_several_requests_at_once_take_turns() -> None:
    async with running() as server, client(server) as chat:
        server.gate.close()
        for name in "abc":
            await chat.send(f"I am {name}", chat=name, request=name, body={"max_tokens": 30})
        for name in "abc":
            await chat.read(OPENING, name)
        server.gate.open()
        for name in "abc":
            check_whole(await chat.rest(name), said(f"I am {name}", 30))


REFUSED = [
    ({"body": {"temperature": 3}}, 400, "temperature"),
    ({"body": {"model": "gpt-9"}}, 404, "model"),
    ({"messages": [user("refuse me")]}, 400, "messages"),
    ({"messages": [user("x" * 20_000)]}, 400, "messages"),
    ({"trigger": "again"}, 400, "trigger"),
]


async def test_what_is_refused_is_told_and_harms_nobody() -> None:
    async with running() as server, client(server) as chat:
        server.gate.close()
        await chat.send("hello", chat="other", request="other")
        await chat.read(OPENING, "other")
        for fields, status, param in REFUSED:
            (error,) = await chat.answer("hello", request=param, **fields)
            assert (error["type"], error["status"], error["error"]["param"]) == ("error", status, param)
            assert error["errorText"].startswith(f"{param}: ")
            chat.frames.pop(param)
        await chat.resume(None, request="none")
        assert [frame["type"] for frame in await chat.rest("none")] == ["no-active"]
        server.gate.open()
        check_whole(await chat.rest("other"), said("hello", 8))


async def test_a_frame_that_names_no_request_closes_the_connection() -> None:
    async with running() as server:
        for frame in ("hello", "[]", '{"type": "send"}', '{"requestId": 7}', b"binary"):
            async with client(server) as chat:
                await chat.say(frame)
                code, reason = await chat.closed()
                assert code == 1008
                assert "allowed" in reason


async def test_a_frame_that_is_too_large_closes_the_connection() -> None:
    async with running(max_message_bytes=2000) as server, client(server) as chat:
        await chat.send("x" * 2000)
        assert (await chat.closed())[0] == 1009


async def test_the_id_of_a_request_is_free_again_when_it_has_ended() -> None:
    async with running() as server, client(server) as chat:
        await chat.answer("hello")
        chat.frames.clear()
        check_whole(await chat.answer("hello"), said("hello", 8))
        server.gate.close()
        await chat.send("hello", request="again")
        await chat.send("hello", request="again")
        assert (await chat.closed())[0] == 1008


async def test_a_connection_may_have_so_many_requests_at_once() -> None:
    async with running() as server, client(server) as chat:
        server.gate.close()
        for index in range(33):
            await chat.send("hello", chat=f"chat {index}", request=f"r{index}")
        (error,) = await chat.rest("r32")
        assert (error["status"], error["error"]["code"]) == (429, "too_many_pending_requests")
        server.gate.open()
        for index in range(32):
            check_whole(await chat.rest(f"r{index}"), said("hello", 8))


async def test_messages_may_wait_for_their_prompts_up_to_some_bytes() -> None:
    async with running(max_message_bytes=3000) as server, client(server) as chat:
        template = SlowTemplate(server)
        for name in "abcde":
            await chat.send(template.TEXT, chat=name, request=name)
        (error,) = await chat.rest("e")
        assert (error["status"], error["error"]["code"]) == (429, "too_many_pending_requests")
        template.may_end.set()
        for name in "abcd":
            check_whole(await chat.rest(name), said(template.TEXT, 8))
        check_whole(await chat.answer(template.TEXT, request="again"), said(template.TEXT, 8))


# -- aborting ---------------------------------------------------------------------------------------------


async def test_abort_ends_an_answer_within_a_tick() -> None:
    async with running() as server, client(server) as chat:
        server.gate.close()
        await chat.send("hello", body={"max_tokens": 500})
        server.gate.step(4)
        await chat.read(OPENING + 1)
        await chat.abort()
        await eventually(lambda: server.engine.aborted)
        server.gate.open()
        frames = await chat.rest()
        assert [chunk["type"] for chunk in chunks_of(frames)[-3:]] == [
            "text-end",
            "message-metadata",
            "abort",
        ]
        assert said("hello", 500).startswith(text_of(frames))
        ((name, tick),) = server.engine.aborted.items()
        assert server.engine.ended[name][0] - tick <= 1
        await chat.abort()  # of what has ended: nothing
        await chat.abort("never heard of")
        check_whole(await chat.answer("hello", request="r2"), said("hello", 8))


async def test_abort_right_behind_a_message() -> None:
    async with running() as server, client(server) as chat:
        server.gate.close()
        for index in range(20):
            await chat.send("hello", chat=f"chat {index}", request=f"r{index}", body={"max_tokens": 500})
            for _ in range(index % 4):
                await asyncio.sleep(0)
            await chat.abort(f"r{index}")
        server.gate.open()
        for index in range(20):
            kinds = [chunk["type"] for chunk in chunks_of(await chat.rest(f"r{index}"))]
            assert not kinds or kinds[-1] == "abort"


class SlowTemplate:
    """Holds the model's template, which runs in a thread, for one message."""

    TEXT = "long " * 500

    def __init__(self, server: RunningServer) -> None:
        model = server.service.model
        self.has_begun, self.may_end = threading.Event(), threading.Event()

        def encode(messages: list[Any], *ends: bool) -> list[int]:
            if messages[-1]["content"] == self.TEXT:
                self.has_begun.set()
                assert self.may_end.wait(PATIENCE)
            return model.encode(messages, *ends)

        server.service.model = replace(model, encode=encode)


async def test_abort_before_the_prompt_is_ready() -> None:
    async with running() as server, client(server) as chat:
        template = SlowTemplate(server)
        await chat.send(template.TEXT)
        await eventually(template.has_begun.is_set)
        await chat.abort()
        assert [frame["type"] for frame in await chat.rest()] == ["end"]
        template.may_end.set()
        check_whole(await chat.answer("hello", request="r2"), said("hello", 8))
        assert len(server.engine.submitted) == 1, "what was aborted was never begun"


async def test_an_aborted_message_leaves_the_one_before_to_be_found() -> None:
    async with running() as server:
        template = SlowTemplate(server)
        async with client(server) as chat:
            await chat.send(template.TEXT)
            await eventually(template.has_begun.is_set)
            await chat.send("two", request="r2")
            await chat.abort("r2")
            await chat.rest("r2")
            chat.cut()
        async with client(server) as again:
            await again.resume(None)
            await again.resume(None, chat="other", request="r2")
            await again.rest("r2")
            template.may_end.set()
            _, *frames = await again.rest()
            check_whole(frames, said(template.TEXT, 8))


async def test_who_sends_again_has_no_more_use_for_what_runs() -> None:
    async with running() as server, client(server) as chat:
        server.gate.close()
        await chat.send("one", body={"max_tokens": 500})
        await chat.read(OPENING)
        await chat.send("two", request="r2")
        await chat.read(OPENING, "r2")
        server.gate.open()
        check_whole(await chat.rest("r2"), said("two", 8))
        assert chunks_of(await chat.rest())[-1] == {"type": "abort", "reason": "cancelled"}


async def test_turns_of_a_chat_begin_in_their_order() -> None:
    async with running() as server, client(server) as chat:
        template = SlowTemplate(server)
        await chat.send(template.TEXT, body={"max_tokens": 500})
        await eventually(template.has_begun.is_set)
        await chat.send("two", request="r2")
        await chat.send("other", chat="other", request="r3")
        check_whole(await chat.rest("r3"), said("other", 8))
        server.gate.close()
        template.may_end.set()
        await chat.read(OPENING, "r2")
        server.gate.open()
        check_whole(await chat.rest("r2"), said("two", 8))
        assert chunks_of(await chat.rest())[-1]["type"] == "abort"


async def test_a_refused_message_leaves_what_runs_alone() -> None:
    async with running() as server, client(server) as chat:
        server.gate.close()
        await chat.send("one", body={"max_tokens": 20})
        await chat.read(OPENING)
        (error,) = await chat.answer("refuse me", request="r2")
        assert error["type"] == "error"
        server.gate.open()
        check_whole(await chat.rest(), said("one", 20))


async def test_what_another_connection_reads_goes_on_for_it() -> None:
    async with running() as server, client(server) as chat, client(server) as other:
        server.gate.close()
        await chat.send("one", body={"max_tokens": 20})
        await chat.read(OPENING)
        await other.send("two")
        await other.read(OPENING)
        server.gate.open()
        check_whole(await chat.rest(), said("one", 20))
        check_whole(await other.rest(), said("two", 8))
        await chat.resume(None, request="r2")
        assert text_of(await chat.rest("r2")) == said("two", 8), "the latest is what is taken up"


# -- coming back ------------------------------------------------------------------------------------------


NUM_FRAMES = OPENING + 6 + CLOSING + 1


async def test_a_connection_cut_after_any_frame_costs_nothing() -> None:
    async with running() as server, client(server) as witness:
        for cut_after in range(NUM_FRAMES + 1):
            await cut_and_come_back(server, witness, cut_after)
        assert len(server.engine.submitted) == NUM_FRAMES + 1


async def cut_and_come_back(server: RunningServer, witness: Client, cut_after: int) -> None:
    """The witness reads the same answer all along."""
    name = f"cut after {cut_after}"
    server.gate.close()
    async with client(server) as chat:
        await chat.send("hello", chat=name, body={"max_tokens": 6})
        await eventually(lambda: server.holds(1))
        await witness.resume(None, chat=name, request=name)
        await witness.read(1 + OPENING, name)
        for count in range(1, cut_after + 1):
            if OPENING < count <= OPENING + 6:
                server.gate.step()
            await chat.read(count)
        seen = chat.frames.get("r", [])
        chat.cut()
    await eventually(lambda: len(server.server.server_state.connections) == 1)
    server.gate.step(2)  # meanwhile it goes on
    async with client(server) as again:
        numbers = numbers_of(seen)
        await again.resume(numbers[-1] if numbers else None, chat=name)
        assert (await again.frame())["type"] == "start"
        server.gate.open()
        _, *rest = await again.rest()
    # If the end had come already, it is told again: it has no number.
    before = [frame for frame in seen if frame["type"] == "chunk"]
    check_whole(before + rest, said("hello", 6))
    _, *all_along = await witness.rest(name)
    assert chunks_of(all_along) == chunks_of(before + rest)
    request, _ = server.engine.submitted[-1]
    assert chunks_of(before + rest)[0]["messageId"] == f"msg_{request.id}"


async def test_a_replay_has_all_with_the_original_id_for_any_number_of_readers() -> None:
    async with running() as server, client(server) as chat, client(server) as other:
        server.gate.close()
        await chat.send("hello", body={"max_tokens": 30})
        for count in (1, 2):
            server.gate.step()
            await chat.read(OPENING + count)
        await other.resume(None, request="early")
        await other.read(OPENING + 2, "early")
        server.gate.open()
        whole = await chat.rest()
        await other.resume(None, request="late")
        for name in ("early", "late"):
            start, *frames = await other.rest(name)
            assert start == {"type": "start", "requestId": name}
            check_whole(frames, said("hello", 30))
            assert chunks_of(frames) == chunks_of(whole)


async def test_an_answer_goes_on_with_nobody_to_read_it() -> None:
    async with running() as server:
        for number_of_tokens in (0, 3):
            server.gate.close()
            async with client(server) as chat:
                await chat.send("hello", body={"max_tokens": 20})
                await chat.read(OPENING)
                for count in range(number_of_tokens):
                    server.gate.step()
                    await chat.read(OPENING + count + 1)
                chat.cut()
            await eventually(lambda: not server.server.server_state.connections)
            server.gate.open()
            await eventually(lambda: server.is_idle)
            async with client(server) as again:
                await again.resume(numbers_of(chat.frames["r"])[-1])
                _, *rest = await again.rest()
            check_whole(chat.frames["r"] + rest, said("hello", 20))
            assert len(numbers_of(rest)) == 1 + CLOSING, "what nobody read is one delta"


async def test_what_was_sent_right_before_the_end_of_a_connection_is_answered() -> None:
    async with running() as server:
        for index in range(5):
            async with client(server) as chat:
                await chat.send("hello", chat=f"chat {index}")
            async with client(server) as again:
                await again.resume(None, chat=f"chat {index}")
                _, *frames = await again.rest()
                check_whole(frames, said("hello", 8))


async def go_before_the_prompt_is_ready(
    server: RunningServer, key: str | None = None, **body: Any
) -> SlowTemplate:
    template = SlowTemplate(server)
    async with client(server, key) as chat:
        await chat.send(template.TEXT, body=body)
        await eventually(template.has_begun.is_set)
        chat.cut()
    await eventually(lambda: not server.server.server_state.connections)
    return template


async def test_a_client_that_goes_before_its_prompt_is_ready_finds_its_answer() -> None:
    async with running(api_keys=("one",)) as server:
        template = await go_before_the_prompt_is_ready(server, "one")
        async with client(server, "one") as again:
            await again.resume(None)
            template.may_end.set()
            start, *frames = await again.rest()
            assert start["type"] == "start"
            check_whole(frames, said(template.TEXT, 8))


async def test_an_answer_that_begins_without_a_reader_ends_when_nobody_comes_in_time() -> None:
    async with running(resume_grace_s=0) as server:
        template = await go_before_the_prompt_is_ready(server, max_tokens=2000)
        server.gate.close()
        template.may_end.set()
        await eventually(lambda: server.engine.aborted)


async def test_an_answer_that_is_not_to_go_on_does_not_begin_without_a_reader() -> None:
    async with running() as server:
        template = await go_before_the_prompt_is_ready(server, on_disconnect="cancel")
        template.may_end.set()
        async with client(server) as other:
            await other.answer(template.TEXT, chat="other")
        assert len(server.engine.submitted) == 1


async def test_nobody_comes_back_in_time() -> None:
    async with running(resume_grace_s=0) as server:
        async with client(server) as chat:
            server.gate.close()
            await chat.send("hello", body={"max_tokens": 500})
            await chat.read(OPENING)
            chat.cut()
        await eventually(lambda: server.engine.aborted)
        server.gate.open()
        await eventually(lambda: server.engine.ended)
        async with client(server) as again:
            await again.resume(None)
            assert [frame["type"] for frame in await again.rest()] == ["no-active"]


async def test_an_answer_that_is_not_to_go_on_ends_with_its_connection() -> None:
    async with running() as server:
        async with client(server) as chat:
            server.gate.close()
            await chat.send("hello", body={"max_tokens": 500, "on_disconnect": "cancel"})
            await chat.read(OPENING)
            chat.cut()
        await eventually(lambda: server.engine.aborted)
        server.gate.open()
        await eventually(lambda: server.engine.ended)
        async with client(server) as again:
            await again.resume(None)
            assert [frame["type"] for frame in await again.rest()] == ["no-active"]


async def test_what_cannot_be_taken_up() -> None:
    async with running() as server, client(server) as chat:
        await chat.resume(None, chat="unknown", request="unknown")
        assert (await chat.rest("unknown"))[-1]["type"] == "no-active"
        frames = await chat.answer("hello")
        last, message = numbers_of(frames)[-1], chunks_of(frames)[0]["messageId"]
        await chat.resume(last, request="all", messageId=message)
        assert [frame["type"] for frame in await chat.rest("all")] == ["start", "end"]
        await chat.resume(last + 1, request="beyond")
        (error,) = await chat.rest("beyond")
        assert (error["type"], error["error"]["param"]) == ("error", "lastSequence")
        assert f"at most {last}" in error["errorText"]
        await chat.resume(last, request="earlier", messageId="msg_of_an_earlier_answer")
        assert (await chat.rest("earlier"))[-1]["type"] == "no-active"


async def test_a_number_of_text_that_nobody_was_given_is_refused() -> None:
    """Its text may still grow: whoever claims to have seen it would miss some."""
    async with running() as server:
        async with client(server) as chat:
            server.gate.close()
            await chat.send("hello")
            await chat.read(OPENING)
            chat.cut()
        await eventually(lambda: not server.server.server_state.connections)
        server.gate.step(2)
        await eventually(lambda: server.stats().num_ticks == 3)
        async with client(server) as again:
            await again.resume(OPENING)
            assert (await again.rest())[-1]["type"] == "error"
            await again.resume(OPENING - 1, request="r2")
            server.gate.open()
            assert text_of(await again.rest("r2")) == said("hello", 8)


async def test_a_resumed_answer_can_be_aborted_and_a_second_reader_only_leaves() -> None:
    async with running() as server:
        server.gate.close()
        async with client(server) as chat:
            await chat.send("hello", body={"max_tokens": 500})
            await chat.read(OPENING)
            chat.cut()
        async with client(server) as again:
            await again.resume(None, request="first")
            await again.read(1 + OPENING, "first")
            await again.resume(None, request="second")
            await again.read(1 + OPENING, "second")
            # As the SDK does when a page takes up a chat anew: the newer request takes the other's place.
            await again.abort("first")
            assert (await again.rest("first"))[-1]["type"] == "end"
            assert not server.engine.aborted
            await again.abort("second")
            await eventually(lambda: server.engine.aborted)
            server.gate.open()
            assert chunks_of(await again.rest("second"))[-1]["type"] == "abort"


async def test_a_failure_is_told_and_told_again() -> None:
    async with running() as server, client(server) as chat:
        server.gate.close()
        await chat.send("hello", body={"max_tokens": 500})
        await chat.read(OPENING)

        def fault() -> None:
            server.runner.during = server.gate
            raise RuntimeError("the device is gone for a moment")

        server.runner.during = fault
        server.gate.open()
        frames = await chat.rest()
        assert chunks_of(frames)[-1]["type"] == "error"
        assert frames[-1]["type"] == "end"
        await chat.resume(None, request="r2")
        assert chunks_of(await chat.rest("r2")) == chunks_of(frames)


# -- who may ----------------------------------------------------------------------------------------------


async def test_a_key_may_come_with_the_handshake_or_with_each_request() -> None:
    async with running(api_keys=("one", "two")) as server:
        async with client(server, "one") as chat:
            check_whole(await chat.answer("hello"), said("hello", 8))
        async with client(server) as page:
            (error,) = await page.answer("hello")
            assert (error["type"], error["status"]) == ("error", 401)
            (error,) = await page.answer("hello", request="r2", headers={"authorization": "Bearer three"})
            assert error["status"] == 401
            await page.resume(None, request="r3")
            assert (await page.rest("r3"))[-1]["status"] == 401
            frames = await page.answer("hello", request="r4", headers={"Authorization": "Bearer two"})
            check_whole(frames, said("hello", 8))
            await page.resume(None, request="r5", headers={"authorization": "Bearer one"})
            assert text_of(await page.rest("r5")) == said("hello", 8), "one's own chat of the same name"
            await page.resume(None, request="r6", chat="other", headers={"authorization": "Bearer one"})
            assert (await page.rest("r6"))[-1]["type"] == "no-active"
        with pytest.raises(InvalidStatus) as refused:
            async with client(server, "three"):
                pass
        assert refused.value.response.status_code == 401


async def test_one_key_s_chat_is_not_another_s() -> None:
    async with (
        running(api_keys=("one", "two")) as server,
        client(server, "one") as chat,
        client(server, "two") as other,
    ):
        server.gate.close()
        await chat.send("hello", body={"max_tokens": 20})
        await chat.read(OPENING)
        await other.resume(None)
        assert (await other.rest())[-1]["type"] == "no-active"
        await other.send("me too", request="r2")
        await other.read(OPENING, "r2")
        server.gate.open()
        check_whole(await chat.rest(), said("hello", 20))
        check_whole(await other.rest("r2"), said("me too", 8))


async def test_who_shows_no_key_in_time_is_sent_away() -> None:
    async with (
        running(api_keys=("one",), handshake_timeout_s=1.0) as server,
        client(server, "one") as chat,
        client(server) as page,
    ):
        key = {"authorization": "Bearer one"}
        await page.answer("hello", headers=key)
        async with client(server) as stranger:
            assert (await stranger.closed())[0] == 4408
        check_whole(await chat.answer("hello"), said("hello", 8))
        check_whole(await page.answer("hello", request="r2", headers=key), said("hello", 8))


async def test_pages_of_other_sites_are_refused() -> None:
    async with running(allowed_origins=("https://good.example",)) as server:
        with pytest.raises(InvalidStatus) as refused:
            async with client(server, origin="https://evil.example"):
                pass
        assert refused.value.response.status_code == 403
        async with client(server, origin="https://good.example") as chat:
            check_whole(await chat.answer("hello"), said("hello", 8))


# -- the end of the server --------------------------------------------------------------------------------


async def test_at_the_end_running_answers_finish_and_can_still_be_taken_up() -> None:
    async with running() as server, client(server) as chat, client(server) as lost:
        server.gate.close()
        await chat.send("hello", body={"max_tokens": 30})
        await chat.read(OPENING)
        await lost.send("lost", chat="lost", body={"max_tokens": 30})
        await lost.read(OPENING)
        server.server.stop()
        lost.cut()
        async with client(server) as again:
            await again.resume(OPENING - 1, chat="lost")
            assert (await again.frame())["type"] == "start"
            (error,) = await again.answer("too late", request="r2")
            assert (error["type"], error["status"]) == ("error", 503)
            server.gate.open()
            assert text_of(await again.rest()) == said("lost", 30)
            assert (await again.closed())[0] == 1012
        check_whole(await chat.rest(), said("hello", 30))
        assert (await chat.closed())[0] == 1012


async def test_answers_that_do_not_finish_in_time_say_why() -> None:
    async with running(shutdown_timeout_s=0) as server, client(server) as chat:
        server.gate.close()
        await chat.send("hello", body={"max_tokens": 500})
        await chat.read(OPENING)
        server.server.stop()
        await eventually(lambda: server.engine.aborted)
        server.gate.open()
        frames = await chat.rest()
        assert "shutting down" in chunks_of(frames)[-1]["errorText"]
        assert frames[-1]["type"] == "end"
        assert (await chat.closed())[0] == 1012
        assert server.engine.ended[next(iter(server.engine.ended))][1].reason is FinishReason.ABORT
