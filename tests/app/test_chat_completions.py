"""POST /v1/chat/completions over a real connection."""

from __future__ import annotations

import asyncio
from typing import Any

import orjson
import pytest

from app.protocol.chat import ChatBuilder
from app.service import PromptRefused
from app.streams import Delta
from tests.app.harness import MODEL, RunningServer, eventually, expected, fake_encode, running, said

HELLO = [{"role": "user", "content": "hello"}]


def body(**fields: Any) -> dict[str, Any]:
    return {"model": MODEL, "messages": HELLO, "temperature": 0, "max_tokens": 20} | fields


async def events_of(server: RunningServer, **fields: Any) -> list[dict[str, Any]]:
    """The JSON of a stream's events; the stream must be framed as SSE and end with [DONE]."""
    async with server.http() as http:
        response = await http.post("/v1/chat/completions", json=body(stream=True, **fields))
    assert response.status_code == 200
    *events, done, rest = response.text.split("\n\n")
    assert (done, rest) == ("data: [DONE]", "")
    assert all(event.startswith("data: ") for event in events)
    return [orjson.loads(event.removeprefix("data: ")) for event in events]


def content_of(chunks: list[dict[str, Any]]) -> str:
    return "".join(c["delta"].get("content", "") for chunk in chunks for c in chunk["choices"])


async def test_an_answer_in_one_piece() -> None:
    async with running() as server, server.http() as http:
        response = await http.post("/v1/chat/completions", json=body())
    answer = response.json()
    assert answer["object"] == "chat.completion"
    assert answer["model"] == MODEL
    (choice,) = answer["choices"]
    assert choice["message"]["content"] == said("hello", 20)
    assert choice["finish_reason"] == "length"
    assert answer["usage"]["prompt_tokens"] == len("user:hello;")
    assert answer["usage"]["completion_tokens"] == 20
    assert answer["usage"]["total_tokens"] == 31
    assert response.headers["x-should-retry"] == "false"
    assert response.headers["content-type"] == "application/json"


async def test_a_streamed_answer() -> None:
    async with running() as server:
        first, *deltas, last = await events_of(server)
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": "", "refusal": None}
    assert content_of([first, *deltas, last]) == said("hello", 20)
    assert last["choices"][0]["delta"] == {}
    assert last["choices"][0]["finish_reason"] == "length"
    reasons = [c["choices"][0]["finish_reason"] for c in (first, *deltas)]
    assert set(reasons) == {None}
    assert all(c["choices"][0]["delta"]["content"] for c in deltas)
    assert len({(c["id"], c["created"], c["model"], c["object"]) for c in (first, *deltas, last)}) == 1


async def test_usage_comes_last_and_only_when_asked_for() -> None:
    async with running() as server:
        *chunks, usage = await events_of(server, stream_options={"include_usage": True})
        plain = await events_of(server)
    assert usage["choices"] == []
    assert usage["usage"]["prompt_tokens"] == len("user:hello;")
    assert usage["usage"]["completion_tokens"] == 20
    assert all(chunk["usage"] is None for chunk in chunks)
    assert all("usage" not in chunk for chunk in plain)


async def test_an_answer_of_one_token_has_that_token() -> None:
    async with running() as server, server.http() as http:
        whole = (await http.post("/v1/chat/completions", json=body(max_tokens=1))).json()
        chunks = await events_of(server, max_tokens=1)
        both = body(max_tokens=5, max_completion_tokens=1)
        current = (await http.post("/v1/chat/completions", json=both)).json()
    assert whole["choices"][0]["message"]["content"] == content_of(chunks) == said("hello", 1)
    assert whole["usage"]["completion_tokens"] == 1
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [None, None, "length"]
    assert current["choices"] == whole["choices"], "the current name of the limit wins"


