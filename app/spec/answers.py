"""What the server sends, as schemas: errors, models, answers of every API and their events.

Knows: shapes, to the field: what is not in a schema is not sent. Does not know: which endpoint sends what.
"""

from __future__ import annotations

from app.protocol.responses import TERMINAL
from app.protocol.sampling_fields import SAMPLING_FIELDS
from app.spec.shapes import (
    COUNT,
    NULL,
    NUMBER,
    SWITCH,
    TEXT,
    Schema,
    any_of,
    items,
    maybe,
    one_of,
    record,
    ref,
)

ERRORS: dict[str, Schema] = {
    "Error": record(
        {"message": TEXT, "type": TEXT, "param": maybe(TEXT), "code": TEXT},
        {"retry_after": {**COUNT, "description": "seconds after which the request is worth another try"}},
    ),
    "ErrorBody": record({"error": ref("Error")}),
}

MODELS: dict[str, Schema] = {
    "Model": record(
        {
            "id": TEXT,
            "object": one_of("model"),
            "created": COUNT,
            "owned_by": TEXT,
            "root": TEXT,
            "parent": NULL,
            "max_model_len": COUNT,
            "sampling": {
                **record({name: {"type": "object", "required": ["default"]} for name in SAMPLING_FIELDS}),
                "description": "how tokens are chosen: a JSON schema of each field, with its default",
            },
        }
    ),
    "ModelList": record({"object": one_of("list"), "data": items(ref("Model"))}),
    "Health": record(
        {"status": one_of("alive", "ready", "unavailable")}, {"reasons": items(TEXT, minItems=1)}
    ),
}

_TOKEN = {"token": TEXT, "logprob": NUMBER, "bytes": items({**COUNT, "maximum": 255})}

LOGPROBS: dict[str, Schema] = {
    "TopLogprob": record(_TOKEN),
    "Logprob": record({**_TOKEN, "top_logprobs": items(ref("TopLogprob"))}),
}

_FINISH = {
    "finish_reason": one_of("stop", "length"),
    "stop_reason": {
        **maybe({"type": ["string", "integer"]}),
        "description": "the stop string or token id, or the limit on time; null is the model's own end",
    },
}
_LOGPROBS = maybe(record({"content": items(ref("Logprob")), "refusal": NULL}))
_CHUNK_CHOICES = "one, or none in the chunk that holds the usage"
_CHUNK_USAGE = {"usage": {**maybe(ref("Usage")), "description": "with include_usage; null but in the last"}}

CHAT: dict[str, Schema] = {
    "Usage": record(
        {
            "prompt_tokens": COUNT,
            "completion_tokens": COUNT,
            "total_tokens": COUNT,
            "prompt_tokens_details": record({"cached_tokens": COUNT}),
            "completion_tokens_details": record({"reasoning_tokens": COUNT}),
        }
    ),
    "ChatCompletion": record(
        {
            "id": TEXT,
            "object": one_of("chat.completion"),
            "created": COUNT,
            "model": TEXT,
            "choices": items(
                record(
                    {
                        "index": COUNT,
                        "message": record({"role": one_of("assistant"), "content": TEXT, "refusal": NULL}),
                        "logprobs": _LOGPROBS,
                        **_FINISH,
                    }
                ),
                minItems=1,
            ),
            "usage": ref("Usage"),
        }
    ),
    "ChatChunk": record(
        {
            "id": TEXT,
            "object": one_of("chat.completion.chunk"),
            "created": COUNT,
            "model": TEXT,
            "choices": {
                **items(
                    any_of(
                        record(
                            {
                                "index": COUNT,
                                "delta": any_of(
                                    record(
                                        {"role": one_of("assistant"), "content": one_of(""), "refusal": NULL}
                                    ),
                                    record({"content": TEXT}),
                                ),
                                "logprobs": _LOGPROBS,
                                "finish_reason": NULL,
                            }
                        ),
                        record({"index": COUNT, "delta": record({}), "logprobs": NULL, **_FINISH}),
                    ),
                    maxItems=1,
                ),
                "description": _CHUNK_CHOICES,
            },
        },
        _CHUNK_USAGE,
    ),
}

_TEXT_HEAD = {"id": TEXT, "object": one_of("text_completion"), "created": COUNT, "model": TEXT}
_COLUMNS = maybe(
    record(
        {
            "tokens": items(TEXT),
            "token_logprobs": items(NUMBER),
            "top_logprobs": items({"type": "object", "additionalProperties": NUMBER}),
            "text_offset": items(COUNT),
        }
    )
)

COMPLETIONS: dict[str, Schema] = {
    "Completion": record(
        {
            **_TEXT_HEAD,
            "choices": items(
                record({"index": COUNT, "text": TEXT, "logprobs": _COLUMNS, **_FINISH}), minItems=1
            ),
            "usage": ref("Usage"),
        }
    ),
    "CompletionChunk": record(
        {
            **_TEXT_HEAD,
            "choices": {
                **items(
                    any_of(
                        record({"index": COUNT, "text": TEXT, "logprobs": _COLUMNS, "finish_reason": NULL}),
                        record({"index": COUNT, "text": one_of(""), "logprobs": NULL, **_FINISH}),
                    ),
                    maxItems=1,
                ),
                "description": _CHUNK_CHOICES,
            },
        },
        _CHUNK_USAGE,
    ),
}

