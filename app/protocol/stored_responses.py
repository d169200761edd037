"""What clients may ask about a response that is there already, and the lists of its input items.

Knows: queries, the shapes of items and lists. Does not know: HTTP, where responses are kept, their events.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from app.protocol.errors import ApiError, shown
from app.protocol.payload import StrictObject, Unsupported, parse
from app.protocol.responses import LOGPROBS, ResponseEvents
from app.store import Conversation, Message

Event = dict[str, Any]
Pairs = Iterable[tuple[str, str]]
"""Of a query, in their order."""

_INTEGER = re.compile(r"-?[0-9]{1,18}")
_LISTS = frozenset({"include"})
MAX_ITEMS = 100


def _integer(value: object) -> object:
    return int(value) if isinstance(value, str) and _INTEGER.fullmatch(value) else value


def _switch(value: object) -> object:
    return {"true": True, "false": False}.get(value, value) if isinstance(value, str) else value


Integer = Annotated[int, BeforeValidator(_integer, json_schema_input_type=int)]
Switch = Annotated[bool, BeforeValidator(_switch, json_schema_input_type=bool)]


class RetrieveQuery(StrictObject):
    stream: Switch | None = Field(None, description="true or false")
    starting_after: Annotated[Integer, Field(ge=-1)] | None = Field(
        None, description="the last sequence_number seen, -1 or nothing for none"
    )
    include: list[Literal["message.output_text.logprobs"]] | None = Field(
        None, description=f"nothing but {LOGPROBS!r}"
    )


class ItemsQuery(StrictObject):
    after: str | None = Field(None, max_length=128, description="an item's id")
    limit: Annotated[Integer, Field(ge=1, le=MAX_ITEMS)] = Field(
        20, description=f"an integer from 1 to {MAX_ITEMS}"
    )
    order: Literal["asc", "desc"] = Field("desc", description="'asc' or 'desc'")


UNSUPPORTED_IN_RETRIEVE: Unsupported = {"include_obfuscation": ("false",)}
UNSUPPORTED_IN_ITEMS: Unsupported = {"before": (), "include": ([],)}


def parse_retrieve(query: Pairs) -> RetrieveQuery:
    """Raises ApiError."""
    parsed = parse(RetrieveQuery, _fields(query), UNSUPPORTED_IN_RETRIEVE)
    if parsed.starting_after is not None and not parsed.stream:
        raise ApiError(
            400,
            f"starting_after: got {parsed.starting_after}, allowed: only together with stream=true",
            code="invalid_value",
            param="starting_after",
        )
    return parsed


def check_included(query: RetrieveQuery, response: ResponseEvents) -> None:
    """
    Raises:
        ApiError: what is to be included was not asked for when the response was made.
    """
    if query.include and not response.request.with_logprobs:
        raise ApiError(
            400,
            f"include: got {LOGPROBS!r}, allowed: only for a response that was made with it",
            code="invalid_value",
            param="include",
        )


def parse_items(query: Pairs) -> ItemsQuery:
    """Raises ApiError."""
    return parse(ItemsQuery, _fields(query), UNSUPPORTED_IN_ITEMS)


def _fields(query: Pairs) -> dict[str, Any]:
    """
    Raises:
        ApiError: something that is no list was given twice.
    """
    fields: dict[str, Any] = {}
    for name, value in query:
        name = name.removesuffix("[]")
        if name in _LISTS:
            fields.setdefault(name, []).append(value)
        elif name in fields:
            name = name[:60]
            raise ApiError(
                400, f"{name}: got it twice, allowed: once at most", code="invalid_value", param=name
            )
        else:
            fields[name] = value
    return fields


def item_list(conversation: Conversation, response_id: str, query: ItemsQuery) -> Event:
    """All messages that the response was asked with, those of earlier turns included, a page at a time.

    Raises:
        ApiError: there is no item `after`.
    """
    prefix = f"msg_{response_id.removeprefix('resp_')}_"
    places = list(range(len(conversation)))
    if query.order == "desc":
        places.reverse()
    if query.after is not None:
        ids = [f"{prefix}{place}" for place in places]
        if query.after not in ids:
            raise ApiError(
                400,
                f"after: got {shown(query.after)}, allowed: the id of one of this response's input items",
                code="invalid_value",
                param="after",
            )
        places = places[ids.index(query.after) + 1 :]
    data = [_item(f"{prefix}{place}", conversation[place]) for place in places[: query.limit]]
    return {
        "object": "list",
        "data": data,
        "first_id": data[0]["id"] if data else None,
        "last_id": data[-1]["id"] if data else None,
        "has_more": len(places) > query.limit,
    }


def _item(item_id: str, message: Message) -> Event:
    text = message["content"]
    part: Event = (
        {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
        if message["role"] == "assistant"
        else {"type": "input_text", "text": text}
    )
    return {
        "id": item_id,
        "type": "message",
        "role": message["role"],
        "status": "completed",
        "content": [part],
    }
