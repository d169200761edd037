"""POST /v1/tokenize and /v1/detokenize.

Knows: HTTP. Does not know: how text becomes tokens, what the answers look like.
"""

from __future__ import annotations

import orjson
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp

from app.api.http import check_origin, connection_of, read_body, told
from app.protocol.tokens import TokenTexts, parse_detokenize, parse_tokenize
from app.service import Service
from app.settings import Settings

BYTES_PER_TOKEN = 8
"""In the JSON of an answer, about."""


class Tokens:
    """Both endpoints."""

    def __init__(self, service: Service, settings: Settings) -> None:
        self._service = service
        self._settings = settings
        self._texts = TokenTexts(service.model.vocabulary, service.model.control_tokens)

    def routes(self) -> list[BaseRoute]:
        return [
            Route("/v1/tokenize", told(self._tokenize), methods=["POST"]),
            Route("/v1/detokenize", told(self._detokenize), methods=["POST"]),
        ]

    async def _tokenize(self, request: Request) -> ASGIApp:
        service, body = self._service, await self._body(request)
        wanted = await service.json.do(len(body), lambda: parse_tokenize(body))
        service.check_model(wanted.model)
        if wanted.prompt is not None:
            prompt = service.text(wanted.prompt, "prompt", with_prefix=wanted.add_special_tokens is not False)
        else:
            prompt = service.chat(
                wanted.conversation,
                "messages",
                add_generation_prompt=wanted.add_generation_prompt is not False,
                continue_final_message=bool(wanted.continue_final_message),
            )
        tokens = await service.encode(prompt)
        with_texts = bool(wanted.return_token_strs)
        content = await service.json.do(
            BYTES_PER_TOKEN * len(tokens),
            lambda: orjson.dumps(self._texts.tokenized(tokens, service.context, with_texts)),
        )
        return Response(content, media_type="application/json")

    async def _detokenize(self, request: Request) -> ASGIApp:
        service, body = self._service, await self._body(request)
        wanted = await service.json.do(len(body), lambda: parse_detokenize(body))
        service.check_model(wanted.model)
        content = await service.json.do(
            len(body), lambda: orjson.dumps(self._texts.detokenized(wanted.tokens))
        )
        return Response(content, media_type="application/json")

    async def _body(self, request: Request) -> bytes:
        """
        Raises:
            ApiError: who asks may not, or the body is too large.
        """
        check_origin(request.headers, self._settings.allowed_origins)
        self._service.callers.of_headers(request.headers, connection_of(request.scope))
        return await read_body(request.receive, request.headers, self._settings.max_message_bytes)
