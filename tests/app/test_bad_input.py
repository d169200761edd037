"""Bad input fails alone: a clear error, the connection stays where that is safe, nobody else notices."""

from __future__ import annotations

import asyncio
import socket as sockets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import orjson
import pytest
from websockets.asyncio.client import ClientConnection
from websockets.exceptions import ConnectionClosedError, InvalidStatus
from websockets.frames import Close

from tests.app.harness import MODEL, PATIENCE, RunningServer, Socket, running, said, text_of

BYSTANDER_TOKENS = 600


@asynccontextmanager
async def bystander(server: RunningServer) -> AsyncIterator[None]:
    """Another session, in the middle of an answer all the time, that must not notice anything."""
    async with server.socket() as socket:
        server.gate.close()
        await socket.create("I only listen", max_output_tokens=BYSTANDER_TOKENS)
        server.gate.step(5)
        events = await socket.until("response.output_text.delta")
        yield
        server.gate.open()
        events += await socket.until("response.completed", "response.incomplete", "response.failed", "error")
    assert events[-1]["type"] == "response.incomplete"
    assert [e["sequence_number"] for e in events] == list(range(len(events)))
    assert text_of(events) == said("I only listen", BYSTANDER_TOKENS)


def message(**fields: Any) -> str:
    return orjson.dumps({"type": "response.create", "model": MODEL, "input": "x"} | fields).decode()


FRAMES: list[tuple[str, str | bytes, int, str | None, str]] = [
    ("malformed JSON", '{"type": "response.create"', 400, None, "invalid_json"),
    ("no object", "[1]", 400, None, "invalid_type"),
    ("empty", "", 400, None, "invalid_json"),
    ("deep", "[" * 3000, 400, None, "invalid_json"),
    ("lone surrogate", r'{"type": "response.create", "input": "\ud83d"}', 400, None, "invalid_json"),
    ("NaN", '{"type": "response.create", "input": "x", "top_p": NaN}', 400, None, "invalid_json"),
    ("binary", b'{"type": "response.create", "input": "x"}', 400, None, "invalid_type"),
    ("no type", "{}", 400, "type", "missing_required_parameter"),
    ("unknown type", '{"type": "response.wish"}', 400, "type", "unknown_message_type"),
    ("unknown field", message(colour="red"), 400, "colour", "unknown_parameter"),
    ("wrong type", message(temperature="hot"), 400, "temperature", "invalid_type"),
    ("out of range", message(top_p=1.1), 400, "top_p", "out_of_range"),
    ("no tokens", message(max_output_tokens=0), 400, "max_output_tokens", "out_of_range"),
    ("empty text", message(input=""), 400, "input", "empty_value"),
    ("no messages", message(input=[]), 400, "input", "empty_value"),
    (
        "empty message",
        message(input=[{"role": "user", "content": ""}]),
        400,
        "input.0.content",
        "empty_value",
    ),
    ("bad role", message(input=[{"role": "x", "content": "y"}]), 400, "input.0.role", "invalid_value"),
    ("bad lane", message(stream_id="a b"), 400, "stream_id", "invalid_stream_id"),
    ("unknown model", message(model="gpt-9"), 404, "model", "model_not_found"),
    ("too long", message(input="long " * 4000), 400, "input", "context_length_exceeded"),
    ("asks for too much", message(max_output_tokens=10**6), 400, "input", "context_length_exceeded"),
    ("refused by the template", message(input="please refuse me"), 400, "input", "invalid_value"),
    (
        "unknown parent",
        message(previous_response_id="resp_0"),
        400,
        "previous_response_id",
        "previous_response_not_found",
    ),
    ("not supported", message(tools=[1]), 400, "tools", "unsupported_value"),
]


async def test_bad_frames_are_answered_with_errors_and_the_socket_stays_open() -> None:
    async with (
        running(num_blocks=800, max_model_len=8000) as server,
        bystander(server),
        server.socket() as socket,
    ):
        for name, frame, status, param, code in FRAMES:
            await socket.connection.send(frame)
            event = await socket.event()
            assert event["type"] == "error", name
            got = (event["status"], event["error"]["param"], event["error"]["code"])
            assert got == (status, param, code), name
            assert event["error"]["type"] == "invalid_request_error"
            assert event["error"]["message"]
        server.gate.open()
        assert text_of(await socket.answer("all is well")) == said("all is well", 8)


