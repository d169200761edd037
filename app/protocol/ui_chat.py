"""The AI SDK's chat over a WebSocket: its frames, its messages, and the chunks of an answer.

Knows: what `WebSocketChatTransport` of the AI SDK 7 sends and expects, and how an answer's log becomes
numbered chunks. Does not know: sockets, callers, which answer belongs to which chat.

The names on this wire are the SDK's, the names inside `body` are ours.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, Literal

import orjson
from pydantic import Field

from app.protocol.endings import failure
from app.protocol.errors import ApiError, shown
from app.protocol.fields import COUNT, NAME, Name, RequestFields, TokenCount
from app.protocol.messages import message
from app.protocol.payload import StrictObject, decode, parse
from app.store import Message
from app.streams import Answer, Delta, StreamError
from engine.request import FinishedEvent, FinishReason
from engine.sampling import SamplingParams

MAX_ID = 128

Id = Annotated[str, Field(min_length=1, max_length=MAX_ID)]
ChatId = Annotated[Name, Field(min_length=1)]
Headers = dict[str, str]
ID = f"a string of 1 to {MAX_ID} characters"


class TextPart(StrictObject):
    """All but `text` comes with the SDK's own parts and says nothing to a model."""

    type: Literal["text"]
    text: str
    state: Literal["streaming", "done"] | None = None
    citations: list[Any] | None = None
    providerMetadata: dict[str, Any] | None = None  # noqa: N815


class StepStart(StrictObject):
    """Where a step of an answer began. It holds nothing."""

    type: Literal["step-start"]


Part = Annotated[TextPart | StepStart, Field(discriminator="type")]


class UIMessage(StrictObject):
    """`id` and `metadata` are for pages, and say nothing to a model."""

    id: Name
    role: Literal["system", "user", "assistant"]
    parts: list[Part]
    metadata: Any = None

    @property
    def text(self) -> str:
        texts = [part.text for part in self.parts if isinstance(part, TextPart)]
        # An answer that was added to its message goes on where the part before ended.
        return "".join(texts) if self.role == "assistant" else message(self.role, texts)["content"]


class SendRequest(StrictObject):
    """A turn of a chat. `headers` are for the API key, `body` has `ChatFields`; `metadata` is what a page
    tells its own server beside its messages, and we are told nothing by it."""

    type: Literal["send"]
    requestId: Id = Field(description=ID)  # noqa: N815
    id: ChatId = Field(description=NAME)
    trigger: Literal["submit-message", "regenerate-message"]
    messageId: Name | None = Field(None, description=NAME)  # noqa: N815
    messages: Annotated[list[UIMessage], Field(min_length=1)] = Field(
        description="a non-empty list of UI messages"
    )
    headers: Headers = Field(default_factory=dict, description="an object of strings")
    body: dict[str, Any] = Field(default_factory=dict, description="an object")
    metadata: Any = None

    @property
    def continued(self) -> str | None:
        """The id of the message that the answer is to be added to: the last one, if it is an assistant's and
        nobody wants another instead of one. As the SDK's own servers do."""
        last = self.messages[-1]
        return last.id if last.role == "assistant" and self.trigger == "submit-message" else None


class ResumeRequest(StrictObject):
    """The rest of a chat's latest answer. `lastSequence` left out: all of it. `messageId` is an addition of
    ours: what was counted by `lastSequence`, in case the chat has another answer by now.

    `body` comes with whatever the SDK sends, and its fields are those of a turn; none is asked for here.
    """

    type: Literal["resume"]
    requestId: Id = Field(description=ID)  # noqa: N815
    id: ChatId = Field(description=NAME)
    lastSequence: Annotated[int, Field(ge=0, lt=2**53)] | None = Field(  # noqa: N815
        None, description="the number of a chunk"
    )
    messageId: Name | None = Field(None, description=NAME)  # noqa: N815
    headers: Headers = Field(default_factory=dict, description="an object of strings")
    body: dict[str, Any] = Field(default_factory=dict, description="an object")
    metadata: Any = None


class AbortRequest(StrictObject):
    type: Literal["abort"]
    requestId: Id = Field(description=ID)  # noqa: N815


