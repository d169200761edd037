"""The AI SDK's chat as pure data: which frames are understood, and how a log becomes numbered chunks."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.protocol.errors import ApiError
from app.protocol.ui_chat import (
    AbortRequest,
    ChatChunks,
    Refused,
    ResumeRequest,
    Turn,
    chunk_frame,
    error_frame,
    understand,
)
from app.streams import Answer, Cut, StreamError
from engine.request import FinishedEvent, FinishReason, Timings

TEXT = {"type": "text", "text": "hello"}
USER = {"id": "1", "role": "user", "parts": [TEXT]}
SEND = {
    "type": "send",
    "requestId": "r",
    "id": "chat",
    "trigger": "submit-message",
    "messages": [USER],
    "headers": {},
    "body": {},
}


def read(**fields: Any) -> Any:
    return understand(orjson.dumps(SEND | fields).decode())


def turn(**fields: Any) -> Turn:
    understood = read(**fields)
    assert isinstance(understood, Turn)
    return understood


# -- frames -----------------------------------------------------------------------------------------------


def test_all_that_a_ui_message_carries_beside_its_text_is_fine_and_goes_nowhere() -> None:
    answered = {
        "id": "2",
        "role": "assistant",
        "metadata": {"usage": {"totalTokens": 3}},
        "parts": [
            {"type": "step-start"},
            {"type": "text", "text": "hi", "state": "done", "providerMetadata": {"x": {}}, "citations": []},
            {"type": "step-start"},
            {"type": "text", "text": " there", "state": "streaming"},
        ],
    }
    rules = {"id": "0", "role": "system", "parts": [{"type": "text", "text": "be brief"}]}
    understood = turn(messages=[rules, USER, answered, USER | {"id": "3"}], metadata=["anything"])
    assert understood.conversation == [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "hello"},
        {"role": "assistant", "content": "hi there"},
        {"role": "user", "content": "hello"},
    ]


def test_fields_in_the_body_become_the_request() -> None:
    understood = turn(body={"temperature": 0, "max_tokens": 5, "stop": "x", "system": "be brief"})
    assert understood.fields.sampling.temperature == 0
    assert understood.fields.sampling.max_tokens == 5
    assert understood.fields.sampling.stop == ("x",)
    assert understood.conversation[0] == {"role": "system", "content": "be brief"}
    assert turn(body={"max_output_tokens": 7}).fields.sampling.max_tokens == 7
    assert turn(body={"instructions": "rules"}).conversation[0]["content"] == "rules"


def test_resume_and_abort() -> None:
    resume = read_frame(type="resume", requestId="r", id="c", lastSequence=4, body={"temperature": 0})
    assert isinstance(resume, ResumeRequest)
    assert (resume.id, resume.lastSequence, resume.messageId) == ("c", 4, None)
    assert isinstance(read_frame(type="abort", requestId="r"), AbortRequest)


def read_frame(**frame: Any) -> Any:
    return understand(orjson.dumps(frame).decode())


FILE = {"type": "file", "mediaType": "image/png", "url": "data:"}
REFUSED = [
    ({"type": "stop"}, "type: got 'stop', allowed: 'send', 'resume' or 'abort'"),
    ({"type": None}, "type: got null, allowed: 'send', 'resume' or 'abort'"),
    ({"trigger": "retry"}, "trigger: got 'retry', allowed: 'submit-message' or 'regenerate-message'"),
    ({"id": ""}, "id: got '', allowed: a string"),
    ({"id": 7}, "id: got 7, allowed: a string"),
    ({"extra": 1}, "extra: unknown field; allowed: type, requestId, id,"),
    ({"messages": []}, "messages: got an empty list, allowed: a non-empty list of UI messages"),
    ({"messages": "hi"}, "messages: got 'hi', allowed: a non-empty list of UI messages"),
    ({"messages": [{"role": "user", "parts": [TEXT]}]}, "messages.0.id: missing"),
    ({"messages": [USER | {"role": "tool"}]}, "messages.0.role: got 'tool', allowed: 'system', 'user' or"),
    ({"messages": [USER | {"parts": [TEXT, FILE]}]}, "messages.0.parts.1.type: got 'file', allowed: 'text'"),
    ({"messages": [USER | {"parts": [{"type": "tool-x"}]}]}, "messages.0.parts.0.type: got 'tool-x'"),
    ({"messages": [USER | {"parts": [{"type": "reasoning"}]}]}, "messages.0.parts.0.type: got 'reasoning'"),
    ({"messages": [USER | {"parts": []}]}, "messages.0.parts: got no text, allowed: a user's message"),
    ({"messages": [USER, USER | {"parts": [{"type": "step-start"}]}]}, "messages.1.parts: got no text"),
    ({"messages": [USER | {"content": "old"}]}, "messages.0.content: unknown field"),
    ({"headers": {"a": 1}}, "headers.a: got 1, allowed: a string"),
    ({"body": []}, "body: got an empty list, allowed: an object"),
    ({"body": {"temperature": 3}}, "temperature: got 3, allowed: a number from 0 to 2"),
    ({"body": {"tools": {}}}, "tools: unknown field; allowed: temperature"),
    ({"body": {"on_disconnect": "wait"}}, "on_disconnect: got 'wait', allowed: 'cancel' or 'continue'"),
    ({"body": {"max_tokens": 5, "max_output_tokens": 6}}, "max_tokens: got 5 beside max_output_tokens"),
    ({"body": {"instructions": "a", "system": "b"}}, "system: got 'b' beside instructions"),
    ({"type": "resume", "lastSequence": 1}, "trigger: unknown field"),
]


@pytest.mark.parametrize(("fields", "complaint"), REFUSED)
def test_what_is_not_understood_is_told_to_its_request(fields: dict[str, Any], complaint: str) -> None:
    understood = read(**fields)
    assert isinstance(understood, Refused)
    assert understood.request_id == "r"
    assert understood.error.message.startswith(complaint)
    frame = orjson.loads(error_frame("r", understood.error))
    assert (frame["type"], frame["requestId"]) == ("error", "r")
    assert frame["errorText"] == understood.error.message


@pytest.mark.parametrize("number", [-1, 1.5, "3", True, 2**53])
def test_a_number_that_no_chunk_can_have_is_refused(number: object) -> None:
    understood = read_frame(type="resume", requestId="r", id="c", lastSequence=number)
    assert isinstance(understood, Refused)
    assert understood.error.param == "lastSequence"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "hello",
        "[]",
        "{}",
        '{"requestId": 7}',
        '{"requestId": ""}',
        f'{{"requestId": "{"x" * 129}"}}',
        "NaN",
    ],
)
def test_a_frame_that_names_no_request_is_no_frame(text: str) -> None:
    with pytest.raises(ApiError):
        understand(text)


def test_an_answer_is_added_to_the_last_message_where_that_is_an_assistant_s() -> None:
    said = {"id": "m7", "role": "assistant", "parts": [TEXT]}
    assert turn(messages=[USER, said]).request.continued == "m7"
    assert turn(messages=[USER, said], trigger="regenerate-message").request.continued is None
    assert turn(messages=[USER]).request.continued is None


# -- chunks -----------------------------------------------------------------------------------------------


def finished(reason: FinishReason, stop: str | None = None, num_output_tokens: int = 5) -> FinishedEvent:
    timings = Timings(0.0, 0.1, 0.2, 0.3)
    return FinishedEvent("a", 0, reason, stop, None, 10, 4, num_output_tokens, 0, timings)


def chunks_of(answer: Answer, continued: str | None = None) -> list[dict[str, Any]]:
    view = ChatChunks(answer, continued, "m")
    chunks: list[dict[str, Any]] = []
    while len(chunks) != view.num_chunks:
        chunk = view.chunk(len(chunks))
        assert chunk is not None
        chunks.append(chunk)
    return chunks


def ended(end: FinishedEvent, cut: Cut | None = None) -> list[dict[str, Any]]:
    answer = Answer("a", 0.0, 0)
    answer.streams[0].append("hello")
    answer.cut = cut
    answer.streams[0].finish(end)
    return chunks_of(answer)


USAGE = {
    "inputTokens": 10,
    "inputTokenDetails": {"noCacheTokens": 6, "cacheReadTokens": 4, "cacheWriteTokens": 0},
    "outputTokens": 5,
    "outputTokenDetails": {"textTokens": 5, "reasoningTokens": 0},
    "totalTokens": 15,
}


def test_the_chunks_of_an_answer() -> None:
    assert ended(finished(FinishReason.STOP, "x")) == [
        {"type": "start", "messageId": "msg_a"},
        {"type": "start-step"},
        {"type": "text-start", "id": "text"},
        {"type": "text-delta", "id": "text", "delta": "hello"},
        {"type": "text-end", "id": "text"},
        {"type": "finish-step"},
        {
            "type": "finish",
            "finishReason": "stop",
            "messageMetadata": {"model": "m", "stopReason": "x", "usage": USAGE},
        },
    ]


@pytest.mark.parametrize(
    ("end", "cut", "last"),
    [
        (finished(FinishReason.LENGTH), None, {"type": "finish", "finishReason": "length"}),
        (
            finished(FinishReason.TIMEOUT, "max_time_ms"),
            None,
            {"type": "finish", "finishReason": "length"},
        ),
        (finished(FinishReason.ABORT), Cut.CANCELLED, {"type": "abort", "reason": "cancelled"}),
        (finished(FinishReason.ABORT), Cut.ABANDONED, {"type": "abort", "reason": "abandoned"}),
        (finished(FinishReason.STOP), Cut.CANCELLED, {"type": "finish", "finishReason": "stop"}),
        (finished(FinishReason.ABORT), None, {"type": "error"}),
        (finished(FinishReason.ERROR), None, {"type": "error"}),
        (finished(FinishReason.TIMEOUT, "max_queue_ms", 0), None, {"type": "error"}),
    ],
)
def test_how_an_answer_may_end(end: FinishedEvent, cut: Cut | None, last: dict[str, Any]) -> None:
    chunks = ended(end, cut)
    assert last.items() <= chunks[-1].items()
    assert chunks[-3] == {"type": "text-end", "id": "text"}
    (metadata,) = [each["messageMetadata"] for each in chunks if "messageMetadata" in each]
    assert metadata["usage"]["inputTokens"] == 10
    assert sum(each["type"] in ("finish", "abort", "error") for each in chunks) == 1


def test_an_answer_added_to_a_message_has_its_id() -> None:
    answer = Answer("a", 0.0, 0)
    answer.streams[0].finish(finished(FinishReason.STOP))
    assert chunks_of(answer, continued="m7")[0] == {"type": "start", "messageId": "m7"}


STEPS = st.lists(st.sampled_from(["say", "read", "read other"]), max_size=30)


@given(STEPS)
def test_every_reader_gets_the_same_chunk_under_the_same_number(steps: list[str]) -> None:
    answer = Answer("a", 0.0, 0)
    (stream,) = answer.streams
    view = ChatChunks(answer, None, "m")
    readers: dict[str, list[dict[str, Any]]] = {"read": [], "read other": []}

    def read_one(name: str) -> bool:
        given_before, seen = view.num_given, readers[name]
        if len(seen) == view.num_chunks:
            return False
        chunk = view.chunk(len(seen))
        assert chunk is not None or len(seen) == given_before, "what was given once is there for all"
        seen.extend([chunk] if chunk else [])
        return chunk is not None

    for count, step in enumerate(steps):
        if step == "say":
            stream.append(f"{count},")
        else:
            read_one(step)
    stream.finish(finished(FinishReason.STOP))
    for name in readers:
        while read_one(name):
            pass
    first, second = readers.values()
    assert first == second
    assert len(first) == view.num_chunks == view.num_given
    assert "".join(each["delta"] for each in first if each["type"] == "text-delta") == stream.text
    with pytest.raises(StreamError):
        view.chunk(len(first))


def test_an_open_delta_was_given_to_nobody() -> None:
    answer = Answer("a", 0.0, 0)
    view = ChatChunks(answer, None, "m")
    assert view.num_given == 3
    answer.streams[0].append("a")
    assert view.num_given == 3
    assert view.chunk(3) == {"type": "text-delta", "id": "text", "delta": "a"}
    assert view.num_given == 4
    answer.streams[0].finish(finished(FinishReason.STOP))
    assert view.num_given == 4
    view.chunk(4)
    assert view.num_given == view.num_chunks == 7


def test_a_chunk_s_frame() -> None:
    assert orjson.loads(chunk_frame("r", 3, {"type": "start-step"})) == {
        "type": "chunk",
        "requestId": "r",
        "sequence": 3,
        "chunk": {"type": "start-step"},
    }
