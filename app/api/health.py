"""Is it alive, does it take work, how is it doing: /livez, /readyz, /health, /metrics.

None of these asks the engine to compute anything.
"""

from __future__ import annotations

from prometheus_client.exposition import CONTENT_TYPE_LATEST
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from app.api.http import json_response
from app.metrics import Metrics
from app.service import Service


def health_routes(service: Service, metrics: Metrics) -> list[BaseRoute]:
    async def livez(request: Request) -> Response:
        return json_response({"status": "alive"})

    async def readyz(request: Request) -> Response:
        if reasons := service.not_ready():
            return json_response({"status": "unavailable", "reasons": reasons}, 503)
        return json_response({"status": "ready"})

    async def exposition(request: Request) -> Response:
        return Response(metrics.exposition(), media_type=CONTENT_TYPE_LATEST)

    return [
        Route("/livez", livez, methods=["GET"]),
        Route("/readyz", readyz, methods=["GET"]),
        Route("/health", readyz, methods=["GET"]),
        Route("/metrics", exposition, methods=["GET"]),
    ]
