"""What the server sends over its sockets beside the events of responses, as schemas.

Knows: shapes, to the field, as `answers` does. Does not know: HTTP.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import get_args

from app.protocol.socket_messages import SteerCode
from app.spec.shapes import COUNT, NUMBER, TEXT, Schema, any_of, maybe, one_of, record, ref

_NUMBER_SEEN: Schema = {"type": "integer", "minimum": -1}


def _message(kind: str, fields: Mapping[str, Schema], optional: Mapping[str, Schema]) -> Schema:
    return record({"type": one_of(kind), **fields}, optional)


# -- /v1/responses --------------------------------------------------------------------------------------

_STATS = record(
    {
        "status": one_of("queued", "prefilling", "generating", "ended"),
        "queue_position": {**maybe(COUNT), "description": "from 0; null once it runs"},
        "prompt_tokens": COUNT,
        "computed_tokens": maybe(COUNT),
        "cached_tokens": COUNT,
        "output_tokens": COUNT,
        "max_output_tokens": COUNT,
        "context_left": COUNT,
        "tokens_per_s": maybe(NUMBER),
        "waited_ms": NUMBER,
        "first_token_ms": maybe(NUMBER),
        "preemptions": COUNT,
        "readers": COUNT,
    }
)
_STEER_ERROR = record(
    {"type": one_of("invalid_request_error"), "code": one_of(*get_args(SteerCode)), "message": TEXT}
)


def responses_socket_events(lane: Mapping[str, Schema]) -> dict[str, Schema]:
    """By type. `lane` is the field that an event has which belongs to a lane."""
    return {
        "response.resumed": _message(
            "response.resumed",
            {
                "response_id": TEXT,
                "starting_after": {**_NUMBER_SEEN, "description": "-1: from the beginning"},
                "status": one_of("queued", "in_progress", "completed", "incomplete", "failed", "cancelled"),
            },
            lane,
        ),
        "response.stats": _message("response.stats", {"response_id": TEXT, "stats": _STATS}, lane),
        "response.steer.accepted": _message(
            "response.steer.accepted",
            {
                "sequence_number": _NUMBER_SEEN,
                "steer": record({"id": TEXT, "previous_response_id": TEXT}),
            },
            lane,
        ),
        "response.steer.failed": _message(
            "response.steer.failed",
            {
                "sequence_number": _NUMBER_SEEN,
                "error": _STEER_ERROR,
                "steer": record({"input": {}, "previous_response_id": TEXT}, {"id": TEXT}),
            },
            lane,
        ),
        "session.authenticated": _message("session.authenticated", {}, {}),
        "pong": _message(
            "pong", {"time": {**NUMBER, "description": "the server's, in Unix seconds"}}, {"id": TEXT}
        ),
        "error": _message("error", {"status": COUNT, "error": ref("Error")}, lane),
    }


# -- /api/chat ------------------------------------------------------------------------------------------

_UI_METADATA = record(
    {
        "model": TEXT,
        "stopReason": maybe({"type": ["string", "integer"]}),
        "usage": record(
            {
                "inputTokens": COUNT,
                "inputTokenDetails": record(
                    {"noCacheTokens": COUNT, "cacheReadTokens": COUNT, "cacheWriteTokens": COUNT}
                ),
                "outputTokens": COUNT,
                "outputTokenDetails": record({"textTokens": COUNT, "reasoningTokens": COUNT}),
                "totalTokens": COUNT,
            }
        ),
    }
)

UI_CHUNKS: dict[str, Schema] = {
    kind: _message(kind, fields, {})
    for kind, fields in {
        "start": {"messageId": TEXT},
        "start-step": {},
        "text-start": {"id": TEXT},
        "text-delta": {"id": TEXT, "delta": TEXT},
        "text-end": {"id": TEXT},
        "finish-step": {},
        "message-metadata": {"messageMetadata": _UI_METADATA},
        "finish": {"finishReason": one_of("stop", "length"), "messageMetadata": _UI_METADATA},
        "abort": {"reason": one_of("cancelled", "steered", "abandoned")},
        "error": {"errorText": TEXT},
    }.items()
}

_REQUEST: dict[str, Schema] = {"requestId": TEXT}

UI_FRAMES: dict[str, Schema] = {
    "start": _message("start", _REQUEST, {}),
    "chunk": _message("chunk", {**_REQUEST, "sequence": COUNT, "chunk": any_of(*UI_CHUNKS.values())}, {}),
    "end": _message("end", _REQUEST, {}),
    "no-active": _message("no-active", _REQUEST, {}),
    "error": _message("error", {**_REQUEST, "errorText": TEXT, "status": COUNT, "error": ref("Error")}, {}),
}
