"""`continue_final_message`: the answer is the rest of the last message, wherever it can be asked for."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import httpx
import pytest

from tests.app.harness import RunningServer, continued, fake_prompt, running, text_of
from tests.app.test_ui_chat import chunks_of, client
from tests.app.test_ui_chat import text_of as page_text_of

QUESTION = {"role": "user", "content": "what is it"}
BEGUN = {"role": "assistant", "content": "it is a"}
ON = {"continue_final_message": True, "temperature": 0}


def rest(messages: list[Any], count: int = 8) -> str:
    """What the fake model says after the last of these messages' text."""
    return continued(fake_prompt(messages)[:-1], count)


@asynccontextmanager
async def serving(**fields: Any) -> AsyncIterator[tuple[RunningServer, httpx.AsyncClient]]:
    async with running(**fields) as server, server.http() as http:
        yield server, http


async def create(http: httpx.AsyncClient, **fields: Any) -> dict[str, Any]:
    body = {"input": [QUESTION, BEGUN], "max_output_tokens": 8} | ON | fields
    reply = await http.post("/v1/responses", json=body)
    assert reply.status_code == 200, reply.text
    response: dict[str, Any] = reply.json()
    return response


def said(response: dict[str, Any]) -> str:
    text: str = response["output"][0]["content"][0]["text"]
    return text


async def test_only_the_new_text_is_told() -> None:
    messages = [QUESTION, BEGUN]
    body = {"messages": messages, "max_tokens": 8} | ON
    async with serving() as (server, http), server.socket() as socket:
        whole = await create(http)
        told = await socket.answer(messages, **ON)
        completion = (await http.post("/v1/chat/completions", json=body | {"n": 2})).json()
        counted = (
            await http.post(
                "/v1/responses/input_tokens", json={"input": messages} | {"continue_final_message": True}
            )
        ).json()
    assert said(whole) == text_of(told) == rest(messages)
    assert [choice["message"]["content"] for choice in completion["choices"]] == [rest(messages)] * 2
    length = len(fake_prompt(messages)) - 1
    assert whole["usage"]["input_tokens"] == counted["input_tokens"] == length
    assert completion["usage"]["prompt_tokens"] == length
    assert whole["usage"]["output_tokens"] == 8


async def test_what_the_prompt_lacks_is_not_told_again() -> None:
    """The model is made to begin with the blank that was kept from it."""
    begun = BEGUN | {"content": "it is "}
    async with serving() as (server, http):
        server.service.model = replace(server.service.model, open_end=lambda text: text[-1:])
        letters = iter(server.service.model.encode_text(" a lamp."))
        server.runner.script = lambda _: next(letters)
        assert said(await create(http, input=[QUESTION, begun])) == "a lamp."


async def test_the_next_turn_has_one_message() -> None:
    more = {"role": "user", "content": "go on"}
    async with serving() as (server, http), server.socket() as socket:
        first = await create(http)
        next_turn = await create(
            http, input=[more], previous_response_id=first["id"], continue_final_message=False
        )
        items = (await http.get(f"/v1/responses/{next_turn['id']}/input_items?order=asc")).json()["data"]
        on_socket = await socket.answer([QUESTION, BEGUN], store=False, **ON)
        again = await socket.answer([more], previous_response_id=on_socket[-1]["response"]["id"])
    answered = BEGUN | {"content": BEGUN["content"] + rest([QUESTION, BEGUN])}
    assert [item["content"][0]["text"] for item in items] == [
        QUESTION["content"],
        answered["content"],
        "go on",
    ]
    wanted = continued(fake_prompt([QUESTION, answered, more]), 8)
    assert said(next_turn) == text_of(again) == wanted


@pytest.mark.parametrize("fields", [{}, {"input": []}, {"input": ""}])
async def test_an_earlier_answer_goes_on_by_its_name(fields: dict[str, Any]) -> None:
    async with serving() as (_, http):
        one = (
            await http.post(
                "/v1/responses",
                json={"input": [QUESTION], **ON} | {"continue_final_message": False, "max_output_tokens": 5},
            )
        ).json()
        body = ON | {"previous_response_id": one["id"], "max_output_tokens": 5} | fields
        two = (await http.post("/v1/responses", json=body)).json()
        three = (await http.post("/v1/responses", json=body | {"previous_response_id": two["id"]})).json()
    whole = continued(fake_prompt([QUESTION]), 5)
    for part in (two, three):
        more = continued(fake_prompt([QUESTION, {"role": "assistant", "content": whole}])[:-1], 5)
        assert said(part) == more
        whole += more


