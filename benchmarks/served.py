"""A server in a process of its own over a model that costs nothing, and clients that only take down the time.

Knows: the whole server, a pace for its ticks, when each token was ready. Does not know: what is measured.

Both processes read one clock, CLOCK_MONOTONIC. Each token is one letter, so the letters that have come tell
which token it was, however they were put into frames.
"""

from __future__ import annotations

import asyncio
import gc
import multiprocessing
import os
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any, NamedTuple, TypeVar

import numpy as np
import orjson
from numpy.typing import NDArray
from websockets.frames import Frame, Opcode

from app.logs import configure
from app.server import SWITCH_INTERVAL_S, Server, build_app, listen
from app.service import ServedModel
from app.settings import Settings
from benchmarks.drive import SimulatedTime
from benchmarks.simulated import GPU_LIKE, SimulatedRunner
from engine.batch import Batch, StepOutput
from engine.config import EngineConfig
from engine.detokenizer import Vocabulary
from engine.engine import Engine
from engine.request import Event, TokenEvent

LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
ROWS = 512
CONTEXT = 2048
NUM_BLOCKS = 40_000


class State(NamedTuple):
    """Of the server, at a moment."""

    num_running: int
    """Sequences."""
    num_held_blocks: int
    num_cut: int
    """Readers, ever."""


class _PacedRunner(SimulatedRunner):
    """Its ticks end at a fixed pace; with none, as soon as what came before was handed to the sockets."""

    def __init__(self) -> None:
        super().__init__(NUM_BLOCKS, len(LETTERS), SimulatedTime(), GPU_LIKE)
        self.interval: float | None = None
        self.handed_over = threading.Event()
        self._next = 0.0

    def execute(self, batch: Batch) -> StepOutput:
        output = super().execute(batch)
        if self.interval is not None:
            now = time.monotonic()
            self._next = max(now, self._next + self.interval)
            time.sleep(self._next - now)
        else:
            self.handed_over.wait(1.0)
        return output


class _Clocked:
    """Publishes, and takes down when each token was ready."""

    def __init__(self, publish: Callable[[list[Event]], None], handed_over: threading.Event) -> None:
        self._publish = publish
        self._handed_over = handed_over
        self.loop: asyncio.AbstractEventLoop | None = None
        self.times: dict[str, list[int]] = defaultdict(list)

    def __call__(self, events: list[Event]) -> None:
        now = time.monotonic_ns()
        for event in events:
            if isinstance(event, TokenEvent):
                self.times[event.request_id].append(now)
        self._handed_over.clear()
        self._publish(events)
        assert self.loop is not None, "nobody could have asked yet"
        self.loop.call_soon_threadsafe(self._after_events)

    def _after_events(self) -> None:
        assert self.loop is not None
        # The sockets' turns were asked for while the events were handed out, so they come first.
        self.loop.call_soon(self._handed_over.set)


def _serve(pipe: Connection, settings: dict[str, Any]) -> None:
    configure("error")
    # As `serve` does.
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    runner = _PacedRunner()
    vocabulary = Vocabulary(tuple(letter.encode() for letter in LETTERS), frozenset())
    config = EngineConfig(NUM_BLOCKS, CONTEXT, max_num_seqs=ROWS, token_budget=4 * ROWS, max_queue=4 * ROWS)
    clocked: list[_Clocked] = []

    def make_engine(publish: Callable[[list[Event]], None]) -> Engine:
        clocked.append(_Clocked(publish, runner.handed_over))
        return Engine(runner, vocabulary, config, clocked[0])

    model = ServedModel(
        "simulated", 0, lambda *_: list(range(16)), lambda text: list(range(len(text))), vocabulary
    )
    chosen = Settings(port=0, shutdown_timeout_s=0, **settings)
    app = build_app(chosen, model=model, make_engine=make_engine)
    gc.freeze()

    def ready(port: int) -> None:
        clocked[0].loop = asyncio.get_running_loop()
        pipe.send(port)

    server = Server(app, chosen, ready)

    def obey() -> None:
        while True:
            match pipe.recv():
                case ("pace", interval):
                    runner.interval = interval
                    pipe.send(None)
                case ("times",):
                    pipe.send({name: list(times) for name, times in clocked[0].times.items()})
                    clocked[0].times.clear()
                case ("state",):
                    stats, cut = app.state.service.bridge.stats(), app.state.wire.cut["websocket"]
                    pipe.send(State(stats.num_running, stats.num_blocks - stats.num_free_blocks, cut))
                case ("stop",):
                    server.end()
                    return

    threading.Thread(target=obey, daemon=True).start()
    with listen(chosen.host, 0, chosen.send_timeout_s) as listening:
        server.run(sockets=[listening])