async def test_a_fault_of_ours_in_the_middle_of_a_stream_is_told_in_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with running() as server, server.http() as http:
        told: list[str] = []

        def broken(self: ChatBuilder, choice: int, delta: Delta) -> Any:
            if told:
                raise KeyError("secret detail")
            told.append(delta.text)
            return {"choices": [{"delta": {"content": delta.text}}]}

        monkeypatch.setattr(ChatBuilder, "text", broken)
        server.gate.close()
        request = asyncio.create_task(
            http.post("/v1/chat/completions", json=body(stream=True, max_tokens=500))
        )
        await eventually(lambda: server.stats().num_running == 1)
        server.gate.step()
        await eventually(lambda: told)
        server.gate.open()
        response = await request
        await eventually(lambda: server.engine.aborted)
    *_, last, rest = response.text.split("\n\n")
    error = orjson.loads(last.removeprefix("data: "))["error"]
    assert (rest, error["code"], error["type"]) == ("", "server_error", "server_error")
    assert "secret" not in response.text
    assert "[DONE]" not in response.text


async def test_the_end_token_ends_with_stop() -> None:
    async with running() as server, server.http() as http:
        server.runner.script = lambda context: 0 if len(context) == 14 else 1
        answer = (await http.post("/v1/chat/completions", json=body())).json()
    choice = answer["choices"][0]
    assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", None)
    assert choice["message"]["content"] == "aaa"
    assert answer["usage"]["completion_tokens"] == 4


async def test_a_stop_string_ends_the_answer_before_it_and_is_told() -> None:
    text = said("hello", 20)
    stop = text[10:13]
    async with running() as server, server.http() as http:
        whole = (await http.post("/v1/chat/completions", json=body(stop=["never", stop]))).json()
        chunks = await events_of(server, stop=stop)
    choice = whole["choices"][0]
    assert choice["message"]["content"] == content_of(chunks) == text[: text.index(stop)]
    assert all(chunk["choices"][0]["delta"]["content"] for chunk in chunks[1:-1]), (
        "what is held back is no chunk"
    )
    assert choice["finish_reason"] == chunks[-1]["choices"][0]["finish_reason"] == "stop"
    assert choice["stop_reason"] == chunks[-1]["choices"][0]["stop_reason"] == stop


async def test_a_stop_id_is_told_too() -> None:
    async with running() as server, server.http() as http:
        server.runner.script = lambda context: 5 if len(context) == 14 else 1
        answer = (await http.post("/v1/chat/completions", json=body(stop_token_ids=[5]))).json()
    assert answer["choices"][0]["stop_reason"] == 5
    assert answer["choices"][0]["message"]["content"] == "aaa"


async def test_all_roles_and_parts_reach_the_template() -> None:
    messages = [
        {"role": "developer", "content": "be brief"},
        {"role": "user", "content": [{"type": "text", "text": "one"}]},
        {"role": "assistant", "content": "two"},
        {"role": "user", "content": "three"},
    ]
    plain = [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": "two"},
        {"role": "user", "content": "three"},
    ]
    async with running() as server, server.http() as http:
        answer = (await http.post("/v1/chat/completions", json=body(messages=messages))).json()
    assert answer["choices"][0]["message"]["content"] == expected(plain, 20)


CALL = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": [1, 2]}'}}
TALK_WITH_TOOLS = [
    {"role": "user", "content": "add them"},
    {"role": "assistant", "content": None, "tool_calls": [CALL], "refusal": None, "annotations": []},
    {"role": "tool", "tool_call_id": "c1", "content": "3"},
]


async def test_tool_calls_reach_the_template_as_structure() -> None:
    given: list[Any] = []

    def encode(messages: list[Any], *ends: bool) -> list[int]:
        given.append(messages)
        return fake_encode(messages)

    async with running() as server, server.http() as http:
        object.__setattr__(server.service.model, "encode", encode)
        assert (
            await http.post("/v1/chat/completions", json=body(messages=TALK_WITH_TOOLS))
        ).status_code == 200
    call = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": {"a": [1, 2]}}}
    assert given == [
        [
            {"role": "user", "content": "add them"},
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "content": "3", "tool_call_id": "c1"},
        ]
    ]


