"""From a token in the engine to its bytes at the client: how long it takes, how much goes through, and what a
socket costs that is idle.

    python -m benchmarks.delivery [--seconds N] [--rounds N] [--json PATH]

One server process, over a model that costs nothing; its clients are another process on the same machine.
Latency: from the moment in which the engine has the token to that in which the client has read the frame. All
streams get their tokens in the same tick, so the last of them waits for all others: that is part of it.
Throughput: the engine makes the next tokens as soon as the last ones are on their way, and text frames are
counted as they arrive; beside it, in turns, an echo server of the `websockets` library, whose clients keep
messages of the same size under way. `cpu us` is the server's own time, engine and all, which a busy neighbour
hardly changes. Memory: resident bytes per socket that is open and says nothing.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, astuple, dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NamedTuple

import numpy as np
import uvloop
from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed
from websockets.frames import Frame, Opcode

from benchmarks.served import (
    CONTEXT,
    Client,
    ServerProcess,
    arrivals,
    cpu_seconds_of,
    open_clients,
    reader,
    rss_of,
    server_process,
)

LOADS = ((1, 50.0), (64, 50.0), (512, 10.0))
"""Streams, and tokens per second of each."""
AIM_LOAD = 64
AIM_P99_MS = 5.0
AIM_RATIO = 0.5
"""Of the bare echo's frames per second."""
WARM_UP_TOKENS = 10
BUSY_STREAMS = 64
IN_FLIGHT = 8
"""Messages that each client of the echo server keeps under way."""
IDLE_SOCKETS = 500


@dataclass(frozen=True)
class Latency:
    """Milliseconds from the engine to the client."""

    streams: int
    tokens_per_s: float
    tokens: int
    p50: float
    p99: float
    most: float
    frames_per_token: float
    cpu_microseconds: float
    """Of the server, engine and all, per token."""


@dataclass(frozen=True)
class Results:
    latencies: list[Latency]
    flow: Flow
    echo: Flow
    idle_socket_bytes: float
    echo_idle_socket_bytes: float


async def latency(server: ServerProcess, streams: int, rate: float, seconds: float) -> Latency:
    server.pace(1 / rate)
    tokens = WARM_UP_TOKENS + round(seconds * rate)
    clients = await open_clients(server.port, streams, reader)
    before = server.cpu_seconds
    for client in clients:
        client.create(tokens)
    await asyncio.gather(*(client.ended for client in clients))
    cpu = (server.cpu_seconds - before) / (tokens * streams) * 1e6
    ready = server.times()
    waits, num_frames = [], 0
    for client in clients:
        request, came, frames = arrivals(client)
        waits.append((came - ready[request])[WARM_UP_TOKENS:])
        num_frames += frames
        client.transport.abort()
    all_waits = np.concatenate(waits) / 1e6
    p50, p99, most = (round(float(each), 3) for each in np.percentile(all_waits, (50, 99, 100)))
    return Latency(streams, rate, len(all_waits), p50, p99, most, num_frames / (tokens * streams), cpu)


@dataclass(frozen=True)
class Flow:
    """What went through."""

    frames_per_s: float
    cpu_microseconds: float
    """Of the server, per frame."""


async def throughput(server: ServerProcess, seconds: float) -> tuple[Flow, bytes]:
    """Of streams whose tokens come as fast as they are taken; and the frame of one token."""
    server.pace(None)
    clients = await open_clients(server.port, BUSY_STREAMS, reader)
    before = server.cpu_seconds
    for client in clients:
        client.create(CONTEXT - 100)
    await asyncio.wait([client.ended for client in clients], timeout=seconds, return_when="FIRST_COMPLETED")
    cpu = server.cpu_seconds - before
    server.times()
    flow, frames = _flow(clients, cpu)
    return flow, next(each for each in frames if b"output_text.delta" in each)


class EchoClient(Client):
    """Keeps IN_FLIGHT messages under way."""

    def __init__(self) -> None:
        super().__init__("/")
        self._message, self._size, self._partial = b"", 0, 0

    def begin(self, message: bytes) -> None:
        self._message = message
        self._size = len(Frame(Opcode.TEXT, message).serialize(mask=False))
        for _ in range(IN_FLIGHT):
            self.send(message)

    def read(self, data: bytes) -> None:
        whole, self._partial = divmod(self._partial + len(data), self._size or 1)
        for _ in range(whole):
            self.send(self._message)


async def echo_throughput(port: int, cpu: Callable[[], float], message: bytes, seconds: float) -> Flow:
    clients = await open_clients(port, BUSY_STREAMS, EchoClient)
    before = cpu()
    for client in clients:
        client.begin(message)
    await asyncio.sleep(seconds)
    return _flow(clients, cpu() - before)[0]


