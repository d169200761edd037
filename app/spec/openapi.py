"""The HTTP endpoints as an OpenAPI 3.1 document.

Knows: paths, parameters, which request gets which answers. Does not know: how any of it is served.
"""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from app import __version__
from app.protocol import chat, completions, responses, tokens
from app.protocol.payload import Unsupported
from app.protocol.stored_responses import (
    UNSUPPORTED_IN_ITEMS,
    UNSUPPORTED_IN_RETRIEVE,
    ItemsQuery,
    RetrieveQuery,
)
from app.spec.answers import (
    CHAT,
    COMPLETIONS,
    ERRORS,
    LOGPROBS,
    MODELS,
    RESPONSE_LISTS,
    RESPONSES,
    TOKENS,
    component,
    response_events,
)
from app.spec.shapes import (
    COUNT,
    TEXT,
    Schema,
    any_of,
    query_parameters,
    ref,
    request_schemas,
    without_unused,
)

Document = dict[str, Any]

EVENTS = "x-events"
"""Of a `text/event-stream`: the schema of each event's data. OpenAPI has no word for it before 3.2."""

_WORDS = {
    400: "the request is not what is allowed",
    401: "no API key, or a wrong one",
    403: "a page of another origin",
    404: "there is no such thing",
    410: "it was there, and is gone",
    413: "the body is larger than `max_message_bytes`",
    429: "too many requests of this client wait",
    500: "the server failed",
    503: "the server cannot take it now",
}

_HEADERS: dict[str, dict[str, Any]] = {
    "x-request-id": {"description": "the request's own, if it is a sane one, else a new one", "schema": TEXT},
    "x-should-retry": {
        "description": "whether the same request is worth another try",
        "schema": {"type": "string", "enum": ["true", "false"]},
    },
    "retry-after": {"description": "seconds after which it is", "schema": COUNT},
    "retry-after-ms": {"description": "the same in milliseconds", "schema": COUNT},
    "x-ratelimit-limit-requests": {
        "description": "how many requests of this client may wait at once",
        "schema": COUNT,
    },
    "x-ratelimit-remaining-requests": {"description": "how many more could wait now", "schema": COUNT},
    "x-ratelimit-reset-requests": {
        "description": "when those that wait will have their turn, as in '1m6.5s'",
        "schema": TEXT,
    },
}
_ANY = ("x-request-id",)
"""Of every answer; the others are of some."""
_RETRY = ("x-should-retry",)
_WAIT = ("retry-after", "retry-after-ms")
_RATES = tuple(name for name in _HEADERS if "ratelimit" in name)

_CALLER = (401, 403)
_ASKED = (400, *_CALLER, 404, 413, 429, 500, 503)
"""What a request for an answer may get instead."""
_READ = (400, *_CALLER, 404, 413)
"""What a request may get instead that is answered without the engine."""
_KEPT = (*_CALLER, 404, 410)
"""What a request about an answer may get instead."""

REQUESTS: list[tuple[type[BaseModel], Unsupported]] = [
    (chat.ChatRequest, chat.UNSUPPORTED),
    (completions.CompletionRequest, completions.UNSUPPORTED),
    (tokens.TokenizeRequest, tokens.UNSUPPORTED),
    (tokens.DetokenizeRequest, {}),
    (responses.CreateResponse, responses.UNSUPPORTED),
    (responses.CountInputTokens, responses.UNSUPPORTED_IN_COUNT),
]
"""Models of bodies, and what is refused by name."""


