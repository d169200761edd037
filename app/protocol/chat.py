"""Chat Completions: its request, its JSON answer and the chunks of its streamed answer.

Knows: the shapes that the OpenAI SDKs send and expect. Does not know: HTTP, the engine, tokens.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cached_property
from typing import Annotated, Any, Literal

import orjson
from pydantic import BeforeValidator, Field

from app.protocol.endings import ending, usage
from app.protocol.errors import ApiError, invalid_value, shown
from app.protocol.fields import COUNT, SWITCH, RequestFields, TokenCount
from app.protocol.logprobs import entries
from app.protocol.messages import CONTINUED, check_continued, message, parts_of, refuse_empty
from app.protocol.payload import Off, StrictObject, Unsupported, decode, parse
from app.store import Message
from app.streams import Answer, Delta
from engine.detokenizer import Vocabulary
from engine.request import ChosenLogprob, FinishedEvent
from engine.sampling import MAX_LOGPROBS, MAX_N, SamplingParams

UNSUPPORTED: Unsupported = {
    "audio": (),
    "function_call": ("none", "auto"),
    "functions": ([],),
    "metadata": ({},),
    "modalities": (["text"],),
    "moderation": (),
    "parallel_tool_calls": (True, False),
    "prediction": (),
    "prompt_cache_key": (),
    "prompt_cache_options": (),
    "prompt_cache_retention": (),
    "reasoning_effort": ("none",),
    "response_format": ({"type": "text"},),
    "service_tier": ("auto", "default"),
    "store": (False,),
    "tool_choice": ("none", "auto"),
    "tools": ([],),
    "verbosity": ("medium",),
    "web_search_options": (),
}
"""Parameters of the OpenAI API that we know and do not support, and their values that change nothing."""

MAX_DEPTH = 64
"""Levels of objects and lists in the arguments of a call."""


class TextPart(StrictObject):
    type: Literal["text"]
    text: str


class RefusalPart(StrictObject):
    type: Literal["refusal"]
    refusal: str


Part = Annotated[TextPart | RefusalPart, Field(discriminator="type")]
Parts = Annotated[list[Part], Field(min_length=1)]
Content = Annotated[
    Parts, BeforeValidator(lambda value: parts_of(value, "text"), json_schema_input_type=str | Parts)
]
NonEmpty = Annotated[str, Field(min_length=1)]


class CalledFunction(StrictObject):
    name: NonEmpty
    arguments: str


class ToolCall(StrictObject):
    id: NonEmpty
    type: Literal["function"]
    function: CalledFunction


class ChatMessage(StrictObject):
    """Which fields a message may have depends on its role; `_message` looks."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Content | None = None
    refusal: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: NonEmpty | None = None
    # An SDK's message object carries them when it is sent back.
    annotations: Annotated[list[object], Field(max_length=0)] | None = None
    audio: None = None
    function_call: None = None
    name: None = None


class StreamOptions(StrictObject):
    include_usage: bool | None = None
    include_obfuscation: Off | None = None


class ChatRequest(RequestFields):
    model: str | None = Field(None, description="the name of the served model, or nothing")
    messages: list[ChatMessage] = Field(min_length=1, description="a non-empty list of messages")
    max_tokens: TokenCount | None = Field(None, description=COUNT)
    max_completion_tokens: TokenCount | None = Field(None, description=COUNT)
    n: int | None = Field(None, ge=1, le=MAX_N, description=f"an integer from 1 to {MAX_N}")
    logprobs: bool | None = Field(None, description=SWITCH)
    top_logprobs: int | None = Field(
        None, ge=0, le=MAX_LOGPROBS, description=f"an integer from 0 to {MAX_LOGPROBS}, with logprobs=true"
    )
    continue_final_message: bool | None = Field(None, description=f"{SWITCH}, and true only if {CONTINUED}")
    stream: bool | None = Field(None, description=SWITCH)
    stream_options: StreamOptions | None = Field(None, description="an object, only with stream=true")

    @property
    def token_limit(self) -> int | None:
        """`max_completion_tokens` is the current name and wins."""
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens

    @property
    def include_usage(self) -> bool:
        return bool(self.stream_options and self.stream_options.include_usage)

    @cached_property
    def sampling(self) -> SamplingParams:
        logprobs = self.top_logprobs or 0 if self.logprobs else None
        return self._sampling(self.token_limit, n=self.n or 1, logprobs=logprobs)

    @cached_property
    def conversation(self) -> list[Message]:
        return conversation_of(self.messages)


def conversation_of(messages: Sequence[ChatMessage]) -> list[Message]:
    """
    Raises:
        ApiError: a field of a message does not fit its role.
    """
    return [_message(each, f"messages.{index}") for index, each in enumerate(messages)]


