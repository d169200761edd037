"""A conversation, and the requests that carry it on.

Knows: what was said, what the server remembers of it, which settings a request may have. Does not know: how a
request travels, lanes, events.

The server remembers responses by id, so a turn sends only what is new. Where it does not remember (it was
started anew, say), the same turn sends everything.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypedDict

Role = Literal["system", "developer", "user", "assistant"]


class Message(TypedDict):
    role: Role
    content: str


class Settings(TypedDict, total=False):
    """What a chat, or one of its turns, may ask for. None, like a name left out, is the server's default."""

    model: str | None
    instructions: str | None
    max_output_tokens: int | None
    temperature: float | None
    top_p: float | None
    top_k: int | None
    min_p: float | None
    presence_penalty: float | None
    frequency_penalty: float | None
    repetition_penalty: float | None
    logit_bias: Mapping[str, float] | None
    allowed_token_ids: list[int] | None
    bad_words: list[str] | None
    min_tokens: int | None
    ignore_eos: bool | None
    seed: int | None
    stop: str | list[str] | None
    stop_token_ids: list[int] | None
    include_stop_str_in_output: bool | None
    include: list[str] | None
    top_logprobs: int | None
    priority: Literal["interactive", "batch"] | None
    max_queue_ms: float | None
    max_time_ms: float | None
    cache_salt: str | None
    truncation: Literal["auto", "disabled"] | None
    store: bool | None
    metadata: Mapping[str, str] | None
    user: str | None
    safety_identifier: str | None


def checked(settings: Settings) -> Settings:
    """
    Raises:
        TypeError: there is no such setting.
    """
    if unknown := sorted(set(settings) - set(Settings.__annotations__)):
        allowed = ", ".join(Settings.__annotations__)
        raise TypeError(f"got the unknown setting {unknown[0]!r}, allowed: {allowed}")
    return settings


class Conversation:
    def __init__(self, settings: Settings, messages: Iterable[Message] = ()) -> None:
        self.settings = settings
        self.messages = list(messages)
        self.previous_id: str | None = None
        """The response that stands for all messages so far, as long as the server knows it."""


@dataclass(eq=False, slots=True)
class Turn:
    """What is said next in a conversation; or, if it only warms up, what might be."""

    conversation: Conversation
    content: str | None
    """None: nothing beyond the conversation; only to warm up."""
    settings: Settings
    warms_up: bool = False

    def body(self) -> dict[str, Any]:
        """The fields of its `response.create`, as of now."""
        conversation = self.conversation
        past = [] if conversation.previous_id else conversation.messages
        new = [] if self.content is None else [Message(role="user", content=self.content)]
        fields = {
            **conversation.settings,
            **self.settings,
            "input": [*past, *new] or None,
            "previous_response_id": conversation.previous_id,
            "generate": False if self.warms_up else None,
        }
        return {name: value for name, value in fields.items() if value is not None}

    def forget(self) -> bool:
        """The server does not know the response that came before. False: none was named."""
        named = self.conversation.previous_id is not None
        self.conversation.previous_id = None
        return named

    def record(self, text: str, response_id: str) -> None:
        """It was answered, perhaps not to the end. The server remembers just this, an empty answer
        included."""
        if self.warms_up or self.content is None:
            return
        conversation = self.conversation
        conversation.messages.append(Message(role="user", content=self.content))
        conversation.messages.append(Message(role="assistant", content=text))
        conversation.previous_id = response_id
