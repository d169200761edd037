"""The whole server over the fake model, on a real loopback port, in the test's own event loop.

The engine has its own thread, as always; a gate in the middle of the fake forward pass lets a test hold it.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from types import MappingProxyType
from typing import Any

import httpx
import orjson
from websockets.asyncio.client import ClientConnection, connect

from app.server import Server, build_app, listen
from app.service import PromptRefused, ServedModel, Service
from app.settings import Settings
from app.store import Message
from engine.blocks import BLOCK_SIZE
from engine.config import EngineConfig
from engine.detokenizer import Vocabulary
from engine.engine import Engine, EngineStats
from engine.request import Event, FinishedEvent, Request
from tests.fakes import ALPHABET, EOS, FakeRunner, continuation, fake_ids, fake_vocabulary

MODEL = "fake-model"
PATIENCE = 20.0
"""Seconds after which a test that waits has failed. No test depends on how long anything takes."""


def fake_prompt(messages: list[Message]) -> str:
    return spelled("".join(f"{m['role']}:{m['content']};" for m in messages))


def spelled(text: str) -> str:
    """In the fake model's letters: what it has none for is a dot."""
    return "".join(c if c in ALPHABET else "." for c in text)


def fake_encode(
    messages: list[Message], add_generation_prompt: bool = True, continue_final_message: bool = False
) -> list[int]:
    """Its last token is the generation prompt; a message that is continued has no end either."""
    if any("refuse me" in m["content"] for m in messages):
        raise PromptRefused("this template refuses to be polite")
    ids = list(fake_ids(fake_prompt(messages)))
    return ids if add_generation_prompt and not continue_final_message else ids[:-1]


def fake_model() -> ServedModel:
    return ServedModel(
        MODEL,
        1_700_000_000,
        fake_encode,
        lambda text: list(fake_ids(spelled(text))),
        fake_vocabulary(),
        control_tokens={"<end>": EOS},
    )


def expected(messages: list[Message], count: int) -> str:
    """What the fake model answers: the oracle."""
    return continued(fake_prompt(messages), count)


def continued(text: str, count: int) -> str:
    """How the fake model goes on with a plain text."""
    ids = continuation(fake_ids(spelled(text)), count)
    return b"".join(fake_vocabulary().token_bytes[i] for i in ids).decode()


def said(text: str, count: int) -> str:
    return expected([{"role": "user", "content": text}], count)


class Gate:
    """Holds the engine in the middle of its forward passes."""

    def __init__(self) -> None:
        self._may_pass = threading.Condition()
        self._allowance: int | None = None

    def close(self) -> None:
        with self._may_pass:
            self._allowance = 0

    def step(self, count: int = 1) -> None:
        """Let `count` more ticks through a closed gate."""
        with self._may_pass:
            if self._allowance is None:
                raise RuntimeError("the gate is open")
            self._allowance += count
            self._may_pass.notify_all()

    def open(self) -> None:
        with self._may_pass:
            self._allowance = None
            self._may_pass.notify_all()

    def __call__(self) -> None:
        with self._may_pass:
            self._may_pass.wait_for(lambda: self._allowance is None or self._allowance > 0)
            if self._allowance is not None:
                self._allowance -= 1


class WatchedEngine(Engine):
    """Remembers what it was asked, in which tick each request was aborted and in which it ended."""

    def __init__(
        self,
        runner: FakeRunner,
        vocabulary: Vocabulary,
        config: EngineConfig,
        publish: Callable[[list[Event]], None],
    ) -> None:
        super().__init__(runner, vocabulary, config, self._watch, clock=self._now)
        self._to_bridge = publish
        self.seconds_ahead = 0.0
        """How far the engine's clock is ahead of that of the machine."""
        self.submitted: list[tuple[Request, str]] = []
        """With the thread that asked."""
        self.aborted: dict[str, int] = {}
        self.ended: dict[str, tuple[int, FinishedEvent]] = {}
        """Of the last choice."""

    def _now(self) -> float:
        return time.monotonic() + self.seconds_ahead

    def submit(self, request: Request) -> None:
        self.submitted.append((request, threading.current_thread().name))
        super().submit(request)

    def abort(self, request_id: str) -> None:
        self.aborted.setdefault(request_id, self.stats().num_ticks)
        super().abort(request_id)

    def _watch(self, events: list[Event]) -> None:
        for event in events:
            if isinstance(event, FinishedEvent):
                self.ended[event.request_id] = (self.stats().num_ticks, event)
        self._to_bridge(events)


