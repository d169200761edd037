"""All that the server sends is as its documents say, and all that they say is sent.

Clients that validate whatever they get walk through every endpoint, in peace and in trouble; at the end
nothing must be left in the documents that was not seen.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import httpx

from app.spec.answers import TERMINAL, response_events
from app.spec.asyncapi import asyncapi
from app.spec.openapi import openapi
from app.spec.socket_events import UI_CHUNKS
from tests.app.harness import PATIENCE, RunningServer, eventually, running
from tests.fakes import SamplingRunner
from tests.spec.checked import CheckedSocket, Document, Http, Sockets, events

CHAT = "/v1/chat/completions"
HELLO = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 20, "seed": 1}
TEXT = {"prompt": "hello", "max_tokens": 20, "seed": 1}
RESPONSE = {"input": "hello", "max_output_tokens": 20, "seed": 1}
LOGPROBS = {"include": ["message.output_text.logprobs"], "top_logprobs": 2}


async def test_http() -> None:
    http = Http(Document(openapi()))
    async with running(runner=SamplingRunner, resume_grace_s=0.0) as server, http.of(server) as client:
        await small_things(client)
        await chats(client)
        await completions(client)
        await tokens(client)
        await responses(client)
        await gone_chat(client)
        await every_refusal_of_bodies(http, client)
    async with running(resume_grace_s=60.0) as server, http.of(server) as client:
        await chats_taken_up_again(client)
    async with running(api_keys=("key",)) as server, http.of(server) as client:
        await every_refusal_of_callers(http, client)
    await trouble(http)
    assert http.seen == http.documented
    assert http.events == {*response_events(), "chat.completion.chunk", "text_completion", "error"}


async def test_sockets() -> None:
    sockets = Sockets(Document(asyncapi()))
    async with running(runner=SamplingRunner) as server:
        async with sockets.of(server, "responses") as socket:
            await talk(server, socket)
        async with sockets.of(server, "chat") as socket:
            await ui_chat(server, socket)
    async with (
        running() as server,
        sockets.of(server, "responses") as one,
        sockets.of(server, "chat") as other,
    ):
        server.gate.close()
        await one.send(type="response.create", **RESPONSE)
        await other.send(**turn("r"))
        await eventually(lambda: server.holds(2))
        break_down(server)
        await one.until("response.failed")
        await other.until("end")
    assert sockets.seen == sockets.documented
    assert sockets.chunks == set(UI_CHUNKS)


# -- HTTP -----------------------------------------------------------------------------------------------


async def small_things(client: httpx.AsyncClient) -> None:
    (model,) = (await client.get("/v1/models")).json()["data"]
    await client.get(f"/v1/models/{model['id']}")
    await client.get("/v1/models/some/other")
    for path in ("/livez", "/readyz", "/health", "/metrics", "/debug/engine", "/debug/trace"):
        await client.get(path)
    for after in ("0", "yesterday"):
        await client.get("/debug/engine", params={"after": after})
    for path in ("/openapi.json", "/asyncapi.json", "/", "/static/app.js", "/static/other.js"):
        await client.get(path)


async def chats(client: httpx.AsyncClient) -> None:
    logprobs = {"logprobs": True, "top_logprobs": 2}
    for fields in ({}, {"n": 2, **logprobs}, {"stop": ["a", "b", "c"]}):
        await client.post(CHAT, json=HELLO | fields)
        await client.post(CHAT, json=HELLO | fields | {"stream": True})
        usage = {"stream_options": {"include_usage": True}}
        await client.post(CHAT, json=HELLO | fields | {"stream": True} | usage)
    await client.post(CHAT, json=HELLO | {"model": "other"})


async def completions(client: httpx.AsyncClient) -> None:
    path = "/v1/completions"
    for fields in ({}, {"n": 2, "logprobs": 2}, {"echo": True}, {"prompt": ["a", "b"]}, {"prompt": [1, 2]}):
        await client.post(path, json=TEXT | fields)
        await client.post(path, json=TEXT | fields | {"stream": True})
        usage = {"stream_options": {"include_usage": True}}
        await client.post(path, json=TEXT | fields | {"stream": True} | usage)
    await client.post(path, json=TEXT | {"model": "other"})


async def chats_taken_up_again(client: httpx.AsyncClient) -> None:
    told = await client.post(CHAT, json=HELLO | {"n": 2, "stream": True, "on_disconnect": "continue"})
    one = f"{CHAT}/{events(told.text)[0]['id']}"
    await client.get(one)
    await client.get(one, params={"stream": "true", "starting_after": 3})
    await client.get(one, params={"stream": "true", "starting_after": 1000})
    await client.get(f"{CHAT}/other")


async def gone_chat(client: httpx.AsyncClient) -> None:
    """Where nobody has time to come back."""
    told = await client.post(CHAT, json=HELLO | {"stream": True, "on_disconnect": "continue"})
    one = f"{CHAT}/{events(told.text)[0]['id']}"
    async with asyncio.timeout(PATIENCE):
        while (await client.get(one)).status_code != 410:
            pass


async def tokens(client: httpx.AsyncClient) -> None:
    for body in (
        {"prompt": "hello", "return_token_strs": True},
        {"messages": HELLO["messages"]},
        {"prompt": "hello", "model": "other"},
    ):
        await client.post("/v1/tokenize", json=body)
    for body in ({"tokens": [1, 2]}, {"tokens": [1], "model": "other"}):
        await client.post("/v1/detokenize", json=body)


async def responses(client: httpx.AsyncClient) -> None:
    path = "/v1/responses"
    first = (await client.post(path, json=RESPONSE | LOGPROBS)).json()["id"]
    for fields in ({}, LOGPROBS, {"truncation": "auto"}, {"generate": False}, {"background": True}):
        await client.post(path, json=RESPONSE | fields | {"previous_response_id": first})
        await client.post(path, json=RESPONSE | fields | {"stream": True})
    await client.post(path, json=RESPONSE | {"max_output_tokens": 1000, "stream": True})
    await client.post(path, json=RESPONSE | {"model": "other"})
    one = f"{path}/{first}"
    await client.get(one)
    await client.get(one, params={"stream": "true", "starting_after": 3})
    await client.get(one, params={"stream": "true", "starting_after": 1000})
    await client.get(f"{one}/input_items", params={"order": "asc", "limit": 1})
    await client.get(f"{one}/input_items", params={"order": "up"})
    await client.post(f"{one}/cancel")
    for _ in range(2):
        await client.delete(one)
    for gone in (one, f"{path}/other"):
        await client.get(gone)
        await client.get(f"{gone}/input_items")
        await client.post(f"{gone}/cancel")
        await client.delete(gone)
    await client.post(f"{path}/input_tokens", json={"input": "hello"})
    await client.post(f"{path}/input_tokens", json={"input": "hello", "model": "other"})


def operations(http: Http, status: int) -> Iterator[tuple[str, str]]:
    """Those that may answer with this status, as requests."""
    for method, path, each in http.documented:
        if each == status:
            yield method, path.replace("{", "").replace("}", "")


async def every_refusal_of_bodies(http: Http, client: httpx.AsyncClient) -> None:
    for method, path in operations(http, 413):
        await client.request(method, path, content=b" " * 2 * 1024 * 1024)
        await client.request(method, path, content=b"[]")


async def every_refusal_of_callers(http: Http, client: httpx.AsyncClient) -> None:
    for method, path in operations(http, 401):
        await client.request(method, path)
    for method, path in operations(http, 403):
        headers = {"authorization": "Bearer key", "origin": "https://elsewhere.example"}
        await client.request(method, path, headers=headers)


ASKING: dict[str, dict[str, Any]] = {CHAT: HELLO, "/v1/completions": TEXT, "/v1/responses": RESPONSE}
"""What begins an answer."""


async def trouble(http: Http) -> None:
    """Of a queue that is full for all or for one, a device that fails, and a server that stops."""
    for path, body in ASKING.items():
        async with busy(path, body, max_queue=1) as server, http.of(server) as client:
            assert (await client.post(path, json=body)).status_code == 503
        async with busy(path, body, max_queue_per_session=1) as server, http.of(server) as client:
            key = {"authorization": "Bearer key"}
            assert (await client.post(path, json=body, headers=key)).status_code == 429
        async with running() as server, http.of(server) as client:
            server.gate.close()
            asked = [
                asyncio.create_task(client.post(path, json=body | {"stream": stream}))
                for stream in (False, True)
            ]
            await eventually(lambda server=server: server.holds(2))
            break_down(server)
            await asyncio.gather(*asked)
    async with running() as server, http.of(server) as client:
        server.service.stop_accepting()
        for probe in ("/readyz", "/health"):
            assert (await client.get(probe)).status_code == 503


@asynccontextmanager
async def busy(path: str, body: dict[str, Any], **limits: int) -> AsyncIterator[RunningServer]:
    """A server with one request that runs and one that waits, both of the same key."""
    async with running(max_num_seqs=1, engine=limits) as server, server.http() as http:
        server.gate.close()
        key = {"authorization": "Bearer key"}
        asked = []
        for count in (1, 2):
            asked.append(asyncio.create_task(http.post(path, json=body, headers=key)))
            await eventually(lambda count=count: server.holds(count))
            await eventually(lambda: server.stats().num_running == 1)
        await eventually(lambda: server.stats().num_waiting == 1)
        yield server
        server.gate.open()
        await asyncio.gather(*asked)


def break_down(server: RunningServer) -> None:
    """The device fails."""

    def fault() -> None:
        raise RuntimeError("the device is gone")

    server.runner.during = fault
    server.gate.open()


# -- sockets --------------------------------------------------------------------------------------------


async def talk(server: RunningServer, socket: CheckedSocket) -> None:
    await socket.send(type="session.auth", token="key")
    await socket.until("session.authenticated")
    await socket.send(type="ping", id="one")
    await socket.send(type="ping")
    for _ in range(2):
        await socket.until("pong")
    for fields in ({}, LOGPROBS, {"stream_id": "left"}, {"generate": False}, {"truncation": "auto"}):
        await socket.send(type="response.create", **RESPONSE | fields)
        last = (await socket.until(*TERMINAL))[-1]["response"]
    for fields in ({}, {"starting_after": 2, "stream_id": "right"}):
        await socket.send(type="response.resume", response_id=last["id"], **fields)
        await socket.until(*TERMINAL)
    await socket.send(type="response.stats", response_id=last["id"])
    await socket.until("response.stats")
    await socket.send_wrong(type="other", stream_id="left")
    await socket.until("error")
    await socket.send(type="response.steer", previous_response_id=last["id"], input="no")
    await socket.until("response.steer.failed")

    server.gate.close()
    await socket.send(type="response.create", **RESPONSE | {"stream_id": "left", "ignore_eos": True})
    running_id = (await socket.event())["response"]["id"]
    await socket.send(type="response.steer", previous_response_id=running_id, input="no")
    await socket.until("response.steer.accepted")
    server.gate.open()
    await socket.until("response.incomplete")
    await socket.until(*TERMINAL)
    server.gate.close()
    await socket.send(type="response.create", **RESPONSE | {"ignore_eos": True})
    running_id = (await socket.event())["response"]["id"]
    await socket.send(type="response.stats", response_id=running_id)
    await socket.send(type="response.cancel", response_id=running_id)
    await eventually(lambda: running_id.removeprefix("resp_") in server.engine.aborted)
    server.gate.open()
    await socket.until("response.incomplete")


def turn(request: str, **body: Any) -> dict[str, Any]:
    message = {"id": "m", "role": "user", "parts": [{"type": "text", "text": "hello"}]}
    body = {"max_tokens": 20, "seed": 1} | body
    head = {"type": "send", "requestId": request, "id": "chat", "trigger": "submit-message"}
    return {**head, "messages": [message], "headers": {}, "body": body}


async def ui_chat(server: RunningServer, socket: CheckedSocket) -> None:
    await socket.send(type="resume", requestId="early", id="chat")
    await socket.until("no-active")
    await socket.send(**turn("one"))
    await socket.until("end")
    await socket.send(type="resume", requestId="two", id="chat", lastSequence=2)
    await socket.until("end")
    await socket.send_wrong(**turn("three", temperature=9))
    await socket.until("error")
    server.gate.close()
    await socket.send(**turn("four", ignore_eos=True))
    begun = (await socket.until("chunk"))[-1]["chunk"]
    await socket.send(type="abort", requestId="four")
    await eventually(lambda: begun["messageId"].removeprefix("msg_") in server.engine.aborted)
    server.gate.open()
    await socket.until("end")