async def test_an_over_long_prompt_is_refused_with_both_counts() -> None:
    async with running(num_blocks=8) as server, server.socket() as socket, server.http() as http:
        (event,) = await socket.answer("x" * 200)
        body = {"model": MODEL, "messages": [{"role": "user", "content": "x" * 200}]}
        response = await http.post("/v1/chat/completions", json=body)
        assert server.stats().num_ticks == 0
    for message in (event["error"]["message"], response.json()["error"]["message"]):
        assert str(200 + len("user:;")) in message
        assert "128" in message
    assert response.json()["error"]["param"] == "messages"


def body(**fields: Any) -> bytes:
    return orjson.dumps({"model": MODEL, "messages": [{"role": "user", "content": "x"}]} | fields)


LONG = [{"role": "user", "content": "long " * 4000}]
RUDE = [{"role": "user", "content": "refuse me"}]
EMPTY = [{"role": "user", "content": ""}]

BODIES: list[tuple[str, bytes, int, str | None, str]] = [
    ("malformed JSON", b'{"model": ', 400, None, "invalid_json"),
    ("nothing", b"", 400, None, "invalid_json"),
    ("not UTF-8", "{'a': 'ä'}".encode("latin-1"), 400, None, "invalid_json"),
    ("UTF-16", body().decode().encode("utf-16"), 400, None, "invalid_json"),
    ("lone surrogate", rb'{"messages": [{"role": "user", "content": "\udc00"}]}', 400, None, "invalid_json"),
    ("no object", b"[]", 400, None, "invalid_type"),
    ("no messages", body(messages=[]), 400, "messages", "empty_value"),
    ("messages missing", b"{}", 400, "messages", "missing_required_parameter"),
    ("empty message", body(messages=EMPTY), 400, "messages.0.content", "empty_value"),
    ("unknown field", body(colour="red"), 400, "colour", "unknown_parameter"),
    ("wrong type", body(temperature="hot"), 400, "temperature", "invalid_type"),
    ("out of range", body(temperature=2.01), 400, "temperature", "out_of_range"),
    ("unknown model", body(model="gpt-9"), 404, "model", "model_not_found"),
    ("too long", body(messages=LONG), 400, "messages", "context_length_exceeded"),
    ("refused by the template", body(messages=RUDE), 400, "messages", "invalid_value"),
    ("too many", body(n=129), 400, "n", "out_of_range"),
    ("not supported", body(store=True), 400, "store", "unsupported_value"),
    ("over the limit", b'{"model": "' + b"x" * 30_000 + b'"}', 413, None, "request_too_large"),
]


@pytest.mark.parametrize("stream", [False, True])
async def test_bad_bodies_are_answered_with_the_error_object(stream: bool) -> None:
    async with (
        running(num_blocks=800, max_model_len=8000, max_message_bytes=25_000) as server,
        bystander(server),
        server.http() as http,
    ):
        for name, content, status, param, code in BODIES:
            if stream and content.endswith(b"}") and b'"messages":' in content:
                content = content[:-1] + b',"stream":true}'
            response = await http.post("/v1/chat/completions", content=content)
            assert response.headers["content-type"] == "application/json", name
            error = response.json()["error"]
            assert (response.status_code, error["param"], error["code"]) == (status, param, code), name
            assert error["message"]
            assert response.headers["x-should-retry"] == "false"


async def test_a_body_without_a_length_is_limited_too() -> None:
    async def endless() -> AsyncIterator[bytes]:
        for _ in range(1000):
            yield b"x" * 1024

    async with running(max_message_bytes=4096) as server, server.http() as http:
        response = await http.post("/v1/chat/completions", content=endless())
        assert response.status_code == 413
        assert "4096" in response.json()["error"]["message"]


@pytest.mark.parametrize("size", [4097, 3_000_000])
async def test_a_frame_over_the_limit_closes_with_1009_and_the_limit(size: int) -> None:
    async with running(max_message_bytes=4096) as server, bystander(server), server.socket() as socket:
        await socket.connection.send("x" * 4096)
        assert (await socket.event())["error"]["code"] == "invalid_json"
        close = await closed_by(socket, "x" * size)
        assert close.code == 1009
        assert "4096" in close.reason


def shout_then_listen(port: int, size: int) -> bytes:
    """A client that writes one huge frame before it reads anything; returns all that it then reads."""
    with sockets.create_connection(("127.0.0.1", port), timeout=PATIENCE) as connection:
        connection.sendall(
            b"GET /v1/responses HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
            b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
        )
        head = connection.recv(4096)
        connection.sendall(b"\x81\xff" + size.to_bytes(8, "big") + bytes(4) + b"x" * size)
        read = []
        while data := connection.recv(4096):
            read.append(data)
    return head + b"".join(read)


