"""What a client asks of the engine, and what the engine says back.

Knows: requests, sampling parameters, sequences and their states, and the events that leave the
engine. Does not know: torch, blocks' contents, text formats, sockets.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field


class FinishReason(enum.Enum):
    """Why a sequence ended. Every sequence ends with exactly one of these."""

    STOP = "stop"
    """End-of-sequence token, a stop id or a stop string."""
    LENGTH = "length"
    """`max_tokens` reached, or the context is full."""
    ABORT = "abort"
    """The client cancelled or went away."""
    ERROR = "error"
    """This sequence, or the engine under it, failed."""


class Status(enum.Enum):
    """Where a sequence stands. WAITING -> RUNNING <-> PREEMPTED, and any of them -> FINISHED."""

    WAITING = "waiting"
    RUNNING = "running"
    PREEMPTED = "preempted"
    FINISHED = "finished"


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How the next token is chosen and when to stop. Ranges are checked here, by name.

    Order of operations: temperature, min_p, top_k, top_p, then one draw.

    Raises:
        ValueError: a value is out of range; the message names the field, what was got and what is allowed.
    """

    temperature: float = 1.0
    """0..2. Below 1e-5 is greedy."""
    top_p: float = 1.0
    """(0, 1]. 1 keeps everything."""
    top_k: int = 0
    """0 keeps everything."""
    min_p: float = 0.0
    """[0, 1]. Keeps tokens at least this fraction as likely as the likeliest."""
    seed: int | None = None
    """-2**63 .. 2**63-1. None: the engine draws one."""
    max_tokens: int | None = None
    """None: as many as the context leaves."""
    stop: tuple[str, ...] = ()
    """Non-empty strings; the text ends before the first one that appears."""
    stop_token_ids: tuple[int, ...] = ()
    """Ids that end the sequence like the model's own end token does; they give no text."""

    def __post_init__(self) -> None:
        _check("temperature", self.temperature, 0 <= self.temperature <= 2, "a number from 0 to 2")
        _check("top_p", self.top_p, 0 < self.top_p <= 1, "a number above 0 and at most 1")
        _check("top_k", self.top_k, 0 <= self.top_k < 2**31, "0 (off) or a positive integer below 2**31")
        _check("min_p", self.min_p, 0 <= self.min_p <= 1, "a number from 0 to 1")
        _check(
            "seed", self.seed, self.seed is None or -(2**63) <= self.seed < 2**63, "a signed 64-bit integer"
        )
        _check(
            "max_tokens",
            self.max_tokens,
            self.max_tokens is None or self.max_tokens >= 1,
            "an integer of at least 1",
        )
        _check("stop", self.stop, all(self.stop), "non-empty strings")
        _check(
            "stop_token_ids",
            self.stop_token_ids,
            all(i >= 0 for i in self.stop_token_ids),
            "token ids of at least 0",
        )


def _check(field_name: str, got: object, ok: bool, allowed: str) -> None:
    if not ok:
        raise ValueError(f"{field_name}: got {got!r}, allowed: {allowed}")


@dataclass(frozen=True, slots=True)
class Request:
    """One prompt to be continued.

    `id` is unique among the live requests and made by us, never by a client.
    `arrival` is `time.monotonic()` seconds when the client's request was read.
    """

    id: str
    prompt: tuple[int, ...]
    sampling: SamplingParams
    arrival: float


class ContextLengthExceeded(ValueError):
    """Prompt and answer together are longer than the context: the request can never be served.

    Attributes are token counts: what the prompt holds, what was asked for on top (None: no limit was
    given, at least one is needed) and what the context holds.
    """

    def __init__(self, prompt_tokens: int, max_tokens: int | None, context: int) -> None:
        self.prompt_tokens = prompt_tokens
        self.max_tokens = max_tokens
        self.context = context
        wanted = (
            f"max_tokens asks for {max_tokens} more"
            if max_tokens
            else "at least 1 more is needed for the answer"
        )
        super().__init__(
            f"the prompt has {prompt_tokens} tokens and {wanted}, but the context holds {context}"
        )


class EngineStopped(RuntimeError):
    """The engine takes no requests: it was shut down, or it failed; the message says which."""


@dataclass(frozen=True, slots=True)
class Timings:
    """`time.monotonic()` seconds. `admitted` and `first_token` are None if it never came that far."""

    arrival: float
    admitted: float | None
    first_token: float | None
    finished: float


@dataclass(frozen=True, slots=True)
class TokenEvent:
    """Progress of a request: a token was sampled, or an ending released text that was held back (then
    `num_output_tokens` is that of the event before)."""

    request_id: str
    text: str
    """What became readable: "" while a character or a possible stop string is still incomplete, else it may
    hold text of earlier tokens too."""
    num_output_tokens: int
    """Tokens sampled so far."""
    time: float
    """`time.monotonic()` of the tick."""


@dataclass(frozen=True, slots=True)
class FinishedEvent:
    """The last event of a request, exactly one per request."""

    request_id: str
    reason: FinishReason
    stop: str | int | None
    """With reason STOP: the stop string or stop id that matched; None for the model's end token."""
    error: str | None
    """With reason ERROR: what happened, fit for the client to read."""
    num_prompt_tokens: int
    num_output_tokens: int
    """Tokens sampled, the end token included."""
    num_preemptions: int
    timings: Timings


Event = TokenEvent | FinishedEvent


@dataclass(slots=True, eq=False)
class Sequence:
    """One growing list of tokens. Prefill, decode and recompute are one thing: `num_computed` catches
    up with `num_tokens`.

    Invariants: `num_computed <= num_tokens`; the block table covers at least `num_computed` slots while
    RUNNING and is empty in every other status.
    """

    request: Request
    seed: int
    max_output_tokens: int
    """How many tokens may be sampled: the request's limit, or what the context leaves."""
    tokens: list[int] = field(init=False)
    status: Status = field(init=False, default=Status.WAITING)
    num_computed: int = field(init=False, default=0)
    blocks: list[int] = field(init=False, default_factory=list)
    """The block table: logical block -> physical block."""
    row: int = field(init=False, default=-1)
    """Stable row in the batch's tables while RUNNING, else -1."""
    num_preemptions: int = field(init=False, default=0)
    admitted: float | None = field(init=False, default=None)
    first_token: float | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self.tokens = list(self.request.prompt)

    @property
    def id(self) -> str:
        return self.request.id

    @property
    def num_tokens(self) -> int:
        return len(self.tokens)

    @property
    def num_prompt_tokens(self) -> int:
        return len(self.request.prompt)

    @property
    def num_output_tokens(self) -> int:
        return len(self.tokens) - len(self.request.prompt)

    @property
    def num_uncomputed(self) -> int:
        return len(self.tokens) - self.num_computed