class ServerProcess:
    def __init__(self, process: multiprocessing.process.BaseProcess, pipe: Connection) -> None:
        self._process = process
        self._pipe = pipe
        self.port: int = pipe.recv()

    def pace(self, interval: float | None) -> None:
        """Seconds from tick to tick from here on."""
        self._ask("pace", interval)

    def times(self) -> dict[str, NDArray[np.int64]]:
        """Request -> when each of its tokens was ready, ns. Of all since it was last asked."""
        return {name: np.array(each) for name, each in self._ask("times").items()}

    def state(self) -> State:
        state: State = self._ask("state")
        return state

    @property
    def rss(self) -> int:
        return rss_of(self._process.pid)

    @property
    def cpu_seconds(self) -> float:
        return cpu_seconds_of(self._process.pid)

    def _ask(self, *command: Any) -> Any:
        self._pipe.send(command)
        return self._pipe.recv()

    def stop(self) -> None:
        self._pipe.send(("stop",))
        self._process.join()


def cpu_seconds_of(process: int | None) -> float:
    """User and system time."""
    with open(f"/proc/{process}/stat") as stat:
        fields = stat.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def rss_of(process: int | None) -> int:
    """Resident bytes."""
    with open(f"/proc/{process}/statm") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@contextmanager
def server_process(**settings: Any) -> Iterator[ServerProcess]:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(theirs, settings), daemon=True)
    process.start()
    server = ServerProcess(process, ours)
    try:
        yield server
    finally:
        server.stop()


class Client(asyncio.Protocol):
    """One WebSocket, which takes down what came when, and looks at it only afterwards."""

    def __init__(self, path: str, last_words: bytes = b"") -> None:
        self._path = path
        self._last_words = last_words
        self._tail = b""
        self.chunks: list[tuple[int, bytes]] = []
        loop = asyncio.get_running_loop()
        self.ready = loop.create_future()
        self.ended = loop.create_future()
        """The last words were read, or the connection was lost."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: asyncio.Transport = transport  # type: ignore[assignment]
        self.transport.write(
            f"GET {self._path} HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
            "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n".encode()
        )

    def data_received(self, data: bytes) -> None:
        if not self.ready.done():
            head, _, data = data.partition(b"\r\n\r\n")
            if not head.startswith(b"HTTP/1.1 101"):
                raise RuntimeError(f"the handshake was refused: {head!r}")
            self.ready.set_result(None)
        self.chunks.append((time.monotonic_ns(), data))
        self.read(data)

    def read(self, data: bytes) -> None:
        if self._last_words:
            self._tail = self._tail[-200:] + data
            if self._last_words in self._tail and not self.ended.done():
                self.ended.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.ended.done():
            self.ended.set_result(None)

    def send(self, text: bytes) -> None:
        self.transport.write(Frame(Opcode.TEXT, text).serialize(mask=True))

    def create(self, tokens: int, lane: str | None = None) -> None:
        fields: dict[str, Any] = {"type": "response.create", "input": "hello", "max_output_tokens": tokens}
        self.send(orjson.dumps(fields | {"store": False} | ({} if lane is None else {"stream_id": lane})))

    def frames(self) -> Iterator[tuple[int, bytes]]:
        """Each text frame that came as a whole, and when its last byte did."""
        data = b"".join(chunk for _, chunk in self.chunks)
        ends = np.cumsum([len(chunk) for _, chunk in self.chunks])
        at = 0
        while at + 2 <= len(data):
            opcode, size, head = data[at] & 15, data[at + 1], 2
            if size >= 126:
                head = 4 if size == 126 else 10
                size = int.from_bytes(data[at + 2 : at + head], "big")
            if at + head + size > len(data):
                return
            if opcode == Opcode.TEXT:
                last = at + head + size - 1
                yield (
                    self.chunks[int(np.searchsorted(ends, last, side="right"))][0],
                    data[at + head : last + 1],
                )
            at += head + size


AnyClient = TypeVar("AnyClient", bound=Client)


def reader() -> Client:
    """Of one response."""
    return Client("/v1/responses", b'"response.incomplete"')


async def open_clients(port: int, count: int, make: Callable[[], AnyClient]) -> list[AnyClient]:
    loop = asyncio.get_running_loop()
    clients: list[AnyClient] = []
    for _ in range(count):
        _, client = await loop.create_connection(make, "127.0.0.1", port)
        await client.ready
        clients.append(client)
    return clients


def arrivals(client: Client) -> tuple[str, NDArray[np.int64], int]:
    """The request, when each of its tokens came, ns, and in how many frames."""
    request, times, num_frames = "", [], 0
    for at, frame in client.frames():
        event = orjson.loads(frame)
        if event["type"] == "response.created":
            request = event["response"]["id"].removeprefix("resp_")
        elif event["type"] == "response.output_text.delta":
            times += [at] * len(event["delta"])
            num_frames += 1
    return request, np.array(times), num_frames
