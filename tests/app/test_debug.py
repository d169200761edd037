"""The pictures of the engine for people, over HTTP: what they show, and what they never show."""

from __future__ import annotations

import asyncio

import httpx
import pytest

from app.api.debug import MOST_TICKS
from app.top import picture
from tests.app.harness import MODEL, RunningServer, eventually, running


async def shown_while_it_works(
    server: RunningServer, http: httpx.AsyncClient, path: str = "/debug/engine"
) -> httpx.Response:
    """The engine answers when a tick ends: ticks are let through until it has."""
    asked = asyncio.create_task(http.get(path))
    await eventually(lambda: server.gate.step() or asked.done())
    return await asked


async def test_the_engine_shows_itself_while_it_works() -> None:
    async with running(max_num_seqs=1) as server, server.http() as http, server.socket() as socket:
        server.gate.close()
        await socket.create("x" * 40, stream_id="a", max_output_tokens=5000)
        await eventually(lambda: server.stats().num_running == 1)
        await socket.create("two", stream_id="b", max_output_tokens=5)
        await eventually(lambda: server.holds(2))
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


async def test_every_block_has_its_owners() -> None:
    async with running(num_blocks=20) as server, server.http() as http, server.socket() as socket:
        server.gate.close()
        fields = {"max_output_tokens": 100, "cache_salt": "ours"}
        await socket.create("x" * 40, stream_id="a", **fields)
        server.gate.step(3)
        await eventually(lambda: server.stats().num_ticks >= 3)
        await socket.create("x" * 40, stream_id="b", **fields)
        await eventually(lambda: server.holds(2))
        await eventually(lambda: server.gate.step() or server.stats().num_running == 2)
        shown = (await shown_while_it_works(server, http)).json()
        server.gate.open()
        for _ in range(2):
            await socket.until("response.incomplete")
        left = (await http.get("/debug/engine")).json()
    tables = [
        [block for first, count in each["table"] for block in range(first, first + count)]
        for each in shown["running"]
    ]
    # All 46 letters are the same, so the two full blocks are shared, and each goes on in blocks of its own.
    assert tables[0][:2] == tables[1][:2]
    assert not set(tables[0][2:]) & set(tables[1][2:])
    assert [each["cached_tokens"] for each in shown["running"]] == [0, 32]
    assert [len(table) for table in tables] == [each["blocks"] for each in shown["running"]]
    kinds = shown["blocks"]["map"]
    assert {kinds[block] for block in tables[0][:2]} == {"s"}
    held = {block for table in tables for block in table}
    assert held == {block for block in range(20) if kinds[block] not in ".c"}
    assert left["running"] == []


async def test_ticks_are_told_from_where_one_has_seen_them() -> None:
    async with running() as server, server.http() as http, server.socket() as socket:
        await socket.answer("hello", max_output_tokens=8)
        whole = (await http.get("/debug/engine?after=0")).json()["ticks"]
        rest = (await http.get("/debug/engine?after=6")).json()["ticks"]
        none = (await http.get("/debug/engine?after=8")).json()["ticks"]
        unasked = (await http.get("/debug/engine")).json()
        (request_id,) = server.engine.ended
    assert [tick["number"] for tick in whole] == list(range(1, 9))
    assert rest == whole[6:]
    assert none == []
    assert "ticks" not in unasked
    prompt = len("user:hello;")
    # The last token of a prompt is what the first one of the answer comes from.
    assert [tick["prefill_tokens"] for tick in whole] == [prompt - 1] + [0] * 7
    assert [tick["decode_tokens"] for tick in whole] == [1] * 8
    assert [tick["rows"] for tick in whole] == [1] * 8
    assert [tick["start"] for tick in whole] == sorted(tick["start"] for tick in whole)
    assert whole[0]["ms"] * 1000 == pytest.approx(sum(whole[0]["stages"].values()))
    assert whole[0]["admitted"] == whole[-1]["ended"] == [request_id[:8]]
    assert whole[0]["ended"] == whole[-1]["admitted"] == whole[0]["preempted"] == []


async def test_ticks_are_told_in_bounded_number() -> None:
    async with running() as server, server.http() as http, server.socket() as socket:
        await socket.answer("hello", max_output_tokens=MOST_TICKS + 50)
        ticks = (await http.get("/debug/engine?after=3")).json()["ticks"]
    assert [tick["number"] for tick in ticks] == list(range(51, MOST_TICKS + 51))


@pytest.mark.parametrize("after", ["", "-1", "1.5", "now", "9" * 19, "\u0661"])
async def test_what_is_no_tick_is_refused(after: str) -> None:
    async with running() as server, server.http() as http:
        response = await http.get("/debug/engine", params={"after": after})
    assert response.status_code == 400
    error = response.json()["error"]
    assert (error["param"], error["code"]) == ("after", "invalid_value")
    assert error["message"].endswith("allowed: the number of a tick, in digits")


async def test_what_the_engine_cannot_be_asked_is_refused_by_name() -> None:
    async with running() as server, server.http() as http:
        error = (await http.get("/debug/engine?before=3")).json()["error"]
    assert (error["param"], error["code"]) == ("before", "unknown_parameter")


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
        await eventually(lambda: server.holds(1))
        texts = [(await shown_while_it_works(server, http)).text]
        await socket.send(type="response.cancel", response_id=(await socket.event())["response"]["id"])
        server.gate.open()
        await socket.until("response.incomplete")
        texts += [(await http.get(path)).text for path in ("/debug/engine?after=0", "/debug/trace")]
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