class ChatFields(RequestFields):
    """What `body` may have. `max_tokens` and `system` are other names for the fields before them."""

    model: str | None = Field(None, description="the name of the served model, or nothing")
    max_output_tokens: TokenCount | None = Field(None, description=COUNT)
    max_tokens: TokenCount | None = Field(None, description=COUNT)
    instructions: str | None = Field(None, description="a string")
    system: str | None = Field(None, description="a string")

    @cached_property
    def sampling(self) -> SamplingParams:
        return self._sampling(self.max_tokens if self.max_output_tokens is None else self.max_output_tokens)


@dataclass(frozen=True, slots=True)
class Turn:
    """A send request that may begin."""

    request: SendRequest
    fields: ChatFields
    conversation: list[Message]
    size: int
    """Characters of its frame."""

    @property
    def goes_on(self) -> bool:
        """The answer is the rest of the message that it is added to."""
        return self.request.continued is not None and self.conversation[-1]["content"] != ""


@dataclass(frozen=True, slots=True)
class Refused:
    """A request that was not understood."""

    request_id: str
    error: ApiError


Understood = Turn | ResumeRequest | AbortRequest | Refused

KINDS: dict[str, type[SendRequest | ResumeRequest | AbortRequest]] = {
    "send": SendRequest,
    "resume": ResumeRequest,
    "abort": AbortRequest,
}


def understand(text: str) -> Understood:
    """What a client's frame asks for.

    Raises:
        ApiError: it names no request that an error could be told of.
    """
    payload = decode(text)
    request_id = payload.get("requestId")
    if not isinstance(request_id, str) or not 1 <= len(request_id) <= MAX_ID:
        raise ApiError(
            400, f"requestId: got {shown(request_id)}, allowed: {ID}", code="invalid_value", param="requestId"
        )
    try:
        return _meaning(payload, len(text))
    except ApiError as error:
        return Refused(request_id, error)


def _meaning(payload: dict[str, Any], size: int) -> Turn | ResumeRequest | AbortRequest:
    """Raises ApiError."""
    kind = payload.get("type")
    if not isinstance(kind, str) or kind not in KINDS:
        raise ApiError(
            400,
            f"type: got {shown(kind)}, allowed: 'send', 'resume' or 'abort'",
            code="unknown_message_type",
            param="type",
        )
    request = parse(KINDS[kind], payload, {})
    if not isinstance(request, SendRequest):
        return request
    fields = parse(ChatFields, request.body, {})
    _refuse_both(fields, "max_output_tokens", "max_tokens")
    _refuse_both(fields, "instructions", "system")
    _ = fields.sampling
    return Turn(request, fields, _conversation(request, fields), size)


def _refuse_both(fields: ChatFields, name: str, other: str) -> None:
    if getattr(fields, name) is not None and getattr(fields, other) is not None:
        raise ApiError(
            400,
            f"{other}: got {shown(getattr(fields, other))} beside {name}, which means the same; "
            "allowed: one of them",
            code="invalid_value",
            param=other,
        )


def _conversation(request: SendRequest, fields: ChatFields) -> list[Message]:
    """A user who says nothing has made a mistake; an assistant may have been stopped before a word."""
    system = fields.instructions or fields.system
    conversation: list[Message] = [{"role": "system", "content": system}] if system else []
    for index, each in enumerate(request.messages):
        if each.role == "user" and not each.text:
            param = f"messages.{index}.parts"
            raise ApiError(
                400,
                f"{param}: got no text, allowed: a user's message with at least one character",
                code="empty_value",
                param=param,
            )
        conversation.append({"role": each.role, "content": each.text})
    return conversation


# -- what the server says ---------------------------------------------------------------------------------

Chunk = dict[str, Any]


def start_frame(request_id: str) -> bytes:
    return orjson.dumps({"type": "start", "requestId": request_id})


def chunk_frame(request_id: str, number: int, chunk: Chunk) -> bytes:
    return orjson.dumps({"type": "chunk", "requestId": request_id, "sequence": number, "chunk": chunk})


def end_frame(request_id: str) -> bytes:
    return orjson.dumps({"type": "end", "requestId": request_id})


def no_active_frame(request_id: str) -> bytes:
    return orjson.dumps({"type": "no-active", "requestId": request_id})


