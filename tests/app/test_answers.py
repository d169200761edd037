"""Answers as pure data: what is sent of what an engine said."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import orjson
import pytest

from app.protocol.chat import ChatBuilder, parse_chat
from app.protocol.endings import failure
from app.protocol.errors import ApiError
from app.protocol.responses import ResponseEvents, parse_create
from app.streams import Answer, Cut, Delta, StreamError
from engine.detokenizer import Vocabulary
from engine.request import ChosenLogprob, FinishedEvent, FinishReason, Timings, TokenLogprob

EURO = "\u20ac".encode()
VOCABULARY = Vocabulary((b"", b" yes", EURO[:2], EURO[2:], b"no"), frozenset({0}))


def finished(reason: FinishReason, choice: int = 0, **fields: Any) -> FinishedEvent:
    defaults = {"stop": None, "error": None, "num_cached_tokens": 0, "num_output_tokens": 2}
    return FinishedEvent(
        request_id="abc",
        choice=choice,
        reason=reason,
        num_prompt_tokens=3,
        num_preemptions=0,
        **({"timings": Timings(0.0, 0.1, 0.2, 0.3)} | defaults | fields),
    )


def spoken(*texts: str, end: FinishedEvent | None = None) -> Answer:
    answer = Answer("abc", arrival=0.0, created=1700000000)
    for index, text in enumerate(texts):
        answer.streams[0].append(text)
        answer.streams[0].take(index)
    if end is not None:
        answer.streams[0].finish(end)
    return answer


def logprob(token: int, value: float, *top: tuple[int, float]) -> ChosenLogprob:
    return ChosenLogprob(TokenLogprob(token, value), tuple(TokenLogprob(*each) for each in top))


# -- responses -------------------------------------------------------------------------------------------


def response_of(answer: Answer, **fields: Any) -> ResponseEvents:
    return ResponseEvents(answer, parse_create({"input": "hello"} | fields), "m", VOCABULARY)


def events_of(answer: Answer, **fields: Any) -> list[dict[str, Any]]:
    response = response_of(answer, **fields)
    events: list[dict[str, Any]] = []
    while (event := response.event(len(events))) is not None:
        events.append(orjson.loads(orjson.dumps(event)))
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
    events = events_of(spoken("Hel", "lo", end=finished(FinishReason.STOP, num_cached_tokens=1)))
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
    assert response["usage"]["input_tokens_details"]["cached_tokens"] == 1
    assert response["usage"]["output_tokens"] == 2
    assert response["usage"]["total_tokens"] == 5


IN_TIME = {"stop": "max_time_ms"}
TOO_LATE = {"num_output_tokens": 0, "timings": Timings(1.0, None, None, 1.5)}


@pytest.mark.parametrize(
    ("reason", "fields", "cancelled", "kind", "status", "details"),
    [
        (FinishReason.LENGTH, {}, False, "incomplete", "incomplete", {"reason": "max_output_tokens"}),
        (FinishReason.TIMEOUT, IN_TIME, False, "incomplete", "incomplete", {"reason": "max_time_ms"}),
        (FinishReason.TIMEOUT, {"stop": "max_queue_ms"} | TOO_LATE, False, "failed", "failed", None),
        (FinishReason.ABORT, {}, True, "incomplete", "cancelled", None),
        (FinishReason.ABORT, {}, False, "failed", "failed", None),
        (FinishReason.ERROR, {"error": "the model fell over"}, False, "failed", "failed", None),
        # It had ended by itself before the cancel arrived.
        (FinishReason.STOP, {}, True, "completed", "completed", None),
    ],
)
def test_each_end_has_its_own_last_event(
    reason: FinishReason, fields: dict[str, Any], cancelled: bool, kind: str, status: str, details: object
) -> None:
    answer = spoken("x", end=finished(reason, **fields))
    answer.cut = Cut.CANCELLED if cancelled else None
    last = events_of(answer)[-1]
    assert last["type"] == f"response.{kind}"
    assert last["response"]["status"] == status
    assert last["response"]["incomplete_details"] == details
    assert bool(last["response"]["error"]) == (kind == "failed")
    if fields.get("error"):
        assert last["response"]["error"] == {"code": "server_error", "message": "the model fell over"}


@pytest.mark.parametrize("reason", FinishReason)
def test_both_apis_call_the_same_endings_failures(reason: FinishReason) -> None:
    end = finished(reason, error="the model fell over", stop="max_time_ms")
    error = failure(end)
    last = events_of(spoken(end=end))[-1]
    assert (last["type"] == "response.failed") == (error is not None)
    if error is not None:
        assert last["response"]["error"] == {"code": error.code, "message": error.message}


@pytest.mark.parametrize(
    ("limit", "admitted", "code", "where"),
    [
        ("max_queue_ms", None, "queue_timeout", "in the queue"),
        ("max_time_ms", None, "queue_timeout", "in the queue"),
        ("max_time_ms", 1.1, "timeout", "at its prompt"),
    ],
)
def test_an_answer_of_which_nothing_came_in_time_is_a_failure(
    limit: str, admitted: float | None, code: str, where: str
) -> None:
    timings = Timings(1.0, admitted, None, 1.5)
    error = failure(finished(FinishReason.TIMEOUT, stop=limit, num_output_tokens=0, timings=timings))
    assert error is not None
    assert (error.status, error.code, error.param) == (503, code, limit)
    assert "500 ms" in error.message
    assert where in error.message


def test_an_event_has_the_same_number_whoever_asks_and_when() -> None:
    answer = spoken("a", "b")
    early, late = response_of(answer), response_of(answer)
    before = [early.event(number) for number in range(6)]
    assert early.event(6) is None
    answer.streams[0].append("c")
    answer.streams[0].finish(finished(FinishReason.STOP))
    assert [late.event(number) for number in range(6)] == before
    rest = [late.event(number) or {} for number in range(6, 11)]
    assert [e["type"] for e in rest] == ["response.output_text.delta", *KINDS[6:], "response.completed"]
    with pytest.raises(StreamError):
        late.event(11)


def test_the_request_is_echoed() -> None:
    fields = {"instructions": "be kind", "metadata": {"k": "v"}, "temperature": 0.5}
    created = events_of(spoken(), **fields)[0]["response"]
    assert created["instructions"] == "be kind"
    assert created["metadata"] == {"k": "v"}
    assert created["temperature"] == 0.5
    assert created["top_p"] == 1.0
    assert created["top_logprobs"] == 0
    assert created["store"] is True


def test_log_probabilities_of_a_response_are_in_its_deltas_and_once_more_at_the_end() -> None:
    answer = Answer("abc", arrival=0.0, created=1)
    (stream,) = answer.streams
    stream.append(" yes", [logprob(1, -0.25, (1, -0.25), (4, -2.0))])
    stream.take(0)
    stream.append("no", [logprob(4, -1.0, (1, -0.5), (4, -1.0))])
    stream.finish(finished(FinishReason.STOP))
    events = events_of(answer, include=["message.output_text.logprobs"], top_logprobs=2)
    yes = {"token": " yes", "logprob": -0.25, "bytes": list(b" yes")}
    no = {"token": "no", "logprob": -2.0, "bytes": list(b"no")}
    first, second = (event["logprobs"] for event in events[4:6])
    assert first == [yes | {"top_logprobs": [yes, no]}]
    assert [each["token"] for each in second[0]["top_logprobs"]] == [" yes", "no"]
    assert events[3]["part"]["logprobs"] == []
    assert events[6]["logprobs"] == events[7]["part"]["logprobs"] == first + second
    assert events[9]["response"]["output"][0]["content"][0]["logprobs"] == first + second


def test_a_response_that_rests_says_the_same() -> None:
    answer = Answer("abc", arrival=0.0, created=1)
    (stream,) = answer.streams
    for index in range(3):
        stream.append("no", [logprob(4, -1.0, (1, -0.5), (4, -1.0))])
        stream.take(index)
    stream.finish(finished(FinishReason.STOP))
    response = response_of(
        answer,
        include=["message.output_text.logprobs"],
        top_logprobs=2,
        instructions="be kind",
        metadata={"k": "v"},
        previous_response_id="resp_1",
        temperature=0.5,
        top_p=0.25,
        max_output_tokens=7,
        user="u",
        background=True,
        truncation="auto",
        allowed_token_ids=list(range(1000)),
    )

    def everything() -> list[bytes]:
        events = [response.event(number) for number in range(response.num_events or 0)]
        return [orjson.dumps(each) for each in (*events, response.response())]

    before = everything()
    for _ in range(2):
        response.rest()
        assert response.request.input == []
        assert response.request.allowed_token_ids is None
        assert response.unwritten_size > 0
        assert everything() == before
        assert response.unwritten_size == 0


def test_a_reader_goes_on_behind_any_number_that_was_given_and_no_other() -> None:
    answer = spoken("a", "b")
    response = response_of(answer)
    answer.streams[0].append("nobody has taken this yet")

    def allowed() -> list[int]:
        numbers = []
        for number in range(-3, 20):
            with suppress(ApiError):
                assert response.first_after(number) == number + 1
                numbers.append(number)
        return numbers

    assert response.first_after(None) == 0
    assert allowed() == list(range(-1, 6))
    answer.streams[0].finish(finished(FinishReason.STOP))
    assert allowed() == list(range(-1, 11))
    assert response.num_events == 11
    with pytest.raises(ApiError, match=r"starting_after: got 11, allowed: .* up to 10") as caught:
        response.first_after(11)
    assert (caught.value.status, caught.value.param) == (400, "starting_after")


def test_a_response_in_the_background_begins_in_the_queue() -> None:
    created, in_progress, *_ = events_of(spoken(), background=True)
    assert created["response"]["status"] == "queued"
    assert in_progress["response"]["status"] == "in_progress"
    assert created["response"]["background"] is True


def test_what_was_left_out_is_told_where_it_may_be() -> None:
    for fields, told in (({}, None), ({"truncation": "auto"}, 3)):
        request = parse_create({"input": "hello"} | fields)
        shown = ResponseEvents(spoken(), request, "m", VOCABULARY, num_dropped=told or 0).response()
        assert shown.get("truncated_items") == told
        assert shown["truncation"] == request.truncation or "disabled"


def test_a_response_without_log_probabilities_has_empty_lists() -> None:
    events = events_of(spoken("x", end=finished(FinishReason.STOP)))
    assert events[4]["logprobs"] == events[5]["logprobs"] == events[6]["part"]["logprobs"] == []


# -- chat completions ------------------------------------------------------------------------------------


def builder_of(answer: Answer, **fields: Any) -> ChatBuilder:
    messages = [{"role": "user", "content": "hello"}]
    return ChatBuilder(answer, parse_chat(orjson.dumps({"messages": messages} | fields)), "m", VOCABULARY)


WITH_USAGE = {"stream": True, "stream_options": {"include_usage": True}}


def test_chunks_of_a_chat_completion() -> None:
    end = finished(FinishReason.STOP, stop="END", num_cached_tokens=2)
    answer = spoken("x", end=end)
    builder = builder_of(answer, **WITH_USAGE)
    (role,), text, last = builder.opening(), builder.text(0, Delta("x")), builder.finish(0, end)
    usage = builder.usage()
    assert usage is not None
    assert len({(c["id"], c["created"], c["object"], c["model"]) for c in (role, text, last, usage)}) == 1
    assert role["choices"][0]["delta"] == {"role": "assistant", "content": "", "refusal": None}
    assert text["choices"][0]["delta"] == {"content": "x"}
    assert last["choices"][0]["delta"] == {}
    assert [c["choices"][0]["finish_reason"] for c in (role, text, last)] == [None, None, "stop"]
    assert [c["choices"][0]["logprobs"] for c in (role, text, last)] == [None] * 3
    assert last["choices"][0]["stop_reason"] == "END"
    assert [c["usage"] for c in (role, text, last)] == [None] * 3
    assert usage["choices"] == []
    assert usage["usage"]["total_tokens"] == 5
    assert usage["usage"]["prompt_tokens_details"]["cached_tokens"] == 2
    plain = builder_of(answer, stream=True)
    assert plain.usage() is None
    assert "usage" not in plain.opening()[0]


def test_a_completion_in_one_piece() -> None:
    whole = builder_of(spoken("Hel", "lo", end=finished(FinishReason.LENGTH))).completion()
    assert whole["object"] == "chat.completion"
    assert whole["choices"][0]["message"] == {"role": "assistant", "content": "Hello", "refusal": None}
    assert whole["choices"][0]["finish_reason"] == "length"
    assert whole["choices"][0]["logprobs"] is None
    assert whole["usage"]["completion_tokens"] == 2


def test_a_limit_on_time_is_told_like_one_on_tokens_with_its_name() -> None:
    whole = builder_of(spoken("x", end=finished(FinishReason.TIMEOUT, stop="max_time_ms"))).completion()
    assert whole["choices"][0]["finish_reason"] == "length"
    assert whole["choices"][0]["stop_reason"] == "max_time_ms"


def test_choices_come_in_order_and_their_prompt_is_counted_once() -> None:
    answer = Answer("abc", arrival=0.0, created=1, n=3)
    for choice in (2, 0, 1):
        answer.streams[choice].append(f"text {choice}")
        end = finished(
            FinishReason.STOP, choice, num_output_tokens=choice + 1, num_cached_tokens=2 * (choice == 1)
        )
        answer.streams[choice].finish(end)
    builder = builder_of(answer, n=3, **WITH_USAGE)
    whole, usage = builder.completion(), builder.usage()
    assert [choice["index"] for choice in whole["choices"]] == [0, 1, 2]
    assert [c["message"]["content"] for c in whole["choices"]] == ["text 0", "text 1", "text 2"]
    assert usage is not None
    assert whole["usage"] == usage["usage"]
    assert whole["usage"]["prompt_tokens"] == 3
    assert whole["usage"]["completion_tokens"] == 1 + 2 + 3
    assert whole["usage"]["total_tokens"] == 3 + 6
    # The others' hits are the first one's work.
    assert whole["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    for chunk in (builder.opening()[2], builder.text(2, Delta("x")), builder.finish(2, answer.ends[2])):
        assert chunk["choices"][0]["index"] == 2


def test_log_probabilities_tell_each_token_s_own_bytes() -> None:
    """The euro sign is two tokens here, and neither is text by itself; the end token has no text at all."""
    answer = Answer("abc", arrival=0.0, created=1)
    told = [logprob(2, -1.0, (2, -1.0), (0, -9999.0)), logprob(3, -0.5)]
    answer.streams[0].append("\u20ac", told)
    answer.streams[0].finish(finished(FinishReason.STOP))
    builder = builder_of(answer, logprobs=True, top_logprobs=2)
    content = builder.completion()["choices"][0]["logprobs"]["content"]
    assert bytes(content[0]["bytes"] + content[1]["bytes"]).decode() == "\u20ac"
    assert content[0]["token"] == content[1]["token"] == "\ufffd"
    assert content[0]["top_logprobs"] == [
        {"token": "\ufffd", "logprob": -1.0, "bytes": list(EURO[:2])},
        {"token": "", "logprob": -9999.0, "bytes": []},
    ]
    assert content[1]["top_logprobs"] == []
    chunk = builder_of(answer, logprobs=True, stream=True).text(0, Delta("\u20ac", tuple(told)))
    assert chunk["choices"][0]["logprobs"] == {"content": content, "refusal": None}
    assert builder_of(answer).text(0, Delta("\u20ac"))["choices"][0]["logprobs"] is None
