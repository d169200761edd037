"""What messages of both APIs have in common.

Knows: roles, contents, what counts as empty. Does not know: either API's fields.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pydantic_core import PydanticCustomError

from app.protocol.errors import ApiError, invalid_value
from app.store import Message

CONTINUED = "the last message is an assistant's, with text and without tool calls"
"""Where an answer can go on in that message."""


def parts_of(value: object, text_type: str) -> object:
    """A content, which may be a plain string, as a list of parts; for use before validation."""
    if isinstance(value, str):
        return [{"type": text_type, "text": value}]
    if not isinstance(value, list):
        raise PydanticCustomError("content_type", "a string or a list of text parts")
    return value


def message(role: str, texts: Iterable[str]) -> Message:
    """Parts become one text, a line each. Templates know no developers: theirs are the system's words."""
    return {"role": "system" if role == "developer" else role, "content": "\n".join(texts)}


def joined(messages: Sequence[Message], text: str) -> tuple[Message, ...]:
    """The messages, with more text in the last one."""
    *before, last = messages
    return (*before, {**last, "content": last["content"] + text})


def check_continued(messages: Sequence[Message]) -> None:
    """
    Raises:
        ApiError: the last message has nothing in it that an answer could go on with.
    """
    last = messages[-1] if messages else None
    if last is None:
        got = "no message"
    elif last["role"] != "assistant":
        got = f"a last message of role {last['role']!r}"
    elif last.get("tool_calls"):
        got = "a last message with tool calls"
    elif not last["content"]:
        got = "a last message without text"
    else:
        return
    raise invalid_value("continue_final_message", f"got true and {got}, allowed: true only if {CONTINUED}")


def refuse_empty(messages: Iterable[Message], field: str) -> None:
    """A user who says nothing has made a mistake; an assistant may have been stopped before a word.

    Raises:
        ApiError: naming the first such message, as an element of `field`.
    """
    for index, each in enumerate(messages):
        if each["role"] == "user" and not each["content"]:
            param = f"{field}.{index}.content"
            raise ApiError(
                400,
                f"{param}: got an empty text, allowed: a user's message with at least one character",
                code="empty_value",
                param=param,
            )