class RunningServer:
    engine: WatchedEngine

    def __init__(self, settings: Settings, config: EngineConfig, runner: FakeRunner) -> None:
        self.runner = runner
        self.gate = Gate()
        self.runner.during = self.gate

        def make_engine(publish: Callable[[list[Event]], None]) -> Engine:
            self.engine = WatchedEngine(self.runner, fake_vocabulary(), config, publish)
            return self.engine

        self.settings = settings
        self.app = build_app(settings, model=fake_model(), make_engine=make_engine)
        self.service: Service = self.app.state.service
        self.server = Server(self.app, settings, self._on_ready)
        self.port = 0
        self.kept: list[object] = []
        """What must outlive its function: asyncio closes a connection whose writer nobody holds."""

    def _on_ready(self, port: int) -> None:
        self.port = port

    def stats(self) -> EngineStats:
        return self.engine.stats()

    def holds(self, count: int) -> bool:
        """So many answers have not ended, and the engine has heard of each: a stream is open before that."""
        stats = self.stats()
        return self.service.bridge.num_open == count == stats.num_running + stats.num_waiting

    @property
    def is_idle(self) -> bool:
        stats = self.stats()
        return (
            self.service.bridge.num_open == 0
            and stats.num_running == stats.num_waiting == 0
            and stats.num_free_blocks == stats.num_blocks
        )

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @asynccontextmanager
    async def socket(self, path: str = "/v1/responses", **options: Any) -> AsyncIterator[Socket]:
        url = f"ws://127.0.0.1:{self.port}{path}"
        async with connect(url, max_size=None, compression=None, **options) as connection:
            yield Socket(connection)

    def http(self) -> httpx.AsyncClient:
        # Reading certificates for a connection that has none takes longer than most tests.
        return httpx.AsyncClient(base_url=self.url, timeout=PATIENCE, verify=False)


class Socket:
    """A client that knows JSON and lanes."""

    def __init__(self, connection: ClientConnection) -> None:
        self.connection = connection

    async def send(self, **message: Any) -> None:
        await self.connection.send(orjson.dumps(message).decode())

    async def create(self, text: str | list[Any], **fields: Any) -> None:
        fields = {"temperature": 0, "max_output_tokens": 8} | fields
        await self.send(type="response.create", model=MODEL, input=text, **fields)

    async def event(self) -> dict[str, Any]:
        async with asyncio.timeout(PATIENCE):
            event: dict[str, Any] = orjson.loads(await self.connection.recv())
            return event

    async def until(self, *kinds: str) -> list[dict[str, Any]]:
        """All events up to the first of one of these types, that one included."""
        events = [await self.event()]
        while events[-1]["type"] not in kinds:
            events.append(await self.event())
        return events

    async def answer(self, text: str | list[Any], **fields: Any) -> list[dict[str, Any]]:
        await self.create(text, **fields)
        return await self.until("response.completed", "response.incomplete", "response.failed", "error")


def text_of(events: list[dict[str, Any]]) -> str:
    return "".join(e["delta"] for e in events if e["type"] == "response.output_text.delta")


async def eventually(condition: Callable[[], object]) -> None:
    """Waits until `condition` holds."""
    async with asyncio.timeout(PATIENCE):
        while not condition():  # noqa: ASYNC110  # what the engine's thread does wakes no loop
            await asyncio.sleep(0.002)


@asynccontextmanager
async def running(
    *,
    num_blocks: int = 512,
    max_model_len: int | None = None,
    max_num_seqs: int = 32,
    prefill_chunk: int = 256,
    never_ends: bool = True,
    runner: type[FakeRunner] = FakeRunner,
    engine: Mapping[str, Any] = MappingProxyType({}),
    **settings: Any,
) -> AsyncIterator[RunningServer]:
    """A server that must be idle again at the end, whatever the test did to it. `engine` has further fields
    of its configuration."""
    config = EngineConfig(
        num_blocks,
        max_model_len or num_blocks * BLOCK_SIZE,
        max_num_seqs=max_num_seqs,
        token_budget=max(512, prefill_chunk),
        prefill_chunk=prefill_chunk,
        **engine,
    )
    running = RunningServer(Settings(**settings), config, runner(num_blocks, never_ends))
    listening = listen("127.0.0.1", 0)
    # Not `serve`: it would take the test runner's signal handlers.
    task = asyncio.create_task(running.server._serve([listening]))
    try:
        await eventually(lambda: running.port or task.done())
        yield running
        running.gate.open()
        await eventually(lambda: running.is_idle or running.stats().failure)
    finally:
        running.gate.open()
        running.server.end()
        await task
        listening.close()
