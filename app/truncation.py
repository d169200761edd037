"""Which of a conversation's oldest messages must go so that the rest fits into the context.

Knows: messages, how long a prompt is once it is encoded. Does not know: templates, the engine, formats.

What a system message says stays, and so do the last user's message and what follows it. What is left begins
with a user's message, as far as there is a choice: templates want it so. No more goes than must.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate

from app.store import Message

GUESSES = 3
"""Cuts that are guessed from the number of characters, before the search halves what remains. Usually the
second one is right."""


class Truncation:
    """A prompt that is cut to fit.

    Args:
        encode: messages -> ids. The more messages, the more ids.
        fits: tokens that all messages may have. If they have more, messages go until the rest has at most
            `room`: so whoever asks for no length of his answer gets more than the last few tokens of a
            context.
    """

    def __init__(
        self, messages: Sequence[Message], encode: Callable[[list[Message]], list[int]], fits: int, room: int
    ) -> None:
        self._messages = messages
        self._encode = encode
        self._fits = fits
        self._room = room
        self._droppable = _droppable(messages)
        self.num_dropped = 0
        """Known once it is encoded."""

    def encode(self) -> list[int]:
        """The ids of what fits, or of the least that can be told if not even that does."""
        ids = self._encode(list(self._messages))
        cuts = self._cuts()
        if len(ids) <= self._fits or not cuts:
            return ids
        sizes = self._sizes_after(cuts)
        found: tuple[int, list[int]] | None = None
        low, high, guesses = 0, len(cuts), 0
        """What is before `low` is too long; `high` is the best that was found."""
        all_of_it, tokens = sum(len(message["content"]) for message in self._messages), len(ids)
        while low < high:
            if guesses < GUESSES:
                wanted = all_of_it * self._room / tokens
                probe = next((i for i in range(low, high) if sizes[i] <= wanted), high - 1)
            else:
                probe = (low + high) // 2
            guesses += 1
            ids = self._encode(self._after(cuts[probe]))
            all_of_it, tokens = max(1, sizes[probe]), max(1, len(ids))
            if len(ids) <= self._room:
                found, high = (cuts[probe], ids), probe
            else:
                low = probe + 1
        if found is None:
            found = cuts[-1], ids
        self.num_dropped, ids = found
        return ids

    def _cuts(self) -> list[int]:
        """How many of the droppable messages may go: up to a user's message, or all of them."""
        places = self._droppable
        before_users = [n for n, at in enumerate(places) if n and self._messages[at]["role"] == "user"]
        return [*before_users, len(places)] if places else []

    def _sizes_after(self, cuts: list[int]) -> list[int]:
        """Characters that are left after each cut."""
        lengths = [len(self._messages[at]["content"]) for at in self._droppable]
        gone = list(accumulate(lengths, initial=0))
        total = sum(len(message["content"]) for message in self._messages)
        return [total - gone[cut] for cut in cuts]

    def _after(self, cut: int) -> list[Message]:
        dropped = set(self._droppable[:cut])
        return [message for at, message in enumerate(self._messages) if at not in dropped]


def _droppable(messages: Sequence[Message]) -> list[int]:
    users = [at for at, message in enumerate(messages) if message["role"] == "user"]
    last = users[-1] if users else len(messages) - 1
    return [at for at in range(last) if messages[at]["role"] != "system"]
