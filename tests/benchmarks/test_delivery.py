"""What the benchmarks of the wire measure is what they say, over a real server process with few streams."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import orjson
import pytest
import uvloop

from benchmarks import delivery, slow_reader
from benchmarks.delivery import Flow, Latency, Results
from benchmarks.served import Client, ServerProcess, arrivals, server_process
from tests.fuzz.wire import PING, TEXT, frame


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    with server_process(send_timeout_s=0.2) as server:
        yield server


async def client_that_got(*chunks: bytes) -> Client:
    client = Client("/")
    client.chunks = list(enumerate(chunks))
    return client


def test_a_token_s_time_is_that_of_the_last_byte_of_its_frame() -> None:
    async def run() -> None:
        created = orjson.dumps({"type": "response.created", "response": {"id": "resp_abc"}})
        deltas = [
            orjson.dumps({"type": "response.output_text.delta", "delta": each}) for each in ("x", "yz" * 99)
        ]
        frames = [frame(TEXT, each, masked=False) for each in (created, *deltas)]
        ping = frame(PING, masked=False)
        client = await client_that_got(
            frames[0] + frames[1][:-1], frames[1][-1:] + ping + frames[2][:9], frames[2][9:] + frames[1][:-1]
        )
        request, times, num_frames = arrivals(client)
        assert (request, num_frames) == ("abc", 2)
        assert times.tolist() == [1] + [2] * 198

    uvloop.run(run())


def test_every_token_is_timed_from_the_engine_to_the_client(server: ServerProcess) -> None:
    result = uvloop.run(delivery.latency(server, streams=3, rate=200, seconds=0.2))
    assert result.tokens == 3 * 40
    assert 0 < result.p50 <= result.p99 <= result.most
    assert 0 < result.frames_per_token <= 1
    assert server.state()[:2] == (0, 0)


def test_frames_are_counted_while_tokens_come_as_fast_as_they_are_taken(server: ServerProcess) -> None:
    # Until the first stream ends: in a time of its own a busy machine may have nothing to count.
    flow, message = uvloop.run(delivery.throughput(server, seconds=60))
    assert flow.frames_per_s > 0
    assert orjson.loads(message)["type"] == "response.output_text.delta"


def test_a_reader_that_is_dead_is_told_from_one_that_reads(server: ServerProcess) -> None:
    server.pace(1 / 200)
    for is_dead in (False, True):
        result = uvloop.run(slow_reader.one_round(server, streams=2, tokens=60, is_dead=is_dead))
        assert result.is_dead is is_dead
        assert 0 < result.p50 <= result.p99 <= result.most


RESULTS = Results(
    [Latency(each, 50, 1000, 1.0, 4.9, 9.0, 1.0, 50.0) for each in (1, 64)],
    Flow(5000.0, 40.0),
    Flow(10_000.0, 20.0),
    30_000.0,
    15_000.0,
)


def test_the_aims_are_held_to_the_figures() -> None:
    assert delivery.table(RESULTS).count("PASS") == 2
    slow = replace(RESULTS, latencies=[replace(each, p99=5.1) for each in RESULTS.latencies])
    assert "MISS: p99 5.10 ms at 64 streams" in delivery.table(slow)
    assert "MISS: 0.49 of the echo's frames" in delivery.table(replace(RESULTS, flow=Flow(4900.0, 40.0)))


def test_the_aims_of_slow_readers_are_held_to_the_figures() -> None:
    reads, dead = slow_reader.Round(False, 20, 25, 30, 100), slow_reader.Round(True, 20, 27, 30, 100)
    assert slow_reader.table([reads, dead]).count("PASS") == 2
    assert "MISS: a dead reader moves the others' p99 by +12.0 %" in slow_reader.table(
        [reads, replace(dead, p99=28)]
    )
    assert "MISS: resident memory moves by +11.0 %" in slow_reader.table(
        [reads, dead, replace(dead, rss=111)]
    )
