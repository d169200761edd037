"""The fields that every kind of request has: how tokens are chosen, when they must come, for whom.

Knows: names, ranges and defaults on the wire. Does not know: how a token is drawn, how a queue is kept.

Defaults are the engine's, which are OpenAI's: temperature 1, top_p 1. What OpenAI does not have is an
extension under vLLM's name for it (`top_k`, `min_p`, `repetition_penalty`, `allowed_token_ids`, `bad_words`,
`min_tokens`, `ignore_eos`, `stop_token_ids`, `include_stop_str_in_output`, `cache_salt`) or under ours
(`priority`, `max_queue_ms`, `max_time_ms`, `on_disconnect`). A field's description says what it allows, for
error messages.
"""

from __future__ import annotations

import re
from functools import cached_property
from typing import Annotated, Literal, TypeVar

from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema
from pydantic_core import PydanticCustomError

from app.protocol.errors import from_value_error
from app.protocol.payload import StrictObject
from engine.sampling import SamplingParams

T = TypeVar("T")

_TOKEN_ID = re.compile(r"0|[1-9][0-9]{0,9}")
MAX_STOPS = 16
MAX_STRING = 1024
MAX_BIASED = 1024
MAX_ALLOWED_IDS = 65536
MAX_BAD_WORDS = 64
MAX_NAME = 512
_DEFAULTS = SamplingParams()


def _as_list(value: object) -> object:
    return [value] if isinstance(value, str) else value


def _token_id(key: str) -> str:
    """Each id has one spelling, so that none is named twice."""
    if not _TOKEN_ID.fullmatch(key):
        raise PydanticCustomError("token_id", "a token id, in digits")
    return key


ShortString = Annotated[str, Field(min_length=1, max_length=MAX_STRING)]
StopList = Annotated[list[ShortString], Field(max_length=MAX_STOPS)]
Stops = Annotated[StopList, BeforeValidator(_as_list, json_schema_input_type=ShortString | StopList)]
TokenCount = Annotated[int, Field(ge=1, lt=2**31)]
TokenId = Annotated[int, Field(ge=0, lt=2**31)]
TokenIdAsKey = Annotated[
    str, AfterValidator(_token_id), WithJsonSchema({"type": "string", "pattern": f"^({_TOKEN_ID.pattern})$"})
]
LogitBias = Annotated[
    dict[TokenIdAsKey, Annotated[float, Field(ge=-100, le=100)]], Field(max_length=MAX_BIASED)
]
Milliseconds = Annotated[float, Field(gt=0)]
Name = Annotated[str, Field(max_length=MAX_NAME)]

COUNT = "an integer of at least 1"
PENALTY = "a number from -2 to 2"
SWITCH = "true or false"
MILLISECONDS = "a number of milliseconds above 0"
NAME = f"a string of at most {MAX_NAME} characters"


class RequestFields(StrictObject):
    temperature: float | None = Field(None, ge=0, le=2, description="a number from 0 to 2")
    top_p: float | None = Field(None, gt=0, le=1, description="a number above 0 and at most 1")
    top_k: int | None = Field(None, ge=0, lt=2**31, description="0 (off) or a positive integer below 2**31")
    min_p: float | None = Field(None, ge=0, le=1, description="a number from 0 to 1")
    presence_penalty: float | None = Field(None, ge=-2, le=2, description=PENALTY)
    frequency_penalty: float | None = Field(None, ge=-2, le=2, description=PENALTY)
    repetition_penalty: float | None = Field(
        None, ge=0.01, le=2, description="a number from 0.01 to 2; 1 changes nothing"
    )
    logit_bias: LogitBias | None = Field(
        None,
        description=f"an object of up to {MAX_BIASED} token ids, written as strings, each with a number from "
        "-100 to 100",
    )
    allowed_token_ids: Annotated[list[TokenId], Field(min_length=1, max_length=MAX_ALLOWED_IDS)] | None = (
        Field(None, description=f"a list of 1 to {MAX_ALLOWED_IDS} token ids")
    )
    bad_words: Annotated[list[ShortString], Field(max_length=MAX_BAD_WORDS)] | None = Field(
        None,
        description=f"a list of up to {MAX_BAD_WORDS} strings, each of 1 to {MAX_STRING} characters",
    )
    min_tokens: int | None = Field(None, ge=0, lt=2**31, description="an integer of at least 0")
    ignore_eos: bool | None = Field(None, description=SWITCH)
    seed: int | None = Field(None, ge=-(2**63), lt=2**63, description="a signed 64-bit integer")
    stop: Stops | None = Field(
        None,
        description=f"a string or a list of up to {MAX_STOPS}, each of 1 to {MAX_STRING} characters",
    )
    stop_token_ids: Annotated[list[TokenId], Field(max_length=MAX_STOPS)] | None = Field(
        None, description=f"a list of up to {MAX_STOPS} token ids"
    )
    include_stop_str_in_output: bool | None = Field(None, description=SWITCH)

    priority: Literal["interactive", "batch"] | None = Field(None, description="'interactive' or 'batch'")
    max_queue_ms: Milliseconds | None = Field(None, description=MILLISECONDS)
    max_time_ms: Milliseconds | None = Field(None, description=MILLISECONDS)
    on_disconnect: Literal["cancel", "continue"] | None = Field(
        None, description="'cancel' or 'continue': what becomes of the answer when its last reader has gone"
    )
    cache_salt: Annotated[str, Field(min_length=1, max_length=MAX_NAME)] | None = Field(
        None, description=f"a string of 1 to {MAX_NAME} characters"
    )

    user: Name | None = Field(None, description=NAME)
    safety_identifier: Name | None = Field(None, description=NAME)

    @property
    def end_user(self) -> str | None:
        """For the log. The second name replaces the first in the OpenAI API, and wins."""
        return self.safety_identifier or self.user

    @cached_property
    def sampling(self) -> SamplingParams:
        """All that the engine needs to know about the choice of tokens, but `bad_words`: those are text
        here and tokens there.

        Raises:
            ApiError: fields do not go together.
        """
        raise NotImplementedError

    def _sampling(
        self, max_tokens: int | None, *, n: int = 1, logprobs: int | None = None, in_mid_text: bool = False
    ) -> SamplingParams:
        try:
            return SamplingParams(
                temperature=_or(self.temperature, _DEFAULTS.temperature),
                top_p=_or(self.top_p, _DEFAULTS.top_p),
                top_k=_or(self.top_k, _DEFAULTS.top_k),
                min_p=_or(self.min_p, _DEFAULTS.min_p),
                presence_penalty=_or(self.presence_penalty, _DEFAULTS.presence_penalty),
                frequency_penalty=_or(self.frequency_penalty, _DEFAULTS.frequency_penalty),
                repetition_penalty=_or(self.repetition_penalty, _DEFAULTS.repetition_penalty),
                logit_bias=tuple((int(token), bias) for token, bias in (self.logit_bias or {}).items()),
                allowed_token_ids=tuple(sorted(set(self.allowed_token_ids)))
                if self.allowed_token_ids is not None
                else None,
                min_tokens=self.min_tokens or 0,
                ignore_eos=bool(self.ignore_eos),
                seed=self.seed,
                max_tokens=max_tokens,
                stop=tuple(self.stop or ()),
                stop_token_ids=tuple(self.stop_token_ids or ()),
                include_stop=bool(self.include_stop_str_in_output),
                in_mid_text=in_mid_text,
                n=n,
                logprobs=logprobs,
            )
        except ValueError as error:
            raise from_value_error(error) from error


def _or(value: T | None, default: T) -> T:
    return default if value is None else value
