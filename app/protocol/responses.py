"""Responses: its request, its response object and the events of its answer.

Knows: the shapes that the OpenAI SDKs send and expect, and how an answer's log becomes numbered events.
Does not know: sockets, lanes, HTTP, the engine, tokens.
"""

from __future__ import annotations

from functools import cached_property
from itertools import chain
from sys import getsizeof
from typing import Annotated, Any, Literal

import orjson
from pydantic import BeforeValidator, Field
from pydantic_core import PydanticCustomError

from app.protocol.endings import failure
from app.protocol.errors import ApiError, shown
from app.protocol.fields import COUNT, SWITCH, RequestFields, TokenCount
from app.protocol.logprobs import entries
from app.protocol.messages import CONTINUED, message, parts_of, refuse_empty
from app.protocol.payload import StrictObject, Unsupported, parse
from app.store import Message
from app.streams import Answer, Cut, Delta, StreamError
from engine.detokenizer import Vocabulary
from engine.request import FinishedEvent, FinishReason
from engine.sampling import MAX_LOGPROBS, SamplingParams

UNSUPPORTED: Unsupported = {
    "access_programs": (),
    "background_options": ({}, {"completion_window": "soonest"}),
    "context_management": ([],),
    "continuation_id": (),
    "conversation": (),
    "image": (),
    "max_tool_calls": (),
    "moderation": (),
    "parallel_tool_calls": (True, False),
    "prompt": (),
    "prompt_cache_key": (),
    "prompt_cache_options": (),
    "prompt_cache_retention": (),
    "reasoning": ({}, {"effort": "none"}),
    "service_tier": ("auto", "default"),
    "stream_options": ({}, {"include_obfuscation": False}),
    "text": ({}, {"format": {"type": "text"}}),
    "tool_choice": ("none", "auto"),
    "tools": ([],),
}
"""Parameters of the OpenAI API that we know and do not support, and their values that change nothing."""


class InputText(StrictObject):
    type: Literal["input_text"]
    text: str
    prompt_cache_breakpoint: None = None


class OutputText(StrictObject):
    """An assistant's earlier words, as an SDK's object sends them back."""

    type: Literal["output_text"]
    text: str
    annotations: list[Any] | None = None
    logprobs: list[Any] | None = None


Part = Annotated[InputText | OutputText, Field(discriminator="type")]
Parts = Annotated[list[Part], Field(min_length=1)]
Content = Annotated[
    Parts, BeforeValidator(lambda value: parts_of(value, "input_text"), json_schema_input_type=str | Parts)
]


class InputMessage(StrictObject):
    """`id`, `status` and `phase` come with an SDK's own message objects and say nothing to a model."""

    type: Literal["message"] = "message"
    role: Literal["system", "developer", "user", "assistant"]
    content: Content
    id: str | None = None
    status: Literal["in_progress", "completed", "incomplete"] | None = None
    phase: Literal["commentary", "final_answer"] | None = None


def as_messages(value: object) -> object:
    """An input, which may be a plain string, as a list of messages; for use before validation."""
    if value == "":
        raise PydanticCustomError("string_too_short", "a non-empty string")
    if isinstance(value, str):
        return [{"role": "user", "content": value}]
    if not isinstance(value, list):
        raise PydanticCustomError("input_type", "a string or a list of messages")
    return value


Messages = Annotated[list[InputMessage], Field(min_length=1)]
Input = Annotated[
    Messages,
    BeforeValidator(as_messages, json_schema_input_type=Annotated[str, Field(min_length=1)] | Messages),
]
Metadata = Annotated[
    dict[Annotated[str, Field(max_length=64)], Annotated[str, Field(max_length=512)]], Field(max_length=16)
]


LOGPROBS = "message.output_text.logprobs"
INPUT = "a non-empty string or a non-empty list of messages"


