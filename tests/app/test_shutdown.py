"""The end of a server, orderly or not: nobody is left hanging, each client is told what happened."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import orjson
import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus

from app import server as server_module
from tests.app.harness import MODEL, RunningServer, eventually, running, said, text_of

BODY: dict[str, Any] = {
    "model": MODEL,
    "messages": [{"role": "user", "content": "hello"}],
    "temperature": 0,
    "max_tokens": 40,
}


async def close_code(socket: Any) -> int:
    with pytest.raises(ConnectionClosed) as caught:
        await socket.event()
    assert caught.value.rcvd is not None
    return caught.value.rcvd.code


async def test_running_answers_finish_and_new_ones_are_refused() -> None:
    async with running() as server, server.socket() as socket, server.http() as http:
        server.gate.close()
        await socket.create("hello", max_output_tokens=40)
        stream = asyncio.create_task(http.post("/v1/chat/completions", json=BODY | {"stream": True}))
        whole = asyncio.create_task(http.post("/v1/chat/completions", json=BODY))
        await eventually(lambda: server.holds(3))
        server.server.stop()

        for path in ("/readyz", "/health"):
            ready = await http.get(path)
            assert ready.status_code == 503
            assert ready.json()["reasons"] == ["the server is shutting down"]
        assert (await http.get("/livez")).status_code == 200
        refused = await http.post("/v1/chat/completions", json=BODY)
        assert refused.status_code == 503
        assert refused.json()["error"]["code"] == "server_unavailable"
        assert refused.headers["x-should-retry"] == "true"
        assert refused.headers["retry-after"]
        with pytest.raises(InvalidStatus) as handshake:
            async with server.socket():
                pass
        assert handshake.value.response.status_code == 503
        await socket.create("me too", stream_id="late")
        late = (await socket.until("error"))[-1]
        assert (late["status"], late["stream_id"]) == (503, "late")

        server.gate.open()
        events = await socket.until("response.incomplete")
        assert events[-1]["response"]["output"][0]["content"][0]["text"] == said("hello", 40)
        assert await close_code(socket) == 1012
        assert (await whole).json()["choices"][0]["message"]["content"] == said("hello", 40)
        assert (await stream).text.endswith("data: [DONE]\n\n")


async def test_answers_that_do_not_finish_in_time_are_cut_with_their_last_event() -> None:
    async with running(shutdown_timeout_s=0) as server, server.socket() as socket, server.http() as http:
        server.gate.close()
        await socket.create("hello", max_output_tokens=400)
        stream = asyncio.create_task(http.post("/v1/chat/completions", json=BODY | {"stream": True}))
        whole = asyncio.create_task(http.post("/v1/chat/completions", json=BODY))
        await eventually(lambda: server.holds(3))
        server.server.stop()
        await eventually(lambda: len(server.engine.aborted) == 3)
        server.gate.open()
        last = (await socket.until("response.failed"))[-1]["response"]
        assert last["status"] == "failed"
        assert "shutting down" in last["error"]["message"]
        assert await close_code(socket) == 1012
        *_, error, rest = (await stream).text.split("\n\n")
        assert rest == ""
        assert "shutting down" in orjson.loads(error.removeprefix("data: "))["error"]["message"]
        answer = await whole
        assert answer.status_code == 503
        # Nothing of it had been generated: the server that comes after this one can.
        assert answer.headers["x-should-retry"] == "true"


async def test_what_had_begun_when_the_server_ended_is_not_to_be_generated_again() -> None:
    async with running(shutdown_timeout_s=0) as server, server.http() as http:
        server.gate.close()
        chat = asyncio.create_task(http.post("/v1/chat/completions", json=BODY))
        response = asyncio.create_task(http.post("/v1/responses", json={"input": "hello"}))
        await eventually(lambda: server.holds(2))
        server.gate.step(3)  # the first tick may have begun with one of them alone
        await eventually(lambda: server.stats().num_ticks == 4)
        server.server.stop()
        await eventually(lambda: len(server.engine.aborted) == 2)
        server.gate.open()
        for answer in (await chat, await response):
            assert answer.status_code == 503
            assert answer.headers["x-should-retry"] == "false"


async def test_a_second_signal_ends_it_at_once() -> None:
    async with running(shutdown_timeout_s=1000) as server, server.socket() as socket:
        server.gate.close()
        await socket.create("hello", max_output_tokens=400)
        await eventually(lambda: server.holds(1))
        server.server.stop()
        server.server.stop()
        server.gate.open()
        with pytest.raises(ConnectionClosed):
            await socket.until("response.completed")


@pytest.mark.parametrize("signals", [1, 2])
async def test_the_end_is_quiet_however_it_comes(
    signals: int, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever is under way, and however often it is asked for, nothing looks like a fault of ours."""
    monkeypatch.setattr(server_module, "LAST_EVENTS_S", 0.05)
    patience = 0 if signals == 1 else 1000
    async with (
        running(shutdown_timeout_s=patience) as server,
        server.socket() as socket,
        server.http() as http,
    ):
        server.gate.close()
        await socket.create("hello", max_output_tokens=400)
        requests = [
            asyncio.create_task(http.post("/v1/chat/completions", json=BODY | {"stream": stream}))
            for stream in (True, False)
        ]
        _, unfinished = await asyncio.open_connection("127.0.0.1", server.port)
        unfinished.write(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n{")
        await eventually(lambda: server.holds(3))
        await eventually(lambda: len(server.server.server_state.connections) == 4)
        for _ in range(signals):
            server.server.stop()
        await eventually(lambda: not server.server.server_state.connections)
        server.gate.open()
        await asyncio.gather(*requests, return_exceptions=True)
        unfinished.transport.abort()
    assert server.engine.stats().num_running == 0
    assert [record for record in caplog.records if record.exc_info or record.levelname == "ERROR"] == []


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
async def test_an_engine_that_fails_ends_every_answer_and_turns_readiness_red() -> None:
    async with running() as server, server.socket() as socket, server.http() as http:
        server.gate.close()
        await socket.create("hello", max_output_tokens=400)
        await socket.create("hello", max_output_tokens=400, stream_id="a")
        stream = asyncio.create_task(http.post("/v1/chat/completions", json=BODY | {"stream": True}))
        whole = asyncio.create_task(http.post("/v1/chat/completions", json=BODY))
        await eventually(lambda: server.holds(4))
        server.gate.step()
        await eventually(lambda: server.stats().num_ticks == 2)  # in which all of them take part

        def break_down() -> None:
            raise MemoryError("no more")

        server.runner.during = break_down
        server.gate.open()
        failed: dict[str | None, str] = {}
        while len(failed) < 2:
            event = await socket.event()
            if event["type"] == "response.failed":
                failed[event.get("stream_id")] = event["response"]["error"]["code"]
        assert failed == {None: "server_error", "a": "server_error"}
        *_, error, _ = (await stream).text.split("\n\n")
        assert orjson.loads(error.removeprefix("data: "))["error"]["type"] == "server_error"
        assert (await whole).status_code == 500
        # The first fault is survived, once the device is reset, and this is the second.
        await eventually(lambda: not server.stats().failure)
        assert (await socket.answer("hello"))[-1]["type"] == "response.failed"
        await eventually(lambda: server.stats().failure)
        await _refuses_work(server, http)
        await socket.create("again")
        assert (await socket.event())["status"] == 503


async def _refuses_work(server: RunningServer, http: httpx.AsyncClient) -> None:
    ready = await http.get("/readyz")
    assert ready.status_code == 503
    assert "MemoryError" in ready.json()["reasons"][0]
    assert (await http.get("/livez")).status_code == 200
    refused = await http.post("/v1/chat/completions", json=BODY)
    assert refused.status_code == 503


async def test_the_one_whose_numbers_are_broken_fails_alone() -> None:
    async with running() as server, server.socket() as socket:
        server.gate.close()
        await socket.create("I am fine", stream_id="good", max_output_tokens=30)
        await socket.create("I am sick", stream_id="bad", max_output_tokens=30)
        sick = len("user:I am sick;") + 3

        def script(context: list[int]) -> int:
            from tests.fakes import fake_ids, next_token

            if (
                context[: len("user:I am sick;")] == list(fake_ids("user:I am sick;"))
                and len(context) == sick
            ):
                return -1
            return next_token(context)

        server.runner.script = script
        server.gate.open()
        ends: dict[str, dict[str, Any]] = {}
        events: dict[str, list[dict[str, Any]]] = {"good": [], "bad": []}
        while len(ends) < 2:
            event = await socket.event()
            events[event["stream_id"]].append(event)
            if event["type"] in ("response.incomplete", "response.failed"):
                ends[event["stream_id"]] = event
        assert ends["bad"]["type"] == "response.failed"
        assert text_of(events["bad"]) == said("I am sick", 3)
        assert text_of(events["good"]) == said("I am fine", 30)
