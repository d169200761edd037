"""GET /v1/models and /v1/models/{id}. Clients try their keys here, so one that is wrong is refused."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from app.api.http import connection_of, json_response, told
from app.protocol.sampling_fields import sampling_fields
from app.service import Service


def model_routes(service: Service) -> list[BaseRoute]:
    sampling = sampling_fields(service.context)

    def described() -> dict[str, Any]:
        return {
            "id": service.model.name,
            "object": "model",
            "created": service.model.created,
            "owned_by": "tickwire",
            "root": service.model.name,
            "parent": None,
            "max_model_len": service.context,
            "sampling": sampling,
        }

    async def list_models(request: Request) -> Response:
        service.callers.of_headers(request.headers, connection_of(request.scope))
        return json_response({"object": "list", "data": [described()]})

    async def get_model(request: Request) -> Response:
        service.callers.of_headers(request.headers, connection_of(request.scope))
        service.check_model(request.path_params["model"])
        return json_response(described())

    return [
        Route("/v1/models", told(list_models), methods=["GET"]),
        # A name may hold slashes, as hub ids do.
        Route("/v1/models/{model:path}", told(get_model), methods=["GET"]),
    ]