class CreateResponse(RequestFields):
    model: str | None = Field(None, description="the name of the served model, or nothing")
    input: Input = Field(default_factory=list, description=INPUT)
    """Empty only if something else is to be computed ahead, or continued."""
    instructions: str | None = Field(None, description="a string")
    previous_response_id: str | None = Field(None, max_length=128, description="a response's id")
    max_output_tokens: TokenCount | None = Field(None, description=COUNT)
    include: list[Literal["message.output_text.logprobs"]] | None = Field(
        None, description=f"a list of nothing but {LOGPROBS!r}"
    )
    top_logprobs: int | None = Field(
        None,
        ge=0,
        le=MAX_LOGPROBS,
        description=f"an integer from 0 to {MAX_LOGPROBS}, with {LOGPROBS!r} in include",
    )
    store: bool | None = Field(None, description=SWITCH)
    stream: bool | None = Field(None, description=SWITCH)
    background: bool | None = Field(None, description=f"{SWITCH}, and true only if it is stored")
    truncation: Literal["auto", "disabled"] | None = Field(
        None,
        description="'auto', which drops the oldest messages where they do not fit, or 'disabled', which "
        "refuses them",
    )
    generate: bool | None = Field(None, description=SWITCH)
    continue_final_message: bool | None = Field(None, description=f"{SWITCH}, and true only if {CONTINUED}")
    metadata: Metadata | None = Field(
        None, description="an object of up to 16 strings, each up to 512 characters under a key of up to 64"
    )

    @property
    def stored(self) -> bool:
        """Kept for other connections too, unless the client says no."""
        return self.store is not False

    @property
    def in_background(self) -> bool:
        """It needs nobody who waits for it."""
        return self.background is True

    @property
    def may_be_truncated(self) -> bool:
        return self.truncation == "auto"

    @property
    def warms_up(self) -> bool:
        """Nothing is to be generated: the prompt alone is computed, for the turn that will follow."""
        return self.generate is False

    @property
    def continues(self) -> bool:
        """The answer goes on in the last message of the conversation."""
        return self.continue_final_message is True

    @property
    def with_logprobs(self) -> bool:
        return LOGPROBS in (self.include or ())

    @cached_property
    def sampling(self) -> SamplingParams:
        return self._sampling(
            self.max_output_tokens, logprobs=self.top_logprobs or 0 if self.with_logprobs else None
        )

    @cached_property
    def messages(self) -> list[Message]:
        """The new messages, without instructions and without what came before."""
        return [message(each.role, [part.text for part in each.content]) for each in self.input]


def parse_create(fields: dict[str, Any]) -> CreateResponse:
    """Raises ApiError. Leaves nothing that grows with the messages for later."""
    may_lack_input = fields.get("generate") is False or fields.get("continue_final_message") is True
    if may_lack_input and fields.get("input") in (None, "", []):
        fields = {name: value for name, value in fields.items() if name != "input"}
    request = parse(CreateResponse, fields, UNSUPPORTED)
    has_prompt = request.previous_response_id or (request.warms_up and request.instructions)
    if not request.input and not (may_lack_input and has_prompt):
        raise ApiError(
            400, f"input: missing, expected: {INPUT}", code="missing_required_parameter", param="input"
        )
    if request.top_logprobs and not request.with_logprobs:
        raise ApiError(
            400,
            f"top_logprobs: got {request.top_logprobs}, allowed: only together with {LOGPROBS!r} in include",
            code="invalid_value",
            param="top_logprobs",
        )
    if request.in_background and not request.stored:
        raise ApiError(
            400,
            "background: got true with store=false, allowed: only what is stored, for nobody could read it",
            code="invalid_value",
            param="background",
        )
    refuse_empty(request.messages, "input")
    _ = request.sampling
    return request


class CountInputTokens(StrictObject):
    """Those fields of a response's request that make its prompt."""

    model: str | None = Field(None, description="the name of the served model, or nothing")
    input: Input | None = Field(None, description=INPUT)
    instructions: str | None = Field(None, description="a string")
    previous_response_id: str | None = Field(None, max_length=128, description="a response's id")
    continue_final_message: bool | None = Field(None, description=f"{SWITCH}, and true only if {CONTINUED}")


UNSUPPORTED_IN_COUNT: Unsupported = {
    name: UNSUPPORTED[name]
    for name in ("conversation", "parallel_tool_calls", "reasoning", "text", "tool_choice", "tools")
} | {"personality": (), "truncation": ("disabled",)}


