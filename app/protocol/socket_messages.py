"""What a client of `ws /v1/responses` may say, and the events that are no part of any response's log.

Knows: each message's shape, what is wrong with one that makes no sense, the shapes of errors and of what is
said about steering. Does not know: which responses there are, lanes in use, sockets.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import orjson
from pydantic import BeforeValidator, Field

from app.protocol.errors import ApiError, shown
from app.protocol.messages import message as as_message
from app.protocol.messages import parts_of, refuse_empty
from app.protocol.payload import StrictObject, decode, parse
from app.protocol.responses import CreateResponse, InputMessage, InputText, as_messages, parse_create

LANE_NAME = re.compile(r"[A-Za-z0-9_.-]{1,256}")
IGNORED_IN_SOCKET_MODE = ("stream", "background")
MAX_TOKEN = 1024
"""Characters of an API key. Beyond that, nothing is compared."""
MAX_PING = 256
"""Characters that a pong repeats."""

Event = dict[str, Any]
ResponseId = Annotated[str, Field(max_length=128)]


class CancelResponse(StrictObject):
    response_id: ResponseId = Field(description="the id of a response of this connection")
    stream_id: str | None = Field(None, description="the lane of that response")


class ResumeResponse(StrictObject):
    response_id: ResponseId = Field(description="the id of a response that runs, or is kept")
    starting_after: int | None = Field(
        None, ge=-1, description="the last sequence_number seen, -1 or nothing for none"
    )
    stream_id: str | None = Field(None, description="the lane in which to tell it")


class SteerMessage(StrictObject):
    type: Literal["message"] = "message"
    role: Literal["user"]
    content: Annotated[
        list[InputText],
        BeforeValidator(
            lambda value: parts_of(value, "input_text"), json_schema_input_type=str | list[InputText]
        ),
        Field(min_length=1),
    ]


class SteerResponse(StrictObject):
    previous_response_id: ResponseId = Field(description="the id of a running response of this connection")
    input: Annotated[
        list[SteerMessage],
        BeforeValidator(as_messages, json_schema_input_type=str | list[SteerMessage]),
        Field(min_length=1),
    ] = Field(description="a non-empty string or a non-empty list of a user's messages")


class SessionAuth(StrictObject):
    token: Annotated[str, Field(min_length=1, max_length=MAX_TOKEN)] = Field(
        repr=False, description=f"an API key of 1 to {MAX_TOKEN} characters"
    )


class Ping(StrictObject):
    id: Annotated[str, Field(max_length=MAX_PING)] | None = Field(
        None, description=f"a string of up to {MAX_PING} characters"
    )


class AskStats(StrictObject):
    response_id: ResponseId = Field(description="the id of a response that runs, or is kept")


@dataclass(frozen=True, slots=True)
class Create:
    request: CreateResponse
    lane: str | None
    size: int
    """Characters of the message."""


@dataclass(frozen=True, slots=True)
class Resume:
    request: ResumeResponse
    lane: str | None
    size: int


@dataclass(frozen=True, slots=True)
class Steer:
    previous_response_id: str
    input: object
    """As it came, to be given back if it cannot be used."""
    messages: list[InputMessage]
    size: int
    error: ApiError | None = None
    """What is wrong with it; then it has no messages."""


@dataclass(frozen=True, slots=True)
class Refused:
    """It makes no sense."""

    event: Event
    """What to answer."""


Understood = Create | Resume | Steer | CancelResponse | SessionAuth | Ping | AskStats | Refused


def understand(text: str) -> Understood:
    """What a message asks for. Takes time that grows with it, and needs nothing else: it may run anywhere."""
    lane: str | None = None
    try:
        message = decode(text)
        if message.get("type") == "response.steer":
            return _steer(message, len(text))
        lane = _lane_of(message)
        return _meaning(message, lane, len(text))
    except ApiError as error:
        return Refused(error_event(error, lane))


def _meaning(message: dict[str, Any], lane: str | None, size: int) -> Understood:
    """Raises ApiError."""
    kind = message.get("type")
    fields = {name: value for name, value in message.items() if name != "type"}
    read = _KINDS.get(kind) if isinstance(kind, str) else None
    if read is not None:
        return read(fields, lane, size)
    *others, last = [*_KINDS, "response.steer"]
    raise ApiError(
        400,
        f"type: got {shown(kind)}, allowed: {', '.join(map(repr, others))} or {last!r}",
        code="missing_required_parameter" if kind is None else "unknown_message_type",
        param="type",
    )


def _create(fields: dict[str, Any], lane: str | None, size: int) -> Create:
    for name in (*IGNORED_IN_SOCKET_MODE, "stream_id"):
        fields.pop(name, None)
    return Create(parse_create(fields), lane, size)


def _resume(fields: dict[str, Any], lane: str | None, size: int) -> Resume:
    return Resume(parse(ResumeResponse, fields, {}), lane, size)


def _cancel(fields: dict[str, Any], lane: str | None, size: int) -> CancelResponse:
    return parse(CancelResponse, fields, {})


def _auth(fields: dict[str, Any], lane: str | None, size: int) -> SessionAuth:
    try:
        return parse(SessionAuth, fields, {})
    except ApiError as error:
        if error.param != "token":
            raise
        allowed = SessionAuth.model_fields["token"].description
        # Errors repeat what was got. Not this one: it may be a key.
        raise ApiError(400, f"token: allowed: {allowed}", code=error.code, param="token") from None


def _ping(fields: dict[str, Any], lane: str | None, size: int) -> Ping:
    return parse(Ping, fields, {})


def _stats(fields: dict[str, Any], lane: str | None, size: int) -> AskStats:
    return parse(AskStats, fields, {})


_KINDS: dict[str, Callable[[dict[str, Any], str | None, int], Understood]] = {
    "response.create": _create,
    "response.cancel": _cancel,
    "response.resume": _resume,
    "response.stats": _stats,
    "session.auth": _auth,
    "ping": _ping,
}


def _steer(message: dict[str, Any], size: int) -> Steer:
    """Whatever is wrong with it, its sender gets the input back."""
    fields = {name: value for name, value in message.items() if name != "type"}
    target, given = fields.get("previous_response_id"), fields.get("input")
    try:
        steer = parse(SteerResponse, fields, {})
        messages = [
            InputMessage.model_construct(role="user", content=list(each.content)) for each in steer.input
        ]
        refuse_empty((as_message("user", [part.text for part in each.content]) for each in messages), "input")
    except ApiError as error:
        return Steer(target if isinstance(target, str) else "", _writable(given), [], size, error)
    return Steer(steer.previous_response_id, given, messages, size)


def _writable(value: object) -> object:
    """JSON may be nested so deeply that it can be read and not be written: null then."""
    try:
        orjson.dumps(value)
    except orjson.JSONEncodeError:
        return None
    return value


def _lane_of(message: dict[str, Any]) -> str | None:
    lane = message.get("stream_id")
    if lane is None or (isinstance(lane, str) and LANE_NAME.fullmatch(lane)):
        return lane
    raise ApiError(
        400,
        f"stream_id: got {shown(lane)}, allowed: 1 to 256 characters of A-Z, a-z, 0-9, '_', '.' and '-'",
        code="invalid_stream_id",
        param="stream_id",
    )


# -- what the server says beside the responses' own events ------------------------------------------------


def error_event(error: ApiError, lane: str | None) -> Event:
    return in_lane({"type": "error", "status": error.status, "error": error.body()}, lane)


def in_lane(event: Event, lane: str | None) -> Event:
    return event if lane is None else event | {"stream_id": lane}


SteerCode = Literal[
    "response_not_found",
    "invalid_input",
    "steering_not_supported",
    "too_many_pending_steers",
    "response_already_completed",
    "response_not_active",
    "successor_creation_failed",
]


def steer_accepted(steer_id: str, response_id: str, number: int, lane: str | None) -> Event:
    """`number`: of the response's last event before this one, -1 if there was none."""
    event = {
        "type": "response.steer.accepted",
        "sequence_number": number,
        "steer": {"id": steer_id, "previous_response_id": response_id},
    }
    return in_lane(event, lane)


def steer_failed(
    steer: Steer, steer_id: str | None, code: SteerCode, message: str, number: int, lane: str | None
) -> Event:
    """`steer_id`: if it had been accepted. `number`: as above."""
    given_back = {"input": steer.input, "previous_response_id": steer.previous_response_id}
    event = {
        "type": "response.steer.failed",
        "sequence_number": number,
        "error": {"type": "invalid_request_error", "code": code, "message": message},
        "steer": given_back if steer_id is None else given_back | {"id": steer_id},
    }
    return in_lane(event, lane)


def successor(request: CreateResponse, response_id: str, steers: Iterable[Steer]) -> CreateResponse:
    """The request that goes on from a steered response, with the same settings. It ends with a user's words,
    so there is no message to be continued."""
    names = request.model_fields_set - {"continue_final_message"}
    settings = {name: getattr(request, name) for name in names}
    messages = [message for steer in steers for message in steer.messages]
    return CreateResponse.model_construct(
        **settings | {"previous_response_id": response_id, "input": messages}
    )
