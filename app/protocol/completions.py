"""Completions, the API that continues texts: its request, its JSON answer, the chunks of a streamed one.

Knows: the shapes that the OpenAI SDKs send and expect. Does not know: HTTP, the engine, how text becomes
tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Annotated, Any

from pydantic import Field, PlainValidator

from app.protocol.chat import StreamOptions
from app.protocol.endings import ending, usage
from app.protocol.errors import ApiError, invalid_value, shown
from app.protocol.fields import COUNT, SWITCH, RequestFields, TokenCount, TokenId
from app.protocol.logprobs import legacy_entries
from app.protocol.payload import Unsupported, decode, parse
from app.streams import Answer, Delta
from engine.detokenizer import Vocabulary, text_of
from engine.request import ChosenLogprob, FinishedEvent
from engine.sampling import MAX_LOGPROBS, MAX_N, SamplingParams

UNSUPPORTED: Unsupported = {"suffix": ("",)}

DEFAULT_MAX_TOKENS = 16
"""The API's own."""
MAX_CHOICES = MAX_N
"""All prompts' together."""

Given = str | list[int]
"""A prompt: text, or tokens."""

PROMPT = "a non-empty string or list of token ids, or a non-empty list of such"


def _prompts(value: object) -> list[Given]:
    """
    Raises:
        ApiError: naming the element at fault, which pydantic could not say of a choice between shapes.
    """
    if _is_one(value):
        return [_prompt(value, "prompt")]
    if not isinstance(value, list):
        raise _bad(value, "prompt", PROMPT)
    if not value:
        raise _empty(value, "prompt", PROMPT)
    return [_prompt(each, f"prompt.{index}") for index, each in enumerate(value)]


def _is_one(value: object) -> bool:
    if isinstance(value, list):
        return bool(value) and not isinstance(value[0], str | list)
    return isinstance(value, str)


def _prompt(value: Any, at: str) -> Given:
    allowed = "a non-empty string or list of token ids"
    if not isinstance(value, str | list):
        raise _bad(value, at, allowed)
    if not value:
        raise _empty(value, at, allowed)
    if isinstance(value, list):
        for index, token in enumerate(value):
            if not isinstance(token, int) or isinstance(token, bool) or not 0 <= token < 2**31:
                raise _bad(token, f"{at}.{index}", "a token id")
    return value


def _bad(value: object, at: str, allowed: str) -> ApiError:
    return ApiError(400, f"{at}: got {shown(value)}, allowed: {allowed}", code="invalid_type", param=at)


def _empty(value: object, at: str, allowed: str) -> ApiError:
    return ApiError(400, f"{at}: got {shown(value)}, allowed: {allowed}", code="empty_value", param=at)


Prompts = Annotated[
    list[Given],
    PlainValidator(
        _prompts,
        json_schema_input_type=str
        | list[TokenId]
        | Annotated[list[str | list[TokenId]], Field(min_length=1)],
    ),
]


class CompletionRequest(RequestFields):
    model: str | None = Field(None, description="the name of the served model, or nothing")
    prompt: Prompts = Field(description=PROMPT)
    max_tokens: TokenCount | None = Field(None, description=COUNT)
    n: int | None = Field(None, ge=1, le=MAX_N, description=f"an integer from 1 to {MAX_N}")
    best_of: int | None = Field(None, ge=1, le=MAX_N, description="the same as n")
    echo: bool | None = Field(None, description=SWITCH)
    logprobs: int | None = Field(
        None, ge=0, le=MAX_LOGPROBS, description=f"an integer from 0 to {MAX_LOGPROBS}"
    )
    stream: bool | None = Field(None, description=SWITCH)
    stream_options: StreamOptions | None = Field(None, description="an object, only with stream=true")

    @property
    def include_usage(self) -> bool:
        return bool(self.stream_options and self.stream_options.include_usage)

    def field(self, index: int) -> str:
        """What the client calls a prompt."""
        return "prompt" if len(self.prompt) == 1 else f"prompt.{index}"

    @cached_property
    def sampling(self) -> SamplingParams:
        max_tokens = DEFAULT_MAX_TOKENS if self.max_tokens is None else self.max_tokens
        return self._sampling(max_tokens, n=self.n or 1, logprobs=self.logprobs, in_mid_text=True)


