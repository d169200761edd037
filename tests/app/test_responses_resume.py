"""Responses over server-sent events, cut and taken up again: nothing is lost, nothing comes twice."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from app.shelf import Kept, Shelf
from engine.request import FinishReason
from tests.app.event_stream import EventStream, opened, request
from tests.app.harness import RunningServer, eventually, running, said, text_of
from tests.fakes import SamplingRunner

TOKENS = 5
NUM_EVENTS = 4 + TOKENS + 4
BODY: dict[str, Any] = {
    "input": "hello",
    "stream": True,
    "temperature": 0,
    "max_output_tokens": TOKENS,
    "on_disconnect": "continue",
}
TERMINAL = ("response.completed", "response.incomplete", "response.failed")


def shelf_of(server: RunningServer) -> Shelf[Any]:
    shelf: Shelf[Any] = server.app.state.responses.shelf
    return shelf


def newest(server: RunningServer) -> Kept[Any]:
    return list(shelf_of(server)._by_id.values())[-1]


def resume_path(response_id: str, last: int | None) -> str:
    after = "" if last is None else f"&starting_after={last}"
    return f"/v1/responses/{response_id}?stream=true{after}"


def check_whole(events: list[dict[str, Any]], text: str, tokens: int = TOKENS) -> None:
    """What any client must have in the end, however it got there."""
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert [event["type"] in TERMINAL for event in events].count(True) == 1
    assert events[-1]["type"] in TERMINAL
    assert text_of(events) == said(text, tokens)
    assert events[-1]["response"]["output"][0]["content"][0]["text"] == said(text, tokens)


async def read_slowly(server: RunningServer, stream: EventStream, count: int) -> list[dict[str, Any]]:
    """`count` events, each token in an event of its own."""
    events: list[dict[str, Any]] = []
    while len(events) < count:
        if 4 <= len(events) < 4 + TOKENS:
            server.gate.step()
        event = await stream.event()
        assert event is not None
        events.append(event)
    return events


@asynccontextmanager
async def held_server(**options: Any) -> AsyncIterator[RunningServer]:
    async with running(**options) as server:
        server.gate.close()
        yield server


async def test_a_stream_that_breaks_after_any_event_is_taken_up_behind_it() -> None:
    async with held_server() as server:
        for count in range(NUM_EVENTS + 1):
            server.gate.close()
            async with opened(server, "/v1/responses", BODY) as stream:
                before = await read_slowly(server, stream, count)
                kept = newest(server)
                stream.cut()
            await eventually(lambda: kept.num_readers == 0)  # noqa: B023
            has_ended = count >= 4 + TOKENS
            assert (kept.answer.request_id in server.engine.ended) == has_ended
            async with opened(server, resume_path(kept.id, count - 1 if count else None)) as again:
                server.gate.open()
                after = await again.rest()
            check_whole(before + after, "hello")
            # And anyone gets the same, at any later time.
            async with opened(server, resume_path(kept.id, None)) as late:
                assert await late.rest() == before + after


async def test_a_stream_that_breaks_again_and_again_is_whole_in_the_end() -> None:
    async with held_server() as server:
        events: list[dict[str, Any]] = []
        async with opened(server, "/v1/responses", BODY) as stream:
            events.append(await stream.event() or {})
            stream.cut()
        kept = newest(server)
        while events[-1]["type"] not in TERMINAL:
            await eventually(lambda: kept.num_readers == 0)
            async with opened(server, resume_path(kept.id, events[-1]["sequence_number"])) as again:
                if 4 <= len(events) < 4 + TOKENS:
                    server.gate.step()
                events.append(await again.event() or {})
                again.cut()
        check_whole(events, "hello")
        assert len(events) == NUM_EVENTS


@pytest.mark.parametrize("state", ["queued", "prefilling"])
async def test_a_stream_can_be_taken_up_before_its_first_token(state: str) -> None:
    async with held_server(max_num_seqs=1, prefill_chunk=64) as server:
        text = "hello" if state == "queued" else "long " * 50
        if state == "queued":
            server.kept.append(
                asyncio.create_task(server_post(server, {"input": "first", "max_output_tokens": 3}))
            )
            await eventually(lambda: server.stats().num_running == 1)
        async with opened(server, "/v1/responses", BODY | {"input": text}) as stream:
            before = await stream.until("response.content_part.added")
            response_id = before[0]["response"]["id"]
            kept = shelf_of(server).find(response_id, "")
            stream.cut()
        await eventually(lambda: kept.num_readers == 0)
        if state == "prefilling":
            server.gate.step(2)
            await eventually(lambda: server.stats().num_ticks == 3)
        assert kept.answer.streams[0].text == ""
        async with server.http() as http:
            shown = (await http.get(f"/v1/responses/{response_id}")).json()
        assert (shown["status"], shown["output"]) == ("queued", [])
        async with opened(server, resume_path(response_id, 3)) as again:
            server.gate.open()
            check_whole(before + await again.rest(), text)


async def server_post(server: RunningServer, body: dict[str, Any]) -> httpx.Response:
    async with server.http() as http:
        return await http.post("/v1/responses", json=body)


async def test_several_readers_at_once_each_get_all_of_what_they_asked_for() -> None:
    async with held_server() as server:
        async with opened(server, "/v1/responses", BODY) as first:
            before = await read_slowly(server, first, 6)
            response_id = before[0]["response"]["id"]
            async with (
                opened(server, resume_path(response_id, None)) as second,
                opened(server, resume_path(response_id, 5)) as third,
                opened(server, resume_path(response_id, -1)) as leaves,
            ):
                leaves.cut()
                server.gate.open()
                whole = before + await first.rest()
                assert await second.rest() == whole
                assert await third.rest() == whole[6:]
        check_whole(whole, "hello")


async def test_a_reader_that_has_seen_the_end_gets_an_empty_rest() -> None:
    async with running() as server, server.http() as http:
        events = (await http.post("/v1/responses", json=BODY)).text
        response_id = newest(server).id
        last = events.count("event: ") - 1
        rest = await http.get(resume_path(response_id, last))
    assert (rest.status_code, rest.text) == (200, "")
    assert rest.headers["x-should-retry"] == "false"


async def test_a_number_that_nobody_was_given_is_refused() -> None:
    async with held_server() as server, server.http() as http:
        async with opened(server, "/v1/responses", BODY) as stream:
            await read_slowly(server, stream, 5)
            response_id = newest(server).id
            for last in (5, 10**6, -2):
                refused = await http.get(resume_path(response_id, last))
                error = refused.json()["error"]
                assert (refused.status_code, error["param"]) == (400, "starting_after")
                assert str(last) in error["message"]
            server.gate.open()
            last = (await stream.rest())[-1]["sequence_number"]
        for number, status in ((last, 200), (last + 1, 400)):
            assert (await http.get(resume_path(response_id, number))).status_code == status


async def test_what_was_not_taken_up_in_time_is_gone_and_never_a_part() -> None:
    async with held_server(resume_grace_s=0) as server, server.http() as http:
        async with opened(server, "/v1/responses", BODY | {"store": False}) as stream:
            before = await read_slowly(server, stream, 6)
            response_id = before[0]["response"]["id"]
            stream.cut()
        await eventually(lambda: server.engine.aborted)
        server.gate.open()
        await eventually(lambda: not len(shelf_of(server)))
        for path in (resume_path(response_id, 5), f"/v1/responses/{response_id}"):
            gone = await http.get(path)
            assert (gone.status_code, gone.json()["error"]["code"]) == (410, "response_gone")
        ((_, end),) = server.engine.ended.values()
        assert end.reason is FinishReason.ABORT


async def test_a_stored_one_that_was_abandoned_tells_what_it_had_said() -> None:
    async with held_server(resume_grace_s=0) as server, server.http() as http:
        async with opened(server, "/v1/responses", BODY) as stream:
            before = await read_slowly(server, stream, 6)
            response_id = before[0]["response"]["id"]
            stream.cut()
        await eventually(lambda: server.engine.aborted)
        server.gate.open()
        await eventually(lambda: server.is_idle)
        async with opened(server, resume_path(response_id, 5)) as again:
            events = before + await again.rest()
        last = events[-1]["response"]
        assert (last["status"], last["incomplete_details"]) == ("cancelled", {"reason": "abandoned"})
        assert [event["sequence_number"] for event in events] == list(range(len(events)))
        assert (await http.get(f"/v1/responses/{response_id}")).json() == last
        assert said("hello", TOKENS).startswith(text_of(events))


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("state", ["queued", "prefilling", "decoding"])
async def test_without_a_word_on_it_a_client_that_leaves_ends_its_answer_within_a_tick(
    state: str, stream: bool
) -> None:
    async with held_server(max_num_seqs=1, prefill_chunk=64) as server:
        if state == "queued":
            first = BODY | {"input": "first", "background": True, "stream": False, "max_output_tokens": 400}
            await server_post(server, first)
            await eventually(lambda: server.stats().num_running == 1)
        before = server.service.bridge.num_open
        text = "long " * 200 if state == "prefilling" else "hello"
        body = BODY | {"input": text, "on_disconnect": None, "stream": stream, "max_output_tokens": 400}
        async with request(server, "/v1/responses", body) as client:
            await eventually(lambda: server.holds(before + 1))
            kept = newest(server)
            server.gate.step(3)
            await eventually(lambda: server.stats().num_ticks == 4)
            client.cut()
            await eventually(lambda: server.engine.aborted)
        server.gate.step()
        name = kept.answer.request_id
        await eventually(lambda: name in server.engine.ended)
        tick, end = server.engine.ended[name]
        assert end.reason is FinishReason.ABORT
        assert (end.num_output_tokens > 0) == (state == "decoding")
        assert tick - server.engine.aborted[name] <= 1


async def test_the_settings_decide_where_the_request_does_not() -> None:
    async with held_server(on_disconnect="continue") as server:
        async with request(
            server, "/v1/responses", BODY | {"on_disconnect": None, "stream": False}
        ) as client:
            await eventually(lambda: server.holds(1))
            kept = newest(server)
            client.cut()
            await eventually(lambda: kept.num_readers == 0)
        server.gate.open()
        await eventually(lambda: server.is_idle)
        assert kept.answer.streams[0].text == said("hello", TOKENS)


LOGPROBS = {"include": ["message.output_text.logprobs"], "ignore_eos": True}


async def test_a_reader_that_takes_nothing_is_cut_and_goes_on_where_it_was() -> None:
    """Most likely in the middle of an event. Log probabilities make more of them than any buffer takes."""
    async with running(send_timeout_s=0.2, runner=SamplingRunner) as server:
        connection = socket.socket()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8192)
        connection.connect(("127.0.0.1", server.port))
        connection.setblocking(False)
        body = BODY | LOGPROBS | {"max_output_tokens": 200, "top_logprobs": 20}
        async with request(server, "/v1/responses", body, sock=connection) as stream:
            stream.pause()
            await eventually(lambda: server.engine.ended)
            kept = newest(server)
            await eventually(lambda: kept.num_readers == 0)
            stream.go_on()
            await stream.read_head()
            before = await stream.until_it_breaks()
        async with opened(server, resume_path(kept.id, len(before) - 1)) as again:
            events = before + await again.rest()
        whole = kept.view.stream.text
    assert len(whole) > 100
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert text_of(events) == whole == events[-1]["response"]["output"][0]["content"][0]["text"]


async def test_log_probabilities_are_taken_up_as_well() -> None:
    body = BODY | LOGPROBS | {"max_output_tokens": 100, "top_logprobs": 3}
    async with running(runner=SamplingRunner) as server:
        async with opened(server, "/v1/responses", body) as stream:
            whole = await stream.rest()
        kept = newest(server)
        await eventually(lambda: kept.num_readers == 0)
        for last in (None, 3, len(whole) // 2, len(whole) - 5, len(whole) - 2):
            async with opened(server, resume_path(kept.id, last)) as again:
                assert await again.rest() == whole[0 if last is None else last + 1 :]
            await eventually(lambda: kept.num_readers == 0)
            assert kept.view._written == {}, "what can be made again is kept twice"
        deltas = [e for e in whole if e["type"] == "response.output_text.delta"]
        assert sum(len(event["logprobs"]) for event in deltas) == 100
        assert [each for event in deltas for each in event["logprobs"]] == whole[-4]["logprobs"]
