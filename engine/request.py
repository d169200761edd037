"""What a client asks of the engine, and what the engine says back.

Knows: requests, sequences and their states, and the events that leave the
engine. Does not know: torch, blocks' contents, text formats, sockets.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import NamedTuple

from engine.sampling import SamplingParams


class FinishReason(enum.Enum):
    """Why a sequence ended. Every sequence ends with exactly one of these."""

    STOP = "stop"
    """End-of-sequence token, a stop id or a stop string."""
    LENGTH = "length"
    """`max_tokens` reached, or the context is full."""
    ABORT = "abort"
    """The client cancelled or went away."""
    TIMEOUT = "timeout"
    """`max_queue_ms` or `max_time_ms` passed."""
    ERROR = "error"
    """This sequence, or the engine under it, failed."""


class Status(enum.Enum):
    """Where a sequence stands. WAITING -> RUNNING <-> PREEMPTED, and any of them -> FINISHED."""

    WAITING = "waiting"
    RUNNING = "running"
    PREEMPTED = "preempted"
    FINISHED = "finished"


class Priority(enum.Enum):
    """Whose turn comes first in the queue. Neither class can starve the other."""

    INTERACTIVE = "interactive"
    """Somebody is reading along."""
    BATCH = "batch"
    """Nobody is: it gives way, in the queue and when memory is short."""


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
    session: str = ""
    """Sessions take turns, however much one of them asks for."""
    priority: Priority = Priority.INTERACTIVE
    cache_salt: str = ""
    """Only requests with the same salt share computed prefixes."""
    max_queue_ms: float | None = None
    """Milliseconds after `arrival` at which it ends with TIMEOUT if it was never admitted."""
    max_time_ms: float | None = None
    """Milliseconds after `arrival` at which it ends with TIMEOUT wherever it stands."""


class QueueFull(RuntimeError):
    """The queue takes no more from anyone, or from this session (`of_session`). `retry_after` is the number
    of seconds after which, at the rate of the recent past, there will be a place."""

    def __init__(self, waiting: int, allowed: int, of_session: bool, retry_after: float) -> None:
        self.of_session = of_session
        self.retry_after = retry_after
        whose = "of this session" if of_session else "of all sessions together"
        super().__init__(f"{waiting} requests {whose} wait already, allowed: {allowed}")


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
        # Some clients know this error by its first words, others by its last ones.
        super().__init__(
            f"the prompt is too long: it has {prompt_tokens} tokens and {wanted}, but this model's maximum "
            f"context length is {context} tokens"
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


class TokenLogprob(NamedTuple):
    """One token as likely as the model found it."""

    token_id: int
    logprob: float
    """Natural logarithm, at least -9999.0: JSON knows no infinity."""


class ChosenLogprob(NamedTuple):
    """The chosen token, and the likeliest ones at its place, likeliest first (equals: lower ids first)."""

    chosen: TokenLogprob
    top: tuple[TokenLogprob, ...]


class TokenEvent(NamedTuple):
    """Progress of one answer: a token was sampled, or an ending released text that was held back (then
    `num_output_tokens` is that of the event before)."""

    request_id: str
    choice: int
    """Which of the request's `n` answers."""
    text: str
    """What became readable: "" while a character or a possible stop string is still incomplete, else it may
    hold text of earlier tokens too."""
    num_output_tokens: int
    """Tokens sampled so far."""
    time: float
    """`time.monotonic()` of the tick."""
    logprobs: tuple[ChosenLogprob, ...] = ()
    """If asked for: of the tokens that begin in the text so far and were not told before. So tokens that are
    no part of the text, like the end token or a stop string's, never appear."""


@dataclass(frozen=True, slots=True)
class FinishedEvent:
    """The last event of an answer, exactly one for each of the request's `n`."""

    request_id: str
    choice: int
    """Which of the request's `n` answers."""
    reason: FinishReason
    stop: str | int | None
    """With reason STOP: the stop string or stop id that matched; None for the model's end token. With reason
    TIMEOUT: the name of the limit that passed."""
    error: str | None
    """With reason ERROR: what happened, fit for the client to read."""
    num_prompt_tokens: int
    num_cached_tokens: int
    """Of the prompt's: found in the prefix cache, or shared with the request's other answers."""
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
    RUNNING and is empty in every other status; `block_hashes` has one entry for each full block of tokens,
    or none at all where prefixes are not shared.
    """

    request: Request
    seed: int
    max_output_tokens: int
    """How many tokens may be sampled: the request's limit, or what the context leaves."""
    choice: int = 0
    """Which of the request's `n` answers."""
    source: Sequence | None = None
    """While it is RUNNING, another sequence that begins with this one's prompt: blocks can be shared."""
    id: str = field(init=False)
    tokens: list[int] = field(init=False)
    num_prompt_tokens: int = field(init=False)
    status: Status = field(init=False, default=Status.WAITING)
    num_computed: int = field(init=False, default=0)
    blocks: list[int] = field(init=False, default_factory=list)
    """The block table: logical block -> physical block."""
    block_hashes: list[bytes] = field(init=False, default_factory=list)
    """What each full block's content is known by, see `engine.prefix`."""
    num_registered: int = field(init=False, default=0)
    """Leading blocks that the pool knows by their hash."""
    num_cached_tokens: int = field(init=False, default=0)
    """Tokens that were already computed when it was first admitted."""
    num_charged_tokens: int = field(init=False, default=0)
    """What its session paid at its entry for an answer of the expected length."""
    num_tokens_at_entry: int = field(init=False, default=0)
    """How many it had when it last began to run."""
    row: int = field(init=False, default=-1)
    """Stable row in the batch's tables while RUNNING, else -1."""
    num_preemptions: int = field(init=False, default=0)
    admitted: float | None = field(init=False, default=None)
    first_token: float | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        # An id of ours is hexadecimal, so no request is called like another one's answer.
        self.id = f"{self.request.id}#{self.choice}" if self.choice else self.request.id
        self.tokens = list(self.request.prompt)
        self.num_prompt_tokens = len(self.tokens)

    @property
    def num_tokens(self) -> int:
        return len(self.tokens)

    @property
    def num_output_tokens(self) -> int:
        return len(self.tokens) - self.num_prompt_tokens

    @property
    def num_uncomputed(self) -> int:
        return len(self.tokens) - self.num_computed