def parse_completion(raw: bytes) -> CompletionRequest:
    """Raises ApiError."""
    request = parse(CompletionRequest, decode(raw), UNSUPPORTED)
    n, count = request.n or 1, len(request.prompt)
    if request.best_of is not None and request.best_of != n:
        raise invalid_value(
            "best_of", f"other values are not supported; got {request.best_of}, allowed: the same as n, {n}"
        )
    if n * count > MAX_CHOICES:
        raise invalid_value(
            "prompt", f"got {count} prompts with n={n}, allowed: at most {MAX_CHOICES} choices in all"
        )
    if request.echo and request.logprobs is not None:
        raise invalid_value("echo", "got true, allowed: only without logprobs; a prompt's are not computed")
    if request.stream_options is not None and not request.stream:
        raise invalid_value("stream_options", "got an object, allowed: only together with stream=true")
    if request.on_disconnect == "continue":
        raise invalid_value(
            "on_disconnect",
            "got 'continue', allowed: 'cancel'; chat completions and responses can be taken up again",
        )
    _ = request.sampling
    return request


class CompletionBuilder:
    """What is sent of the answers to one request: in one piece, or as chunks. Choices are numbered through
    all prompts: first all that continue the first prompt.

    Args:
        answers: one for each prompt.
    """

    def __init__(
        self, answers: Sequence[Answer], request: CompletionRequest, model: str, vocabulary: Vocabulary
    ) -> None:
        self.streams = tuple(stream for answer in answers for stream in answer.streams)
        self._answers = answers
        self._vocabulary = vocabulary
        self._with_logprobs = request.logprobs is not None
        self._include_usage = request.include_usage
        n = request.sampling.n
        self._echoes = [self._said(each) for each in request.prompt for _ in range(n)] if request.echo else []
        self._offsets = [0] * len(self.streams)
        """Choice -> characters of it that were sent."""
        self._head = {
            "id": f"cmpl-{answers[0].request_id}",
            "object": "text_completion",
            "created": answers[0].created,
            "model": model,
        }

    def completion(self) -> dict[str, Any]:
        """The whole answer. All choices must have ended."""
        choices = []
        for choice, stream in enumerate(self.streams):
            assert stream.end is not None, "all have ended"
            text = (self._echoes[choice] if self._echoes else "") + stream.text
            choices.append(
                {
                    "index": choice,
                    "text": text,
                    "logprobs": self._logprobs(stream.logprobs, 0),
                    **ending(stream.end),
                }
            )
        return self._head | {"choices": choices, "usage": self._usage()}

    def opening(self) -> list[dict[str, Any]]:
        return [self._chunk(choice, text) for choice, text in enumerate(self._echoes)]

    def text(self, choice: int, delta: Delta) -> dict[str, Any]:
        """Of each choice in order, once."""
        logprobs = self._logprobs(delta.logprobs, self._offsets[choice])
        self._offsets[choice] += len(delta.text)
        return self._chunk(choice, delta.text, logprobs=logprobs)

    def finish(self, choice: int, end: FinishedEvent) -> dict[str, Any]:
        return self._chunk(choice, "", **ending(end))

    def usage(self) -> dict[str, Any] | None:
        """The usage chunk, if it was asked for. All choices must have ended."""
        return self._head | {"choices": [], "usage": self._usage()} if self._include_usage else None

    def _chunk(self, choice: int, text: str, **fields: object) -> dict[str, Any]:
        content = {"index": choice, "text": text, "logprobs": None, "finish_reason": None} | fields
        return self._head | {"choices": [content]} | ({"usage": None} if self._include_usage else {})

    def _usage(self) -> dict[str, Any]:
        return usage([answer.ends for answer in self._answers])

    def _logprobs(self, logprobs: Sequence[ChosenLogprob], offset: int) -> dict[str, Any] | None:
        return legacy_entries(logprobs, self._vocabulary, offset) if self._with_logprobs else None

    def _said(self, prompt: Given) -> str:
        """Tokens that are not in the vocabulary have been refused by now."""
        return prompt if isinstance(prompt, str) else text_of(prompt, self._vocabulary)