async def test_a_warm_up_computes_what_the_answer_goes_on_from() -> None:
    messages = [{"role": "user", "content": "long " * 20}, BEGUN]
    async with serving() as (server, http), server.socket() as socket:
        warm = await socket.answer(messages, generate=False, **ON)
        told = await socket.answer([], previous_response_id=warm[-1]["response"]["id"], **ON)
        from_scratch = await create(http, input=messages)
    assert text_of(told) == said(from_scratch) == rest(messages)
    assert told[-1]["response"]["usage"]["input_tokens_details"]["cached_tokens"] >= 96


async def test_a_steered_answer_s_successor_begins_a_message() -> None:
    async with serving() as (server, _), server.socket() as socket:
        server.gate.close()
        await socket.create([QUESTION, BEGUN], max_output_tokens=100, **ON)
        (created, *_) = await socket.until("response.created")
        server.gate.step(3)
        await socket.until("response.output_text.delta")
        steer = {"previous_response_id": created["response"]["id"], "input": "shorter"}
        await socket.send(type="response.steer", **steer)
        server.gate.open()
        ended = await socket.until("response.incomplete")
        told = await socket.until("response.completed", "response.incomplete")
    first = said(ended[-1]["response"])
    talk = [QUESTION, BEGUN | {"content": BEGUN["content"] + first}, {"role": "user", "content": "shorter"}]
    assert text_of(told) == continued(fake_prompt(talk), 100)


async def test_the_message_that_goes_on_is_never_dropped() -> None:
    old = [{"role": "user", "content": "old " * 50}, {"role": "assistant", "content": "older " * 20}]
    async with serving(num_blocks=16) as (_, http):
        cut = await create(http, input=[*old, QUESTION, BEGUN], truncation="auto")
    assert cut["truncated_items"] == 2
    assert said(cut) == rest([QUESTION, BEGUN])


@pytest.mark.parametrize(
    ("last", "got"),
    [
        (QUESTION, "a last message of role 'user'"),
        ({"role": "system", "content": "be brief"}, "a last message of role 'system'"),
        ({"role": "assistant", "content": ""}, "a last message without text"),
    ],
)
async def test_a_message_that_cannot_go_on_is_refused_by_name(last: dict[str, Any], got: str) -> None:
    messages = [QUESTION, last]
    async with serving() as (server, http), server.socket() as socket:
        replies = [
            await http.post("/v1/responses", json={"input": messages} | ON),
            await http.post(
                "/v1/responses/input_tokens", json={"input": messages, "continue_final_message": True}
            ),
            await http.post("/v1/chat/completions", json={"messages": messages} | ON),
            await http.post("/v1/tokenize", json={"messages": messages, "continue_final_message": True}),
        ]
        (event,) = await socket.answer(messages, **ON)
        assert server.stats().num_ticks == 0
    for error in (event["error"], *(reply.json()["error"] for reply in replies)):
        assert error["param"] == "continue_final_message"
        assert f"got true and {got}, allowed: true only if the last message is" in error["message"]
    assert {reply.status_code for reply in replies} == {400}


async def test_nothing_and_calls_cannot_go_on_either() -> None:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    calling = {"role": "assistant", "content": "let me see", "tool_calls": [call]}
    async with serving() as (_, http):
        called = await http.post("/v1/chat/completions", json={"messages": [QUESTION, calling]} | ON)
        nothing = await http.post("/v1/responses", json=ON)
        warm = (await http.post("/v1/responses", json={"input": [QUESTION], "generate": False})).json()
        unanswered = await http.post("/v1/responses", json=ON | {"previous_response_id": warm["id"]})
    assert "a last message with tool calls" in called.json()["error"]["message"]
    assert nothing.json()["error"]["param"] == "input"
    assert unanswered.json()["error"]["param"] == "continue_final_message"


async def test_a_page_s_last_message_goes_on() -> None:
    parts = [{"type": "step-start"}, {"type": "text", "text": "it is"}, {"type": "step-start"}]
    last = {"id": "m7", "role": "assistant", "parts": [*parts, {"type": "text", "text": " a"}]}
    empty = {"id": "m8", "role": "assistant", "parts": []}
    asked = {"id": "q", "role": "user", "parts": [{"type": "text", "text": QUESTION["content"]}]}
    async with running() as server, client(server) as chat:
        frames = await chat.answer("", messages=[asked, last])
        begun = await chat.answer("", messages=[asked, empty], request="r2")
    assert chunks_of(frames)[0]["messageId"] == "m7"
    assert page_text_of(frames) == rest([QUESTION, BEGUN])
    assert page_text_of(begun) == continued(fake_prompt([QUESTION, {"role": "assistant", "content": ""}]), 8)
