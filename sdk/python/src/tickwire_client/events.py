"""What the server sends about an answer, as typed values.

Knows: the shapes of the Responses events. Does not know: lanes, sockets, what an answer does with them.

A type that is not known here becomes an `UnknownEvent`: servers may add some.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tickwire_client.errors import ProtocolViolation

Json = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Usage:
    """Counts of tokens."""

    input_tokens: int
    cached_tokens: int
    """Of the input: those that had not to be computed."""
    output_tokens: int


@dataclass(frozen=True, slots=True)
class Response:
    """A response as it stands."""

    id: str
    status: str
    """in_progress, completed, incomplete, cancelled, failed."""
    model: str
    usage: Usage | None
    reason: str | None
    """Why it is incomplete."""
    error_code: str | None
    error_message: str | None
    raw: Json
    """The whole object."""


@dataclass(frozen=True, slots=True)
class Logprob:
    token: str
    logprob: float
    bytes: bytes
    top: tuple[Logprob, ...]
    """The likeliest tokens at this place."""


@dataclass(frozen=True, slots=True)
class Event:
    sequence_number: int | None
    """Its place in the answer; gapless from 0. None: it is about the answer, not a part of it."""


@dataclass(frozen=True, slots=True)
class ResponseEvent(Event):
    """Tells of the response as a whole."""

    response: Response


@dataclass(frozen=True, slots=True)
class ResponseCreated(ResponseEvent):
    pass


@dataclass(frozen=True, slots=True)
class ResponseInProgress(ResponseEvent):
    pass


@dataclass(frozen=True, slots=True)
class ResponseEnded(ResponseEvent):
    """The last event, whichever it is."""


@dataclass(frozen=True, slots=True)
class ResponseCompleted(ResponseEnded):
    pass


@dataclass(frozen=True, slots=True)
class ResponseIncomplete(ResponseEnded):
    """It reached a limit, was cancelled or was steered."""


@dataclass(frozen=True, slots=True)
class ResponseFailed(ResponseEnded):
    pass


@dataclass(frozen=True, slots=True)
class OutputItemAdded(Event):
    item: Json


@dataclass(frozen=True, slots=True)
class OutputItemDone(Event):
    item: Json


@dataclass(frozen=True, slots=True)
class ContentPartAdded(Event):
    part: Json


@dataclass(frozen=True, slots=True)
class ContentPartDone(Event):
    part: Json


@dataclass(frozen=True, slots=True)
class OutputTextDelta(Event):
    delta: str
    logprobs: tuple[Logprob, ...]


@dataclass(frozen=True, slots=True)
class OutputTextDone(Event):
    text: str
    """All deltas joined."""
    logprobs: tuple[Logprob, ...]


@dataclass(frozen=True, slots=True)
class UnknownEvent(Event):
    type: str
    data: Json
    """The whole message."""


@dataclass(frozen=True, slots=True)
class Stats:
    """How far an answer is."""

    status: str
    """queued, prefilling, generating or ended."""
    queue_position: int | None
    """From 0; None once it runs."""
    prompt_tokens: int
    computed_tokens: int | None
    cached_tokens: int
    output_tokens: int
    max_output_tokens: int | None
    context_left: int
    tokens_per_s: float | None
    waited_ms: float | None
    first_token_ms: float | None
    preemptions: int
    readers: int


def parse(message: Json) -> Event:
    """
    Raises:
        ProtocolViolation: a known event lacks something, or has it in another shape.
    """
    kind = message.get("type")
    number = message.get("sequence_number")
    if not isinstance(kind, str) or not (number is None or isinstance(number, int)):
        raise ProtocolViolation(f"got an event of type {kind!r} with the number {number!r}")
    make = _KNOWN.get(kind)
    if make is None:
        return UnknownEvent(number, kind, message)
    try:
        return make(number, message)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ProtocolViolation(f"got {kind} in a shape that it does not have: {error!r}") from error


def parse_stats(message: Json) -> Stats:
    """
    Raises:
        ProtocolViolation: something is missing. What is there besides is left out.
    """
    stats = message.get("stats")
    try:
        return Stats(**{name: stats[name] for name in Stats.__slots__})  # type: ignore[index]
    except (KeyError, TypeError) as error:
        raise ProtocolViolation(f"got response.stats in a shape that it does not have: {error!r}") from error


def _response(raw: Json) -> Response:
    details, error, usage = (raw.get(name) or {} for name in ("incomplete_details", "error", "usage"))
    return Response(
        id=_text(raw["id"]),
        status=_text(raw["status"]),
        model=str(raw.get("model", "")),
        usage=_usage(usage) if usage else None,
        reason=details.get("reason"),
        error_code=error.get("code"),
        error_message=error.get("message"),
        raw=raw,
    )


def _usage(raw: Json) -> Usage:
    details = raw.get("input_tokens_details") or {}
    return Usage(raw["input_tokens"], details.get("cached_tokens", 0), raw["output_tokens"])


def _logprobs(message: Json) -> tuple[Logprob, ...]:
    return tuple(map(_logprob, message.get("logprobs") or ()))


def _logprob(raw: Json) -> Logprob:
    top = tuple(map(_logprob, raw.get("top_logprobs") or ()))
    return Logprob(raw["token"], raw["logprob"], bytes(raw.get("bytes") or ()), top)


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"got {value!r}, expected a string")
    return value


def _of_response(kind: type[ResponseEvent]) -> Callable[[int | None, Json], Event]:
    return lambda number, message: kind(number, _response(message["response"]))


_KNOWN: dict[str, Callable[[int | None, Json], Event]] = {
    "response.created": _of_response(ResponseCreated),
    "response.in_progress": _of_response(ResponseInProgress),
    "response.completed": _of_response(ResponseCompleted),
    "response.incomplete": _of_response(ResponseIncomplete),
    "response.failed": _of_response(ResponseFailed),
    "response.output_item.added": lambda number, message: OutputItemAdded(number, message["item"]),
    "response.output_item.done": lambda number, message: OutputItemDone(number, message["item"]),
    "response.content_part.added": lambda number, message: ContentPartAdded(number, message["part"]),
    "response.content_part.done": lambda number, message: ContentPartDone(number, message["part"]),
    "response.output_text.delta": lambda number, message: OutputTextDelta(
        number, _text(message["delta"]), _logprobs(message)
    ),
    "response.output_text.done": lambda number, message: OutputTextDone(
        number, _text(message["text"]), _logprobs(message)
    ),
}
