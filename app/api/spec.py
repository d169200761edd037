"""What the server speaks, for programs: GET /openapi.json and /asyncapi.json.

Knows: that each document is made once. Does not know: what is in them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import orjson
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from app.spec.asyncapi import asyncapi
from app.spec.openapi import openapi


def spec_routes() -> list[BaseRoute]:
    return [_route("/openapi.json", openapi), _route("/asyncapi.json", asyncapi)]


def _route(path: str, make: Callable[[], dict[str, Any]]) -> Route:
    written = cache(lambda: orjson.dumps(make()))

    async def document(request: Request) -> Response:
        return Response(written(), media_type="application/json")

    return Route(path, document, methods=["GET"])
