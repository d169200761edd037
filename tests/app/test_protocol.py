"""Requests and answers as pure data: what is accepted, what is refused and how, what is sent."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from app.protocol.chat import ChunkBuilder, completion, parse_chat
from app.protocol.errors import ApiError
from app.protocol.payload import decode
from app.protocol.responses import ResponseEvents, parse_create
from app.streams import Stream, StreamError
from engine.request import FinishedEvent, FinishReason, Timings
from engine.sampling import SamplingParams

HELLO = [{"role": "user", "content": "hello"}]


def chat(**fields: Any) -> Any:
    return parse_chat(orjson.dumps({"model": "m", "messages": HELLO} | fields))


def create(**fields: Any) -> Any:
    return parse_create({"model": "m", "input": "hello"} | fields)


def refused(parse: Any, **fields: Any) -> ApiError:
    with pytest.raises(ApiError) as caught:
        parse(**fields)
    assert caught.value.status == 400
    return caught.value


# -- what is refused -------------------------------------------------------------------------------------

SAMPLING = [
    ("temperature", -0.1, "out_of_range", "got -0.1, allowed: a number from 0 to 2"),
    ("temperature", 2.01, "out_of_range", "got 2.01, allowed: a number from 0 to 2"),
    ("temperature", "0.7", "invalid_type", "got '0.7', allowed: a number from 0 to 2"),
    ("temperature", True, "invalid_type", "got true, allowed: a number from 0 to 2"),
    ("top_p", 0, "out_of_range", "got 0, allowed: a number above 0 and at most 1"),
    ("top_p", 1.5, "out_of_range", "got 1.5"),
    ("top_k", -1, "out_of_range", "got -1, allowed: 0 (off) or a positive integer"),
    ("top_k", 2.5, "invalid_type", "got 2.5"),
    ("min_p", 2, "out_of_range", "got 2, allowed: a number from 0 to 1"),
    ("seed", 2**63, "out_of_range", "signed 64-bit"),
    ("seed", 2.0**64, "invalid_type", "signed 64-bit"),
    ("stop", "", "empty_value", "each of 1 to 1024 characters"),
    ("stop", ["a"] * 17, "value_too_long", "a list of 17"),
    ("stop", {"a": 1}, "invalid_type", "got an object with 1 fields, allowed: a string or a list"),
    ("stop_token_ids", [-1], "out_of_range", ""),
    ("user", 5, "invalid_type", "got 5, allowed: a string"),
    ("user", "x" * 513, "value_too_long", "(513 characters)"),
    ("nonsense", 1, "unknown_parameter", "nonsense: unknown field; allowed: temperature, "),
    ("tools", [{"type": "function"}], "unsupported_value", "got a list of 1, allowed: []"),
    ("prompt_cache_key", "k", "unsupported_parameter", "this parameter is not supported"),
]


@pytest.mark.parametrize(("field", "value", "code", "says"), SAMPLING)
@pytest.mark.parametrize("parse", [chat, create])
def test_a_bad_field_is_named_with_what_was_got_and_what_is_allowed(
    parse: Any, field: str, value: object, code: str, says: str
) -> None:
    error = refused(parse, **{field: value})
    assert (error.param or "").split(".")[0] == field
    assert error.code == code
    assert error.message.startswith(error.param or "")
    if error.param == field:
        assert says in error.message


CHAT = [
    ({"messages": []}, "messages", "empty_value", "got an empty list, allowed: a non-empty list of messages"),
    ({"messages": None}, "messages", "invalid_type", "got null"),
    ({"messages": {}}, "messages", "invalid_type", "got an empty object"),
    ({"messages": "x"}, "messages", "invalid_type", "got 'x'"),
    ({"messages": ["x"]}, "messages.0", "invalid_type", "got 'x', allowed: an object"),
    ({"messages": [{"role": "user"}]}, "messages.0.content", "missing_required_parameter", "missing"),
    (
        {"messages": [{"role": "wizard", "content": "x"}]},
        "messages.0.role",
        "invalid_value",
        "got 'wizard', allowed: 'system', 'developer', 'user' or 'assistant'",
    ),
    (
        {"messages": [{"role": "user", "content": 5}]},
        "messages.0.content",
        "invalid_type",
        "got 5, allowed: a string or a list of text parts",
    ),
    (
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
        "messages.0.content.0.type",
        "invalid_value",
        "got 'image_url', allowed: 'text'",
    ),
    ({"messages": [{"role": "user", "content": ""}]}, "messages.0.content", "empty_value", "at least one"),
    (
        {"messages": [{"role": "user", "content": "x", "name": "Bob"}]},
        "messages.0.name",
        "unknown_parameter",
        "unknown field",
    ),
    ({"max_tokens": 0}, "max_tokens", "out_of_range", "got 0, allowed: an integer of at least 1"),
    ({"max_completion_tokens": 1.5}, "max_completion_tokens", "invalid_type", "got 1.5"),
    ({"n": 2}, "n", "unsupported_value", "got 2, allowed: 1"),
    ({"n": True}, "n", "unsupported_value", "got true, allowed: 1"),
    ({"logprobs": True}, "logprobs", "unsupported_value", "allowed: false"),
    ({"presence_penalty": 0.5}, "presence_penalty", "unsupported_value", "allowed: 0"),
    ({"response_format": {"type": "json_object"}}, "response_format", "unsupported_value", '"text"'),
    ({"stream": "yes"}, "stream", "invalid_type", "got 'yes', allowed: true or false"),
    ({"stream_options": {}}, "stream_options", "invalid_value", "only together with stream=true"),
    (
        {"stream": True, "stream_options": {"include_usage": 1}},
        "stream_options.include_usage",
        "invalid_type",
        "got 1, allowed: true or false",
    ),
    ({"model": 1}, "model", "invalid_type", "got 1"),
]


@pytest.mark.parametrize(("fields", "param", "code", "says"), CHAT)
def test_chat_refuses(fields: dict[str, Any], param: str, code: str, says: str) -> None:
    error = refused(chat, **fields)
    assert (error.param, error.code) == (param, code)
    assert says in error.message


CREATE = [
    ({"input": ""}, "input", "empty_value", "got '', allowed: a non-empty string or a non-empty list"),
    ({"input": []}, "input", "empty_value", "got an empty list"),
    ({"input": None}, "input", "invalid_type", "got null"),
    ({"input": 7}, "input", "invalid_type", "got 7"),
    ({"input": [{"role": "user", "content": ""}]}, "input.0.content", "empty_value", "at least one"),
    (
        {"input": [{"type": "function_call", "call_id": "c", "name": "f", "arguments": ""}]},
        "input.0.type",
        "invalid_value",
        "got 'function_call', allowed: 'message'",
    ),
    (
        {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]},
        "input.0.content.0",
        "invalid_value",
        "'input_text', 'output_text'",
    ),
    ({"generate": False}, "generate", "unsupported_value", "got false, allowed: true"),
    ({"max_output_tokens": 0}, "max_output_tokens", "out_of_range", "an integer of at least 1"),
    ({"previous_response_id": 3}, "previous_response_id", "invalid_type", "got 3"),
    ({"instructions": ["x"]}, "instructions", "invalid_type", "got a list of 1, allowed: a string"),
    ({"metadata": {"a": 1}}, "metadata.a", "invalid_type", "got 1, allowed: a string"),
    ({"metadata": {str(i): "" for i in range(17)}}, "metadata", "value_too_long", "up to 16 strings"),
    ({"truncation": "auto"}, "truncation", "unsupported_value", "got 'auto', allowed: \"disabled\""),
    ({"conversation": "conv_1"}, "conversation", "unsupported_parameter", "not supported"),
]


@pytest.mark.parametrize(("fields", "param", "code", "says"), CREATE)
def test_create_refuses(fields: dict[str, Any], param: str, code: str, says: str) -> None:
    error = refused(create, **fields)
    assert (error.param, error.code) == (param, code)
    assert says in error.message


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"{",
        b"{'a': 1}",
        b'{"a": NaN}',
        b'{"a": 1e999}',
        b"\xff\xfe{\x00}\x00",
        b"\xef\xbb\xbf{}",
        rb'{"a": "\ud83d"}',
        rb'{"a": "\udc00\ud83d"}',
        b'{"a": "\xed\xa0\xbd"}',
        b"[" * 5000,
    ],
)
def test_what_is_not_json_is_refused_with_the_place(raw: bytes) -> None:
    with pytest.raises(ApiError, match=r"not valid JSON: .*\(line \d+, column \d+\)") as caught:
        decode(raw)
    assert (caught.value.status, caught.value.code) == (400, "invalid_json")


@pytest.mark.parametrize("raw", [b"[]", b"3", b'"x"', b"null", b"true"])
def test_json_that_is_no_object_is_refused(raw: bytes) -> None:
    with pytest.raises(ApiError, match="allowed: one JSON object"):
        decode(raw)


# -- what is accepted ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "fields",
    [
        {"n": 1, "presence_penalty": 0, "frequency_penalty": 0.0, "logprobs": False, "top_logprobs": 0},
        {"tools": [], "tool_choice": "auto", "parallel_tool_calls": False, "logit_bias": {}},
        {"response_format": {"type": "text"}, "store": False, "service_tier": "auto", "user": "u"},
        {"temperature": None, "stop": None, "audio": None, "seed": None, "n": None},
    ],
)
def test_values_that_change_nothing_are_fine(fields: dict[str, Any]) -> None:
    assert chat(**fields).params(None) == SamplingParams()


def test_sampling_reaches_the_engine() -> None:
    fields = {"temperature": 0.5, "top_p": 0.9, "top_k": 4, "min_p": 0.1, "seed": -7, "stop_token_ids": [3]}
    wanted = SamplingParams(
        temperature=0.5,
        top_p=0.9,
        top_k=4,
        min_p=0.1,
        seed=-7,
        max_tokens=9,
        stop=("x",),
        stop_token_ids=(3,),
    )
    assert chat(**fields, stop="x").params(9) == wanted
    assert create(**fields, stop=["x"]).params(9) == wanted


def test_the_current_name_of_the_token_limit_wins() -> None:
    assert chat(max_tokens=5).token_limit == 5
    assert chat(max_tokens=5, max_completion_tokens=7).token_limit == 7
    assert chat().token_limit is None


def test_chat_messages_become_a_conversation() -> None:
    request = chat(
        messages=[
            {"role": "developer", "content": "be brief"},
            {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
            # As an SDK's own message object comes back.
            {
                "role": "assistant",
                "content": "c",
                "refusal": None,
                "tool_calls": None,
                "audio": None,
                "annotations": [],
            },
            {"role": "assistant", "content": ""},
        ]
    )
    assert request.conversation() == [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "a\nb"},
        {"role": "assistant", "content": "c"},
        {"role": "assistant", "content": ""},
    ]


def test_response_items_become_a_conversation() -> None:
    answered = {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "status": "completed",
        "phase": None,
        "content": [{"type": "output_text", "text": "hi", "annotations": [], "logprobs": []}],
    }
    asked = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hello"}]}
    request = create(input=[asked, answered, {"role": "user", "content": "more"}])
    assert request.messages() == [
        {"role": "user", "content": "hello"},
        {"role": "assistant", "content": "hi"},
        {"role": "user", "content": "more"},
    ]


# -- what is sent ----------------------------------------------------------------------------------------


def finished(reason: FinishReason, **fields: Any) -> FinishedEvent:
    fields = {"stop": None, "error": None} | fields
    return FinishedEvent(
        request_id="abc",
        reason=reason,
        choice=0,
        num_prompt_tokens=3,
        num_cached_tokens=0,
        num_output_tokens=2,
        num_preemptions=0,
        timings=Timings(0.0, 0.1, 0.2, 0.3),
        **fields,
    )


def spoken(*texts: str, end: FinishedEvent | None = None) -> Stream:
    stream = Stream("abc", arrival=0.0, created=1700000000)
    for index, text in enumerate(texts):
        stream.append(text)
        stream.take(index)
    if end is not None:
        stream.finish(end)
    return stream


def events_of(stream: Stream, **fields: Any) -> list[dict[str, Any]]:
    response = ResponseEvents(stream, create(**fields), "m")
    events: list[dict[str, Any]] = []
    while (event := response.event(len(events))) is not None:
        events.append(event)
        if event["type"] in ("response.completed", "response.incomplete", "response.failed"):
            break
    return events


KINDS = [
    "response.created",
    "response.in_progress",
    "response.output_item.added",
    "response.content_part.added",
    "response.output_text.delta",
    "response.output_text.delta",
    "response.output_text.done",
    "response.content_part.done",
    "response.output_item.done",
]


def test_the_events_of_a_response_in_order() -> None:
    events = events_of(spoken("Hel", "lo", end=finished(FinishReason.STOP)))
    assert [e["type"] for e in events] == [*KINDS, "response.completed"]
    assert [e["sequence_number"] for e in events] == list(range(10))
    assert [e["delta"] for e in events[4:6]] == ["Hel", "lo"]
    assert (
        events[6]["text"] == events[7]["part"]["text"] == events[8]["item"]["content"][0]["text"] == "Hello"
    )
    response = events[-1]["response"]
    assert response["status"] == "completed"
    assert response["output"] == [events[8]["item"]]
    assert response["usage"]["input_tokens"] == 3
    assert response["usage"]["output_tokens"] == 2
    assert response["usage"]["total_tokens"] == 5


@pytest.mark.parametrize(
    ("reason", "cancelled", "kind", "status", "details"),
    [
        (FinishReason.LENGTH, False, "incomplete", "incomplete", {"reason": "max_output_tokens"}),
        (FinishReason.ABORT, True, "incomplete", "cancelled", None),
        (FinishReason.ABORT, False, "failed", "failed", None),
        (FinishReason.ERROR, False, "failed", "failed", None),
        # It had ended by itself before the cancel arrived.
        (FinishReason.STOP, True, "completed", "completed", None),
    ],
)
def test_each_end_has_its_own_last_event(
    reason: FinishReason, cancelled: bool, kind: str, status: str, details: object
) -> None:
    error = "the model fell over" if reason is FinishReason.ERROR else None
    stream = spoken("x", end=finished(reason, error=error))
    stream.cancelled = cancelled
    last = events_of(stream)[-1]
    assert last["type"] == f"response.{kind}"
    assert last["response"]["status"] == status
    assert last["response"]["incomplete_details"] == details
    if error:
        assert last["response"]["error"] == {"code": "server_error", "message": error}
    else:
        assert bool(last["response"]["error"]) == (kind == "failed")


def test_an_event_has_the_same_number_whoever_asks_and_when() -> None:
    stream = spoken("a", "b")
    early, late = ResponseEvents(stream, create(), "m"), ResponseEvents(stream, create(), "m")
    before = [early.event(number) for number in range(6)]
    assert early.event(6) is None
    stream.append("c")
    stream.finish(finished(FinishReason.STOP))
    assert [late.event(number) for number in range(6)] == before
    rest = [late.event(number) or {} for number in range(6, 11)]
    assert [e["type"] for e in rest] == ["response.output_text.delta", *KINDS[6:], "response.completed"]
    with pytest.raises(StreamError):
        late.event(11)


def test_the_request_is_echoed() -> None:
    created = events_of(spoken(), instructions="be kind", metadata={"k": "v"}, temperature=0.5)[0]["response"]
    assert created["instructions"] == "be kind"
    assert created["metadata"] == {"k": "v"}
    assert created["temperature"] == 0.5
    assert created["top_p"] == 1.0
    assert created["store"] is True


def test_chunks_of_a_chat_completion() -> None:
    end = finished(FinishReason.STOP, stop="END")
    builder = ChunkBuilder(spoken("x"), "m", include_usage=True)
    role, text, (last, usage) = builder.role(), builder.text("x"), builder.finish(end)
    assert len({(c["id"], c["created"], c["object"], c["model"]) for c in (role, text, last, usage)}) == 1
    assert role["choices"][0]["delta"] == {"role": "assistant", "content": "", "refusal": None}
    assert text["choices"][0]["delta"] == {"content": "x"}
    assert last["choices"][0]["delta"] == {}
    assert [c["choices"][0]["finish_reason"] for c in (role, text, last)] == [None, None, "stop"]
    assert last["choices"][0]["stop_reason"] == "END"
    assert [c["usage"] for c in (role, text, last)] == [None] * 3
    assert usage["choices"] == []
    assert usage["usage"]["total_tokens"] == 5
    plain = ChunkBuilder(spoken("x"), "m", include_usage=False)
    assert len(plain.finish(end)) == 1
    assert "usage" not in plain.role()


def test_a_completion_in_one_piece() -> None:
    end = finished(FinishReason.LENGTH)
    answer = completion(spoken("Hel", "lo", end=end), end, "m")
    assert answer["choices"][0]["message"] == {"role": "assistant", "content": "Hello", "refusal": None}
    assert answer["choices"][0]["finish_reason"] == "length"
    assert answer["usage"]["completion_tokens"] == 2
