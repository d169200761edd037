"""From a client's bytes to a checked object, for every endpoint.

Knows: JSON, and the rule that a parameter we do not support is refused by name unless its value changes
nothing. Does not know: which parameters those are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, TypeVar

import orjson
from pydantic import AfterValidator, BaseModel, ConfigDict, ValidationError, WithJsonSchema
from pydantic_core import PydanticCustomError

from app.protocol.errors import ApiError, from_validation, shown

Schema = TypeVar("Schema", bound=BaseModel)


class StrictObject(BaseModel):
    """An object from a client: no other fields than those named, and no conversion between types."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


def _off(value: bool) -> bool:
    if value:
        raise PydanticCustomError("unsupported", "false")
    return value


Off = Annotated[bool, AfterValidator(_off), WithJsonSchema({"const": False})]
"""A switch that may only be off. `Literal[False]` would take 0 as well."""

Unsupported = Mapping[str, Sequence[object]]
"""Known parameters without support -> the values that mean "off" and are therefore fine (null always is)."""


def decode(raw: bytes | str) -> dict[str, Any]:
    """A JSON object.

    Raises:
        ApiError: not JSON (lone surrogates and numbers out of range included), or not an object.
    """
    try:
        value = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise ApiError(
            400,
            f"the message is not valid JSON: {error.msg} (line {error.lineno}, column {error.colno}); "
            "allowed: one JSON object in UTF-8",
            code="invalid_json",
        ) from error
    if not isinstance(value, dict):
        raise ApiError(400, f"got {shown(value)}, allowed: one JSON object", code="invalid_type")
    return value


def parse(schema: type[Schema], payload: dict[str, Any], unsupported: Unsupported) -> Schema:
    """`payload` as a `schema`; it is not changed.

    Raises:
        ApiError: a field is unknown, not supported, of the wrong type or out of range.
    """
    fields = {}
    for name, value in payload.items():
        if name not in unsupported:
            fields[name] = value
        elif value is not None and not any(_same(value, neutral) for neutral in unsupported[name]):
            raise _refusal(name, value, unsupported[name])
    try:
        return schema.model_validate(fields)
    except ValidationError as error:
        raise from_validation(error, schema, fields) from error


def _same(value: object, neutral: object) -> bool:
    """Equality without Python's `True == 1`, at any depth."""
    return value == neutral and _written(value) == _written(neutral)


def _written(value: object) -> bytes:
    return orjson.dumps(value, option=orjson.OPT_SORT_KEYS)


def _refusal(name: str, value: object, neutral: Sequence[object]) -> ApiError:
    if not neutral:
        message = f"{name}: this parameter is not supported; got {shown(value)}, allowed: leave it out"
        return ApiError(400, message, code="unsupported_parameter", param=name)
    allowed = " or ".join(orjson.dumps(each).decode() for each in neutral)
    message = f"{name}: other values are not supported; got {shown(value)}, allowed: {allowed}"
    return ApiError(400, message, code="unsupported_value", param=name)
