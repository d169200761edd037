"""A server for the page without a model: each answer is a script that the test gives.

Knows the socket protocol as the page relies on it. It checks nothing of what it is sent: tests look at
`requests`. It runs in the test's own event loop, so that a test can hold a script at any point.
"""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Awaitable, Callable
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect

from app.api.page import page_routes

MODEL = "fake-model"


class Reply:
    """One response as the server side of the socket sees it."""

    def __init__(self, socket: WebSocket, request: dict[str, Any], number: int) -> None:
        self.request = request
        self.cancelled = asyncio.Event()
        self.id = f"resp_{number}"
        self._socket = socket
        self._sequence = itertools.count()
        self._tokens = 0

    async def send(self, kind: str, **fields: Any) -> None:
        """Any event of this response, with its lane and its sequence number."""
        event = {"type": kind, "sequence_number": next(self._sequence), **fields}
        event["stream_id"] = self.request["stream_id"]
        await self._socket.send_text(json.dumps(event))

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

    async def failed(self, code: str, message: str) -> None:
        response = self._response("failed") | {"error": {"code": code, "message": message}}
        await self.send("response.failed", response=response)

    async def refuse(self, status: int, **error: Any) -> None:
        """The error event that answers a request which never became a response."""
        event = {
            "type": "error",
            "status": status,
            "error": error,
            "stream_id": self.request.get("stream_id"),
        }
        await self._socket.send_text(json.dumps(event))

    def _response(self, status: str) -> dict[str, Any]:
        usage = {"input_tokens": 7, "output_tokens": self._tokens, "total_tokens": 7 + self._tokens}
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


Script = Callable[[Reply], Awaitable[None]]


def says(*pieces: str) -> Script:
    """A script that says these pieces and ends well."""

    async def script(reply: Reply) -> None:
        await reply.begin()
        await reply.text(*pieces)
        await reply.complete()

    return script


class FakeServer:
    """`scripts` are used in order, one for each `response.create`; `requests` are those frames."""

    def __init__(self) -> None:
        self.scripts: list[Script] = []
        self.requests: list[dict[str, Any]] = []
        self.accepting = True
        self.origin = ""
        self._sockets: set[WebSocket] = set()
        self._numbers = itertools.count(1)
        self.app = Starlette(
            routes=[
                Route("/v1/models", self._models),
                WebSocketRoute("/v1/responses", self._responses),
                *page_routes(),
            ]
        )

    async def drop(self, code: int) -> None:
        """Closes every socket with this code."""
        for socket in list(self._sockets):
            await socket.close(code)

    async def _models(self, request: Request) -> JSONResponse:
        return JSONResponse({"object": "list", "data": [{"id": MODEL, "object": "model"}]})

    async def _responses(self, socket: WebSocket) -> None:
        if not self.accepting:
            await socket.close(1013)
            return
        await socket.accept()
        self._sockets.add(socket)
        replies: dict[str, Reply] = {}
        async with asyncio.TaskGroup() as tasks:
            try:
                while True:
                    self._handle(json.loads(await socket.receive_text()), socket, replies, tasks)
            except WebSocketDisconnect:
                self._sockets.discard(socket)
                for reply in replies.values():
                    reply.cancelled.set()

    def _handle(
        self, frame: dict[str, Any], socket: WebSocket, replies: dict[str, Reply], tasks: asyncio.TaskGroup
    ) -> None:
        if frame["type"] == "response.cancel":
            replies[frame["response_id"]].cancelled.set()
            return
        self.requests.append(frame)
        reply = Reply(socket, frame, next(self._numbers))
        replies[reply.id] = reply
        tasks.create_task(self._run(self.scripts.pop(0), reply))

    async def _run(self, script: Script, reply: Reply) -> None:
        try:
            await script(reply)
        except (WebSocketDisconnect, RuntimeError):
            # The page has gone, or the test closed the socket under the script.
            return