def parse_count(fields: dict[str, Any]) -> CreateResponse:
    """As the request of a response that has this prompt. Raises ApiError."""
    given = parse(CountInputTokens, fields, UNSUPPORTED_IN_COUNT)
    if not (given.input or given.instructions or given.previous_response_id):
        raise ApiError(
            400, f"input: missing, expected: {INPUT}", code="missing_required_parameter", param="input"
        )
    request = CreateResponse.model_construct(**(dict(given) | {"input": given.input or []}))
    refuse_empty(request.messages, "input")
    return request


REPEATED = {
    "background",
    "continue_final_message",
    "generate",
    "include",
    "instructions",
    "max_output_tokens",
    "metadata",
    "previous_response_id",
    "store",
    "temperature",
    "top_logprobs",
    "top_p",
    "truncation",
    "user",
}
"""Fields of a request that its response repeats, or that say what the response is."""


def reduced(request: CreateResponse) -> CreateResponse:
    """What a response that has ended needs to know of its request. Others may be large."""
    fields = {name: getattr(request, name) for name in request.model_fields_set & REPEATED}
    return CreateResponse.model_construct(**fields)


OPENING = 4
"""Events before the first delta: created, in_progress, output_item.added, content_part.added."""
CLOSING = 4
"""Events after the last delta: output_text.done, content_part.done, output_item.done, the end."""

JSON_PER_LOGPROB = 7
"""How much longer log probabilities are as JSON than as numbers, about."""

TERMINAL = frozenset({"response.completed", "response.incomplete", "response.failed"})

Outcome = tuple[str, str, dict[str, Any] | None, dict[str, Any] | None]
"""Event type, status, incomplete_details, error."""

_CUTS: dict[Cut, Outcome] = {
    Cut.CANCELLED: ("response.incomplete", "cancelled", None, None),
    Cut.ABANDONED: ("response.incomplete", "cancelled", {"reason": "abandoned"}, None),
    Cut.STEERED: ("response.incomplete", "incomplete", {"reason": "steered"}, None),
}

Event = dict[str, Any]
"""Ready for orjson: log probabilities in it are JSON already."""
Json = list[Event] | orjson.Fragment