async def test_a_template_that_knows_no_tools_refuses_the_message_that_has_them() -> None:
    def encode(messages: list[Any], *ends: bool) -> list[int]:
        raise PromptRefused("the model's chat template knows no tools", at="1.tool_calls")

    async with running() as server, server.http() as http:
        object.__setattr__(server.service.model, "encode", encode)
        refused = await http.post("/v1/chat/completions", json=body(messages=TALK_WITH_TOOLS))
    error = refused.json()["error"]
    assert (refused.status_code, error["param"]) == (400, "messages.1.tool_calls")
    assert error["message"] == "messages.1.tool_calls: the model's chat template knows no tools"


async def test_a_long_prompt_is_encoded_like_a_short_one() -> None:
    """Long ones go through a worker thread."""
    text = "long " * 1000
    async with running(num_blocks=1024) as server, server.http() as http:
        messages = [{"role": "user", "content": text}]
        answer = (await http.post("/v1/chat/completions", json=body(messages=messages))).json()
    assert answer["choices"][0]["message"]["content"] == said(text, 20)


async def test_without_a_limit_the_answer_fills_the_context() -> None:
    async with running(num_blocks=4) as server, server.http() as http:
        answer = (await http.post("/v1/chat/completions", json=body(max_tokens=None))).json()
    assert answer["choices"][0]["finish_reason"] == "length"
    # The last token sampled needs no place in memory.
    assert answer["usage"]["total_tokens"] in (64, 65)


async def test_many_at_once_get_their_own_answers() -> None:
    texts = [f"number {i}" for i in range(40)]
    async with running(num_blocks=60, max_num_seqs=16) as server, server.http() as http:
        answers = await asyncio.gather(
            *(
                http.post(
                    "/v1/chat/completions",
                    json=body(messages=[{"role": "user", "content": text}], max_tokens=30),
                )
                for text in texts
            )
        )
    got = [answer.json()["choices"][0]["message"]["content"] for answer in answers]
    assert got == [said(text, 30) for text in texts]


async def test_a_silent_stream_sends_comments() -> None:
    """So that a proxy between does not take a long prefill for a dead connection."""
    from app.api.chat import ChatCompletions

    async with running() as server:
        server.gate.close()
        route = next(r for r in server.app.routes if r.path == "/v1/chat/completions")  # type: ignore[attr-defined]
        route.app = ChatCompletions(server.service, server.settings, keep_alive=0.01)  # type: ignore[attr-defined]
        async with (
            server.http() as http,
            http.stream("POST", "/v1/chat/completions", json=body(stream=True)) as response,
        ):
            lines = response.aiter_lines()
            async for line in lines:
                if line == ": keep-alive":
                    break
            server.gate.open()
            rest = [line async for line in lines]
    assert rest[-2:] == ["data: [DONE]", ""]


@pytest.mark.parametrize(
    ("given", "echoed"),
    [("trace-1.2:3_x", True), ("x" * 129, False), ("with space", False), ("a\u00e4", False)],
)
async def test_a_sane_request_id_is_echoed_and_another_replaced(given: str, echoed: bool) -> None:
    async with running() as server, server.http() as http:
        headers = {"x-request-id": given.encode()}
        response = await http.post("/v1/chat/completions", json=body(), headers=headers)  # type: ignore[arg-type]
        assert (response.headers["x-request-id"] == given) == echoed
        assert (await http.get("/nowhere")).headers["x-request-id"]


async def test_streams_tell_proxies_not_to_hold_them() -> None:
    async with running() as server, server.http() as http:
        response = await http.post("/v1/chat/completions", json=body(stream=True))
    assert response.headers["content-type"].startswith("text/event-stream")
    assert response.headers["cache-control"] == "no-cache"
    assert response.headers["x-accel-buffering"] == "no"
    assert response.headers["x-should-retry"] == "false"
