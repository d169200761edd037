"""The pictures of the engine for people, over HTTP: what they show, and what they never show."""

from __future__ import annotations

import asyncio

import httpx

from app.top import picture
from tests.app.harness import MODEL, RunningServer, eventually, running


async def shown_while_it_works(server: RunningServer, http: httpx.AsyncClient) -> httpx.Response:
    """The engine answers when a tick ends: ticks are let through until it has."""
    asked = asyncio.create_task(http.get("/debug/engine"))
    await eventually(lambda: server.gate.step() or asked.done())
    return await asked


async def test_the_engine_shows_itself_while_it_works() -> None:
    async with running(max_num_seqs=1) as server, server.http() as http, server.socket() as socket:
        server.gate.close()
        await socket.create("x" * 40, stream_id="a", max_output_tokens=5000)
        await eventually(lambda: server.stats().num_running == 1)
        await socket.create("two", stream_id="b", max_output_tokens=5)
        await eventually(lambda: server.service.bridge.num_open == 2)
        server.gate.step(2)
        await eventually(lambda: server.stats().memory.used and server.stats().num_waiting == 1)
        shown = (await shown_while_it_works(server, http)).json()
        await socket.send(type="response.cancel", response_id=(await socket.event())["response"]["id"])
        server.gate.open()
        for _ in range(2):
            await socket.until("response.incomplete")
    assert shown["model"] == MODEL
    assert shown["config"]["admission"] == "paged"
    assert shown["stats"]["running"] == 1
    assert shown["stats"]["failure"] is None
    assert len(shown["blocks"]["map"]) == shown["stats"]["blocks"] == 512
    assert set(shown["blocks"]["map"]) <= set(shown["blocks"]["legend"])
    (sequence,) = shown["running"]
    prompt = len("user:" + "x" * 40 + ";")
    assert sequence["prompt_tokens"] == prompt
    assert sequence["computed_tokens"] == prompt + sequence["output_tokens"] - 1
    assert shown["waiting"] == [{"session": sequence["session"], "count": 1}]
    assert set(shown["shadow"]) == {"static", "reserve_max", "reserve_pow2"}
    memory = shown["memory"]
    kinds = ("used", "reserved", "internal", "cached", "free")
    assert sum(memory[kind] for kind in kinds) == memory["total"] == 512 * 16
    assert shown["memory_over_ticks"]["external"] == 0


async def test_an_idle_engine_answers_too() -> None:
    async with running(num_blocks=20) as server, server.http() as http:
        shown = (await http.get("/debug/engine")).json()
    assert shown["blocks"]["map"] == "." * 20
    assert shown["running"] == shown["waiting"] == []
    assert shown["recent"]["ticks"] == 0


async def test_a_stopped_engine_answers_too() -> None:
    async with running() as server, server.http() as http:
        server.engine.shutdown()
        shown = (await http.get("/debug/engine")).json()
    assert shown["stats"]["running"] == 0


async def test_the_trace_is_a_file_with_the_last_ticks() -> None:
    async with running() as server, server.http() as http, server.socket() as socket:
        await socket.answer("hello", max_output_tokens=8)
        response = await http.get("/debug/trace")
    assert response.headers["content-disposition"] == 'attachment; filename="tickwire-trace.json"'
    events = response.json()["traceEvents"]
    ticks = [event for event in events if event["ph"] == "X" and event["name"] == "tick"]
    assert [tick["args"]["tick"] for tick in ticks] == list(range(1, 9))
    assert [tick["args"]["sampled"] for tick in ticks] == [1] * 8
    assert [tick["ts"] for tick in ticks] == sorted(tick["ts"] for tick in ticks)
    assert len([event for event in events if event["name"] == "admitted"]) == 1
    assert len([event for event in events if event["name"] == "ended"]) == 1


async def test_pictures_hold_no_word_no_key_and_no_whole_id() -> None:
    async with (
        running() as server,
        server.http() as http,
        server.socket(additional_headers={"authorization": "Bearer sk-ada"}) as socket,
    ):
        server.gate.close()
        await socket.create("sesame", max_output_tokens=5000)
        await eventually(lambda: server.service.bridge.num_open == 1)
        texts = [(await shown_while_it_works(server, http)).text]
        await socket.send(type="response.cancel", response_id=(await socket.event())["response"]["id"])
        server.gate.open()
        await socket.until("response.incomplete")
        texts += [(await http.get(path)).text for path in ("/debug/engine", "/debug/trace")]
        (request_id,) = server.engine.ended
    assert request_id[:8] in texts[2]
    for text in texts:
        assert "sesame" not in text
        assert "sk-ada" not in text
        assert request_id not in text


async def test_the_terminal_can_draw_what_is_shown() -> None:
    async with running() as server, server.http() as http, server.socket() as socket:
        await socket.answer("hello", max_output_tokens=8)
        lines = picture((await http.get("/debug/engine")).json(), 100, 30)
    assert lines[0] == f"tickwire top  {MODEL}  admission paged"
    assert any("512 blocks" in line for line in lines)
