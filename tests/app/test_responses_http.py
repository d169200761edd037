"""/v1/responses over HTTP: what a request gets, and what may be done with a response afterwards."""

from __future__ import annotations

import asyncio
import gc
import tracemalloc
from typing import Any

import httpx
import pytest

from app.api.responses import ResponsesEndpoint
from app.protocol.responses import parse_create
from app.shelf import Kept, Shelf
from engine.request import FinishReason
from tests.app.event_stream import opened, request
from tests.app.harness import RunningServer, eventually, expected, running, said
from tests.fakes import SamplingRunner

PATH = "/v1/responses"
TERMINAL = ("response.completed", "response.incomplete", "response.failed")
BODY: dict[str, Any] = {"input": "hello", "temperature": 0, "max_output_tokens": 8}


def shelf_of(server: RunningServer) -> Shelf[Any]:
    shelf: Shelf[Any] = server.app.state.responses.shelf
    return shelf


def newest(server: RunningServer) -> Kept[Any]:
    return list(shelf_of(server)._by_id.values())[-1]


def text_in(response: dict[str, Any]) -> str:
    text: str = response["output"][0]["content"][0]["text"]
    return text


async def create(http: httpx.AsyncClient, **fields: Any) -> dict[str, Any]:
    reply = await http.post(PATH, json=BODY | fields)
    assert reply.status_code == 200, reply.text
    response: dict[str, Any] = reply.json()
    return response


def refusal(reply: httpx.Response, status: int, code: str, param: str | None) -> str:
    error = reply.json()["error"]
    assert (reply.status_code, error["code"], error["param"]) == (status, code, param)
    message: str = error["message"]
    return message


# -- create ----------------------------------------------------------------------------------------------


async def test_a_response_in_one_piece() -> None:
    async with running() as server, server.http() as http:
        reply = await http.post(PATH, json=BODY | {"metadata": {"a": "b"}, "instructions": "be brief"})
    response = reply.json()
    messages = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hello"}]
    assert text_in(response) == expected(messages, 8)  # type: ignore[arg-type]
    assert (response["object"], response["status"]) == ("response", "incomplete")
    assert response["incomplete_details"] == {"reason": "max_output_tokens"}
    assert response["usage"]["output_tokens"] == 8
    assert (response["metadata"], response["instructions"]) == ({"a": "b"}, "be brief")
    assert (response["store"], response["background"]) == (True, False)
    assert "truncated_items" not in response
    assert reply.headers["x-should-retry"] == "false"
    assert reply.headers["x-ratelimit-limit-requests"]


async def test_a_response_as_events() -> None:
    async with running() as server, opened(server, PATH, BODY | {"stream": True}) as stream:
        events = await stream.rest()
        assert stream.headers["x-should-retry"] == "false"
        assert stream.headers["x-ratelimit-remaining-requests"]
        assert stream.headers["cache-control"] == "no-cache"
        async with server.http() as http:
            shown = (await http.get(f"{PATH}/{events[0]['response']['id']}")).json()
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert [event["type"] for event in events if event["type"] in TERMINAL] == [events[-1]["type"]]
    assert events[-1]["response"] == shown
    assert text_in(shown) == said("hello", 8)


async def test_the_end_token_completes_a_response() -> None:
    async with running() as server, server.http() as http:
        server.runner.script = lambda context: 0 if len(context) == 14 else 1
        response = await create(http)
    assert (response["status"], text_in(response)) == ("completed", "aaa")


