"""Requests as pure data: what is accepted, what is refused and how."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from app.protocol.chat import UNSUPPORTED as UNSUPPORTED_IN_CHAT
from app.protocol.chat import ChatRequest, parse_chat
from app.protocol.errors import ApiError
from app.protocol.payload import decode
from app.protocol.responses import UNSUPPORTED as UNSUPPORTED_IN_RESPONSES
from app.protocol.responses import CreateResponse, parse_create
from engine.sampling import SamplingParams

HELLO = [{"role": "user", "content": "hello"}]


CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a": [1]}'}}


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
    ("stop_token_ids", [-1], "out_of_range", "got -1, allowed: at least 0"),
    ("presence_penalty", -2.1, "out_of_range", "got -2.1, allowed: a number from -2 to 2"),
    ("frequency_penalty", 2.1, "out_of_range", "got 2.1, allowed: a number from -2 to 2"),
    ("repetition_penalty", 0, "out_of_range", "got 0, allowed: a number from 0.01 to 2"),
    ("logit_bias", [1], "invalid_type", "got a list of 1, allowed: an object of up to 1024 token ids"),
    ("logit_bias", {"7": 101}, "out_of_range", "got 101, allowed: at most 100"),
    ("logit_bias", {"7": "much"}, "invalid_type", "got 'much', allowed: a number"),
    ("logit_bias", {"07": 1}, "invalid_value", "got '07', allowed: a token id, in digits"),
    ("logit_bias", {"word": 1}, "invalid_value", "got 'word', allowed: a token id, in digits"),
    ("logit_bias", {str(i): 1 for i in range(1025)}, "value_too_long", "got an object with 1025 fields"),
    ("allowed_token_ids", [], "empty_value", "got an empty list, allowed: a list of 1 to 65536 token ids"),
    ("allowed_token_ids", [0] * 65537, "value_too_long", "got a list of 65537"),
    ("allowed_token_ids", ["7"], "invalid_type", "got '7', allowed: an integer"),
    ("bad_words", "swear", "invalid_type", "got 'swear', allowed: a list of up to 64 strings"),
    ("bad_words", ["x"] * 65, "value_too_long", "got a list of 65"),
    ("bad_words", ["x", ""], "empty_value", "got '', allowed: a non-empty string"),
    ("min_tokens", -1, "out_of_range", "got -1, allowed: an integer of at least 0"),
    ("ignore_eos", 1, "invalid_type", "got 1, allowed: true or false"),
    ("include_stop_str_in_output", "no", "invalid_type", "got 'no', allowed: true or false"),
    ("priority", "urgent", "invalid_value", "got 'urgent', allowed: 'interactive' or 'batch'"),
    ("priority", 1, "invalid_value", "got 1, allowed: 'interactive' or 'batch'"),
    ("max_queue_ms", 0, "out_of_range", "got 0, allowed: a number of milliseconds above 0"),
    ("max_time_ms", -5, "out_of_range", "got -5, allowed: a number of milliseconds above 0"),
    ("max_time_ms", "1s", "invalid_type", "got '1s', allowed: a number of milliseconds above 0"),
    ("cache_salt", "", "empty_value", "got '', allowed: a string of 1 to 512 characters"),
    ("top_logprobs", 21, "out_of_range", "got 21, allowed: an integer from 0 to 20"),
    ("top_logprobs", 2, "invalid_value", "got 2, allowed: only together with "),
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
        "got 'wizard', allowed: 'system', 'developer', 'user', 'assistant' or 'tool'",
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
        "got 'image_url', allowed: 'text', 'refusal'",
    ),
    (
        {"messages": [{"role": "user", "content": [{"text": "x"}]}]},
        "messages.0.content.0",
        "invalid_value",
        "'type'",
    ),
    ({"messages": [{"role": "user", "content": []}]}, "messages.0.content", "empty_value", "non-empty list"),
    ({"messages": [{"role": "user", "content": ""}]}, "messages.0.content", "empty_value", "at least one"),
    (
        {"messages": [{"role": "function", "name": "f", "content": "x"}]},
        "messages.0.role",
        "invalid_value",
        "got 'function', allowed: 'system', 'developer', 'user', 'assistant' or 'tool'",
    ),
    (
        {"messages": [{"role": "user", "content": "x", "tool_calls": [CALL]}]},
        "messages.0.tool_calls",
        "invalid_value",
        "got a value in a message of role 'user', allowed: 'assistant'",
    ),
    (
        {"messages": [*HELLO, {"role": "assistant", "content": "x", "tool_call_id": "c"}]},
        "messages.1.tool_call_id",
        "invalid_value",
        "role 'assistant', allowed: 'tool'",
    ),
    (
        {"messages": [{"role": "user", "content": [{"type": "refusal", "refusal": "no"}]}]},
        "messages.0.content",
        "invalid_value",
        "got a refusal in a message of role 'user', allowed: 'assistant'",
    ),
    (
        {"messages": [{"role": "system", "content": "x", "refusal": "no"}]},
        "messages.0.refusal",
        "invalid_value",
        "allowed: 'assistant'",
    ),
    (
        {"messages": [{"role": "tool", "content": "x"}]},
        "messages.0.tool_call_id",
        "missing_required_parameter",
        "the id of the call",
    ),
    (
        {"messages": [{"role": "tool", "tool_call_id": "c", "content": None}]},
        "messages.0.content",
        "missing_required_parameter",
        "a string or a list of text parts",
    ),
    (
        {"messages": [{"role": "assistant", "content": None, "tool_calls": []}]},
        "messages.0.content",
        "missing_required_parameter",
        "a string or a list of text parts",
    ),
    (
        {"messages": [{"role": "assistant", "tool_calls": [CALL | {"type": "custom"}]}]},
        "messages.0.tool_calls.0.type",
        "invalid_value",
        "got 'custom', allowed: 'function'",
    ),
    (
        {"messages": [{"role": "assistant", "content": "x", "function_call": {"name": "f"}}]},
        "messages.0.function_call",
        "unsupported_parameter",
        "this field is not supported",
    ),
    ({"on_disconnect": "continue"}, "on_disconnect", "invalid_value", "only together with stream=true"),
    (
        {"messages": [{"role": "user", "content": "x", "name": "Bob"}]},
        "messages.0.name",
        "unsupported_parameter",
        "this field is not supported; got 'Bob'",
    ),
    ({"max_tokens": 0}, "max_tokens", "out_of_range", "got 0, allowed: an integer of at least 1"),
    ({"max_completion_tokens": 1.5}, "max_completion_tokens", "invalid_type", "got 1.5"),
    ({"n": 0}, "n", "out_of_range", "got 0, allowed: an integer from 1 to 128"),
    ({"n": 129}, "n", "out_of_range", "got 129, allowed: an integer from 1 to 128"),
    ({"n": True}, "n", "invalid_type", "got true, allowed: an integer from 1 to 128"),
    ({"logprobs": 2}, "logprobs", "invalid_type", "got 2, allowed: true or false"),
    ({"logprobs": False, "top_logprobs": 2}, "top_logprobs", "invalid_value", "with logprobs=true"),
    ({"min_tokens": 6, "max_tokens": 5}, "min_tokens", "invalid_value", "got 6, allowed: at most max_tokens"),
    ({"store": True}, "store", "unsupported_value", "got true, allowed: false"),
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
        "input.0.content.0.type",
        "invalid_value",
        "got 'input_image', allowed: 'input_text', 'output_text'",
    ),
    ({"max_output_tokens": 0}, "max_output_tokens", "out_of_range", "an integer of at least 1"),
    ({"previous_response_id": 3}, "previous_response_id", "invalid_type", "got 3"),
    ({"instructions": ["x"]}, "instructions", "invalid_type", "got a list of 1, allowed: a string"),
    ({"metadata": {"a": 1}}, "metadata.a", "invalid_type", "got 1, allowed: a string"),
    ({"metadata": {str(i): "" for i in range(17)}}, "metadata", "value_too_long", "up to 16 strings"),
    ({"truncation": "yes"}, "truncation", "invalid_value", "got 'yes', allowed: 'auto', which drops"),
    ({"background": 1}, "background", "invalid_type", "got 1, allowed: true or false"),
    ({"background": True, "store": False}, "background", "invalid_value", "only what is stored"),
    ({"stream": "yes"}, "stream", "invalid_type", "got 'yes', allowed: true or false"),
    ({"conversation": "conv_1"}, "conversation", "unsupported_parameter", "not supported"),
    (
        {"include": ["reasoning.encrypted_content"]},
        "include.0",
        "invalid_value",
        "'message.output_text.logprobs'",
    ),
    ({"include": [], "top_logprobs": 2}, "top_logprobs", "invalid_value", "in include"),
    ({"n": 2}, "n", "unknown_parameter", "unknown field"),
    ({"min_tokens": 6, "max_output_tokens": 5}, "min_tokens", "invalid_value", "at most max_tokens (5)"),
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
    assert chat(**fields).sampling == SamplingParams()


@pytest.mark.parametrize("fields", [{"include": [], "top_logprobs": 0}, {"include": None, "tools": []}])
def test_values_that_change_nothing_are_fine_in_responses_too(fields: dict[str, Any]) -> None:
    assert create(**fields).sampling == SamplingParams()


@pytest.mark.parametrize(
    ("unsupported", "schema"),
    [(UNSUPPORTED_IN_CHAT, ChatRequest), (UNSUPPORTED_IN_RESPONSES, CreateResponse)],
)
def test_nothing_is_both_supported_and_refused(unsupported: Any, schema: Any) -> None:
    assert not unsupported.keys() & schema.model_fields.keys()


def test_sampling_reaches_the_engine() -> None:
    fields = {
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 4,
        "min_p": 0.1,
        "presence_penalty": -1,
        "frequency_penalty": 2,
        "repetition_penalty": 1.2,
        "logit_bias": {"50": -100, "0": 1.5},
        "allowed_token_ids": [9, 3, 9],
        "min_tokens": 2,
        "ignore_eos": True,
        "seed": -7,
        "stop_token_ids": [3],
        "include_stop_str_in_output": True,
    }
    wanted = SamplingParams(
        temperature=0.5,
        top_p=0.9,
        top_k=4,
        min_p=0.1,
        presence_penalty=-1,
        frequency_penalty=2,
        repetition_penalty=1.2,
        logit_bias=((50, -100), (0, 1.5)),
        allowed_token_ids=(3, 9),
        min_tokens=2,
        ignore_eos=True,
        seed=-7,
        max_tokens=9,
        stop=("x",),
        stop_token_ids=(3,),
        include_stop=True,
    )
    assert chat(**fields, stop="x", max_tokens=9).sampling == wanted
    assert create(**fields, stop=["x"], max_output_tokens=9).sampling == wanted


def test_choices_and_log_probabilities_reach_the_engine() -> None:
    def of(request: Any) -> tuple[int, int | None]:
        return request.sampling.n, request.sampling.logprobs

    assert of(chat(n=3)) == (3, None)
    assert of(chat(logprobs=True)) == (1, 0)
    assert of(chat(logprobs=True, top_logprobs=20)) == (1, 20)
    assert of(create(include=["message.output_text.logprobs"])) == (1, 0)
    assert of(create(include=["message.output_text.logprobs"], top_logprobs=5)) == (1, 5)


def test_a_field_s_name_in_an_error_has_a_bounded_length() -> None:
    error = refused(chat, **{"x" * 10_000: 1})
    assert len(error.message) < 2000
    assert len(error.param or "") < 100


def test_the_current_name_of_the_token_limit_wins() -> None:
    assert chat(max_tokens=5).token_limit == 5
    assert chat(max_tokens=5, max_completion_tokens=7).token_limit == 7
    assert chat().token_limit is None


@pytest.mark.parametrize(
    "arguments",
    [
        "no JSON",
        "[1]",
        "1",
        '{"a": NaN}',
        '{"a": 1,}',
        '{"a":' * 70 + "1" + "}" * 70,
        "[" * 100_000,
        r'{"a": "\ud83d"}',
        '{"a": ' + "9" * 10_000 + "}",
    ],
)
def test_arguments_that_no_template_could_write_are_refused_by_name(arguments: str) -> None:
    calls = [CALL, CALL | {"function": {"name": "f", "arguments": arguments}}]
    error = refused(chat, messages=[*HELLO, {"role": "assistant", "tool_calls": calls}])
    assert error.param == "messages.1.tool_calls.1.function.arguments"
    assert "allowed: a JSON object as a string" in error.message
    assert len(error.message) < 300


def test_tool_calls_and_their_answers_become_what_templates_take() -> None:
    request = chat(
        messages=[
            *HELLO,
            {"role": "assistant", "content": None, "tool_calls": [CALL]},
            {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "42"}]},
            {
                "role": "assistant",
                "content": "let me see",
                "tool_calls": [CALL | {"id": "c2", "function": {"name": "g", "arguments": ""}}],
            },
            {"role": "tool", "tool_call_id": "c2", "content": ""},
        ]
    )
    first = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": {"a": [1]}}}
    second = {"id": "c2", "type": "function", "function": {"name": "g", "arguments": {}}}
    assert request.conversation == [
        *HELLO,
        {"role": "assistant", "content": "", "tool_calls": [first]},
        {"role": "tool", "content": "42", "tool_call_id": "c1"},
        {"role": "assistant", "content": "let me see", "tool_calls": [second]},
        {"role": "tool", "content": "", "tool_call_id": "c2"},
    ]


def test_large_numbers_in_arguments_stay_what_they_are() -> None:
    arguments = '{"n": 123456789012345678901234567890}'
    calls = [CALL | {"function": {"name": "f", "arguments": arguments}}]
    (_, answered) = chat(messages=[*HELLO, {"role": "assistant", "tool_calls": calls}]).conversation
    assert answered["tool_calls"][0]["function"]["arguments"] == {"n": 123456789012345678901234567890}


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"content": None, "refusal": "I will not"}, "I will not"),
        ({"content": "", "refusal": "I will not"}, "I will not"),
        ({"content": "Hm.", "refusal": "I will not"}, "Hm.\nI will not"),
        ({"content": [{"type": "text", "text": "Hm."}, {"type": "refusal", "refusal": "No"}]}, "Hm.\nNo"),
    ],
)
def test_what_an_assistant_refused_is_what_it_said(given: dict[str, Any], text: str) -> None:
    request = chat(messages=[*HELLO, {"role": "assistant"} | given])
    assert request.conversation[1] == {"role": "assistant", "content": text}


SDK_CHAT_FIELDS = """
    messages model audio frequency_penalty function_call functions logit_bias logprobs
    max_completion_tokens max_tokens metadata modalities moderation n parallel_tool_calls prediction
    presence_penalty prompt_cache_key prompt_cache_options prompt_cache_retention reasoning_effort
    response_format safety_identifier seed service_tier stop store stream stream_options temperature
    tool_choice tools top_logprobs top_p user verbosity web_search_options
