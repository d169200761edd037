"""HTTP manners that the endpoints share: bodies, errors, ids, origins, and clients that leave.

Knows: ASGI, the OpenAI SDKs' headers. Does not know: any endpoint's format.
"""

from __future__ import annotations

import asyncio
import math
import re
import secrets
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import Any
from urllib.parse import urlsplit

import orjson
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.protocol.errors import ApiError, server_failed
from engine.places import Room

REQUEST_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")
RETRY_AFTER_S = 5.0
"""Where nobody knows better."""

EXPOSED = (
    "x-request-id",
    "x-ratelimit-limit-requests",
    "x-ratelimit-remaining-requests",
    "x-ratelimit-reset-requests",
    "x-should-retry",
    "retry-after",
    "retry-after-ms",
    "openai-processing-ms",
)
"""Headers that pages of other sites, where they are allowed, may read."""


class ClientGone(Exception):
    """Nobody is there any more to answer."""


def json_response(content: object, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(orjson.dumps(content), status, headers, media_type="application/json")


def error_response(error: ApiError) -> Response:
    """The error as clients of the OpenAI API expect it. Worth another try is what a later time may cure."""
    retry = error.status == 503 or error.retry_after is not None
    headers = {"x-should-retry": "true" if retry else "false"}
    if retry:
        seconds = error.retry_after or RETRY_AFTER_S
        # The first for everyone, the second for the SDKs, which prefer it.
        headers["retry-after"] = str(math.ceil(seconds))
        headers["retry-after-ms"] = str(math.ceil(seconds * 1000))
    if error.status == 401:
        headers["www-authenticate"] = "Bearer"
    return json_response({"error": error.body()}, error.status, headers)


def rate_headers(room: Room) -> dict[str, str]:
    """Of a response to a request that takes a place in the queue: how many requests of its session may wait
    at once, how many more it could send now, and when those that wait will have their turn. `room` is the
    engine's answer for the session, read when the response begins."""
    return {
        "x-ratelimit-limit-requests": str(room.limit),
        "x-ratelimit-remaining-requests": str(room.left),
        "x-ratelimit-reset-requests": _duration(room.free_in),
    }


def _duration(seconds: float) -> str:
    """As in the OpenAI API: "0s", "20ms", "1.5s", "6m0s". Rounded up to milliseconds."""
    ms = math.ceil(seconds * 1000)
    if 0 < ms < 1000:
        return f"{ms}ms"
    minutes, ms = divmod(ms, 60_000)
    return f"{minutes}m{ms / 1000:g}s" if minutes else f"{ms / 1000:g}s"


async def on_http_exception(request: Request, error: Exception) -> Response:
    """Unknown paths and methods, as an error object too."""
    if not isinstance(error, HTTPException):
        raise error
    code = {404: "not_found", 405: "method_not_allowed"}.get(error.status_code, "http_error")
    message = f"{request.method} {request.url.path}: {error.detail}"
    response = error_response(ApiError(error.status_code, message, code=code))
    response.headers.update(error.headers or {})
    if error.status_code == 405:
        response.headers["allow"] = ", ".join(sorted(_methods(request)))
    return response


def _methods(request: Request) -> set[str]:
    """What may be done with the request's path. Each may have a route of its own."""
    routes = [route for route in request.app.routes if isinstance(route, Route)]
    for found in routes:
        if found.matches(request.scope)[0] is not Match.NONE:
            return {method for each in routes if each.path == found.path for method in each.methods or ()}
    return {"GET", "HEAD"}  # of files


async def on_fault(request: Request, error: Exception) -> Response:
    return error_response(server_failed())


async def read_body(receive: Receive, headers: Headers, limit: int) -> bytes:
    """The whole body.

    Raises:
        ApiError: it is longer than `limit` bytes. Nothing beyond that is kept.
        ClientGone: the client left before the end of it.
    """
    declared = headers.get("content-length", "")
    if declared.isdigit() and int(declared) > limit:
        raise _too_large(declared, limit)
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        body += message.get("body", b"")
        if len(body) > limit:
            raise _too_large(f"at least {len(body)}", limit)
        if not message.get("more_body", False):
            return bytes(body)


def _too_large(got: str, limit: int) -> ApiError:
    return ApiError(
        413, f"the request body has {got} bytes, allowed: {limit} bytes", code="request_too_large"
    )


async def while_connected(receive: Receive, work: Coroutine[Any, Any, None]) -> None:
    """Runs `work`; cancels it the moment the client leaves. The body must have been read."""
    task = asyncio.create_task(work)
    gone = asyncio.create_task(_disconnected(receive))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        gone.cancel()
        task.cancel()
        await asyncio.gather(task, gone, return_exceptions=True)
    if not task.cancelled() and (error := task.exception()):
        raise error


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def connection_of(scope: Scope) -> str:
    """A name of the client's end of the connection, which no other open connection has."""
    client = scope.get("client")
    return f"{client[0]} {client[1]}" if client else secrets.token_hex(8)


def check_origin(headers: Headers, allowed: Iterable[str]) -> None:
    """Browsers say which page sends a request. Other sites' pages are refused, unless they are allowed:
    they must not use a server that only their visitor can reach. Other clients send no Origin.

    Raises:
        ApiError: with status 403.
    """
    origin = headers.get("origin")
    if origin is None or origin in allowed:
        return
    host = urlsplit(origin).netloc.lower()
    if not host or host != headers.get("host", "").lower():
        raise ApiError(
            403,
            f"Origin: got {origin[:200]!r}, allowed: this server's own pages and the origins in its settings",
            code="origin_not_allowed",
        )


Handler = Callable[[Request], Awaitable[ASGIApp]]


def told(handler: Handler) -> Handler:
    """With what a client is told where the handler raises."""

    async def endpoint(request: Request) -> ASGIApp:
        try:
            return await handler(request)
        except ApiError as error:
            return error_response(error)
        except ClientGone:
            return _nothing

    return endpoint


async def _nothing(scope: Scope, receive: Receive, send: Send) -> None:
    """For a client that is gone."""


class RequestIds:
    """Gives every HTTP response an x-request-id, the client's own if it is a sane one, else a new one, and
    says how long it took to begin."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began = time.monotonic()
        given = Headers(scope=scope).get("x-request-id", "")
        request_id = given if REQUEST_ID.fullmatch(given) else f"req_{secrets.token_hex(12)}"

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers["x-request-id"] = request_id
                headers["openai-processing-ms"] = str(round((time.monotonic() - began) * 1000))
            await send(message)

        await self._app(scope, receive, send_with_id)