TOKENS: dict[str, Schema] = {
    "Tokenized": record(
        {
            "count": COUNT,
            "max_model_len": COUNT,
            "tokens": items(COUNT),
            "token_strs": {**maybe(items(TEXT)), "description": "with return_token_strs"},
        }
    ),
    "Detokenized": record({"prompt": TEXT}),
}

_PART = record(
    {
        "type": one_of("output_text"),
        "text": TEXT,
        "annotations": items(TEXT, maxItems=0),
        "logprobs": items(ref("Logprob")),
    }
)
_STATUS = one_of("queued", "in_progress", "completed", "incomplete", "failed", "cancelled")

RESPONSES: dict[str, Schema] = {
    "ResponseUsage": record(
        {
            "input_tokens": COUNT,
            "input_tokens_details": record({"cached_tokens": COUNT, "cache_write_tokens": COUNT}),
            "output_tokens": COUNT,
            "output_tokens_details": record({"reasoning_tokens": COUNT}),
            "total_tokens": COUNT,
        }
    ),
    "OutputMessage": record(
        {
            "id": TEXT,
            "type": one_of("message"),
            "role": one_of("assistant"),
            "status": one_of("in_progress", "completed", "incomplete"),
            "content": items(_PART, maxItems=1),
        }
    ),
    "Response": record(
        {
            "id": TEXT,
            "object": one_of("response"),
            "created_at": COUNT,
            "completed_at": maybe(COUNT),
            "status": _STATUS,
            "background": SWITCH,
            "error": maybe(record({"code": TEXT, "message": TEXT})),
            "incomplete_details": maybe(
                record(
                    {
                        "reason": one_of(
                            "max_output_tokens", "max_time_ms", "max_queue_ms", "steered", "abandoned"
                        )
                    }
                )
            ),
            "instructions": maybe(TEXT),
            "max_output_tokens": maybe(COUNT),
            "metadata": {"type": "object", "additionalProperties": TEXT},
            "model": TEXT,
            "output": items(ref("OutputMessage"), maxItems=1),
            "parallel_tool_calls": one_of(True),
            "previous_response_id": maybe(TEXT),
            "store": SWITCH,
            "temperature": NUMBER,
            "text": record({"format": record({"type": one_of("text")})}),
            "tool_choice": one_of("auto"),
            "tools": items(TEXT, maxItems=0),
            "top_logprobs": COUNT,
            "top_p": NUMBER,
            "truncation": one_of("auto", "disabled"),
            "usage": maybe(ref("ResponseUsage")),
            "user": maybe(TEXT),
        },
        {
            "truncated_items": {
                **COUNT,
                "description": "with truncation 'auto': messages that were left out",
            }
        },
    ),
}

RESPONSE_LISTS: dict[str, Schema] = {
    "InputItem": record(
        {
            "id": TEXT,
            "type": one_of("message"),
            "role": one_of("system", "user", "assistant"),
            "status": one_of("completed"),
            "content": items(any_of(_PART, record({"type": one_of("input_text"), "text": TEXT})), maxItems=1),
        }
    ),
    "InputItemList": record(
        {
            "object": one_of("list"),
            "data": items(ref("InputItem")),
            "first_id": maybe(TEXT),
            "last_id": maybe(TEXT),
            "has_more": SWITCH,
        }
    ),
    "InputTokens": record({"object": one_of("response.input_tokens"), "input_tokens": COUNT}),
    "DeletedResponse": record({"id": TEXT, "object": one_of("response"), "deleted": one_of(True)}),
    "StreamError": {
        **record(
            {
                "type": one_of("error"),
                "code": TEXT,
                "message": TEXT,
                "param": maybe(TEXT),
                "sequence_number": COUNT,
            }
        ),
        "description": "the server failed in the middle of a stream",
    },
}

_AT_ITEM = {"output_index": one_of(0)}
_AT_PART = {"item_id": TEXT, **_AT_ITEM, "content_index": one_of(0)}
_LOGPROB_LIST = {"logprobs": items(ref("Logprob"))}

_EVENTS: dict[str, dict[str, Schema]] = {
    "response.created": {"response": ref("Response")},
    "response.in_progress": {"response": ref("Response")},
    "response.output_item.added": {**_AT_ITEM, "item": ref("OutputMessage")},
    "response.content_part.added": {**_AT_PART, "part": _PART},
    "response.output_text.delta": {**_AT_PART, "delta": TEXT, **_LOGPROB_LIST},
    "response.output_text.done": {**_AT_PART, "text": TEXT, **_LOGPROB_LIST},
    "response.content_part.done": {**_AT_PART, "part": _PART},
    "response.output_item.done": {**_AT_ITEM, "item": ref("OutputMessage")},
    **{kind: {"response": ref("Response")} for kind in sorted(TERMINAL)},
}


def response_events(optional: dict[str, Schema] | None = None) -> dict[str, Schema]:
    """By type. `optional` are fields that an event may have besides its own."""
    return {
        kind: record({"type": one_of(kind), **fields, "sequence_number": COUNT}, optional)
        for kind, fields in _EVENTS.items()
    }


def component(kind: str) -> str:
    """The name of an event's schema: `response.output_text.delta` is ResponseOutputTextDelta."""
    return "".join(word.capitalize() for word in kind.replace("_", ".").split("."))
