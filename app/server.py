"""From settings to a running server, and to its orderly end.

Knows: how the parts are put together, uvicorn, signals. Does not know: what any part does.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
import math
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.routing import Route, WebSocketRoute

from app.api.chat import ChatCompletions
from app.api.completions import Completions
from app.api.debug import debug_routes
from app.api.health import health_routes
from app.api.http import EXPOSED, RequestIds, on_fault, on_http_exception
from app.api.models import model_routes
from app.api.page import page_routes
from app.api.responses import ResponsesEndpoint
from app.api.responses_socket import ResponsesSocket
from app.api.spec import spec_routes
from app.api.tokens import Tokens
from app.api.ui_chat import UiChatSocket
from app.bridge import Bridge
from app.caller import Callers
from app.journal import JournalWriter
from app.logs import configure, get_logger
from app.metrics import Metrics
from app.responses import Responses
from app.service import Encoder, PromptRefused, ServedModel, Service
from app.settings import Settings, SettingsError
from app.sizes import available_gpu_memory, available_memory, engine_sizes, physical_cores
from app.store import Message
from app.transport import HttpConnection, SocketConnection, Wire
from engine.blocks import BLOCK_SIZE
from engine.config import EngineConfig
from engine.engine import Engine
from engine.replay import RecordedScheduler
from engine.request import Event

if TYPE_CHECKING:
    from engine.chat import ChatTemplate

log = get_logger()

MakeEngine = Callable[[Callable[[list[Event]], None]], Engine]
"""publish -> an engine that is not started yet."""

SEND_BUFFER = 128 * 1024
"""Bytes of one connection that the kernel may hold unsent. Its default grows to 4 MB, which a reader that
stands still would have to be owed before we notice."""

SWITCH_INTERVAL_S = 0.0005
"""How long a thread may keep the interpreter to itself when others want it. A tick gives it up some hundred
times and asks for it again, and Python's own 5 ms each time, while a large prompt is being prepared in
another thread, would make it many times longer."""

CLOSE_S = 0.5
"""How long connections have to end once they are told to."""

LAST_EVENTS_S = 2.0
"""How long the clients of answers that were cut at shutdown have to take the last events."""


def build_app(settings: Settings, *, model: ServedModel, make_engine: MakeEngine) -> Starlette:
    """The whole application over an engine. `app.state.service` is its service.

    The engine runs from the application's startup to its shutdown.
    """
    metrics = Metrics()
    wire = Wire(settings.handshake_timeout_s)
    metrics.watch_wire(wire)
    bridge = Bridge(metrics)
    engine = make_engine(bridge.publish)
    bridge.attach(engine)
    service = Service(bridge, model, Callers(settings.api_keys))
    chat = ChatCompletions(service, settings)
    responses = Responses(service, settings)

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        bridge.run_on(asyncio.get_running_loop())
        engine.start()
        app.state.warm = service.warm_up()
        yield
        # It joins the engine's thread, which may be in the middle of a tick.
        await asyncio.to_thread(engine.shutdown)
        service.close()

    app = Starlette(
        routes=[
            Route("/v1/chat/completions", chat, methods=["POST"]),
            Route("/v1/chat/completions/{completion_id}", chat, methods=["GET"]),
            Route("/v1/completions", Completions(service, settings), methods=["POST"]),
            WebSocketRoute("/v1/responses", ResponsesSocket(responses, metrics, settings)),
            *ResponsesEndpoint(responses, settings).routes(),
            WebSocketRoute("/api/chat", UiChatSocket(service, metrics, settings)),
            *Tokens(service, settings).routes(),
            *model_routes(service),
            *health_routes(service, metrics),
            *debug_routes(service),
            *spec_routes(),
            *page_routes(),
        ],
        middleware=[Middleware(RequestIds), *_cors(settings)],
        exception_handlers={HTTPException: on_http_exception, Exception: on_fault},
        lifespan=lifespan,
    )
    app.state.service = service
    app.state.responses = responses
    app.state.wire = wire
    return app


def _cors(settings: Settings) -> list[Middleware]:
    if not settings.allowed_origins:
        return []
    return [
        Middleware(
            CORSMiddleware,
            allow_origins=settings.allowed_origins,
            allow_methods=["GET", "POST", "DELETE"],
            allow_headers=["*"],
            expose_headers=EXPOSED,
        )
    ]


class Server(uvicorn.Server):
    """uvicorn, with an end that lets answers finish.

    The first SIGTERM or SIGINT: /readyz turns red, no new work is taken, running answers get
    `shutdown_timeout_s`, the rest are cut with their last event, then sockets close with 1012 (come back).
    A second signal ends it at once, that is, after the tick in which it comes.
    """

    def __init__(self, app: Starlette, settings: Settings, on_ready: Callable[[int], None]) -> None:
        wire: Wire = app.state.wire
        super().__init__(
            uvicorn.Config(
                app,
                host=settings.host,
                port=settings.port,
                loop="uvloop",
                http=functools.partial(HttpConnection, wire=wire),  # type: ignore[arg-type]
                ws=functools.partial(SocketConnection, wire=wire),  # type: ignore[arg-type]
                ws_max_size=settings.max_message_bytes,
                ws_per_message_deflate=False,
                lifespan="on",
                log_config=None,
                access_log=False,
                server_header=False,
                timeout_graceful_shutdown=1,
            )
        )
        self._service: Service = app.state.service
        self._patience = settings.shutdown_timeout_s
        self._on_ready = on_ready
        self._drain: asyncio.Task[None] | None = None
        self._to_end = asyncio.Event()

    async def main_loop(self) -> None:
        """uvicorn's own looks ten times a second whether it is to end; this one is told."""
        while not await self.on_tick(0):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(1):
                    await self._to_end.wait()

    def end(self) -> None:
        """End now, without waiting for answers."""
        self.should_exit = True
        self._to_end.set()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            listening = self.servers[0].sockets[0]
            self._on_ready(int(listening.getsockname()[1]))

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """uvicorn's own would cut every socket before we could drain, and die of the signal at the end."""
        before = {each: signal.signal(each, self.handle_exit) for each in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for each, handler in before.items():
                signal.signal(each, handler)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Each connection is told, and those that do not go by themselves are dropped: uvicorn would cancel
        their tasks, and log that as a fault of ours."""
        drop = asyncio.get_running_loop().call_later(CLOSE_S, self._drop_connections)
        await super().shutdown(sockets)
        drop.cancel()
        if self.force_exit:
            # uvicorn leaves out the rest then, and cancels the end of the application as well.
            self._drop_connections()
            if self.server_state.tasks:
                await asyncio.wait(self.server_state.tasks, timeout=CLOSE_S)
            await self.lifespan.shutdown()

    def _drop_connections(self) -> None:
        for connection in list(self.server_state.connections):
            connection.transport.abort()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        asyncio.get_running_loop().call_soon_threadsafe(self.stop)

    def stop(self) -> None:
        """Begin the orderly end; called again: end now."""
        if self._drain is None:
            self._service.stop_accepting()
            self._drain = asyncio.get_running_loop().create_task(self._finish_answers())
        else:
            self.force_exit = True
            self.end()

    async def _finish_answers(self) -> None:
        log.info("draining", answers=self._service.bridge.num_open, seconds=self._patience)
        delivered = self._service.all_delivered()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._patience):
                await delivered
        self._service.bridge.cut_all()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LAST_EVENTS_S):
                await self._service.all_delivered()
        self.end()


def serve(settings: Settings) -> int:
    """Load the model and serve it until a signal comes. Returns the exit code.

    Raises:
        ModelError: the model cannot be loaded.
        OSError: the address cannot be listened on. Found before the model is loaded.
        SettingsError: the settings ask for sizes that do not fit together.
    """
    configure(settings.log_level)
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    listening = listen(settings.host, settings.port, settings.send_timeout_s)
    with listening, contextlib.ExitStack() as resources:
        with _collector_at_rest():
            app = _load_app(settings, resources)

        def ready(port: int) -> None:
            # What the first prompt had to import stays for good as well.
            app.state.warm.add_done_callback(lambda _: gc.freeze())
            _announce(settings.host, port)

        server = Server(app, settings, ready)
        server.run(sockets=[listening])
    return 0 if server.started else 1


def listen(host: str, port: int, send_timeout_s: float = 0.0) -> socket.socket:
    """A listening socket whose connections keep little unsent, that not for long, and nothing back.

    Args:
        send_timeout_s: the system waits twice as long for a client to take something; 0: as long as it likes.

    Raises:
        OSError: the address cannot be listened on.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.create_server((host, port), family=family, backlog=2048)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER)
    # Its connections inherit it. uvloop sets it itself; asyncio does not where the protocol's number is 0.
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        # For those whom nobody else waits for: peers that vanished, and connections that were closed with
        # something unsent. Who takes nothing of a stream was cut before.
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, math.ceil(2000 * send_timeout_s))
    return listening


