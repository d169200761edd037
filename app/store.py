"""Conversations of finished responses, so that a next turn can name the one before.

Knows: messages, their size, which were used last. Does not know: sockets, the engine, formats. Everything
is in memory and bounded; the least recently used goes first.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Any, NotRequired, TypedDict


class Message(TypedDict):
    """One message of a conversation, as chat templates take it."""

    role: str
    """system, user, assistant or tool."""
    content: str
    """"" if there is none."""
    tool_calls: NotRequired[list[dict[str, Any]]]
    """[{"id", "type": "function", "function": {"name", "arguments": an object}}]"""
    tool_call_id: NotRequired[str]
    """Which of them this message, a tool's, answers."""


Conversation = tuple[Message, ...]

MESSAGE_OVERHEAD = 300
"""Bytes that a message costs beside its text: a dict, two strings' headers, a place in a tuple."""


@dataclass(frozen=True, slots=True)
class _Kept:
    conversation: Conversation
    size: int


class ConversationStore:
    """Response id -> the conversation up to and including that response.

    Turns of one conversation share their messages' memory, yet each counts in full: the bound on bytes
    is never exceeded, and reached early.

    Args:
        max_count: conversations kept.
        max_bytes: bytes of all texts kept, about.
    """

    def __init__(self, max_count: int, max_bytes: int) -> None:
        self._max_count = max_count
        self._max_bytes = max_bytes
        self._kept: OrderedDict[str, _Kept] = OrderedDict()
        self.num_bytes = 0

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, response_id: str) -> Conversation | None:
        kept = self._kept.get(response_id)
        if kept is None:
            return None
        self._kept.move_to_end(response_id)
        return kept.conversation

    def put(self, response_id: str, conversation: Conversation) -> None:
        """Keep a conversation. One that is larger than the whole store is not kept."""
        self.discard(response_id)
        # Four bytes a character is what Python takes at most, and more than UTF-8 ever does.
        size = sum(4 * len(message["content"]) + MESSAGE_OVERHEAD for message in conversation)
        if size > self._max_bytes:
            return
        self._kept[response_id] = _Kept(conversation, size)
        self.num_bytes += size
        while len(self._kept) > self._max_count or self.num_bytes > self._max_bytes:
            _, oldest = self._kept.popitem(last=False)
            self.num_bytes -= oldest.size

    def discard(self, response_id: str) -> None:
        """Forget a conversation; one that is not there is left so."""
        if (kept := self._kept.pop(response_id, None)) is not None:
            self.num_bytes -= kept.size
