"""Whether a reader that takes nothing costs the others anything.

    python -m benchmarks.slow_reader [--streams N] [--rate N] [--seconds N] [--rounds N] [--json PATH]

Streams of one server process are read by clients in another. One more client has sixteen lanes on one
socket. In every other round it reads them; in the others it reads nothing and asks for more than fits into
any buffer, until it is cut. Compared are the times between two tokens of all the others. The figures are
medians over the rounds, which alternate so that a machine whose speed drifts treats both alike.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import socket
import statistics
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import uvloop

from benchmarks.served import CONTEXT, Client, ServerProcess, arrivals, open_clients, reader, server_process

LANES = 16
SEND_TIMEOUT_S = 1.0
SMALL_WINDOW = 4096
PATIENCE_S = 30.0
AIM_CHANGE = 0.10
"""Of the p99 between two tokens."""
AIM_GROWTH = 0.10
"""Of the server's resident memory, from the first round with a dead reader to the last."""
WARM_UP_TOKENS = 10


@dataclass(frozen=True)
class Round:
    """Milliseconds between two tokens of the others."""

    is_dead: bool
    p50: float
    p99: float
    most: float
    rss: int
    """Bytes of the server, while all streams run."""


async def one_round(server: ServerProcess, streams: int, tokens: int, is_dead: bool) -> Round:
    """
    Raises:
        RuntimeError: a dead reader was not cut, or left something behind; or another was cut.
    """
    cut_before = server.state().num_cut
    clients = await open_clients(server.port, streams, reader)
    other = await _client_of_lanes(server.port, tokens, is_dead)
    for client in clients:
        client.create(tokens)
    await asyncio.gather(*(client.ended for client in clients))
    rss = server.rss
    await _all_is_over(server)
    num_cut = server.state().num_cut - cut_before
    if num_cut != is_dead:
        raise RuntimeError(f"{num_cut} readers were cut, expected: {is_dead:d}")
    server.times()
    gaps = np.concatenate([np.diff(arrivals(client)[1])[WARM_UP_TOKENS:] for client in clients]) / 1e6
    for client in [*clients, other]:
        client.transport.abort()
    return Round(is_dead, *(float(each) for each in np.percentile(gaps, (50, 99, 100))), rss)


async def _client_of_lanes(port: int, tokens: int, is_dead: bool) -> Client:
    connection = socket.socket()
    if is_dead:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL_WINDOW)
    connection.connect(("127.0.0.1", port))
    connection.setblocking(False)
    _, client = await asyncio.get_running_loop().create_connection(
        lambda: Client("/v1/responses"), sock=connection
    )
    await client.ready
    if is_dead:
        client.transport.pause_reading()
    for lane in range(LANES):
        client.create(CONTEXT - 100 if is_dead else tokens, f"lane-{lane}")
    return client


async def _all_is_over(server: ServerProcess) -> None:
    """Waits until nothing runs and no block is held."""
    try:
        async with asyncio.timeout(PATIENCE_S):
            while (state := server.state())[:2] != (0, 0):  # noqa: ASYNC110  # it is another process
                await asyncio.sleep(0.05)
    except TimeoutError as error:
        raise RuntimeError(f"after {PATIENCE_S:g} s there is still {state}") from error


async def measure(streams: int, rate: float, seconds: float, rounds: int) -> list[Round]:
    with server_process(send_timeout_s=SEND_TIMEOUT_S) as server:
        server.pace(1 / rate)
        tokens = WARM_UP_TOKENS + round(seconds * rate)
        await one_round(server, streams, WARM_UP_TOKENS + 10, is_dead=False)
        return [
            await one_round(server, streams, tokens, is_dead)
            for _ in range(rounds)
            for is_dead in (False, True)
        ]


def table(rounds: list[Round]) -> str:
    lines = [f"{'one reader':>10} {'p50 ms':>8} {'p99 ms':>8} {'most ms':>8} {'RSS MB':>8}"]
    p99: dict[bool, float] = {}
    for is_dead in (False, True):
        arm = [each for each in rounds if each.is_dead is is_dead]
        p50, p99[is_dead], most = (
            statistics.median(getattr(each, name) for each in arm) for name in ("p50", "p99", "most")
        )
        rss = statistics.median(each.rss for each in arm) / 1e6
        name = "is dead" if is_dead else "reads"
        lines.append(f"{name:>10} {p50:8.2f} {p99[is_dead]:8.2f} {most:8.2f} {rss:8.1f}")
    change = p99[True] / p99[False] - 1
    dead = [each.rss for each in rounds if each.is_dead]
    growth = dead[-1] / dead[0] - 1
    return "\n".join(
        [
            *lines,
            f"{_verdict(change < AIM_CHANGE)}: a dead reader moves the others' p99 by {100 * change:+.1f} %, "
            f"aim: less than {100 * AIM_CHANGE:g} %",
            f"{_verdict(growth < AIM_GROWTH)}: resident memory moves by {100 * growth:+.1f} % over "
            f"{len(dead)} dead readers, aim: less than {100 * AIM_GROWTH:g} %",
        ]
    )


def _verdict(is_met: bool) -> str:
    return "PASS" if is_met else "MISS"


def main() -> None:
    parser = argparse.ArgumentParser(description="Time the readers beside one that takes nothing.")
    parser.add_argument("--streams", type=int, default=199)
    parser.add_argument("--rate", type=float, default=50.0, help="tokens per second of each stream")
    parser.add_argument("--seconds", type=float, default=5.0, help="of each round")
    parser.add_argument("--rounds", type=int, default=3, help="with, and as many without, a dead reader")
    parser.add_argument("--json", type=Path, metavar="PATH", help="also write the results there")
    arguments = parser.parse_args()
    rounds = uvloop.run(measure(arguments.streams, arguments.rate, arguments.seconds, arguments.rounds))
    print(table(rounds))
    if arguments.json:
        arguments.json.write_text(json.dumps([asdict(each) for each in rounds], indent=2))


if __name__ == "__main__":
    main()