def _message(given: ChatMessage, at: str) -> Message:
    refusals = [part for part in given.content or () if isinstance(part, RefusalPart)]
    has_refusal = bool(refusals) or given.refusal is not None
    for field, is_there, role in (
        ("tool_calls", bool(given.tool_calls), "assistant"),
        ("tool_call_id", given.tool_call_id is not None, "tool"),
        ("content" if refusals else "refusal", has_refusal, "assistant"),
    ):
        if is_there and given.role != role:
            what = "a refusal" if field == "content" else "a value"
            raise invalid_value(
                f"{at}.{field}", f"got {what} in a message of role {given.role!r}, allowed: {role!r}"
            )
    if given.role == "tool" and given.tool_call_id is None:
        raise _missing(f"{at}.tool_call_id", "the id of the call that is answered")
    if given.content is None and not given.tool_calls and given.refusal is None:
        raise _missing(f"{at}.content", "a string or a list of text parts")
    # What an assistant refused is what it said.
    texts = [part.text if isinstance(part, TextPart) else part.refusal for part in given.content or ()]
    made = message(given.role, texts if given.refusal is None else [*filter(None, texts), given.refusal])
    if given.tool_calls:
        made["tool_calls"] = [
            _called(call, f"{at}.tool_calls.{index}") for index, call in enumerate(given.tool_calls)
        ]
    if given.tool_call_id is not None:
        made["tool_call_id"] = given.tool_call_id
    return made


def _called(call: ToolCall, at: str) -> dict[str, Any]:
    """As chat templates take it: they write the arguments as JSON in their own way."""
    arguments = _object_in(call.function.arguments or "{}")
    if arguments is None:
        raise invalid_value(
            f"{at}.function.arguments",
            f"got {shown(call.function.arguments)}, allowed: a JSON object as a string, at most "
            f"{MAX_DEPTH} levels deep",
        )
    return {
        "id": call.id,
        "type": "function",
        "function": {"name": call.function.name, "arguments": arguments},
    }


def _object_in(text: str) -> dict[str, Any] | None:
    """None: there is none."""
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError:
        return None
    level: list[Any] = [value]
    for _ in range(MAX_DEPTH):
        level = [
            part
            for each in level
            if isinstance(each, dict | list)
            for part in (each.values() if isinstance(each, dict) else each)
        ]
    if not isinstance(value, dict) or level:
        return None
    # Once more, for this one keeps integers of any size as they are; deep texts would be its end.
    exact: dict[str, Any] = json.loads(text)
    return exact


def _missing(param: str, expected: str) -> ApiError:
    return ApiError(
        400, f"{param}: missing, expected: {expected}", code="missing_required_parameter", param=param
    )


def parse_chat(raw: bytes) -> ChatRequest:
    """Raises ApiError. Takes tens of milliseconds for a megabyte of short messages, and leaves nothing that
    grows with them for later."""
    request = parse(ChatRequest, decode(raw), UNSUPPORTED)
    if request.stream_options is not None and not request.stream:
        raise invalid_value("stream_options", "got an object, allowed: only together with stream=true")
    if request.on_disconnect == "continue" and not request.stream:
        # Nobody would know its id.
        raise invalid_value("on_disconnect", "got 'continue', allowed: only together with stream=true")
    if request.top_logprobs and not request.logprobs:
        raise invalid_value(
            "top_logprobs", f"got {request.top_logprobs}, allowed: only together with logprobs=true"
        )
    refuse_empty(request.conversation, "messages")
    if request.continue_final_message:
        check_continued(request.conversation)
    _ = request.sampling
    return request


_CHUNK = "chat.completion.chunk"


class ChatBuilder:
    """What is sent of one answer: in one piece, or as chunks. A view on a shelf.

    The chunks: the `opening`, then `text`s and `finish`es of the choices, mixed as they come, then
    perhaps `usage`.

    Args:
        vocabulary: what the tokens of log probabilities stand for.
    """

    def __init__(self, answer: Answer, request: ChatRequest, model: str, vocabulary: Vocabulary) -> None:
        self.id = f"chatcmpl-{answer.request_id}"
        self.answer = answer
        self._model = model
        self._vocabulary = vocabulary
        self._with_logprobs = request.sampling.logprobs is not None
        self._include_usage = request.include_usage

    def completion(self) -> dict[str, Any]:
        """The whole answer. All its choices must have ended."""
        choices = [
            {
                "index": stream.choice,
                "message": {"role": "assistant", "content": stream.text, "refusal": None},
                "logprobs": self._logprobs(stream.logprobs),
                **ending(end),
            }
            for stream, end in zip(self.answer.streams, self.answer.ends, strict=True)
        ]
        return self._object("chat.completion", choices) | {"usage": usage([self.answer.ends])}

    def opening(self) -> list[dict[str, Any]]:
        role = {"role": "assistant", "content": "", "refusal": None}
        return [self._chunk(stream.choice, role) for stream in self.answer.streams]

    def text(self, choice: int, delta: Delta) -> dict[str, Any]:
        return self._chunk(choice, {"content": delta.text}, logprobs=self._logprobs(delta.logprobs))

    def finish(self, choice: int, end: FinishedEvent) -> dict[str, Any]:
        return self._chunk(choice, {}, **ending(end))

    def usage(self) -> dict[str, Any] | None:
        """The usage chunk, if it was asked for. All choices must have ended."""
        if not self._include_usage:
            return None
        return self._object(_CHUNK, []) | {"usage": usage([self.answer.ends])}

    def _chunk(self, choice: int, delta: dict[str, Any], **fields: object) -> dict[str, Any]:
        content = {"index": choice, "delta": delta, "logprobs": None, "finish_reason": None} | fields
        return self._object(_CHUNK, [content]) | ({"usage": None} if self._include_usage else {})

    def _object(self, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": kind,
            "created": self.answer.created,
            "model": self._model,
            "choices": choices,
        }

    def _logprobs(self, logprobs: Sequence[ChosenLogprob]) -> dict[str, Any] | None:
        if not self._with_logprobs:
            return None
        return {"content": entries(logprobs, self._vocabulary), "refusal": None}