"""
"""As of openai 3.57."""


SDK_RESPONSE_FIELDS = """
    access_programs background background_options context_management conversation image include input
    instructions max_output_tokens max_tool_calls metadata model moderation parallel_tool_calls
    previous_response_id prompt prompt_cache_key prompt_cache_options prompt_cache_retention reasoning
    safety_identifier service_tier store stream stream_options temperature text tool_choice tools top_logprobs
    top_p truncation user generate
"""
"""The last one on its socket only; here it works everywhere."""


@pytest.mark.parametrize("field", SDK_RESPONSE_FIELDS.split())
def test_every_field_of_the_sdk_s_responses_works_or_is_refused_by_name(field: str) -> None:
    if field in UNSUPPORTED_IN_RESPONSES:
        error = refused(create, **{field: "a value that means something"})
        assert error.param == field
        assert "not supported" in error.message
        assert create(**{field: None}).sampling == SamplingParams()
    else:
        assert field in CreateResponse.model_fields


@pytest.mark.parametrize("field", SDK_CHAT_FIELDS.split())
def test_every_field_of_the_sdk_works_or_is_refused_by_name(field: str) -> None:
    if field in UNSUPPORTED_IN_CHAT:
        error = refused(chat, **{field: "a value that means something"})
        assert error.param == field
        assert "not supported" in error.message
        assert chat(**{field: None}).sampling == SamplingParams()
    else:
        assert field in ChatRequest.model_fields


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
    assert request.conversation == [
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
    assert request.messages == [
        {"role": "user", "content": "hello"},
        {"role": "assistant", "content": "hi"},
        {"role": "user", "content": "more"},
    ]