async def test_the_close_is_seen_by_a_client_that_was_still_sending() -> None:
    async with running(max_message_bytes=4096) as server:
        read = await asyncio.to_thread(shout_then_listen, server.port, 10_000_000)
    close = read.partition(b"\r\n\r\n")[2]
    assert close[0] == 0x88
    assert int.from_bytes(close[2:4], "big") == 1009
    assert b"4096" in close


async def test_fragments_over_the_limit_close_with_1009_too() -> None:
    async with running(max_message_bytes=4096) as server, server.socket() as socket:

        async def fragments() -> AsyncIterator[str]:
            for _ in range(1000):
                yield "x" * 100

        assert (await closed_by(socket, fragments())).code == 1009


async def test_broken_utf8_in_a_text_frame_closes_with_1007() -> None:
    async with running() as server, bystander(server), server.socket() as socket:
        assert (await closed_by(socket, b'{"input": "\xed\xa0\xbd"}', text=True)).code == 1007


async def test_a_flood_of_errors_that_nobody_reads_ends_the_connection() -> None:
    async with running() as server, bystander(server), server.socket() as socket:
        deaf(socket.connection)

        async def shout() -> None:
            while True:
                await socket.connection.send("{" + "x" * 1000)

        with pytest.raises(ConnectionClosedError):
            await asyncio.wait_for(shout(), PATIENCE)


async def closed_by(socket: Socket, message: Any, **options: Any) -> Close:
    """The close frame that the server answers `message` with."""

    async def say() -> None:
        await socket.connection.send(message, **options)
        await socket.event()

    with pytest.raises(ConnectionClosedError) as caught:
        await say()
    assert caught.value.rcvd is not None
    return caught.value.rcvd


def deaf(connection: ClientConnection) -> None:
    """From now on the client takes nothing from the network."""
    connection.transport.pause_reading()


async def test_a_page_of_another_site_is_refused_and_an_allowed_one_is_not() -> None:
    async with running(allowed_origins=("https://chat.example.org",)) as server, server.http() as http:
        own = server.url
        for origin, allowed in (
            (own, True),
            ("https://chat.example.org", True),
            ("https://evil.example", False),
            ("https://chat.example.org.evil.example", False),
            ("null", False),
            (own.replace("127.0.0.1", "127.0.0.1.evil.example"), False),
        ):
            headers = {"origin": origin}
            response = await http.post("/v1/chat/completions", content=body(max_tokens=1), headers=headers)
            assert response.status_code == (200 if allowed else 403), origin
            if allowed:
                async with server.socket(additional_headers=headers) as socket:
                    assert len(await socket.answer("x")) > 1
                continue
            assert response.json()["error"]["code"] == "origin_not_allowed"
            with pytest.raises(InvalidStatus) as refused:
                async with server.socket(additional_headers=headers):
                    pass
            assert refused.value.response.status_code == 403
            assert orjson.loads(refused.value.response.body)["error"]["code"] == "origin_not_allowed"


async def test_headers_that_are_too_large_are_refused_and_nothing_of_them_comes_back() -> None:
    async with running() as server, bystander(server):
        for headers in ({"x-request-id": "x" * 1_000_000}, {f"x-{i}": "y" * 100 for i in range(10_000)}):
            async with server.http() as http:
                response = await http.post(
                    "/v1/chat/completions", content=body(max_tokens=1), headers=headers
                )
            assert response.status_code in (200, 400, 431)
            assert sum(len(name) + len(value) for name, value in response.headers.items()) < 2000


async def test_unknown_paths_and_methods_get_the_error_object() -> None:
    async with running() as server, server.http() as http:
        missing = await http.get("/v1/nothing")
        wrong = await http.get("/v1/chat/completions")
    assert (missing.status_code, missing.json()["error"]["code"]) == (404, "not_found")
    assert (wrong.status_code, wrong.json()["error"]["code"]) == (405, "method_not_allowed")
    assert wrong.headers["allow"] == "POST"


async def test_a_fault_of_ours_fails_that_request_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running() as server, bystander(server), server.http() as http, server.socket() as socket:

        def broken(*arguments: object) -> None:
            raise KeyError("secret detail")

        with monkeypatch.context() as patch:
            patch.setattr(server.service.bridge, "start", broken)
            response = await http.post("/v1/chat/completions", content=body())
            (event,) = await socket.answer("x")
        for status, error in (
            (response.status_code, response.json()["error"]),
            (event["status"], event["error"]),
        ):
            assert (status, error["code"], error["type"]) == (500, "server_error", "server_error")
            assert "secret" not in error["message"]
        server.gate.open()
        assert text_of(await Socket(socket.connection).answer("x")) == said("x", 8)
