"""The fields that every kind of request has: sampling, and what they mean to the engine, and the user.

Knows: names, ranges and defaults on the wire. Does not know: how a token is drawn.

Defaults are OpenAI's: temperature 1, top_p 1. `top_k`, `min_p` and `stop_token_ids` are extensions, under
the names that other servers use for them. A field's description says what it allows, for error messages.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import BeforeValidator, Field

from app.protocol.payload import StrictObject
from engine.sampling import SamplingParams

MAX_STOPS = 16
MAX_STOP_LENGTH = 1024


def _as_list(value: object) -> object:
    return [value] if isinstance(value, str) else value


StopString = Annotated[str, Field(min_length=1, max_length=MAX_STOP_LENGTH)]
Stops = Annotated[list[StopString], BeforeValidator(_as_list), Field(max_length=MAX_STOPS)]
TokenCount = Annotated[int, Field(ge=1, lt=2**31)]
TokenId = Annotated[int, Field(ge=0, lt=2**31)]

COUNT = "an integer of at least 1"


class RequestFields(StrictObject):
    temperature: float | None = Field(None, ge=0, le=2, description="a number from 0 to 2")
    top_p: float | None = Field(None, gt=0, le=1, description="a number above 0 and at most 1")
    top_k: int | None = Field(None, ge=0, lt=2**31, description="0 (off) or a positive integer below 2**31")
    min_p: float | None = Field(None, ge=0, le=1, description="a number from 0 to 1")
    seed: int | None = Field(None, ge=-(2**63), lt=2**63, description="a signed 64-bit integer")
    stop: Stops | None = Field(
        None,
        description=f"a string or a list of up to {MAX_STOPS}, each of 1 to {MAX_STOP_LENGTH} characters",
    )
    stop_token_ids: Annotated[list[TokenId], Field(max_length=MAX_STOPS)] | None = Field(
        None, description=f"a list of up to {MAX_STOPS} token ids"
    )

    user: str | None = Field(None, max_length=512, description="a string of at most 512 characters")
    safety_identifier: str | None = Field(
        None, max_length=512, description="a string of at most 512 characters"
    )

    @property
    def end_user(self) -> str | None:
        """For the log. The second name replaces the first in the OpenAI API, and wins."""
        return self.safety_identifier or self.user

    def params(self, max_tokens: int | None) -> SamplingParams:
        return SamplingParams(
            temperature=1.0 if self.temperature is None else self.temperature,
            top_p=1.0 if self.top_p is None else self.top_p,
            top_k=self.top_k or 0,
            min_p=self.min_p or 0.0,
            seed=self.seed,
            max_tokens=max_tokens,
            stop=tuple(self.stop or ()),
            stop_token_ids=tuple(self.stop_token_ids or ()),
        )
