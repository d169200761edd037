"""A reader that falls behind gets bigger frames and nothing else; one that stands still is cut."""

from __future__ import annotations

import asyncio
import socket as sockets
from contextlib import AsyncExitStack
from typing import Any

import orjson
import pytest
from websockets.exceptions import ConnectionClosedError

from app import server as server_module
from app import transport
from engine.request import FinishReason
from tests.app.harness import MODEL, RunningServer, eventually, running, said, text_of

TOKENS = 1500
"""Enough frames, one per token, to fill every buffer between the server and a client that reads nothing."""


@pytest.fixture(autouse=True)
def _small_buffers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the server, so that few tokens fill them."""
    monkeypatch.setattr(server_module, "SEND_BUFFER", 4096)
    monkeypatch.setattr(transport, "MAX_UNSENT", 8192)


def small_window(server: RunningServer) -> sockets.socket:
    """A connected socket that takes little into its own buffers."""
    connection = sockets.socket()
    connection.setsockopt(sockets.SOL_SOCKET, sockets.SO_RCVBUF, 8192)
    connection.connect(("127.0.0.1", server.port))
    connection.setblocking(False)
    return connection


def counting(server: RunningServer) -> str:
    """A cheap model whose text depends on the position only; returns what it says to "hello"."""
    server.runner.script = lambda context: 1 + len(context) % 60
    first = len("user:hello;")
    letters = "abcdefghijklmnopqrstuvwxyz ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789,.:;"
    return "".join(letters[(first + i) % 60] for i in range(TOKENS))


async def test_a_lone_slow_reader_gets_fewer_and_bigger_frames_and_loses_nothing() -> None:
    async with running(num_blocks=800) as server, server.socket(sock=small_window(server)) as socket:
        whole = counting(server)
        socket.connection.transport.pause_reading()
        await socket.create("hello", max_output_tokens=TOKENS)
        await eventually(lambda: server.engine.ended)
        # All has been said, the memory of the engine is free, and the reader has read nothing yet.
        assert server.is_idle
        socket.connection.transport.resume_reading()
        events = await socket.until("response.incomplete")
    deltas = [e["delta"] for e in events if e["type"] == "response.output_text.delta"]
    assert "".join(deltas) == whole
    assert [e["sequence_number"] for e in events] == list(range(len(events)))
    assert len(deltas) < TOKENS * 3 / 4
    assert max(map(len, deltas)) > 100
    assert events[-1]["response"]["output"][0]["content"][0]["text"] == whole


async def test_a_slow_reader_does_not_slow_others() -> None:
    async with running(num_blocks=800) as server, server.socket(sock=small_window(server)) as slow:
        slow.connection.transport.pause_reading()
        counting(server)
        await slow.create("hello", max_output_tokens=TOKENS)
        await eventually(lambda: server.engine.ended)
        server.runner.script = None
        async with server.socket() as other:
            assert text_of(await other.answer("me too", max_output_tokens=50)) == said("me too", 50)
        slow.connection.transport.resume_reading()
        await slow.until("response.incomplete")


async def test_a_fast_lane_is_not_starved_by_a_long_one() -> None:
    async with running(num_blocks=800) as server, server.socket() as socket:
        server.gate.close()
        counting(server)
        await socket.create("hello", stream_id="long", max_output_tokens=1000)
        await socket.create("hello", stream_id="short", max_output_tokens=5)
        server.gate.open()
        kinds: list[tuple[str, str]] = []
        while not kinds or kinds[-1] != ("short", "response.incomplete"):
            event = await socket.event()
            kinds.append((event["stream_id"], event["type"]))
        # Turn about: while the short one had something to say, the long one had at most as many frames,
        # plus those of the ticks that the short one's last events took to be written.
        assert len(kinds) < 100
        await socket.until("response.incomplete")


async def test_a_socket_that_takes_nothing_is_cut_and_its_answers_end() -> None:
    async with (
        running(num_blocks=2000, send_timeout_s=0.2) as server,
        server.socket(sock=small_window(server)) as socket,
    ):
        counting(server)
        socket.connection.transport.pause_reading()
        for lane in "ab":
            await socket.create("hello", stream_id=lane, max_output_tokens=15_000)
        await eventually(lambda: len(server.engine.ended) == 2)
        await eventually(lambda: not server.server.server_state.connections)
        socket.connection.transport.resume_reading()
        with pytest.raises(ConnectionClosedError):
            await socket.until("response.incomplete")
    assert {end.reason for _, end in server.engine.ended.values()} == {FinishReason.ABORT}


async def test_a_stream_that_takes_nothing_is_cut_too() -> None:
    async with running(num_blocks=2000, send_timeout_s=0.2) as server:
        counting(server)
        reader, writer = await asyncio.open_connection(sock=small_window(server))
        reader._transport.pause_reading()  # type: ignore[attr-defined]
        fields: dict[str, Any] = {"model": MODEL, "stream": True, "max_tokens": 30_000}
        body = orjson.dumps(fields | {"messages": [{"role": "user", "content": "hello"}]})
        head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body)
        await eventually(lambda: server.engine.ended)
        await eventually(lambda: not server.server.server_state.connections)
        writer.transport.abort()
    ((_, end),) = server.engine.ended.values()
    assert end.reason is FinishReason.ABORT


async def test_what_a_socket_is_owed_stays_bounded_over_all_lanes() -> None:
    async with running(num_blocks=2000) as server, server.socket(sock=small_window(server)) as socket:
        whole = counting(server)
        socket.connection.transport.pause_reading()
        lanes = [f"lane-{each}" for each in range(16)]
        for lane in lanes:
            await socket.create("hello", stream_id=lane, max_output_tokens=TOKENS)
        await eventually(lambda: len(server.engine.ended) == len(lanes))
        (connection,) = server.server.server_state.connections
        # One round at most beyond the limit, and a round ends with the frame that exceeds it.
        largest = 10_000
        assert connection.is_full
        assert connection.num_unsent < 2 * transport.MAX_UNSENT + largest
        socket.connection.transport.resume_reading()
        texts = dict.fromkeys(lanes, "")
        ended = 0
        while ended < len(lanes):
            event = await socket.event()
            ended += event["type"] == "response.incomplete"
            if event["type"] == "response.output_text.delta":
                texts[event["stream_id"]] += event["delta"]
    assert texts == dict.fromkeys(lanes, whole)


async def test_one_dead_reader_among_many_is_cut_and_the_others_lose_nothing() -> None:
    count = 40
    async with (
        running(num_blocks=2000, max_num_seqs=64, send_timeout_s=0.2) as server,
        server.socket(sock=small_window(server)) as dead,
        AsyncExitStack() as stack,
    ):
        dead.connection.transport.pause_reading()
        others = [await stack.enter_async_context(server.socket()) for _ in range(count)]
        server.gate.close()
        await dead.create("I am dead", max_output_tokens=20_000)
        for number, each in enumerate(others):
            await each.create(f"I am number {number}", max_output_tokens=40)
        await eventually(lambda: server.holds(count + 1))
        server.gate.open()
        for number, each in enumerate(others):
            assert text_of(await each.until("response.incomplete")) == said(f"I am number {number}", 40)
        # It could have gone on for long, had it not been cut.
        await eventually(lambda: len(server.engine.ended) == count + 1)
        assert server.is_idle
        await eventually(lambda: len(server.server.server_state.connections) == count)
        metrics = server.service.bridge._metrics.exposition().decode()
        dead.connection.transport.abort()
    assert 'tickwire:readers_cut_total{connection="websocket"} 1.0' in metrics
    assert [end.reason for _, end in server.engine.ended.values()].count(FinishReason.ABORT) == 1
