"""Chat Completions: its request, its JSON answer and the chunks of its streamed answer.

Knows: the shapes that the OpenAI SDKs send and expect. Does not know: HTTP, the engine, tokens.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from app.protocol.errors import ApiError, generation_failed, unavailable
from app.protocol.fields import COUNT, RequestFields, TokenCount
from app.protocol.messages import message, parts_of, refuse_empty
from app.protocol.payload import StrictObject, Unsupported, decode, parse
from app.store import Message
from app.streams import Stream
from engine.request import FinishedEvent, FinishReason

UNSUPPORTED: Unsupported = {
    "audio": (),
    "frequency_penalty": (0,),
    "function_call": ("none", "auto"),
    "functions": ([],),
    "logit_bias": ({},),
    "logprobs": (False,),
    "metadata": ({},),
    "modalities": (["text"],),
    "moderation": (),
    "n": (1,),
    "parallel_tool_calls": (True, False),
    "prediction": (),
    "presence_penalty": (0,),
    "prompt_cache_key": (),
    "prompt_cache_options": (),
    "prompt_cache_retention": (),
    "reasoning_effort": ("none",),
    "response_format": ({"type": "text"},),
    "service_tier": ("auto", "default"),
    "store": (False,),
    "tool_choice": ("none", "auto"),
    "tools": ([],),
    "top_logprobs": (0,),
    "verbosity": ("medium",),
    "web_search_options": (),
}
"""Parameters of the OpenAI API that we know and do not support, and their values that change nothing."""


class TextPart(StrictObject):
    type: Literal["text"]
    text: str


Content = Annotated[
    list[TextPart], BeforeValidator(lambda value: parts_of(value, "text")), Field(min_length=1)
]

NEUTRAL_IN_MESSAGES = {"annotations", "audio", "function_call", "name", "refusal", "tool_calls"}
"""Fields that an SDK's message object carries when it is sent back; null and [] mean that they are unused."""


class ChatMessage(StrictObject):
    role: Literal["system", "developer", "user", "assistant"]
    content: Content

    @model_validator(mode="before")
    @classmethod
    def _drop_unused(cls, value: object) -> object:
        if not isinstance(value, dict):
            return value
        return {k: v for k, v in value.items() if not (k in NEUTRAL_IN_MESSAGES and v in (None, []))}


class StreamOptions(StrictObject):
    include_usage: bool | None = None
    include_obfuscation: Literal[False] | None = None


class ChatRequest(RequestFields):
    model: str | None = Field(None, description="the name of the served model, or nothing")
    messages: list[ChatMessage] = Field(min_length=1, description="a non-empty list of messages")
    max_tokens: TokenCount | None = Field(None, description=COUNT)
    max_completion_tokens: TokenCount | None = Field(None, description=COUNT)
    stream: bool | None = Field(None, description="true or false")
    stream_options: StreamOptions | None = Field(None, description="an object, only with stream=true")

    @property
    def token_limit(self) -> int | None:
        """`max_completion_tokens` is the current name and wins."""
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens

    @property
    def include_usage(self) -> bool:
        return bool(self.stream_options and self.stream_options.include_usage)

    def conversation(self) -> list[Message]:
        return [message(each.role, [part.text for part in each.content]) for each in self.messages]


def parse_chat(raw: bytes) -> ChatRequest:
    """Raises ApiError."""
    request = parse(ChatRequest, decode(raw), UNSUPPORTED)
    if request.stream_options is not None and not request.stream:
        raise ApiError(
            400,
            "stream_options: got an object, allowed: only together with stream=true",
            code="invalid_value",
            param="stream_options",
        )
    refuse_empty(request.conversation(), "messages")
    return request


def failure(end: FinishedEvent) -> ApiError | None:
    """What to tell the client of an answer that ended without being finished; None if it was."""
    if end.reason is FinishReason.ERROR:
        return generation_failed(end.error or "the answer could not be computed")
    if end.reason is FinishReason.ABORT:
        # The client is still there, so it was not the client's wish.
        return unavailable("the server is shutting down; the answer was cut short")
    return None


def usage(end: FinishedEvent) -> dict[str, Any]:
    return {
        "prompt_tokens": end.num_prompt_tokens,
        "completion_tokens": end.num_output_tokens,
        "total_tokens": end.num_prompt_tokens + end.num_output_tokens,
        "prompt_tokens_details": {"cached_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": 0},
    }


def completion(stream: Stream, end: FinishedEvent, model: str) -> dict[str, Any]:
    """The answer in one piece."""
    choice = {
        "index": 0,
        "message": {"role": "assistant", "content": stream.text, "refusal": None},
        "logprobs": None,
        "finish_reason": end.reason.value,
        "stop_reason": end.stop,
    }
    return _head(stream, model, "chat.completion") | {"choices": [choice], "usage": usage(end)}


def _head(stream: Stream, model: str, kind: str) -> dict[str, Any]:
    return {
        "id": f"chatcmpl-{stream.request_id}",
        "object": kind,
        "created": stream.created,
        "model": model,
    }


class ChunkBuilder:
    """The chunks of one streamed answer: `role`, then `text`s, then `finish`, then perhaps `usage`."""

    def __init__(self, stream: Stream, model: str, include_usage: bool) -> None:
        self._head = _head(stream, model, "chat.completion.chunk")
        self._include_usage = include_usage

    def role(self) -> dict[str, Any]:
        return self._chunk({"role": "assistant", "content": "", "refusal": None})

    def text(self, delta: str) -> dict[str, Any]:
        return self._chunk({"content": delta})

    def finish(self, end: FinishedEvent) -> list[dict[str, Any]]:
        """The finish chunk and, if it was asked for, the usage chunk."""
        last = self._chunk({}, finish_reason=end.reason.value, stop_reason=end.stop)
        if not self._include_usage:
            return [last]
        return [last, self._head | {"choices": [], "usage": usage(end)}]

    def _chunk(self, delta: dict[str, Any], **choice: object) -> dict[str, Any]:
        chunk = self._head | {
            "choices": [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": None} | choice]
        }
        if self._include_usage:
            chunk["usage"] = None
        return chunk
