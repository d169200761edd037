"""A client that is gone is aborted within one tick, in every state, and leaves nothing behind."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import orjson
import pytest
from websockets.asyncio.client import connect

from engine.request import FinishReason
from tests.app.harness import MODEL, PATIENCE, RunningServer, eventually, running, said, text_of

Leave = Callable[[], None]
LONG = "long " * 200


async def open_socket(server: RunningServer, text: str) -> Leave:
    connection = await connect(f"ws://127.0.0.1:{server.port}/v1/responses", compression=None)
    message = {"type": "response.create", "input": text, "max_output_tokens": 500}
    await connection.send(orjson.dumps(message).decode())
    return connection.transport.abort


async def open_http(server: RunningServer, text: str, **fields: Any) -> Leave:
    _, writer = await asyncio.open_connection("127.0.0.1", server.port)
    body = orjson.dumps(
        {"model": MODEL, "max_tokens": 500, "messages": [{"role": "user", "content": text}]} | fields
    )
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)
    server.kept.append(writer)
    return writer.transport.abort


async def open_stream(server: RunningServer, text: str) -> Leave:
    return await open_http(server, text, stream=True)


@asynccontextmanager
async def held_server(**options: Any) -> AsyncIterator[RunningServer]:
    async with running(prefill_chunk=64, **options) as server:
        server.gate.close()
        yield server


async def queued(server: RunningServer, client: Callable[..., Awaitable[Leave]]) -> tuple[str, Leave]:
    """Behind another request, in a server that runs one at a time."""
    await open_stream(server, "first")
    await eventually(lambda: server.stats().num_running == 1)
    leave = await client(server, "second")
    await eventually(lambda: server.holds(2))
    return list(server.service.bridge._open)[1][0], leave


async def prefilling(server: RunningServer, client: Callable[..., Awaitable[Leave]]) -> tuple[str, Leave]:
    leave = await client(server, LONG)
    server.gate.step(3)
    await eventually(lambda: server.stats().num_ticks == 4)
    ((key, stream),) = server.service.bridge._open.items()
    assert stream.num_tokens == 0
    return key[0], leave


async def decoding(server: RunningServer, client: Callable[..., Awaitable[Leave]]) -> tuple[str, Leave]:
    leave = await client(server, "short")
    server.gate.step(5)
    await eventually(lambda: server.stats().num_ticks == 6)
    ((key, stream),) = server.service.bridge._open.items()
    await eventually(lambda: stream.num_tokens == 5)
    return key[0], leave


@pytest.mark.parametrize("client", [open_socket, open_http, open_stream])
@pytest.mark.parametrize("state", [queued, prefilling, decoding])
async def test_a_client_that_vanishes_is_aborted_within_a_tick(state: Any, client: Any) -> None:
    async with held_server(max_num_seqs=1) as server:
        request_id, leave = await state(server, client)
        leave()
        # The engine is held in the middle of a tick all the while; the abort reaches it in that tick.
        await eventually(lambda: request_id in server.engine.aborted)
        server.gate.step(1)
        await eventually(lambda: request_id in server.engine.ended)
        tick, end = server.engine.ended[request_id]
        assert end.reason is FinishReason.ABORT
        assert tick - server.engine.aborted[request_id] <= 1
        assert end.num_output_tokens <= 5
    metrics = server.service.bridge._metrics.exposition().decode()
    assert 'request_success_total{finished_reason="abort"} 1.0' in metrics


async def test_all_lanes_of_a_vanished_socket_are_aborted_and_others_are_not() -> None:
    async with held_server() as server, server.socket() as other:
        await other.create("I stay", max_output_tokens=300)
        connection = await connect(f"ws://127.0.0.1:{server.port}/v1/responses", compression=None)
        for lane in range(20):
            message = {"type": "response.create", "input": f"lane {lane}", "stream_id": str(lane)}
            await connection.send(orjson.dumps(message).decode())
        await eventually(lambda: server.holds(17))
        connection.transport.abort()
        await eventually(lambda: len(server.engine.aborted) == 16)
        server.gate.open()
        events = await other.until("response.incomplete")
        assert text_of(events) == said("I stay", 300)
        await eventually(lambda: server.is_idle)
    ends = [end.reason for _, end in server.engine.ended.values()]
    assert ends.count(FinishReason.ABORT) == 16
    assert len(ends) == 17  # what waited for a place was never begun


async def test_a_client_that_leaves_while_its_prompt_is_being_encoded_starts_nothing() -> None:
    async with running() as server:
        encode, entered = server.service.model.encode, asyncio.Event()
        loop = asyncio.get_running_loop()
        release = asyncio.Event()

        def slow_encode(*messages: Any) -> list[int]:
            loop.call_soon_threadsafe(entered.set)
            asyncio.run_coroutine_threadsafe(release.wait(), loop).result()
            return encode(*messages)

        object.__setattr__(server.service.model, "encode", slow_encode)
        for client in (open_http, open_socket):
            entered.clear()
            release.clear()
            leave = await client(server, "long " * 1000)
            async with asyncio.timeout(PATIENCE):
                await entered.wait()
            leave()
            await eventually(lambda: server.service._deliveries == 0)
            release.set()
        object.__setattr__(server.service.model, "encode", encode)
        async with server.socket() as socket:
            assert text_of(await socket.answer("still here")) == said("still here", 8)
    assert len(server.engine.ended) == 1


async def test_closing_politely_aborts_as_well() -> None:
    async with held_server() as server:
        async with server.socket() as socket:
            await socket.create("hello", max_output_tokens=300)
            await socket.event()
        await eventually(lambda: len(server.engine.aborted) == 1)


async def test_many_clients_come_and_go_and_nothing_stays() -> None:
    async with running() as server:
        for client in (open_socket, open_http, open_stream):
            for count in range(25):
                leave = await client(server, f"client {count}")
                await eventually(lambda: server.service.bridge.num_open)
                leave()
        await eventually(lambda: server.is_idle)
        await eventually(lambda: server.service._deliveries == 0)
        await eventually(lambda: not server.server.server_state.connections)
        metrics = server.service.bridge._metrics.exposition().decode()
    assert "websocket_connections_active 0.0" in metrics
    assert len(server.engine.ended) == 75