def _flow(clients: Sequence[Client], cpu: float) -> tuple[Flow, list[bytes]]:
    """Ends the clients. The rate is that of the middle half of their time."""
    for client in clients:
        client.transport.abort()
    frames = [frame for client in clients for frame in client.frames()]
    times = np.array([at for at, _ in frames])
    first, last = times.min(), times.max()
    margin = (last - first) // 4
    inside = ((times >= first + margin) & (times < last - margin)).sum()
    rate = float(inside / (last - first - 2 * margin) * 1e9)
    return Flow(rate, cpu / len(frames) * 1e6), [frame for _, frame in frames]


async def idle_socket_bytes(port: int, rss: Callable[[], int], path: str) -> float:
    """Resident bytes of one socket more, once there are some."""
    first = await open_clients(port, IDLE_SOCKETS, lambda: Client(path))
    before = rss()
    second = await open_clients(port, IDLE_SOCKETS, lambda: Client(path))
    grown = rss() - before
    for client in first + second:
        client.transport.abort()
    return grown / IDLE_SOCKETS


def _serve_echo(pipe: Connection) -> None:
    async def main() -> None:
        async def echo(socket: ServerConnection) -> None:
            with suppress(ConnectionClosed):
                async for message in socket:
                    await socket.send(message)

        async with serve(echo, "127.0.0.1", 0, compression=None) as server:
            pipe.send(server.sockets[0].getsockname()[1])
            await server.wait_closed()

    uvloop.run(main())


class EchoProcess(NamedTuple):
    port: int
    rss: Callable[[], int]
    cpu_seconds: Callable[[], float]


@contextmanager
def echo_process() -> Iterator[EchoProcess]:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve_echo, args=(theirs,), daemon=True)
    process.start()
    try:
        port: int = ours.recv()
        yield EchoProcess(port, lambda: rss_of(process.pid), lambda: cpu_seconds_of(process.pid))
    finally:
        process.terminate()
        process.join()


async def measure(seconds: float, rounds: int) -> Results:
    with server_process() as server, echo_process() as echo:
        idle = await idle_socket_bytes(server.port, lambda: server.rss, "/v1/responses")
        echo_idle = await idle_socket_bytes(echo.port, echo.rss, "/")
        await latency(server, 1, 50.0, 0.5)  # what the first request imports
        latencies = [await latency(server, streams, rate, seconds) for streams, rate in LOADS]
        ours, echoes = [], []
        for _ in range(rounds):
            flow, message = await throughput(server, seconds)
            ours.append(flow)
            echoes.append(await echo_throughput(echo.port, echo.cpu_seconds, message, seconds))
    return Results(latencies, _median(ours), _median(echoes), idle, echo_idle)


def _median(flows: Sequence[Flow]) -> Flow:
    return Flow(*(statistics.median(each) for each in zip(*map(astuple, flows), strict=True)))


def table(results: Results) -> str:
    head = f"{'streams':>8} {'tokens/s':>9} {'p50 ms':>8} {'p99 ms':>8} {'most ms':>8} {'frames/token':>13}"
    lines = [f"{head} {'cpu us/token':>13}"]
    lines += [
        f"{each.streams:8d} {each.tokens_per_s:9g} {each.p50:8.2f} {each.p99:8.2f} {each.most:8.2f} "
        f"{each.frames_per_token:13.3f} {each.cpu_microseconds:13.0f}"
        for each in results.latencies
    ]
    ours, echo = results.flow, results.echo
    ratio = ours.frames_per_s / echo.frames_per_s
    idle, echo_idle = results.idle_socket_bytes, results.echo_idle_socket_bytes
    aimed = next(each for each in results.latencies if each.streams == AIM_LOAD)
    return "\n".join(
        [
            *lines,
            f"frames per second: {ours.frames_per_s:.0f} ({ours.cpu_microseconds:.0f} cpu us each), "
            f"echo: {echo.frames_per_s:.0f} ({echo.cpu_microseconds:.0f} cpu us each), ratio {ratio:.2f}",
            f"bytes per idle socket: {idle:.0f}, echo: {echo_idle:.0f}, ratio {idle / echo_idle:.2f}",
            f"{_verdict(aimed.p99 < AIM_P99_MS)}: p99 {aimed.p99:.2f} ms at {AIM_LOAD} streams, "
            f"aim: under {AIM_P99_MS:g} ms",
            f"{_verdict(ratio >= AIM_RATIO)}: {ratio:.2f} of the echo's frames, aim: {AIM_RATIO:g}",
        ]
    )


def _verdict(is_met: bool) -> str:
    return "PASS" if is_met else "MISS"


def main() -> None:
    parser = argparse.ArgumentParser(description="Time the way from the engine to the client.")
    parser.add_argument("--seconds", type=float, default=4.0, help="of each measurement")
    parser.add_argument("--rounds", type=int, default=3, help="measurements of throughput")
    parser.add_argument("--json", type=Path, metavar="PATH", help="also write the results there")
    arguments = parser.parse_args()
    results = uvloop.run(measure(arguments.seconds, arguments.rounds))
    print(table(results))
    if arguments.json:
        arguments.json.write_text(json.dumps(asdict(results), indent=2))


if __name__ == "__main__":
    main()
