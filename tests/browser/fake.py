"""A server for the page without a model: each answer is a script that the test gives.

Knows the socket protocol as the page relies on it. It checks nothing of what it is sent: tests look at
`requests`. A response goes on when its reader is gone, and can be taken up. It runs in the test's own event
loop, so that a test can hold a script at any point.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from socket import create_server
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect

from app.api.page import page_routes
from app.protocol.sampling_fields import sampling_fields

MODEL = "fake-model"
CONTEXT = 8192


class Reply:
    """One response as the server knows it: its log, and whether somebody wants it to end."""

    def __init__(self, request: dict[str, Any], number: int, refuse: Callable[..., Awaitable[None]]) -> None:
        self.request = request
        self.cancelled = asyncio.Event()
        self.id = f"resp_{number}"
        self.events: list[dict[str, Any]] = []
        self.prompt_tokens = 7
        self.cached_tokens = 0
        self.stats: dict[str, Any] = {}
        """What a script wants `response.stats` to say beside what is counted."""
        self._refuse = refuse
        self._news = asyncio.Event()
        self._tokens = 0

    async def send(self, kind: str, **fields: Any) -> None:
        """Any event of this response, with its sequence number."""
        self.events.append({"type": kind, "sequence_number": len(self.events), **fields})
        news, self._news = self._news, asyncio.Event()
        news.set()

    async def tell(self, socket: WebSocket, lane: str, number: int) -> None:
        """All events from this number on, for as long as somebody listens."""
        while True:
            news = self._news
            if number < len(self.events):
                await socket.send_text(json.dumps(self.events[number] | {"stream_id": lane}))
                number += 1
            else:
                await news.wait()

    def look(self) -> dict[str, Any]:
        """The statistics of `response.stats`."""
        used = self.prompt_tokens + self._tokens
        counted = {"prompt_tokens": self.prompt_tokens, "cached_tokens": self.cached_tokens}
        return {
            "status": "generating" if self._tokens else "prefilling",
            "queue_position": None,
            "computed_tokens": self.prompt_tokens if self._tokens else 0,
            "output_tokens": self._tokens,
            "context_left": CONTEXT - used,
            "tokens_per_s": None,
            **counted,
            **self.stats,
        }

    async def begin(self) -> None:
        await self.send("response.created", response=self._response("in_progress"))
        item = {"id": "msg_1", "type": "message", "role": "assistant", "status": "in_progress", "content": []}
        await self.send("response.output_item.added", output_index=0, item=item)

    async def text(self, *pieces: str) -> None:
        for piece in pieces:
            self._tokens += 1
            await self.send(
                "response.output_text.delta",
                item_id="msg_1",
                output_index=0,
                content_index=0,
                delta=piece,
                logprobs=[],
            )

    async def complete(self) -> None:
        await self.send("response.completed", response=self._response("completed"))

    async def incomplete(self, reason: str) -> None:
        response = self._response("incomplete") | {"incomplete_details": {"reason": reason}}
        await self.send("response.incomplete", response=response)

    async def cancel(self) -> None:
        """The end of a response that was cancelled."""
        await self.send("response.incomplete", response=self._response("cancelled"))

    async def failed(self, code: str, message: str) -> None:
        response = self._response("failed") | {"error": {"code": code, "message": message}}
        await self.send("response.failed", response=response)

    async def refuse(self, status: int, **error: Any) -> None:
        """The error event that answers a request which never became a response."""
        await self._refuse(status, **error)

    def _response(self, status: str) -> dict[str, Any]:
        usage = {
            "input_tokens": self.prompt_tokens,
            "input_tokens_details": {"cached_tokens": self.cached_tokens},
            "output_tokens": self._tokens,
            "total_tokens": self.prompt_tokens + self._tokens,
        }
        return {
            "id": self.id,
            "object": "response",
            "model": MODEL,
            "status": status,
            "output": [],
            "usage": None if status == "in_progress" else usage,
            "error": None,
            "incomplete_details": None,
        }


Script = Callable[[Reply], Coroutine[Any, Any, None]]


def says(*pieces: str) -> Script:
    """A script that says these pieces and ends well."""

    async def script(reply: Reply) -> None:
        await reply.begin()
        await reply.text(*pieces)
        await reply.complete()

    return script


def is_saying(*pieces: str) -> Script:
    """A script that says these pieces, and then nothing more until it is stopped."""

    async def script(reply: Reply) -> None:
        await reply.begin()
        await reply.text(*pieces)
        await reply.cancelled.wait()
        await reply.cancel()

    return script


def cut_after(*pieces: str) -> Script:
    """A script that says these pieces, and has said as many as it may."""

    async def script(reply: Reply) -> None:
        await reply.begin()
        await reply.text(*pieces)
        await reply.incomplete("max_output_tokens")

    return script


async def warms_up(reply: Reply) -> None:
    await reply.send("response.created", response=reply._response("in_progress"))
    await reply.complete()


class FakeServer:
    """`scripts` are used in order, one for each `response.create`; `requests` are those frames, and `resumes`
    those that took a response up. Warm-ups need no script, and are in `warm_ups`. `replies` are all
    responses, `num_connections` counts the sockets that came."""

    def __init__(self) -> None:
        self.scripts: list[Script] = []
        self.requests: list[dict[str, Any]] = []
        self.resumes: list[dict[str, Any]] = []
        self.warm_ups: list[dict[str, Any]] = []
        self.replies: list[Reply] = []
        self.num_connections = 0
        self.origin = ""
        self._sockets: set[WebSocket] = set()
        self._numbers = itertools.count(1)
        self._replies: dict[str, Reply] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self.app = Starlette(
            routes=[
                Route("/blank", self._blank),
                Route("/v1/models", self._models),
                WebSocketRoute("/v1/responses", self._responses),
                *page_routes(),
            ]
        )

    async def drop(self, code: int) -> None:
        """Closes every socket with this code."""
        for socket in list(self._sockets):
            await socket.close(code)

    def forget(self) -> None:
        """Knows no response any more, as after a restart."""
        self._replies.clear()

    async def stop(self) -> None:
        """Ends all scripts. One that went wrong is told."""
        for task in self._tasks:
            task.cancel()
        for result in await asyncio.gather(*self._tasks, return_exceptions=True):
            if isinstance(result, Exception):
                raise result

    async def _blank(self, request: Request) -> HTMLResponse:
        """A page of this origin without anything on it."""
        return HTMLResponse("<!doctype html><html lang=en><title>Blank</title><link rel=icon href=data:,>")

    async def _models(self, request: Request) -> JSONResponse:
        told = {"max_model_len": CONTEXT, "sampling": sampling_fields(CONTEXT)}
        return JSONResponse({"object": "list", "data": [{"id": MODEL, "object": "model", **told}]})

    async def _responses(self, socket: WebSocket) -> None:
        await socket.accept()
        self.num_connections += 1
        self._sockets.add(socket)
        try:
            while True:
                await self._handle(json.loads(await socket.receive_text()), socket)
        except WebSocketDisconnect:
            self._sockets.discard(socket)

    async def _handle(self, frame: dict[str, Any], socket: WebSocket) -> None:
        lane = frame.get("stream_id")

        async def refuse(status: int, **error: Any) -> None:
            event = {"type": "error", "status": status, "error": error, "stream_id": lane}
            await socket.send_text(json.dumps(event))

        match frame["type"]:
            case "response.create":
                reply = Reply(frame, next(self._numbers), refuse)
                self.replies.append(reply)
                self._replies[reply.id] = reply
                if frame.get("generate") is False:
                    self.warm_ups.append(frame)
                    self._do(warms_up(reply))
                else:
                    self.requests.append(frame)
                    self._do(self.scripts.pop(0)(reply))
                self._do(reply.tell(socket, lane, 0))
            case "response.resume":
                self.resumes.append(frame)
                reply = self._replies.get(frame["response_id"])
                if reply is None:
                    error = {"code": "response_not_found", "param": "response_id"}
                    await refuse(404, message=f"response_id: got {frame['response_id']}", **error)
                    return
                after = frame.get("starting_after", -1)
                told = {"response_id": reply.id, "starting_after": after, "status": "in_progress"}
                await socket.send_text(json.dumps({"type": "response.resumed", "stream_id": lane, **told}))
                self._do(reply.tell(socket, lane, after + 1))
            case "response.cancel":
                if reply := self._replies.get(frame["response_id"]):
                    reply.cancelled.set()
            case "response.stats":
                # Of one that was forgotten nothing is said, as of one that has just ended.
                if reply := self._replies.get(frame["response_id"]):
                    told = {"response_id": reply.id, "stats": reply.look()}
                    await socket.send_text(json.dumps({"type": "response.stats", "stream_id": lane, **told}))
            case "ping":
                await socket.send_text(json.dumps({"type": "pong", "id": frame["id"], "time": 0}))
            case kind:
                raise AssertionError(f"the page sent {kind}")

    def _do(self, work: Coroutine[Any, Any, None]) -> None:
        self._tasks.add(asyncio.create_task(self._until_gone(work)))

    async def _until_gone(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except (WebSocketDisconnect, RuntimeError):
            # The page has gone, or the test closed the socket under it.
            return


class _Uvicorn(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        # Ctrl+C belongs to whoever started this.
        yield


@contextlib.asynccontextmanager
async def scripted() -> AsyncIterator[FakeServer]:
    """A server in this event loop."""
    fake = FakeServer()
    listening = create_server(("127.0.0.1", 0))
    fake.origin = f"http://127.0.0.1:{listening.getsockname()[1]}"
    server = _Uvicorn(uvicorn.Config(fake.app, log_level="warning", ws="websockets-sansio", lifespan="off"))
    running = asyncio.create_task(server.serve(sockets=[listening]))
    try:
        yield fake
    finally:
        server.should_exit = server.force_exit = True
        await running
        await fake.stop()
