"""One answer, many views: whichever way a client asks for it, it has the same text to the byte and is told
the same counts. A new way to read answers is one more entry of VIEWS."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

import orjson
import pytest

from tests.app.event_stream import opened
from tests.app.harness import RunningServer, running, said, text_of


class Told(NamedTuple):
    """What a client has in the end."""

    text: str
    """Its deltas joined, where there are any."""
    input_tokens: int
    output_tokens: int
    reached_limit: bool
    """It ended because of `Ask.max_tokens`, not by itself."""


class Ask(NamedTuple):
    text: str
    max_tokens: int
    fields: dict[str, Any]
    """Those that all APIs have in common."""


View = Callable[[RunningServer, Ask], Awaitable[Told]]


def of_chat(usage: dict[str, Any], text: str, finish: str) -> Told:
    return Told(text, usage["prompt_tokens"], usage["completion_tokens"], finish == "length")


def of_response(response: dict[str, Any], text: str) -> Told:
    """The response object must say what its events said."""
    assert response["output"][0]["content"][0]["text"] == text
    usage, details = response["usage"], response["incomplete_details"]
    reached_limit = details == {"reason": "max_output_tokens"}
    assert response["status"] == ("incomplete" if reached_limit else "completed")
    return Told(text, usage["input_tokens"], usage["output_tokens"], reached_limit)


def chat_body(ask: Ask) -> dict[str, Any]:
    messages = [{"role": "user", "content": ask.text}]
    return {"messages": messages, "max_tokens": ask.max_tokens, "temperature": 0, **ask.fields}


def response_body(ask: Ask) -> dict[str, Any]:
    return {"input": ask.text, "max_output_tokens": ask.max_tokens, "temperature": 0, **ask.fields}


async def chat_json(server: RunningServer, ask: Ask) -> Told:
    async with server.http() as http:
        whole = (await http.post("/v1/chat/completions", json=chat_body(ask))).json()
    (choice,) = whole["choices"]
    return of_chat(whole["usage"], choice["message"]["content"], choice["finish_reason"])


async def chat_stream(server: RunningServer, ask: Ask) -> Told:
    body = chat_body(ask) | {"stream": True, "stream_options": {"include_usage": True}}
    async with server.http() as http:
        content = (await http.post("/v1/chat/completions", json=body)).text
    *events, done = [block.partition("data: ")[2] for block in content.split("\n\n") if block]
    assert done == "[DONE]"
    *chunks, last = [orjson.loads(event) for event in events]
    choices = [chunk["choices"][0] for chunk in chunks]
    (finish,) = [each["finish_reason"] for each in choices if each["finish_reason"]]
    return of_chat(last["usage"], "".join(each["delta"].get("content", "") for each in choices), finish)


def completion_body(ask: Ask) -> dict[str, Any]:
    prompt = f"user:{ask.text};"  # what the template makes of the text
    return {"prompt": prompt, "max_tokens": ask.max_tokens, "temperature": 0, **ask.fields}


async def completion_json(server: RunningServer, ask: Ask) -> Told:
    async with server.http() as http:
        whole = (await http.post("/v1/completions", json=completion_body(ask))).json()
    (choice,) = whole["choices"]
    return of_chat(whole["usage"], choice["text"], choice["finish_reason"])


async def completion_stream(server: RunningServer, ask: Ask) -> Told:
    body = completion_body(ask) | {"stream": True, "stream_options": {"include_usage": True}}
    async with server.http() as http:
        content = (await http.post("/v1/completions", json=body)).text
    *events, done = [block.removeprefix("data: ") for block in content.split("\n\n") if block]
    assert done == "[DONE]"
    *chunks, last = [orjson.loads(event) for event in events]
    choices = [chunk["choices"][0] for chunk in chunks]
    (finish,) = [each["finish_reason"] for each in choices if each["finish_reason"]]
    return of_chat(last["usage"], "".join(each["text"] for each in choices), finish)


async def response_json(server: RunningServer, ask: Ask) -> Told:
    async with server.http() as http:
        response = (await http.post("/v1/responses", json=response_body(ask))).json()
    return of_response(response, response["output"][0]["content"][0]["text"])


async def response_stream(server: RunningServer, ask: Ask) -> Told:
    async with opened(server, "/v1/responses", response_body(ask) | {"stream": True}) as stream:
        events = await stream.rest()
    return of_response(events[-1]["response"], text_of(events))


async def response_retrieved(server: RunningServer, ask: Ask) -> Told:
    """Told to somebody else, while it runs and after its end."""
    async with server.http() as http:
        begun = (await http.post("/v1/responses", json=response_body(ask) | {"background": True})).json()
        async with opened(server, f"/v1/responses/{begun['id']}?stream=true") as stream:
            events = await stream.rest()
        shown = (await http.get(f"/v1/responses/{begun['id']}")).json()
    assert shown == events[-1]["response"]
    return of_response(shown, text_of(events))


async def response_socket(server: RunningServer, ask: Ask) -> Told:
    async with server.socket() as socket:
        fields = {"max_output_tokens": ask.max_tokens, **ask.fields}
        events = await socket.answer(ask.text, **fields)
    return of_response(events[-1]["response"], text_of(events))


async def ui_chat(server: RunningServer, ask: Ask) -> Told:
    message = {"id": "m", "role": "user", "parts": [{"type": "text", "text": ask.text}]}
    body = {"max_tokens": ask.max_tokens, "temperature": 0, **ask.fields}
    head = {"type": "send", "requestId": "r", "id": secrets.token_hex(8), "trigger": "submit-message"}
    frames = []
    async with server.socket("/api/chat") as socket:
        await socket.send(**head, messages=[message], headers={}, body=body)
        while (frame := await socket.event())["type"] != "end":
            frames.append(frame["chunk"])
    (finish,) = [each for each in frames if each["type"] == "finish"]
    usage = finish["messageMetadata"]["usage"]
    text = "".join(each["delta"] for each in frames if each["type"] == "text-delta")
    return Told(text, usage["inputTokens"], usage["outputTokens"], finish["finishReason"] == "length")


VIEWS: dict[str, View] = {
    "chat completions, JSON": chat_json,
    "chat completions, events": chat_stream,
    "completions, JSON": completion_json,
    "completions, events": completion_stream,
    "responses, JSON": response_json,
    "responses, events": response_stream,
    "responses, retrieved": response_retrieved,
    "responses, socket": response_socket,
    "chats of the AI SDK": ui_chat,
}

ASKS = [
    Ask("hello", 1, {}),
    Ask("hello", 120, {}),
    Ask("a question " * 190, 6, {}),  # its prompt is prepared in a thread
    # Text is held back in case it is a stop string, and released: the last letter in one, not in the other.
    Ask("hello", 40, {"stop": [said("hello", 12)[7:] + "~", said("hello", 21)[18:]]}),
    Ask("hello", 20, {"stop": [said("hello", 20)[17:] + "~"]}),
    Ask("hello", 40, {"stop": [said("hello", 21)[18:]], "include_stop_str_in_output": True}),
]


@pytest.mark.parametrize("ask", ASKS)
async def test_the_text_is_the_same_whichever_way_it_is_read(ask: Ask) -> None:
    async with running() as server:
        alone = {name: await view(server, ask) for name, view in VIEWS.items()}
        together = await asyncio.gather(*(view(server, ask) for view in VIEWS.values()))
    (told,) = set(alone.values()) | set(together)
    assert said(ask.text, ask.max_tokens).startswith(told.text)
    if "stop" not in ask.fields:
        assert told.text == said(ask.text, ask.max_tokens)
    assert told.reached_limit == (told.output_tokens == ask.max_tokens)
