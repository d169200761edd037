"""Clients that do not send what they began, or send too much of it, are dropped, and told why if they can be;
who is served or waits for an answer is left alone."""

from __future__ import annotations

import asyncio
import socket as sockets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import orjson
import pytest

from app import transport
from app.server import listen
from app.transport import MAX_HEAD_BYTES, MAX_HEADERS, SocketConnection
from tests.app.harness import MODEL, PATIENCE, RunningServer, eventually, running, said, text_of
from tests.fuzz.wire import HANDSHAKE, PONG, TEXT, close, frame, raw_socket

SOON = 0.05
"""The handshake timeout, seconds."""
HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\n"
UPGRADE = HANDSHAKE.format(path="/v1/responses").encode()


class Http:
    """A connection on which anything may be said."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def rest(self) -> bytes:
        """All that comes until the server closes."""
        async with asyncio.timeout(PATIENCE):
            try:
                return await self.reader.read()
            except ConnectionResetError:
                return b""

    async def answer(self) -> tuple[int, bytes]:
        """Status and body of one answer, which has a content-length."""
        async with asyncio.timeout(PATIENCE):
            head = (await self.reader.readuntil(b"\r\n\r\n")).decode().lower()
            length = head.split("content-length: ")[1].split("\r\n")[0]
            return int(head.split()[1]), await self.reader.readexactly(int(length))

    async def dribble(self, data: bytes) -> bytes:
        """Sends it byte by byte until the server closes, or all has been sent; what came meanwhile."""
        rest = asyncio.ensure_future(self.rest())
        for byte in data:
            self.writer.write(bytes((byte,)))
            if (await asyncio.wait({rest}, timeout=SOON / 20))[0]:
                break
        return await rest


@asynccontextmanager
async def connected(server: RunningServer) -> AsyncIterator[Http]:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    try:
        yield Http(reader, writer)
    finally:
        writer.transport.abort()


def request(fields: dict[str, Any]) -> bytes:
    messages = [{"role": "user", "content": "hello"}]
    body = orjson.dumps({"model": MODEL, "messages": messages, "temperature": 0, "max_tokens": 8} | fields)
    return HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body


def error_code(answer: bytes, status: int) -> str:
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 %d " % status), answer
    code: str = orjson.loads(body)["error"]["code"]
    return code


async def another_is_dropped(server: RunningServer) -> None:
    """The timeout has passed for someone who came later."""
    async with connected(server) as silent:
        assert await silent.rest() == b""


# -- what does not come ----------------------------------------------------------------------------------


@pytest.mark.parametrize("begun", [b"", b"\r\n", b"\r\n\r\n\r\n"])
async def test_a_connection_on_which_nothing_begins_is_dropped(begun: bytes) -> None:
    async with running(handshake_timeout_s=SOON) as server, connected(server) as http:
        http.writer.write(begun)
        assert await http.rest() == b""


@pytest.mark.parametrize("begun", [b"G", b"GET /v1/mod", HEAD, HEAD + b"X-Thing: unfinish", UPGRADE[:-2]])
async def test_a_head_that_does_not_come_is_told_so(begun: bytes) -> None:
    async with running(handshake_timeout_s=SOON) as server, connected(server) as http:
        http.writer.write(begun)
        assert error_code(await http.rest(), 408) == "request_timeout"
        await eventually(lambda: server.app.state.wire.refused[408] == 1)


async def test_a_head_that_dribbles_in_is_not_waited_for() -> None:
    async with running(handshake_timeout_s=SOON) as server, connected(server) as http:
        assert error_code(await http.dribble(HEAD + b"X-Thing: " + b"x" * 100_000), 408) == "request_timeout"
    async with running(handshake_timeout_s=SOON) as server, connected(server) as http:
        assert await http.dribble(b"\r\n" * 50_000) == b""


async def test_a_body_that_does_not_come_is_told_so() -> None:
    whole = request({})
    async with running(handshake_timeout_s=SOON) as server:
        for begun in (whole[:-1], HEAD + b"Transfer-Encoding: chunked\r\n\r\n5\r\nab"):
            async with connected(server) as http:
                http.writer.write(begun)
                assert error_code(await http.rest(), 408) == "request_timeout"
                # Whoever waited for it is told before the connection is gone.
                await eventually(lambda: not server.server.server_state.tasks)
                assert server.server.server_state.connections


async def test_a_body_that_dribbles_in_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "BODY_BYTES_PER_S", 100_000)
    async with running(handshake_timeout_s=SOON) as server, connected(server) as http:
        http.writer.write(HEAD + b"Content-Length: 100000\r\n\r\n")
        assert error_code(await http.dribble(b" " * 100_000), 408) == "request_timeout"


async def test_a_body_has_more_time_the_more_of_it_has_come(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "BODY_BYTES_PER_S", 1)
    whole = request({})
    async with running() as server, connected(server) as http:
        http.writer.write(whole[:-10])
        await eventually(lambda: server.server.server_state.connections)
        (connection,) = server.server.server_state.connections
        await eventually(lambda: connection._num_body)
        # As if it had come by and by, for as long as such a rate allows.
        connection._body_began -= connection._num_body + 5
        connection._look()
        http.writer.write(whole[-10:])
        assert (await http.answer())[0] == 200
        http.writer.write(whole[:-10])
        await eventually(lambda: connection._num_body and connection._timer)
        connection._body_began -= connection._num_body + 15
        connection._look()
        assert error_code(await http.rest(), 408) == "request_timeout"


async def test_the_time_for_a_head_is_not_that_for_an_answer_or_between_requests() -> None:
    async with (
        running(handshake_timeout_s=SOON) as server,
        connected(server) as http,
        server.socket() as socket,
    ):
        server.gate.close()
        http.writer.write(request({}))
        await socket.create("hello")
        await eventually(lambda: server.holds(2))
        await another_is_dropped(server)
        server.gate.open()
        assert (await http.answer())[0] == 200
        assert text_of(await socket.until("response.incomplete")) == said("hello", 8)
        await another_is_dropped(server)
        http.writer.write(request({}))
        assert (await http.answer())[0] == 200
        # A second request that is not finished is not waited for, either.
        http.writer.write(HEAD)
        assert error_code(await http.rest(), 408) == "request_timeout"
        assert text_of(await socket.answer("hello")) == said("hello", 8)


async def test_who_was_refused_and_goes_on_sending_does_not_stay() -> None:
    async with running(handshake_timeout_s=SOON, max_message_bytes=1024) as server, connected(server) as http:
        http.writer.write(HEAD + b"Content-Length: 100000\r\n\r\n")
        assert (await http.answer())[0] == 413
        await http.dribble(b"x" * 2000)


# -- too much --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "head",
    [
        HEAD + b"X-Request-Id: " + b"x" * 1_000_000,
        HEAD + b"X-Request-Id: " + b"x" * 1_000_000 + b"\r\n\r\n",
        HEAD + b"".join(b"X-%d: 1\r\n" % each for each in range(10_000)) + b"\r\n",
        HEAD + b"".join(b"X-%d: 1\r\n" % each for each in range(MAX_HEADERS)) + b"\r\n",
        HEAD + b"x" * 100_000,
        b"GET /" + b"x" * MAX_HEAD_BYTES + b" HTTP/1.1\r\nHost: x\r\n\r\n",
        UPGRADE[:-2] + b"X-Thing: " + b"x" * (MAX_HEAD_BYTES - 1000) + b"\r\n\r\n",
        UPGRADE[:-2] + b"X: 1\r\n" * MAX_HEADERS + b"\r\n",
    ],
    ids=["endless", "large", "many", "one too many", "endless name", "path", "handshake", "handshake, many"],
)
async def test_a_head_that_is_too_large_is_refused_shortly(head: bytes) -> None:
    async with running() as server, connected(server) as http:
        http.writer.write(head)
        answer = await http.rest()
        assert answer.startswith(b"HTTP/1.1 431 ")
        assert len(answer) < 1000
        http.writer.close()
        await eventually(lambda: not server.server.server_state.connections)


async def test_trailers_and_chunks_without_end_are_refused() -> None:
    chunked = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
    async with running() as server:
        for rest in (b"0\r\nX-Thing: ", b"1;"):
            async with connected(server) as http:
                http.writer.write(chunked + rest)
                http.writer.write(b"x" * 200_000)
                assert (await http.rest()).startswith((b"HTTP/1.1 400 ", b"HTTP/1.1 431 "))
        await eventually(lambda: not server.server.server_state.tasks)


async def test_requests_that_wait_for_others_answers_are_few() -> None:
    ask = b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n"
    async with running() as server:
        async with connected(server) as http:
            http.writer.write(ask * transport.MAX_PIPELINED)
            for _ in range(transport.MAX_PIPELINED):
                assert (await http.answer())[0] == 200
        async with connected(server) as http:
            http.writer.write(ask * 1000)
            assert (await http.rest()).count(b"HTTP/1.1 200") <= transport.MAX_PIPELINED


async def test_a_head_just_small_enough_is_read() -> None:
    async with running() as server, connected(server) as http:
        more = b"".join(b"X-%d: 1\r\n" % each for each in range(MAX_HEADERS - 2))
        http.writer.write(request({}).replace(b"Host: x\r\n", b"Host: x\r\n" + more))
        assert (await http.answer())[0] == 200


# -- what the system is asked for ------------------------------------------------------------------------


def test_connections_keep_little_unsent_and_not_for_long() -> None:
    with listen("127.0.0.1", 0, 1.5) as listening, sockets.create_connection(listening.getsockname()) as _:
        accepted, _ = listening.accept()
        with accepted:
            sndbuf = accepted.getsockopt(sockets.SOL_SOCKET, sockets.SO_SNDBUF)
            assert sndbuf <= 2 * 128 * 1024
            assert accepted.getsockopt(sockets.IPPROTO_TCP, sockets.TCP_NODELAY)
            if hasattr(sockets, "TCP_USER_TIMEOUT"):
                assert accepted.getsockopt(sockets.IPPROTO_TCP, sockets.TCP_USER_TIMEOUT) == 3000


# -- sockets ---------------------------------------------------------------------------------------------


async def test_a_peer_that_shows_no_sign_of_life_is_closed_on() -> None:
    async with running() as server:
        config = server.server.config
        assert config.ws_ping_interval + config.ws_ping_timeout <= 40
        config.ws_ping_interval = config.ws_ping_timeout = SOON
        async with raw_socket(server.port, "/v1/responses") as dead, server.socket() as alive:
            assert await dead.closed_with() == (1011, "keepalive ping timeout")
            assert text_of(await alive.answer("hello")) == said("hello", 8)
        await eventually(lambda: server.app.state.wire.closes[1011])


async def test_a_client_with_thousands_of_frames_lets_the_others_have_their_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    read_on, turns = SocketConnection._read_on, []

    def counted(self: SocketConnection) -> None:
        read_on(self)
        turns.append(self._num_read)

    monkeypatch.setattr(SocketConnection, "_read_on", counted)
    async with running() as server, raw_socket(server.port, "/v1/responses") as socket:
        socket.send(frame(PONG) * 20_000)
        assert await socket.is_alive()
    # A piece more may have been begun.
    assert max(turns) < transport.FRAMES_AT_ONCE + transport.PIECE
    assert sum(turns) > 19_000


async def test_a_connection_that_is_being_closed_does_not_stop_the_server_s_end() -> None:
    """Its last bytes are not taken, so it stays until it is dropped."""
    async with running(num_blocks=2000) as server:
        server.runner.script = lambda context: 1 + len(context) % 60
        connection = sockets.socket()
        connection.setsockopt(sockets.SOL_SOCKET, sockets.SO_RCVBUF, 4096)
        connection.connect(("127.0.0.1", server.port))
        reader, writer = await asyncio.open_connection(sock=connection)
        writer.write(UPGRADE)
        assert await reader.readuntil(b"\r\n\r\n")
        writer.transport.pause_reading()
        ask = {"type": "response.create", "input": "hello", "max_output_tokens": 3000}
        writer.write(b"".join(frame(TEXT, orjson.dumps(ask | {"stream_id": lane})) for lane in "abcd"))
        (ours,) = server.server.server_state.connections
        await eventually(lambda: ours.is_full)
        writer.write(close(1000))
        await eventually(lambda: not ours.is_open)
    writer.transport.abort()


async def test_closes_from_both_ends_at_once_are_no_fault(caplog: pytest.LogCaptureFixture) -> None:
    async with running() as server:
        for _ in range(20):
            async with raw_socket(server.port, "/api/chat") as socket:
                # No request: the server closes, and so does the client, in three ways.
                socket.send(frame(TEXT, b"{}"), close(1000))
                assert (await socket.closed_with())[0] in (1000, 1008)
            async with raw_socket(server.port, "/api/chat") as socket:
                socket.send(frame(TEXT, b"{}"))
                socket.writer.write_eof()
                async with asyncio.timeout(PATIENCE):
                    await socket.reader.read()
            async with raw_socket(server.port, "/v1/responses") as socket:
                socket.send(frame(TEXT, b'{"type": "response.create", "input": "hello"}'))
        async with raw_socket(server.port, "/v1/responses") as socket:
            server.server.stop()
            socket.send(close(1000))
            assert (await socket.closed_with())[0] in (1000, 1012)
    assert [record for record in caplog.records if record.exc_info or record.levelname == "ERROR"] == []


async def test_what_goes_out_and_how_it_ends_is_counted() -> None:
    async with running() as server:
        async with server.socket() as socket:
            events = await socket.answer("hello")
        async with raw_socket(server.port, "/v1/responses") as raw:
            raw.send(close(4999))
            await raw.closed_with()
        async with raw_socket(server.port, "/v1/responses") as raw:
            raw.send(frame(3))
            await raw.closed_with()
        async with raw_socket(server.port, "/v1/responses"):
            pass
        await eventually(lambda: not server.server.server_state.connections)
        page = server.service.bridge._metrics.exposition().decode()
    counts = dict(line.rsplit(" ", 1) for line in page.splitlines() if line.startswith("tickwire:"))
    assert float(counts["tickwire:websocket_frames_sent_total"]) == len(events)
    size = sum(len(orjson.dumps(event)) for event in events)
    assert size < float(counts["tickwire:websocket_bytes_sent_total"]) <= size + 4 * len(events)
    assert float(counts["tickwire:websocket_connections_total"]) == 4
    assert float(counts["tickwire:websocket_connection_duration_seconds_count"]) == 4
    closes = {
        name.split('"')[1]: float(count)
        for name, count in counts.items()
        if name.startswith("tickwire:websocket_closes_total{") and float(count)
    }
    assert closes == {"1000": 1, "other": 1, "1002": 1, "1006": 1}