def openapi() -> Document:
    document = {
        "openapi": "3.1.0",
        "info": {
            "title": "Tickwire",
            "version": __version__,
            "description": "Chat over HTTP as the OpenAI SDKs speak it. The sockets are in /asyncapi.json. "
            "Whatever is asked for, a request that does not come in time is told 408, and one whose head is "
            "too large 431, with the same error object.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "security": [{}, {"key": []}],
        "paths": _paths(),
        "components": {
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
            "responses": {str(status): _error(status, words) for status, words in _WORDS.items()},
            "schemas": schemas(),
        },
    }
    return without_unused(document)


def schemas() -> dict[str, Schema]:
    return {
        **request_schemas(REQUESTS),
        **ERRORS,
        **MODELS,
        **LOGPROBS,
        **CHAT,
        **COMPLETIONS,
        **TOKENS,
        **RESPONSES,
        **RESPONSE_LISTS,
        **{component(kind): schema for kind, schema in response_events().items()},
    }


def _paths() -> dict[str, Any]:
    return {
        **_completions(),
        **_responses(),
        "/v1/models": {
            "get": _operation("listModels", "The served model", _json(ref("ModelList")), errors=(401,))
        },
        "/v1/models/{model}": {
            "get": _operation("getModel", "The served model", _json(ref("Model")), errors=(401, 404)),
            "parameters": [_in_path("model", "its name, which may hold slashes")],
        },
        "/livez": {"get": _operation("isAlive", "Whether the process runs", _json(ref("Health")))},
        "/readyz": {"get": _readiness("isReady")},
        "/health": {"get": _readiness("isHealthy")},
        "/metrics": {"get": _operation("getMetrics", "For Prometheus", {"text/plain": {"schema": TEXT}})},
        "/debug/engine": {
            "get": _operation(
                "getEngine",
                "What the engine is doing",
                _json({"type": "object"}),
                errors=(400,),
                parameters=[_in_query("after", COUNT, "tell of the ticks behind this one, too")],
            )
        },
        "/debug/trace": {
            "get": _operation("getTrace", "The last ticks, for chrome://tracing", _json({"type": "object"}))
        },
        "/openapi.json": {"get": _operation("getOpenApi", "This document", _json({"type": "object"}))},
        "/asyncapi.json": {"get": _operation("getAsyncApi", "The sockets", _json({"type": "object"}))},
        "/": {"get": _operation("getPage", "The page for people", {"text/html": {"schema": TEXT}})},
        "/static/{path}": {
            "get": _operation("getPageFile", "What the page is made of", {"*/*": {}}, errors=(404,)),
            "parameters": [_in_path("path", "a file's path")],
        },
    }


def _completions() -> dict[str, Any]:
    told = _json(ref("ChatCompletion")) | _stream(ref("ChatChunk"))
    return {
        "/v1/chat/completions": {
            "post": _operation(
                "createChatCompletion",
                "Answer a chat: JSON, or server-sent events with `stream: true`",
                told,
                errors=_ASKED,
                body=ref("ChatRequest"),
                example={"messages": [{"role": "user", "content": "Hello!"}], "max_tokens": 20},
            )
        },
        "/v1/chat/completions/{completion_id}": {
            "parameters": [_in_path("completion_id", "the id of a stream that may be taken up again")],
            "get": _operation(
                "getChatCompletion",
                "A streamed answer at its end, or its events from some number on",
                told,
                errors=(400, *_KEPT),
                parameters=[
                    _in_query("stream", {"type": "boolean"}, "whether to tell events"),
                    _in_query(
                        "starting_after", COUNT, "the id of the last event seen; a Last-Event-ID header wins"
                    ),
                ],
            ),
        },
        "/v1/completions": {
            "post": _operation(
                "createCompletion",
                "Go on with texts: JSON, or server-sent events with `stream: true`",
                _json(ref("Completion")) | _stream(ref("CompletionChunk")),
                errors=_ASKED,
                body=ref("CompletionRequest"),
                example={"prompt": "Once upon a time", "max_tokens": 20},
            )
        },
        "/v1/tokenize": {
            "post": _operation(
                "tokenize",
                "The tokens of a text, or of a chat's prompt",
                _json(ref("Tokenized")),
                errors=_READ,
                body=ref("TokenizeRequest"),
                example={"prompt": "Hello!"},
            )
        },
        "/v1/detokenize": {
            "post": _operation(
                "detokenize",
                "The text of tokens",
                _json(ref("Detokenized")),
                errors=_READ,
                body=ref("DetokenizeRequest"),
                example={"tokens": [1, 2, 3]},
            )
        },
    }


def _responses() -> dict[str, Any]:
    events = [ref(component(kind)) for kind in response_events()]
    told = _json(ref("Response")) | _stream(*events, ref("StreamError"))
    parameters = [_in_path("response_id", "a response's id")]
    retrieve = query_parameters(RetrieveQuery, UNSUPPORTED_IN_RETRIEVE)
    list_items = query_parameters(ItemsQuery, UNSUPPORTED_IN_ITEMS)
    return {
        "/v1/responses": {
            "post": _operation(
                "createResponse",
                "Answer: JSON, or server-sent events with `stream: true`",
                told,
                errors=_ASKED,
                body=ref("CreateResponse"),
                example={"input": "Hello!", "max_output_tokens": 20},
                links={
                    name: {"operationId": name, "parameters": {"response_id": "$response.body#/id"}}
                    for name in ("getResponse", "deleteResponse", "cancelResponse", "listInputItems")
                },
            )
        },
        "/v1/responses/input_tokens": {
            "post": _operation(
                "countInputTokens",
                "How many tokens a response's prompt would have",
                _json(ref("InputTokens")),
                errors=_READ,
                body=ref("CountInputTokens"),
                example={"input": "Hello!"},
            )
        },
        "/v1/responses/{response_id}": {
            "parameters": parameters,
            "get": _operation(
                "getResponse",
                "A response as it stands, or its events from some number on",
                told,
                errors=(400, *_KEPT),
                parameters=retrieve,
            ),
            "delete": _operation(
                "deleteResponse", "Forget a response", _json(ref("DeletedResponse")), errors=_KEPT
            ),
        },
        "/v1/responses/{response_id}/cancel": {
            "parameters": parameters,
            "post": _operation(
                "cancelResponse", "End a response within a tick", _json(ref("Response")), errors=_KEPT
            ),
        },
        "/v1/responses/{response_id}/input_items": {
            "parameters": parameters,
            "get": _operation(
                "listInputItems",
                "The messages that a response was asked with",
                _json(ref("InputItemList")),
                errors=(400, *_KEPT),
                parameters=list_items,
            ),
        },
    }


def _operation(
    name: str,
    summary: str,
    content: dict[str, Any],
    *,
    errors: tuple[int, ...] = (),
    body: Schema | None = None,
    example: dict[str, Any] | None = None,
    parameters: list[dict[str, Any]] | None = None,
    links: dict[str, Any] | None = None,
) -> dict[str, Any]:
    operation: dict[str, Any] = {"operationId": name, "summary": summary}
    if parameters:
        operation["parameters"] = parameters
    if body is not None:
        content_of_body = {"application/json": {"schema": body, "example": example}}
        operation["requestBody"] = {"required": True, "content": content_of_body}
    headers = _headers(*_ANY, *(_RETRY + _RATES if errors == _ASKED else ()))
    operation["responses"] = {
        "200": {"description": summary, "headers": headers, "content": content},
        **{str(status): {"$ref": f"#/components/responses/{status}"} for status in errors},
    }
    if links:
        operation["responses"]["200"]["links"] = links
    return operation


def _readiness(name: str) -> dict[str, Any]:
    operation = _operation(name, "Whether new work is taken", _json(ref("Health")))
    operation["responses"]["503"] = {"description": "it is not", "content": _json(ref("Health"))}
    return operation


def _json(schema: Schema) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}


def _stream(*events: Schema) -> dict[str, Any]:
    """Errors may end any stream."""
    return {"text/event-stream": {EVENTS: any_of(*events, ref("ErrorBody"))}}


def _error(status: int, words: str) -> dict[str, Any]:
    headers = _headers(*_ANY, *_RETRY, *(_WAIT if status == 503 else ()))
    if status == 429:
        headers |= _headers(*_WAIT, required=False)
    return {"description": words, "headers": headers, "content": _json(ref("ErrorBody"))}


def _headers(*names: str, required: bool = True) -> dict[str, Any]:
    return {name: {**_HEADERS[name], "required": required} for name in names}


def _in_path(name: str, description: str) -> dict[str, Any]:
    return {"name": name, "in": "path", "required": True, "description": description, "schema": TEXT}


def _in_query(name: str, schema: Schema, description: str) -> dict[str, Any]:
    return {"name": name, "in": "query", "description": description, "schema": schema}