def error_frame(request_id: str, error: ApiError) -> bytes:
    """`status` and `error` are what other endpoints tell of an error; the SDK passes them over."""
    return orjson.dumps(
        {
            "type": "error",
            "requestId": request_id,
            "errorText": error.message,
            "status": error.status,
            "error": error.body(),
        }
    )


OPENING = 3
"""Chunks before the first delta: start, start-step, text-start."""
CLOSING = 3
"""Chunks after the last delta: text-end, finish-step, finish; of an answer that got no further, text-end,
message-metadata, and abort or error."""

TEXT_ID = "text"


class ChatChunks:
    """The UI message chunks of one answer, numbered by `sequence`.

    Which chunk has a number follows from the answer's log alone: 0 to 2 open the message, 3 + i is delta i,
    and three more close it. So any reader may ask for any number, at any time, and gets what every other
    reader got.

    Args:
        answer: with one choice.
        continued: the id of the message that the answer is added to; None: it is a message of its own.
    """

    def __init__(self, answer: Answer, continued: str | None, model: str) -> None:
        self.id = f"msg_{answer.request_id}"
        self.answer = answer
        self.message_id = continued or self.id
        self._log = answer.log
        self._model = model

    @property
    def num_chunks(self) -> int | None:
        """How many there are in all; None while it is not settled."""
        return OPENING + self._num_deltas + CLOSING if self._log.is_complete else None

    @property
    def num_given(self) -> int:
        """Chunks that some reader may have been given already."""
        return self.num_chunks or OPENING + self._num_deltas

    @property
    def _num_deltas(self) -> int:
        """That were taken. The end, once it was taken, is one more event of the log."""
        return self._log.num_taken - self._log.is_complete

    def chunk(self, number: int) -> Chunk | None:
        """Chunk `number`, or None if it has not happened yet.

        Raises:
            StreamError: there will never be such a chunk, or one before it was not taken yet.
        """
        if number < OPENING:
            return self._opening(number)
        event = number - OPENING
        step = self._log.take(min(event, self._num_deltas) if self._log.is_complete else event)
        if step is None:
            return None
        if isinstance(step.event, Delta):
            return {"type": "text-delta", "id": TEXT_ID, "delta": step.event.text}
        return self._closing(event - self._num_deltas, step.event)

    def _opening(self, number: int) -> Chunk:
        match number:
            case 0:
                return {"type": "start", "messageId": self.message_id}
            case 1:
                return {"type": "start-step"}
        return {"type": "text-start", "id": TEXT_ID}

    def _closing(self, step: int, end: FinishedEvent) -> Chunk:
        cut = self.answer.cut if end.reason is FinishReason.ABORT else None
        error = None if cut else failure(end)
        match step:
            case 0:
                return {"type": "text-end", "id": TEXT_ID}
            case 1 if cut or error:
                return {"type": "message-metadata", "messageMetadata": self._metadata(end)}
            case 1:
                return {"type": "finish-step"}
            case 2 if cut:
                return {"type": "abort", "reason": cut.value}
            case 2 if error:
                return {"type": "error", "errorText": error.message}
            case 2:
                # A limit on time cuts an answer short as one on tokens does; `stopReason` names it then.
                reason = "stop" if end.reason is FinishReason.STOP else "length"
                return {"type": "finish", "finishReason": reason, "messageMetadata": self._metadata(end)}
        raise StreamError(f"message {self.id}: a chunk after its last one was asked for")

    def _metadata(self, end: FinishedEvent) -> dict[str, Any]:
        return {"model": self._model, "stopReason": end.stop, "usage": _usage(end)}


def _usage(end: FinishedEvent) -> dict[str, Any]:
    """The SDK's `LanguageModelUsage`."""
    prompt, cached, output = end.num_prompt_tokens, end.num_cached_tokens, end.num_output_tokens
    return {
        "inputTokens": prompt,
        "inputTokenDetails": {
            "noCacheTokens": prompt - cached,
            "cacheReadTokens": cached,
            "cacheWriteTokens": 0,
        },
        "outputTokens": output,
        "outputTokenDetails": {"textTokens": output, "reasoningTokens": 0},
        "totalTokens": prompt + output,
    }
