"""What a full queue, a deadline, or a parameter that does not fit the model is answered with."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import orjson
import pytest

from engine.request import QueueFull, Request
from tests.app.harness import RunningServer, Socket, eventually, running, said, text_of

KEYS = ({"authorization": "Bearer one"}, {"authorization": "Bearer two"})


def body(**fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 20, "temperature": 0} | fields


@asynccontextmanager
async def busy(**engine: int) -> AsyncIterator[tuple[RunningServer, httpx.AsyncClient]]:
    """A server whose one row is taken, by a request of a third key, until the gate is opened."""
    async with running(max_num_seqs=1, engine=engine) as server, server.http() as http:
        server.gate.close()
        other = {"authorization": "Bearer three"}
        first = asyncio.create_task(
            http.post("/v1/chat/completions", json=body(max_tokens=400), headers=other)
        )
        await eventually(lambda: server.stats().num_running == 1)
        yield server, http
        server.gate.open()
        assert (await first).status_code == 200


async def post(http: httpx.AsyncClient, key: dict[str, str], **fields: Any) -> httpx.Response:
    return await http.post("/v1/chat/completions", json=body(**fields), headers=key)


async def test_a_session_with_too_much_in_the_queue_is_told_to_wait_and_others_are_not() -> None:
    async with busy(max_queue_per_session=2) as (server, http):
        waiting = [asyncio.create_task(post(http, KEYS[0])) for _ in range(2)]
        await eventually(lambda: server.stats().num_waiting == 2)
        refused = await post(http, KEYS[0], stream=True)
        others = asyncio.create_task(post(http, KEYS[1]))
        await eventually(lambda: server.stats().num_waiting == 3)
        async with server.socket(additional_headers=KEYS[0]) as socket:
            (event,) = await socket.answer("hello", stream_id="a")
            server.gate.open()
            for task in (*waiting, others):
                assert (await task).status_code == 200
            # The connection goes on, and there is room now.
            assert text_of(await socket.answer("hello", stream_id="a")) == said("hello", 8)
    assert refused.status_code == 429
    error = refused.json()["error"]
    assert (error["code"], error["type"]) == ("rate_limit_exceeded", "rate_limit_error")
    assert "2 requests of this session wait already, allowed: 2" in error["message"]
    assert int(refused.headers["retry-after"]) == error["retry_after"] >= 1
    assert f"{error['retry_after']} s" in error["message"]
    assert refused.headers["x-should-retry"] == "true"
    assert (event["status"], event["error"]["code"], event["stream_id"]) == (429, "rate_limit_exceeded", "a")
    assert event["error"]["retry_after"] >= 1


async def test_a_queue_full_for_all_is_the_server_s_own_limit() -> None:
    async with busy(max_queue=3) as (server, http):
        waiting = asyncio.create_task(post(http, KEYS[0], n=2))
        await eventually(lambda: server.stats().num_waiting == 2)
        refused = await post(http, KEYS[1], n=2)
        server.gate.open()
        assert (await waiting).status_code == 200
    assert refused.status_code == 503
    error = refused.json()["error"]
    assert (error["code"], error["type"]) == ("server_overloaded", "server_error")
    assert "2 requests of all sessions together wait already, allowed: 3" in error["message"]
    assert int(refused.headers["retry-after"]) >= 1
    assert refused.headers["x-should-retry"] == "true"


@pytest.mark.parametrize(("seconds", "told"), [(0.01, 1), (1.0, 1), (1.2, 2), (599.5, 600)])
async def test_a_wait_is_told_in_whole_seconds_never_too_few(
    monkeypatch: pytest.MonkeyPatch, seconds: float, told: int
) -> None:
    async with running() as server, server.http() as http:

        def full(request: Request) -> None:
            raise QueueFull(3, 3, of_session=True, retry_after=seconds)

        monkeypatch.setattr(server.engine, "submit", full)
        refused = await http.post("/v1/chat/completions", json=body())
    assert refused.headers["retry-after"] == str(told)
    assert refused.json()["error"]["retry_after"] == told


HOUR = 3_600_000


async def test_a_request_that_waits_too_long_is_told_so_in_every_format() -> None:
    async with busy() as (server, http), server.socket() as socket:
        whole = asyncio.create_task(post(http, KEYS[0], max_queue_ms=HOUR))
        streamed = asyncio.create_task(post(http, KEYS[0], max_queue_ms=HOUR, stream=True))
        patient = asyncio.create_task(post(http, KEYS[0], max_queue_ms=3 * HOUR))
        await socket.create("hello", max_queue_ms=HOUR)
        await eventually(lambda: server.holds(5))
        server.engine.seconds_ahead = 2 * HOUR / 1000
        server.gate.open()
        last = (await socket.until("response.failed", "response.incomplete"))[-1]
        answer, stream = await whole, (await streamed).text
        assert (await patient).status_code == 200
    assert answer.status_code == 503
    error = answer.json()["error"]
    assert (error["code"], error["param"]) == ("queue_timeout", "max_queue_ms")
    assert error["message"].startswith("max_queue_ms: after ")
    assert answer.headers["x-should-retry"] == "true"
    assert answer.headers["retry-after"]
    *_, event, rest = stream.split("\n\n")
    assert (rest, orjson.loads(event.removeprefix("data: "))["error"]["code"]) == ("", "queue_timeout")
    assert last["type"] == "response.failed"
    assert last["response"]["error"]["code"] == "queue_timeout"


async def test_an_answer_whose_time_is_over_is_cut_there() -> None:
    fields = {"max_time_ms": HOUR, "max_tokens": 400}
    async with running() as server, server.http() as http, server.socket() as socket:
        server.gate.close()
        whole = asyncio.create_task(http.post("/v1/chat/completions", json=body(**fields)))
        streamed = asyncio.create_task(http.post("/v1/chat/completions", json=body(stream=True, **fields)))
        await socket.create("hello", max_time_ms=HOUR, max_output_tokens=400)
        await eventually(lambda: server.holds(3))
        server.gate.step(5)
        await eventually(lambda: all(s.num_tokens for s in server.service.bridge._open.values()))
        server.engine.seconds_ahead = 2 * HOUR / 1000
        server.gate.open()
        answer, stream = (await whole).json(), (await streamed).text
        events = await socket.until("response.failed", "response.incomplete")
    choice = answer["choices"][0]
    assert (choice["finish_reason"], choice["stop_reason"]) == ("length", "max_time_ms")
    count = answer["usage"]["completion_tokens"]
    assert 0 < count < 400
    assert choice["message"]["content"] == said("hello", count)
    *_, last, done, rest = stream.split("\n\n")
    assert (done, rest) == ("data: [DONE]", "")
    assert orjson.loads(last.removeprefix("data: "))["choices"][0]["stop_reason"] == "max_time_ms"
    response = events[-1]["response"]
    assert (response["status"], response["incomplete_details"]) == ("incomplete", {"reason": "max_time_ms"})
    assert text_of(events) == said("hello", response["usage"]["output_tokens"])


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"logit_bias": {"9999": 1}}, "logit_bias"),
        ({"allowed_token_ids": [1, 9999]}, "allowed_token_ids"),
        ({"stop_token_ids": [9999]}, "stop_token_ids"),
        ({"min_tokens": 50}, "min_tokens"),
    ],
)
async def test_a_parameter_that_does_not_fit_is_refused_by_name(fields: dict[str, Any], param: str) -> None:
    async with running() as server, server.http() as http, server.socket() as socket:
        response = await http.post("/v1/chat/completions", json=body(**fields))
        (event,) = await socket.answer("hello", **fields)
    for status, error in (
        (response.status_code, response.json()["error"]),
        (event["status"], event["error"]),
    ):
        assert (status, error["param"], error["code"]) == (400, param, "invalid_value")
        assert error["message"].startswith(f"{param}: got ")
        assert "allowed: " in error["message"]
    assert response.headers["x-should-retry"] == "false"


async def test_a_bad_word_without_tokens_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running() as server, server.http() as http:
        object.__setattr__(server.service.model, "encode_text", lambda text: [])
        response = await http.post("/v1/chat/completions", json=body(bad_words=["\u200b"]))
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (400, "bad_words.0")


# -- who asks --------------------------------------------------------------------------------------------

PROMPT = "x" * 60
HITS = 64
"""Whole blocks of what is computed for PROMPT before its last token."""


async def cached(server: RunningServer, key: str | None, **fields: Any) -> int:
    headers = {} if key is None else {"authorization": f"Bearer {key}"}
    async with server.http() as http:
        response = await http.post(
            "/v1/chat/completions",
            json=body(messages=[{"role": "user", "content": PROMPT}], **fields),
            headers=headers,
        )
    count: int = response.json()["usage"]["prompt_tokens_details"]["cached_tokens"]
    return count


async def test_prefixes_are_shared_within_one_key_and_salt_only() -> None:
    async with running() as server:
        assert len(f"user:{PROMPT};") > HITS
        for key in (None, "one", "two", "three"):
            for fields in ({}, {"cache_salt": "a"}, {"cache_salt": "b"}):
                assert await cached(server, key, **fields) == 0
                assert await cached(server, key, **fields) == HITS
        async with server.socket(additional_headers=KEYS[0]) as socket:
            last = (await socket.answer(PROMPT))[-1]
            apart = (await socket.answer(PROMPT, cache_salt="c"))[-1]
    assert last["response"]["usage"]["input_tokens_details"]["cached_tokens"] == HITS
    assert apart["response"]["usage"]["input_tokens_details"]["cached_tokens"] == 0


async def test_choices_of_one_prompt_count_the_hits_of_the_first() -> None:
    async with running() as server:
        assert await cached(server, None, n=3) == 0
        assert await cached(server, None, n=3) == HITS


async def test_a_session_is_a_key_or_a_connection_and_never_the_key_itself() -> None:
    async with running() as server:

        async def sessions(*requests: Any) -> list[str]:
            before = len(server.engine.submitted)
            for each in requests:
                await each
            return [request.session for request, _ in server.engine.submitted[before:]]

        async with server.http() as http, server.http() as other:
            first, second = await sessions(post(http, KEYS[0]), post(other, KEYS[0]))
            assert first == second
            (third,) = await sessions(post(http, {"Authorization": "bearer two"}))
            assert third != first
            mine, again, theirs = await sessions(post(http, {}), post(http, {}), post(other, {}))
            assert mine == again != theirs
            # No key: SDKs of other APIs send theirs under other names.
            basic, empty = await sessions(
                post(http, {"authorization": "Basic b25lOm9uZQ=="}), post(http, {"authorization": "Bearer"})
            )
            assert basic == empty == mine
        async with server.socket(additional_headers=KEYS[0]) as named:
            assert await sessions(named.answer("hello")) == [first]
        async with server.socket() as socket, server.socket() as another:
            one, same, two = await sessions(*(each.answer("hello") for each in (socket, socket, another)))
            assert one == same != two
    for request, _ in server.engine.submitted:
        assert "one" not in f"{request.session} {request.cache_salt}"


async def test_what_a_request_wishes_reaches_the_queue() -> None:
    wishes = {"priority": "batch", "max_queue_ms": HOUR, "max_time_ms": 2 * HOUR}
    async with running() as server, server.http() as http, server.socket() as socket:
        assert (await post(http, {}, **wishes)).status_code == 200
        await Socket(socket.connection).answer("hello", **wishes)
        assert (await post(http, {})).status_code == 200
    *wished, plain = [request for request, _ in server.engine.submitted]
    for request in wished:
        assert request.priority.value == "batch"
        assert (request.max_queue_ms, request.max_time_ms) == (HOUR, 2 * HOUR)
    assert plain.priority.value == "interactive"
    assert plain.max_queue_ms is plain.max_time_ms is None