class ResponseEvents:
    """The events of one response, numbered by `sequence_number`.

    Which event has a number follows from the answer's log alone: 0 to 3 open the response, 4 + i is
    delta i, and four more close it. So any reader may ask for any number, at any time, and gets what
    every other reader got.

    A response that warms up has three events: two that open it, and the end. It generates nothing.

    A response that the client cancelled ends with `response.incomplete` and the status "cancelled":
    both are in the SDKs' types, and no event of that name is. So does one that was abandoned, which is its
    reason then; one that was steered is incomplete for that reason. One that `max_time_ms` cut short is
    incomplete with that name as its reason. The SDKs' types do not list "abandoned" and "max_time_ms", and
    their parsers pass them on; the reasons that they list would be untrue.

    Args:
        answer: with one choice.
        vocabulary: what the tokens of log probabilities stand for.
        num_dropped: messages that were left out because not all fitted.
    """

    def __init__(
        self,
        answer: Answer,
        request: CreateResponse,
        model: str,
        vocabulary: Vocabulary,
        num_dropped: int = 0,
    ) -> None:
        self.id = f"resp_{answer.request_id}"
        self.answer = answer
        (self.stream,) = answer.streams
        self.request = request
        self._item_id = f"msg_{answer.request_id}"
        self._model = model
        self._vocabulary = vocabulary
        self.num_dropped = num_dropped
        self._written: dict[int, bytes] = {}
        """Delta -> its log probabilities as JSON. The last four events repeat them all, which may be
        megabytes: each is made once, as long as somebody reads."""
        self._num_opening = 2 if request.warms_up else OPENING

    @property
    def num_events(self) -> int | None:
        """How many there are in all; None while it is not settled."""
        if self.stream.end is None:
            return None
        if self.request.warms_up:
            return self._num_opening + 1
        return OPENING + self.stream.num_deltas + CLOSING

    @property
    def num_told(self) -> int:
        """Numbers that some reader may have been given."""
        all_events = self.num_events
        if all_events is not None:
            return all_events
        return self._num_opening + (0 if self.request.warms_up else self.stream.num_sealed)

    def first_after(self, starting_after: int | None) -> int:
        """The number with which a reader goes on that has seen all up to `starting_after`; -1 and None: it
        has seen nothing.

        Raises:
            ApiError: nobody was ever given that number.
        """
        number = 0 if starting_after is None else starting_after + 1
        if not 0 <= number <= self.num_told:
            raise ApiError(
                400,
                f"starting_after: got {shown(starting_after)}, allowed: a sequence_number that was given, "
                f"at the moment up to {self.num_told - 1}",
                code="out_of_range",
                param="starting_after",
            )
        return number

    @property
    def has_failed(self) -> bool:
        return self.stream.end is not None and self._outcome(self.stream.end)[1] == "failed"

    # -- what it takes ----------------------------------------------------------------------------------

    @property
    def size(self) -> int:
        """Bytes that grow with the request and are kept as long as it is, beside messages."""
        request = self.request
        texts = [request.instructions, request.user, *chain(*(request.metadata or {}).items())]
        return sum(map(getsizeof, texts))

    def rest(self) -> None:
        """It has ended, and nobody reads it: keep what cannot be made again."""
        self.request = reduced(self.request)
        self._written = {}

    @property
    def json_size(self) -> int:
        """Bytes of the response object, about."""
        return (JSON_PER_LOGPROB if self.request.with_logprobs else 1) * self.stream.size

    @property
    def unwritten_size(self) -> int:
        """Bytes, about, of the JSON that is still to be made before the last events can be told."""
        if not self.request.with_logprobs or len(self._written) == self.stream.num_deltas:
            return 0
        return self.json_size

    def write_logprobs(self) -> dict[int, bytes]:
        """That JSON, for `adopt`. May be called from any thread once the answer has ended."""
        return {index: self._written_of(index) for index in range(self.stream.num_deltas)}

    def adopt(self, written: dict[int, bytes]) -> None:
        self._written = written

    # -- what it looks like -----------------------------------------------------------------------------

    def response(self) -> Event:
        """The response object as it stands."""
        if self.stream.end is not None:
            response: Event = self._terminal(self.stream.end)["response"]
            return response
        begun = self.stream.num_deltas > 0
        item = self._item("in_progress") | {"content": [_part(self.stream.text, [])]}
        return self._response("in_progress" if begun else "queued") | {"output": [item] if begun else []}

    def event(self, number: int) -> Event | None:
        """Event `number`, or None if it has not happened yet.

        Raises:
            StreamError: there will never be such an event.
        """
        if number < self._num_opening:
            event = self._opening(number)
        elif self.request.warms_up:
            if self.stream.end is None:
                return None
            event = self._closing(number - self._num_opening + CLOSING - 1, self.stream.end)
        else:
            taken = self.stream.take(min(number - OPENING, self.stream.num_deltas))
            if taken is None:
                return None
            if isinstance(taken, Delta):
                logprobs = self._logprobs(number - OPENING)
                event = self._at_part("response.output_text.delta", delta=taken.text, logprobs=logprobs)
            else:
                event = self._closing(number - OPENING - self.stream.num_deltas, taken)
        event["sequence_number"] = number
        return event

    def _opening(self, number: int) -> Event:
        match number:
            case 0:
                status = "queued" if self.request.in_background else "in_progress"
                return {"type": "response.created", "response": self._response(status)}
            case 1:
                return {"type": "response.in_progress", "response": self._response("in_progress")}
            case 2:
                return self._item_event("response.output_item.added", self._item("in_progress"))
        return self._at_part("response.content_part.added", part=_part("", []))

    def _closing(self, step: int, end: FinishedEvent) -> Event:
        match step:
            case 0:
                text, logprobs = self.stream.text, self._all_logprobs()
                return self._at_part("response.output_text.done", text=text, logprobs=logprobs)
            case 1:
                return self._at_part("response.content_part.done", part=self._final_part())
            case 2:
                return self._item_event("response.output_item.done", self._final_item(end))
            case 3:
                return self._terminal(end)
        raise StreamError(f"response {self.id}: an event after its last one was asked for")

    def _terminal(self, end: FinishedEvent) -> Event:
        kind, status, details, error = self._outcome(end)
        response = self._response(status) | {
            "output": [] if self.request.warms_up else [self._final_item(end)],
            "completed_at": self.answer.created + int(end.timings.finished - end.timings.arrival),
            "incomplete_details": details,
            "error": error,
            "usage": _usage(end, generated=not self.request.warms_up),
        }
        return {"type": kind, "response": response}

    def _outcome(self, end: FinishedEvent) -> Outcome:
        if end.reason is FinishReason.ABORT and self.answer.cut:
            return _CUTS[self.answer.cut]
        if error := failure(end):
            details = {"code": error.code, "message": error.message}
            return "response.failed", "failed", None, details
        if end.reason is FinishReason.STOP or self.request.warms_up:
            return "response.completed", "completed", None, None
        reason = end.stop if end.reason is FinishReason.TIMEOUT else "max_output_tokens"
        return "response.incomplete", "incomplete", {"reason": reason}, None

    def _response(self, status: str) -> Event:
        request = self.request
        response = {
            "id": self.id,
            "object": "response",
            "created_at": self.answer.created,
            "completed_at": None,
            "status": status,
            "background": request.in_background,
            "error": None,
            "incomplete_details": None,
            "instructions": request.instructions,
            "max_output_tokens": request.max_output_tokens,
            "metadata": request.metadata or {},
            "model": self._model,
            "output": [],
            "parallel_tool_calls": True,
            "previous_response_id": request.previous_response_id,
            "store": request.stored,
            "temperature": 1.0 if request.temperature is None else request.temperature,
            "text": {"format": {"type": "text"}},
            "tool_choice": "auto",
            "tools": [],
            "top_logprobs": request.top_logprobs or 0,
            "top_p": 1.0 if request.top_p is None else request.top_p,
            "truncation": request.truncation or "disabled",
            "usage": None,
            "user": request.user,
        }
        return response | {"truncated_items": self.num_dropped} if request.may_be_truncated else response

    def _final_item(self, end: FinishedEvent) -> Event:
        item = self._item("completed" if end.reason is FinishReason.STOP else "incomplete")
        return item | {"content": [self._final_part()]}

    def _final_part(self) -> Event:
        return _part(self.stream.text, self._all_logprobs())

    def _logprobs(self, index: int) -> Json:
        """Those of delta `index`."""
        if not self.request.with_logprobs:
            return []
        if index not in self._written:
            self._written[index] = self._written_of(index)
        return orjson.Fragment(self._written[index])

    def _written_of(self, index: int) -> bytes:
        delta = self.stream.take(index)
        return orjson.dumps(entries(delta.logprobs if isinstance(delta, Delta) else (), self._vocabulary))

    def _all_logprobs(self) -> Json:
        """Those of the whole answer, which must have ended."""
        if not self.request.with_logprobs:
            return []
        for index in range(self.stream.num_deltas):
            self._logprobs(index)
        lists = [self._written[index][1:-1] for index in range(self.stream.num_deltas)]
        return orjson.Fragment(b"[" + b",".join(filter(None, lists)) + b"]")

    def _item(self, status: str) -> Event:
        return {
            "id": self._item_id,
            "type": "message",
            "role": "assistant",
            "status": status,
            "content": [],
        }

    def _item_event(self, kind: str, item: Event) -> Event:
        return {"type": kind, "output_index": 0, "item": item}

    def _at_part(self, kind: str, **fields: object) -> Event:
        return {"type": kind, "item_id": self._item_id, "output_index": 0, "content_index": 0} | fields


def _part(text: str, logprobs: Json) -> Event:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs}


def _usage(end: FinishedEvent, generated: bool) -> Event:
    num_output_tokens = end.num_output_tokens if generated else 0
    return {
        "input_tokens": end.num_prompt_tokens,
        "input_tokens_details": {"cached_tokens": end.num_cached_tokens, "cache_write_tokens": 0},
        "output_tokens": num_output_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": end.num_prompt_tokens + num_output_tokens,
    }
