"""The engine fails in the middle of its work: nobody is left hanging, and the server says it is broken."""

from __future__ import annotations

import asyncio

import orjson

from tests.app.harness import PATIENCE, eventually, running, said, text_of


class DeviceFault(Exception):
    pass


async def test_one_fault_is_survived_and_who_waited_is_answered() -> None:
    async with (
        running(max_num_seqs=1) as server,
        server.http() as http,
        server.socket() as first,
        server.socket() as second,
    ):
        server.gate.close()
        await first.create("hello", max_output_tokens=500)
        await eventually(lambda: server.stats().num_running == 1)
        await second.create("me too", max_output_tokens=50)
        await eventually(lambda: server.holds(2))

        def fault() -> None:
            server.runner.during = server.gate
            raise DeviceFault("the device is gone for a moment")

        server.runner.during = fault
        server.gate.open()
        assert (await first.until("response.failed", "response.incomplete"))[-1]["type"] == "response.failed"
        events = await second.until("response.failed", "response.incomplete")
        assert text_of(events) == said("me too", 50)
        assert (await http.get("/readyz")).status_code == 200


async def test_an_engine_fault_ends_every_stream_with_an_error_and_turns_readiness_red() -> None:
    async with (
        running(max_num_seqs=2) as server,
        server.http() as http,
        server.socket() as socket,
        server.socket() as bystander,
    ):
        server.gate.close()
        chat = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 500}
        whole = asyncio.create_task(http.post("/v1/chat/completions", json=chat))
        streamed = asyncio.create_task(http.post("/v1/chat/completions", json=chat | {"stream": True}))
        await eventually(lambda: server.holds(2))
        # The two chats hold both rows, so this one fails while it is queued.
        await socket.create("hello", max_output_tokens=500)
        await eventually(lambda: server.holds(3))
        server.gate.step(4)
        await eventually(lambda: server.stats().num_waiting == 1 and server.stats().num_ticks == 5)

        def fault() -> None:
            raise DeviceFault("the device is gone")

        server.runner.during = fault
        server.gate.open()

        events = await socket.until("response.completed", "response.incomplete", "response.failed")
        assert events[-1]["type"] == "response.failed"
        assert events[-1]["response"]["error"]["code"] == "server_error"
        assert text_of(events) == ""
        async with asyncio.timeout(PATIENCE):
            assert (await whole).status_code == 500
            assert (await whole).json()["error"]["code"] == "server_error"
            assert (await whole).headers["x-should-retry"] == "false"
            *chunks, last = [line for line in (await streamed).text.split("\n\n") if line]
        assert chunks
        assert orjson.loads(last.removeprefix("data: "))["error"]["code"] == "server_error"

        ready = await http.get("/readyz")
        assert ready.status_code == 503
        assert "the device is gone" in ready.text
        assert (await http.get("/livez")).status_code == 200
        refused = await http.post("/v1/chat/completions", json=chat)
        assert refused.status_code == 503
        assert refused.headers["x-should-retry"] == "true"
        assert (await bystander.answer("hello"))[-1]["error"]["code"] == "server_unavailable"
