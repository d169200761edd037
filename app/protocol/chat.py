"""Chat Completions: its request, its JSON answer and the chunks of its streamed answer.

Knows: the shapes that the OpenAI SDKs send and expect. Does not know: HTTP, the engine, tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from app.protocol.errors import ApiError
from app.protocol.fields import COUNT, SWITCH, RequestFields, TokenCount
from app.protocol.logprobs import entries
from app.protocol.messages import message, parts_of, refuse_empty
from app.protocol.payload import StrictObject, Unsupported, decode, parse
from app.store import Message
from app.streams import Answer, Delta
from engine.detokenizer import Vocabulary
from engine.request import ChosenLogprob, FinishedEvent, FinishReason
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


class TextPart(StrictObject):
    type: Literal["text"]
    text: str


Parts = Annotated[list[TextPart], Field(min_length=1)]
Content = Annotated[
    Parts, BeforeValidator(lambda value: parts_of(value, "text"), json_schema_input_type=str | Parts)
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
    n: int | None = Field(None, ge=1, le=MAX_N, description=f"an integer from 1 to {MAX_N}")
    logprobs: bool | None = Field(None, description=SWITCH)
    top_logprobs: int | None = Field(
        None, ge=0, le=MAX_LOGPROBS, description=f"an integer from 0 to {MAX_LOGPROBS}, with logprobs=true"
    )
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
        return [message(each.role, [part.text for part in each.content]) for each in self.messages]


def parse_chat(raw: bytes) -> ChatRequest:
    """Raises ApiError. Takes tens of milliseconds for a megabyte of short messages, and leaves nothing that
    grows with them for later."""
    request = parse(ChatRequest, decode(raw), UNSUPPORTED)
    if request.stream_options is not None and not request.stream:
        raise ApiError(
            400,
            "stream_options: got an object, allowed: only together with stream=true",
            code="invalid_value",
            param="stream_options",
        )
    if request.top_logprobs and not request.logprobs:
        raise ApiError(
            400,
            f"top_logprobs: got {request.top_logprobs}, allowed: only together with logprobs=true",
            code="invalid_value",
            param="top_logprobs",
        )
    refuse_empty(request.conversation, "messages")
    _ = request.sampling
    return request


def usage(ends: Sequence[FinishedEvent]) -> dict[str, Any]:
    """All choices together. Their prompt is one, and counts once."""
    prompt, output = ends[0].num_prompt_tokens, sum(end.num_output_tokens for end in ends)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": output,
        "total_tokens": prompt + output,
        "prompt_tokens_details": {"cached_tokens": ends[0].num_cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": 0},
    }


class ChatBuilder:
    """What is sent of one answer: in one piece, or as chunks.

    The chunks: `role` for each choice, then `text`s and `finish`es of the choices, mixed as they come, then
    perhaps `usage`.

    Args:
        vocabulary: what the tokens of log probabilities stand for.
    """

    def __init__(self, answer: Answer, request: ChatRequest, model: str, vocabulary: Vocabulary) -> None:
        self._answer = answer
        self._vocabulary = vocabulary
        self._with_logprobs = request.sampling.logprobs is not None
        self._include_usage = request.include_usage
        self._head = {
            "id": f"chatcmpl-{answer.request_id}",
            "object": "chat.completion.chunk" if request.stream else "chat.completion",
            "created": answer.created,
            "model": model,
        }

    def completion(self) -> dict[str, Any]:
        """The whole answer. All its choices must have ended."""
        choices = [
            {
                "index": stream.choice,
                "message": {"role": "assistant", "content": stream.text, "refusal": None},
                "logprobs": self._logprobs(stream.logprobs),
                **_ending(end),
            }
            for stream, end in zip(self._answer.streams, self._answer.ends, strict=True)
        ]
        return self._head | {"choices": choices, "usage": usage(self._answer.ends)}

    def role(self, choice: int) -> dict[str, Any]:
        return self._chunk(choice, {"role": "assistant", "content": "", "refusal": None})

    def text(self, choice: int, delta: Delta) -> dict[str, Any]:
        return self._chunk(choice, {"content": delta.text}, logprobs=self._logprobs(delta.logprobs))

    def finish(self, end: FinishedEvent) -> dict[str, Any]:
        return self._chunk(end.choice, {}, **_ending(end))

    def usage(self) -> dict[str, Any] | None:
        """The usage chunk, if it was asked for. All choices must have ended."""
        return (
            self._head | {"choices": [], "usage": usage(self._answer.ends)} if self._include_usage else None
        )

    def _chunk(self, choice: int, delta: dict[str, Any], **fields: object) -> dict[str, Any]:
        content = {"index": choice, "delta": delta, "logprobs": None, "finish_reason": None} | fields
        return self._head | {"choices": [content]} | ({"usage": None} if self._include_usage else {})

    def _logprobs(self, logprobs: Sequence[ChosenLogprob]) -> dict[str, Any] | None:
        if not self._with_logprobs:
            return None
        return {"content": entries(logprobs, self._vocabulary), "refusal": None}


def _ending(end: FinishedEvent) -> dict[str, Any]:
    """Of an answer that is no failure. A limit on time cuts it short as one on tokens does; `stop_reason`
    names it then."""
    reason = "length" if end.reason is FinishReason.TIMEOUT else end.reason.value
    return {"finish_reason": reason, "stop_reason": end.stop}