@pytest.mark.parametrize(
    "content",
    [
        "hello",
        [{"role": "user", "content": "hello"}],
        [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hello"}]}],
    ],
)
async def test_an_input_may_be_written_in_three_ways(content: Any) -> None:
    async with running() as server, server.http() as http:
        assert text_in(await create(http, input=content)) == said("hello", 8)


async def test_a_next_turn_builds_on_a_response_or_on_its_output_items() -> None:
    async with running() as server, server.http() as http:
        first = await create(http, instructions="not inherited")
        by_id = await create(http, input="more", previous_response_id=first["id"])
        items = [{"role": "user", "content": "hello"}, *first["output"], {"role": "user", "content": "more"}]
        by_items = await create(http, input=items)
    messages: list[Any] = [
        {"role": "user", "content": "hello"},
        {"role": "assistant", "content": text_in(first)},
        {"role": "user", "content": "more"},
    ]
    assert text_in(by_id) == text_in(by_items) == expected(messages, 8)
    assert (by_id["previous_response_id"], by_id["instructions"]) == (first["id"], None)


async def test_a_prompt_alone_can_be_computed_ahead() -> None:
    async with running() as server, server.http() as http:
        text = "a long question, " * 5
        warm = await create(http, input=text, generate=False)
        assert (warm["status"], warm["output"], warm["usage"]["output_tokens"]) == ("completed", [], 0)
        next_turn = await create(http, previous_response_id=warm["id"], input="well?")
        assert next_turn["usage"]["input_tokens_details"]["cached_tokens"] > 0
        async with opened(server, PATH, BODY | {"generate": False, "stream": True}) as stream:
            kinds = [event["type"] for event in await stream.rest()]
    assert kinds == ["response.created", "response.in_progress", "response.completed"]


async def test_silence_is_filled_with_comments() -> None:
    async with running() as server:
        endpoint = ResponsesEndpoint(server.app.state.responses, server.settings, keep_alive=0.01)
        for route in endpoint.routes():
            server.app.router.routes.insert(0, route)
        server.gate.close()
        async with opened(server, PATH, BODY | {"stream": True}) as stream:
            await stream.until("response.content_part.added")
            reading = asyncio.create_task(stream.event())
            await eventually(lambda: len(stream.comments) >= 2)
            server.gate.open()
            assert (await reading or {})["type"] == "response.output_text.delta"
            await stream.rest()
        assert set(stream.comments) == {b": keep-alive"}


LOGPROBS = {"include": ["message.output_text.logprobs"], "top_logprobs": 2, "ignore_eos": True}


async def test_log_probabilities_in_one_piece() -> None:
    async with running(runner=SamplingRunner) as server, server.http() as http:
        response = await create(http, **LOGPROBS)
        logprobs = response["output"][0]["content"][0]["logprobs"]
        assert "".join(each["token"] for each in logprobs) == text_in(response)
        assert {len(each["top_logprobs"]) for each in logprobs} == {2}
        path = f"{PATH}/{response['id']}"
        for query in ("", "?include=message.output_text.logprobs", "?include[]=message.output_text.logprobs"):
            assert (await http.get(path + query)).json() == response
        assert newest(server).view._written == {}


# -- what is refused -------------------------------------------------------------------------------------

REFUSED = [
    ({"input": "x" * 9000}, "context_length_exceeded", "input"),
    ({"max_output_tokens": 10**6}, "context_length_exceeded", "input"),
    ({"previous_response_id": "resp_never"}, "previous_response_not_found", "previous_response_id"),
    ({"background": True, "store": False}, "invalid_value", "background"),
    ({"truncation": "some"}, "invalid_value", "truncation"),
    ({"tools": [{"type": "function", "name": "f"}]}, "unsupported_value", "tools"),
    ({"conversation": "conv_1"}, "unsupported_parameter", "conversation"),
    ({"nonsense": 1}, "unknown_parameter", "nonsense"),
    (
        {"input": [{"type": "function_call_output", "call_id": "c", "output": "x"}]},
        "invalid_value",
        "input.0.type",
    ),
    ({"input": [{"type": "item_reference", "id": "msg_1"}]}, "invalid_value", "input.0.type"),
    ({"input": "refuse me"}, "invalid_value", "input"),
]


@pytest.mark.parametrize("stream", [False, True])
async def test_what_cannot_be_served_is_refused_by_name_before_any_engine_work(stream: bool) -> None:
    async with running() as server, server.http() as http:
        for fields, code, param in REFUSED:
            reply = await http.post(PATH, json=BODY | fields | {"stream": stream})
            refusal(reply, 400, code, param)
            assert reply.headers["x-should-retry"] == "false"
        assert len(shelf_of(server)) == server.stats().num_ticks == 0
        reply = await http.post(PATH, json=BODY | {"model": "other"})
        refusal(reply, 404, "model_not_found", "model")
        reply = await http.post(PATH, content=b'{"input": "\\ud83d"}')
        refusal(reply, 400, "invalid_json", None)
        reply = await http.post(PATH, content=b"x" * (server.settings.max_message_bytes + 1))
        refusal(reply, 413, "request_too_large", None)
        reply = await http.post(PATH, json=BODY, headers={"origin": "http://elsewhere.test"})
        refusal(reply, 403, "origin_not_allowed", None)


QUERIES = [
    ("?stream=yes", "stream"),
    ("?stream=true&starting_after=x", "starting_after"),
    ("?starting_after=1", "starting_after"),
    ("?stream=true&starting_after=1&starting_after=2", "starting_after"),
    ("?include=reasoning.encrypted_content", "include.0"),
    ("?include[]=message.output_text.logprobs", "include"),
    ("?include_obfuscation=true", "include_obfuscation"),
    ("?nonsense=1", "nonsense"),
    ("/input_items?limit=0", "limit"),
    ("/input_items?limit=101", "limit"),
    ("/input_items?limit=ten", "limit"),
    ("/input_items?order=random", "order"),
    ("/input_items?after=msg_never", "after"),
    ("/input_items?before=msg_never", "before"),
    ("/input_items?include[]=message.input_image.image_url", "include"),
    ("/input_items?nonsense=1", "nonsense"),
]


async def test_a_query_that_means_nothing_is_refused_by_name() -> None:
    async with running() as server, server.http() as http:
        response = await create(http)
        for query, param in QUERIES:
            reply = await http.get(f"{PATH}/{response['id']}{query}")
            assert (reply.status_code, reply.json()["error"]["param"]) == (400, param), query
        for query in (
            "?stream=false",
            "?include_obfuscation=false",
            "?stream=true&include_obfuscation=false",
        ):
            assert (await http.get(f"{PATH}/{response['id']}{query}")).status_code == 200


# -- failures --------------------------------------------------------------------------------------------


async def test_a_fault_in_the_middle_is_a_failed_response_and_no_clean_end() -> None:
    async with running() as server, server.http() as http:
        server.gate.close()
        whole = asyncio.create_task(http.post(PATH, json=BODY))
        async with opened(server, PATH, BODY | {"stream": True}) as stream:
            await eventually(lambda: server.holds(2))
            server.gate.step(3)
            await stream.until("response.output_text.delta")

            def fault() -> None:
                raise RuntimeError("the device is gone")

            server.runner.during = fault
            server.gate.open()
            events = await stream.rest()
        assert events[-1]["type"] == "response.failed"
        assert events[-1]["response"]["error"]["code"] == "server_error"
        failed = events[-1]["response"]
        assert (await http.get(f"{PATH}/{failed['id']}")).json() == failed
        reply = await whole
        refusal(reply, 500, "server_error", None)
        assert reply.headers["x-should-retry"] == "false"
        await eventually(lambda: not server.stats().failure)  # the device is reset
        next_turn = await http.post(PATH, json=BODY | {"previous_response_id": failed["id"]})
        refusal(next_turn, 400, "previous_response_not_found", "previous_response_id")


async def test_a_response_that_had_no_time_to_begin_may_be_asked_for_again() -> None:
    async with running(max_num_seqs=1) as server, server.http() as http:
        server.gate.close()
        first = asyncio.create_task(http.post(PATH, json=BODY))
        await eventually(lambda: server.stats().num_running == 1)
        second = asyncio.create_task(http.post(PATH, json=BODY | {"max_queue_ms": 50_000}))
        await eventually(lambda: server.holds(2))
        server.engine.seconds_ahead = 100.0
        server.gate.open()
        reply = await second
        refusal(reply, 503, "queue_timeout", "max_queue_ms")
        assert reply.headers["x-should-retry"] == "true"
        assert (await first).status_code == 200


async def test_an_answer_that_the_server_cut_short_is_an_error_and_not_begun_again() -> None:
    async with running(shutdown_timeout_s=0) as server, server.http() as http:
        server.gate.close()
        whole = asyncio.create_task(http.post(PATH, json=BODY | {"max_output_tokens": 400}))
        await eventually(lambda: server.holds(1))
        server.gate.step()
        await eventually(lambda: server.stats().num_ticks == 2)  # so the first has brought a token
        server.server.stop()
        await eventually(lambda: server.engine.aborted)
        server.gate.open()
        reply = await whole
        refusal(reply, 503, "server_unavailable", None)
        assert reply.headers["x-should-retry"] == "false"


async def test_a_fault_of_ours_after_the_head_is_told_and_not_taken_for_the_end() -> None:
    async with running() as server:
        server.gate.close()
        async with opened(server, PATH, BODY | {"stream": True}) as stream:
            await stream.until("response.content_part.added")

            def fault(number: int) -> None:
                raise RuntimeError("a mistake of ours")

            newest(server).view.event = fault
            server.gate.open()
            (event,) = await stream.rest()
        assert (event["type"], event["code"], event["sequence_number"]) == ("error", "server_error", 4)


# -- running and stored ones -----------------------------------------------------------------------------


async def test_a_running_response_shows_what_it_has_said() -> None:
    async with running() as server, server.http() as http:
        server.gate.close()
        async with opened(server, PATH, BODY | {"stream": True}) as stream:
            (created,) = await stream.until("response.created")
            path = f"{PATH}/{created['response']['id']}"
            shown = (await http.get(path)).json()
            assert (shown["status"], shown["output"], shown["usage"]) == ("queued", [], None)
            server.gate.step(3)
            await stream.until("response.output_text.delta")
            await eventually(lambda: len(newest(server).view.stream.text) == 3)
            shown = (await http.get(path)).json()
            assert (shown["status"], text_in(shown)) == ("in_progress", said("hello", 3))
            assert shown["output"][0]["status"] == "in_progress"
            server.gate.open()
            last = (await stream.rest())[-1]["response"]
            assert (await http.get(path)).json() == last


async def test_what_is_not_stored_is_gone_with_its_reader() -> None:
    async with running() as server, server.http() as http:
        response = await create(http, store=False)
        reply = await http.get(f"{PATH}/{response['id']}")
        refusal(reply, 410, "response_gone", "response_id")
        reply = await http.post(PATH, json=BODY | {"previous_response_id": response["id"]})
        refusal(reply, 400, "previous_response_not_found", "previous_response_id")
        refusal(await http.get(f"{PATH}/resp_never"), 404, "response_not_found", "response_id")


async def test_another_key_finds_nothing_and_changes_nothing() -> None:
    mine, yours = ({"authorization": f"Bearer {key}"} for key in ("mine", "yours"))
    async with running(api_keys=("mine", "yours")) as server, server.http() as http:
        refusal(await http.post(PATH, json=BODY), 401, "invalid_api_key", None)
        server.gate.close()
        reply = await http.post(PATH, json=BODY | {"background": True}, headers=mine)
        path = f"{PATH}/{reply.json()['id']}"
        for method, at in (
            ("GET", path),
            ("GET", f"{path}?stream=true"),
            ("GET", f"{path}/input_items"),
            ("POST", f"{path}/cancel"),
            ("DELETE", path),
        ):
            refusal(await http.request(method, at, headers=yours), 404, "response_not_found", "response_id")
            refusal(await http.request(method, at), 401, "invalid_api_key", None)
        next_turn = BODY | {"previous_response_id": reply.json()["id"]}
        refused = await http.post(PATH, json=next_turn, headers=yours)
        refusal(refused, 400, "previous_response_not_found", "previous_response_id")
        assert not server.engine.aborted
        server.gate.open()
        await eventually(lambda: server.is_idle)
        assert text_in((await http.get(path, headers=mine)).json()) == said("hello", 8)


async def test_a_response_in_the_background_is_there_at_once_and_needs_nobody() -> None:
    async with running(resume_grace_s=0) as server, server.http() as http:
        server.gate.close()
        response = await create(http, background=True)
        assert (response["status"], response["background"], response["output"]) == ("queued", True, [])
        path = f"{PATH}/{response['id']}"
        assert (await http.get(path)).json() == response
        server.gate.open()
        await eventually(lambda: server.is_idle)
        done = (await http.get(path)).json()
        assert (done["status"], text_in(done)) == ("incomplete", said("hello", 8))


async def test_a_stream_in_the_background_survives_its_connection() -> None:
    async with running(resume_grace_s=0) as server, server.http() as http:
        server.gate.close()
        async with opened(server, PATH, BODY | {"background": True, "stream": True}) as stream:
            (created,) = await stream.until("response.created")
            assert created["response"]["status"] == "queued"
            stream.cut()
        kept = newest(server)
        await eventually(lambda: kept.num_readers == 0)
        server.gate.open()
        await eventually(lambda: server.is_idle)
        assert not server.engine.aborted
        assert text_in((await http.get(f"{PATH}/{kept.id}")).json()) == said("hello", 8)


# -- cancel and delete -----------------------------------------------------------------------------------


@pytest.mark.parametrize("state", ["queued", "decoding"])
async def test_a_cancel_returns_the_response_as_it_ended_within_a_tick(state: str) -> None:
    async with running(max_num_seqs=1) as server, server.http() as http:
        server.gate.close()
        if state == "queued":
            await create(http, background=True, max_output_tokens=400)
            await eventually(lambda: server.stats().num_running == 1)
        response = await create(http, background=True, max_output_tokens=400, input="cut me")
        kept = newest(server)
        if state == "decoding":
            server.gate.step(4)
            await eventually(lambda: len(kept.view.stream.text) == 4)
        cancelling = asyncio.create_task(http.post(f"{PATH}/{response['id']}/cancel"))
        await eventually(lambda: server.engine.aborted)
        server.gate.step(1)
        cancelled = (await cancelling).json()
        tick, end = server.engine.ended[kept.answer.request_id]
        assert end.reason is FinishReason.ABORT
        assert tick - server.engine.aborted[kept.answer.request_id] <= 1
        assert (cancelled["id"], cancelled["status"]) == (response["id"], "cancelled")
        assert text_in(cancelled) == (said("cut me", 4) if state == "decoding" else "")
        again = await http.post(f"{PATH}/{response['id']}/cancel")
        assert again.json() == cancelled == (await http.get(f"{PATH}/{response['id']}")).json()


async def test_readers_of_a_cancelled_response_are_told_and_so_is_whoever_waits_for_it() -> None:
    async with running() as server, server.http() as http:
        server.gate.close()
        waiting = asyncio.create_task(http.post(PATH, json=BODY | {"input": "whole"}))
        await eventually(lambda: server.holds(1))
        whole = newest(server)
        async with opened(server, PATH, BODY | {"stream": True}) as stream:
            (created,) = await stream.until("response.created")
            cancels = [
                asyncio.create_task(http.post(f"{PATH}/{each}/cancel"))
                for each in (whole.id, created["response"]["id"])
            ]
            await eventually(lambda: len(server.engine.aborted) == 2)
            server.gate.open()
            last = (await stream.rest())[-1]
        assert (last["type"], last["response"]["status"]) == ("response.incomplete", "cancelled")
        assert (await cancels[1]).json() == last["response"]
        assert (await waiting).json() == (await cancels[0]).json()
        assert (await waiting).json()["status"] == "cancelled"


async def test_an_ended_response_is_not_cancelled_any_more() -> None:
    async with running() as server, server.http() as http:
        response = await create(http)
        assert (await http.post(f"{PATH}/{response['id']}/cancel")).json() == response
        refusal(await http.post(f"{PATH}/resp_never/cancel"), 404, "response_not_found", "response_id")


async def test_a_deleted_response_is_gone() -> None:
    async with running() as server, server.http() as http:
        response = await create(http)
        path = f"{PATH}/{response['id']}"
        deleted = await http.delete(path)
        assert deleted.json() == {"id": response["id"], "object": "response", "deleted": True}
        for method, at in (("GET", path), ("DELETE", path), ("POST", f"{path}/cancel")):
            refusal(await http.request(method, at), 410, "response_gone", "response_id")
        assert (len(shelf_of(server)), shelf_of(server).num_bytes) == (0, 0)


async def test_a_running_response_that_is_deleted_is_cancelled_and_its_reader_is_told() -> None:
    async with running() as server, server.http() as http:
        server.gate.close()
        async with opened(server, PATH, BODY | {"stream": True}) as stream:
            (created,) = await stream.until("response.created")
            path = f"{PATH}/{created['response']['id']}"
            assert (await http.delete(path)).json()["deleted"] is True
            server.gate.open()
            assert (await stream.rest())[-1]["response"]["status"] == "cancelled"
        refusal(await http.get(path), 410, "response_gone", "response_id")
        assert len(shelf_of(server)) == 0


# -- input items and counts ------------------------------------------------------------------------------


async def test_input_items_are_listed_in_pages_with_ids_that_stay() -> None:
    async with running() as server, server.http() as http:
        first = await create(http, input=[{"role": "developer", "content": "be kind"}, *_numbered(3)])
        second = await create(http, input="more", previous_response_id=first["id"])
        path = f"{PATH}/{second['id']}/input_items"

        async def page(**query: Any) -> dict[str, Any]:
            reply: dict[str, Any] = (await http.get(path, params=query)).json()
            return reply

        everything = await page()
        texts = [item["content"][0]["text"] for item in everything["data"]]
        assert texts == ["more", text_in(first), "number 2", "number 1", "number 0", "be kind"]
        assert (everything["object"], everything["has_more"]) == ("list", False)
        assert everything["first_id"] == everything["data"][0]["id"]
        assert everything["last_id"] == everything["data"][-1]["id"]
        assert {item["status"] for item in everything["data"]} == {"completed"}
        kinds = [(item["role"], item["content"][0]["type"]) for item in everything["data"]]
        assert kinds[:2] == [("user", "input_text"), ("assistant", "output_text")]
        assert len({item["id"] for item in everything["data"]}) == 6

        forwards, after = [], None
        while True:
            got = await page(order="asc", limit=4, **({"after": after} if after else {}))
            forwards += got["data"]
            after = got["last_id"]
            if not got["has_more"]:
                break
            assert len(got["data"]) == 4
        assert forwards == everything["data"][::-1]
        beyond = await page(after=everything["last_id"])
        assert (beyond["data"], beyond["first_id"], beyond["has_more"]) == ([], None, False)


def _numbered(count: int) -> list[dict[str, str]]:
    return [{"role": "user", "content": f"number {n}"} for n in range(count)]


async def test_the_prompt_of_a_request_is_counted_as_it_would_be_used() -> None:
    async with running() as server, server.http() as http:
        first = await create(http)
        body = {"input": "more", "instructions": "be brief", "previous_response_id": first["id"]}
        counted = await http.post(f"{PATH}/input_tokens", json=body | {"tools": None})
        used = await create(http, **body)
        assert counted.json() == {
            "object": "response.input_tokens",
            "input_tokens": used["usage"]["input_tokens"],
        }
        refusal(await http.post(f"{PATH}/input_tokens", json={}), 400, "missing_required_parameter", "input")
        for name in ("personality", "temperature"):
            reply = await http.post(f"{PATH}/input_tokens", json=body | {name: "friendly"})
            assert (reply.status_code, reply.json()["error"]["param"]) == (400, name)


# -- memory, and clients that come and go ----------------------------------------------------------------


async def test_hundreds_of_stored_responses_take_what_is_counted() -> None:
    async with running() as server:
        responses, shelf = server.app.state.responses, shelf_of(server)
        caller = server.service.callers.of_key(None, "here")

        async def one(number: int) -> None:
            wanted = {"input": f"number {number}", "max_output_tokens": 1, "metadata": {"n": str(number)}}
            kept = await responses.create(parse_create(BODY | wanted), caller, arrival=0.0)
            with shelf.reading(kept):
                async for _ in responses.events(kept, 0):
                    pass

        async def many(start: int, count: int) -> None:
            for first in range(start, start + count, 50):
                await asyncio.gather(*(one(number) for number in range(first, first + 50)))

        await many(0, 50)
        gc.collect()
        tracemalloc.start()
        counted = shelf.num_bytes
        await many(50, 150)
        for watched in (server.engine.submitted, server.engine.ended, server.runner.batches):
            watched.clear()
        gc.collect()
        taken, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        counted = shelf.num_bytes - counted
        assert len(shelf) == 200
        assert counted / 3 < taken < counted
        shelf._max_count = 100
        await many(200, 50)
        assert len(shelf) == 100
        assert shelf.num_bytes == sum(kept.size for kept in shelf._ended.values())


async def test_clients_that_leave_in_every_phase_leave_nothing_behind() -> None:
    async with running(max_num_seqs=4) as server, server.http() as http:
        for number in range(60):
            text = f"number {number}" if number % 5 else "long " * 500  # that is prepared in a thread
            body = BODY | {"input": text, "max_output_tokens": 300, "stream": number % 2 == 0}
            async with request(server, PATH, body | {"store": False}) as client:
                if number % 3:
                    await eventually(lambda: server.service.bridge.num_open)
                client.cut()
        await eventually(lambda: server.is_idle and not len(shelf_of(server)))
        await eventually(lambda: server.service._deliveries == 0)
        assert text_in(await create(http)) == said("hello", 8)
        counts = (await http.get("/metrics")).text
    ended = sum(
        float(line.split()[-1])
        for line in counts.splitlines()
        if line.startswith("tickwire:request_success_total{")
    )
    assert ended == len(server.engine.ended)
    assert len(shelf_of(server)) == 1


async def test_a_server_that_stops_waits_for_readers_and_not_for_what_nobody_reads() -> None:
    async with running(shutdown_timeout_s=15) as server, server.http() as http:
        server.gate.close()
        background = await create(http, background=True, max_output_tokens=400)
        async with opened(server, PATH, BODY | {"stream": True}) as stream:
            await stream.until("response.content_part.added")
            server.server.stop()
            reply = await http.post(PATH, json=BODY)
            refusal(reply, 503, "server_unavailable", None)
            assert reply.headers["x-should-retry"] == "true"
            assert (await http.get(f"{PATH}/{background['id']}")).json()["status"] == "queued"
            server.gate.step(12)
            assert (await stream.rest())[-1]["response"]["status"] == "incomplete"
        await eventually(lambda: server.engine.aborted)
        server.gate.open()
        await eventually(lambda: len(server.engine.ended) == 2)
    reasons = {end.reason for _, end in server.engine.ended.values()}
    assert reasons == {FinishReason.LENGTH, FinishReason.ABORT}