def _announce(host: str, port: int) -> None:
    shown = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)
    print(f"Tickwire is ready: http://{shown}:{port}/", flush=True)


def _load_app(settings: Settings, resources: contextlib.ExitStack) -> Starlette:
    """`resources` are closed when the engine has stopped."""
    # Here, and not at the top: torch alone takes two seconds to import, and an address in use, or a
    # mistake in the settings, should be told at once.
    import torch

    from engine.loading import load
    from engine.loading.errors import ModelError
    from engine.runner import make_runner

    torch.set_num_threads(settings.threads or physical_cores())
    on_cpu = settings.device == "cpu"
    if on_cpu and settings.kv_cache_dtype == "fp8":
        raise SettingsError("kv_cache_dtype: got 'fp8' with device 'cpu', allowed there: 'auto'")
    loaded = load(
        settings.model,
        device=settings.device,
        dtype=None if settings.dtype == "auto" else getattr(torch, settings.dtype),
        batch_invariant=on_cpu if settings.batch_invariant is None else settings.batch_invariant,
        cache_dir=settings.cache_dir,
        progress=_progress,
    )
    template = loaded.chat_template
    if template is None:
        raise ModelError(f"the model {loaded.name} has no chat template, so it cannot be chatted with")
    kv_dtype = torch.float8_e4m3fn if settings.kv_cache_dtype == "fp8" else loaded.model.dtype
    available = available_memory() if on_cpu else available_gpu_memory()
    sizes = engine_sizes(settings, loaded.config, available, kv_dtype)
    journal = None if settings.record is None else _open_journal(settings.record, sizes)
    if journal is not None:
        resources.callback(journal.close)
    log.info("model_loaded", model=loaded.name, context=sizes.max_model_len, kv_blocks=sizes.num_blocks)

    def make_engine(publish: Callable[[list[Event]], None]) -> Engine:
        try:
            runner = make_runner(loaded.model, sizes, kv_dtype=kv_dtype, graphs=settings.cuda_graphs)
        except torch.OutOfMemoryError as error:
            held = sizes.num_blocks * BLOCK_SIZE
            raise SettingsError(
                f"kv_cache_tokens: {held} tokens, and what {sizes.max_num_seqs} rows (max_num_seqs) need, do "
                f"not fit in the GPU's memory; set less of either: {error}"
            ) from error
        scheduler = None if journal is None else RecordedScheduler(sizes, journal.add)
        return Engine(runner, loaded.tokenizer.vocabulary, sizes, publish, scheduler=scheduler)

    model = ServedModel(
        name=settings.served_model_name or loaded.name,
        created=int(time.time()),
        encode=_encoder(template),
        encode_text=loaded.tokenizer.encode,
        open_end=loaded.tokenizer.open_end,
        vocabulary=loaded.tokenizer.vocabulary,
        text_prefix=loaded.tokenizer.text_prefix,
        control_tokens=loaded.tokenizer.control_tokens,
    )
    return build_app(settings, model=model, make_engine=make_engine)


def _open_journal(path: Path, config: EngineConfig) -> JournalWriter:
    try:
        return JournalWriter(path, config)
    except OSError as error:
        raise SettingsError(f"record: cannot write {path}: {error.strerror}") from error


@contextlib.contextmanager
def _collector_at_rest() -> Iterator[None]:
    """No garbage collection inside, and what was made there is never looked at again: nearly all of it
    stays for good. It makes the start a quarter of a second shorter, and later collections, which stop a
    tick in its middle, much shorter."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def _encoder(template: ChatTemplate) -> Encoder:
    from engine.chat import TemplateError

    def encode(
        messages: list[Message], add_generation_prompt: bool = True, continue_final_message: bool = False
    ) -> list[int]:
        try:
            return template.encode(messages, add_generation_prompt, continue_final_message)
        except TemplateError as error:
            raise PromptRefused(str(error), error.at) from error

    return encode


def _progress(message: str) -> None:
    print(message, file=sys.stderr, flush=True)
