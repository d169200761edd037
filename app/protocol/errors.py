"""Errors as clients see them: the OpenAI error object.

Knows: the object's shape, and how a schema's complaint, or the engine's, becomes a sentence that names the
field, what was got and what is allowed. Does not know: HTTP, sockets, any particular request.
"""

from __future__ import annotations

import math
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from engine.request import QueueFull

_SHORTEST_WAIT_S = 0.001
SHOWN = 60
"""Characters of a client's value that an error repeats."""


class ApiError(Exception):
    """Something that a client is told.

    Args:
        status: the HTTP status; on a socket it travels inside the error event.
        message: for people.
        code: for programs.
        param: dotted path of the field at fault, if one is.
        kind: the object's `type`.
        retry_after: seconds, above 0, after which the same request is worth another try, if that is known.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        code: str,
        param: str | None = None,
        kind: str = "invalid_request_error",
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.code = code
        self.param = param
        self.kind = kind
        self.retry_after = retry_after

    def body(self) -> dict[str, Any]:
        """The error object, without the envelope that differs between HTTP and sockets."""
        body = {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}
        return body if self.retry_after is None else body | {"retry_after": math.ceil(self.retry_after)}


def invalid_value(param: str, complaint: str) -> ApiError:
    """`complaint` says what was got and what is allowed."""
    return ApiError(400, f"{param}: {complaint}", code="invalid_value", param=param)


def model_not_found(name: str, served: str) -> ApiError:
    return ApiError(
        404,
        f"model: got {shown(name)}, allowed: {served!r}, the one that is served here",
        code="model_not_found",
        param="model",
    )


def invalid_api_key(is_missing: bool) -> ApiError:
    got = "no API key" if is_missing else "an API key that is not known here"
    return ApiError(
        401,
        f"Authorization: got {got}, allowed: 'Bearer' and one of the keys in this server's settings",
        code="invalid_api_key",
        kind="authentication_error",
    )


def response_not_found(response_id: str, param: str = "response_id") -> ApiError:
    """Unknown, or another key's: which of the two is nobody's business."""
    return ApiError(
        404,
        f"{param}: got {shown(response_id)}, allowed: a response of yours that is running, or is kept",
        code="response_not_found",
        param=param,
    )


def response_gone(response_id: str, why: str, param: str = "response_id") -> ApiError:
    """It was there. Told instead of a part of it."""
    return ApiError(
        410,
        f"{param}: {shown(response_id)} cannot be taken up any more: {why}",
        code="response_gone",
        param=param,
    )


def unavailable(message: str) -> ApiError:
    """This server cannot serve the request, another or a later one could."""
    return ApiError(503, message, code="server_unavailable", kind="server_error")


def queue_full(full: QueueFull) -> ApiError:
    """The limit of one client is 429, as in the OpenAI API; that of the whole server is 503."""
    seconds = max(full.retry_after, _SHORTEST_WAIT_S)
    message = f"{full}; there will be a place in about {math.ceil(seconds)} s"
    if full.of_session:
        return ApiError(
            429, message, code="rate_limit_exceeded", kind="rate_limit_error", retry_after=seconds
        )
    return ApiError(503, message, code="server_overloaded", kind="server_error", retry_after=seconds)


def generation_failed(message: str) -> ApiError:
    """The answer had begun, or would have, and the engine could not give it."""
    return ApiError(500, message, code="server_error", kind="server_error")


def server_failed() -> ApiError:
    """A fault of ours. The traceback is in the log, not in the answer."""
    return ApiError(500, "the server failed on this request", code="server_error", kind="server_error")


def shown(value: object) -> str:
    """A client's value as text of bounded length."""
    match value:
        case dict():
            return f"an object with {len(value)} fields" if value else "an empty object"
        case list():
            return f"a list of {len(value)}" if value else "an empty list"
        case None:
            return "null"
        case bool():
            return str(value).lower()
        case str():
            return repr(value) if len(value) <= SHOWN else f"{value[:SHOWN]!r}... ({len(value)} characters)"
    return repr(value)


def from_value_error(error: ValueError) -> ApiError:
    """What the engine has against a request's parameters. Its messages begin with the field's name."""
    field, colon, _ = str(error).partition(":")
    return ApiError(
        400, str(error), code="invalid_value", param=field if colon and field.isidentifier() else None
    )


def from_validation(error: ValidationError, schema: type[BaseModel], payload: object) -> ApiError:
    """The first complaint of a schema about `payload`.

    The allowed values are told in the words of the field's description, where the schema's top level has
    one: descriptions of request fields are written as noun phrases for this.
    """
    first = error.errors(include_url=False)[0]
    path = _path(first, payload)
    param = ".".join(path)
    if first["type"] == "extra_forbidden":
        known = f"; allowed: {', '.join(schema.model_fields)}" if len(path) == 1 else " of this object"
        return ApiError(400, f"{param}: unknown field{known}", code="unknown_parameter", param=param)
    if first["type"] == "none_required":
        message = f"{param}: this field is not supported; got {shown(first['input'])}, allowed: leave it out"
        return ApiError(400, message, code="unsupported_parameter", param=param)
    allowed = _allowed(first, path, schema)
    if first["type"] == "missing":
        message = f"{param}: missing, expected: {allowed}"
        return ApiError(400, message, code="missing_required_parameter", param=param)
    got = first["input"]
    if first["type"] == "union_tag_invalid":
        # Pydantic blames the whole object.
        context = first["ctx"]
        param, got = f"{param}.{context['discriminator'].strip(chr(39))}", context["tag"]
    message = f"{param}: got {shown(got)}, allowed: {allowed}"
    return ApiError(400, message, code=_code(first), param=param or None)


def _path(error: ErrorDetails, payload: object) -> list[str]:
    """The location without the names of union members, which pydantic mixes into it."""
    path: list[str] = []
    at: Any = payload
    for step in error["loc"]:
        if (isinstance(at, dict) and step in at) or (isinstance(at, list) and isinstance(step, int)):
            at = at[step]  # type: ignore[index]  # a list's step is an int here
        elif not (error["type"] == "missing" and step == error["loc"][-1]):
            continue
        path.append(str(step)[:SHOWN])
    return path


def _code(error: ErrorDetails) -> str:
    kind = error["type"]
    if kind.startswith(("greater_than", "less_than", "finite_number")):
        return "out_of_range"
    if kind in ("too_short", "string_too_short"):
        return "empty_value"
    if kind in ("too_long", "string_too_long"):
        return "value_too_long"
    if kind.endswith("_type"):
        return "invalid_type"
    return "invalid_value"


_EXPECTED = {
    "string_type": "a string",
    "int_type": "an integer",
    "float_type": "a number",
    "bool_type": "true or false",
    "list_type": "a list",
    "dict_type": "an object",
    "model_type": "an object",
    "model_attributes_type": "an object",
    "missing": "a value",
    "string_too_short": "a non-empty string",
    "too_short": "a non-empty list",
}


_BOUNDS = {"gt": "above", "ge": "at least", "lt": "below", "le": "at most"}


def _allowed(error: ErrorDetails, path: list[str], schema: type[BaseModel]) -> str:
    field = schema.model_fields.get(path[0]) if path else None
    if len(path) == 1 and field is not None and field.description:
        return field.description
    if error["type"] in _EXPECTED:
        return _EXPECTED[error["type"]]
    context = error.get("ctx", {})
    if expected := context.get("expected") or context.get("expected_tags"):
        return str(expected)
    for name, words in _BOUNDS.items():
        if name in context:
            return f"{words} {context[name]}"
    return error["msg"]
