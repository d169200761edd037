"""Token ids to text, one token at a time, with stop strings.

Knows: the bytes of each token, UTF-8, stop strings. Does not know: how the ids came about, sequences,
torch, the tokenizer library.

A token is a piece of a byte string, not of a text: a character may span several tokens. Bytes are
decoded incrementally, so what is given out is always whole characters, and all of it joined equals the
decoding of all bytes in one go.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """What each token id says.

    `token_bytes[id]` is empty for special tokens: they never give text.
    """

    token_bytes: tuple[bytes, ...]
    eos_ids: frozenset[int]
    strip_leading_space: bool = False
    """SentencePiece models write a space before the first word; decoding takes that one away."""


class Detokenizer:
    """The text of one sequence as it grows.

    Text is held back only while its end could be the beginning of a stop string, and then only that end.
    A stop string counts at the character that completes it; of two completed by the same character the
    longer wins. So the result does not depend on how the text was cut into tokens.
    """

    def __init__(self, vocabulary: Vocabulary, stop: Sequence[str] = ()) -> None:
        self._vocabulary = vocabulary
        self._stop = tuple(stop)
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        self._held = ""
        self._at_start = True
        self.stopped_by: str | None = None
        """The stop string that was completed; from then on no more text comes."""

    def push(self, token_id: int) -> str:
        """The text that `token_id` makes readable; "" while a character or a stop string is open."""
        return self._advance(self._utf8.decode(self._vocabulary.token_bytes[token_id]))

    def flush(self) -> str:
        """The text still held back, for an ending other than a stop string. Bytes of a character that
        was never completed become U+FFFD, as in decoding all in one go."""
        released = self._advance(self._utf8.decode(b"", final=True))
        if self.stopped_by is None:
            released, self._held = released + self._held, ""
        return released

    def _advance(self, text: str) -> str:
        if self.stopped_by is not None:
            return ""
        if self._at_start and text:
            self._at_start = False
            if self._vocabulary.strip_leading_space:
                text = text.removeprefix(" ")
        if not self._stop:
            return text
        text = self._held + text
        self._held = ""
        match = self._first_completed(text)
        if match is not None:
            start, self.stopped_by = match
            return text[:start]
        held = self._longest_open_end(text)
        if held:
            text, self._held = text[:-held], text[-held:]
        return text

    def _first_completed(self, text: str) -> tuple[int, str] | None:
        """Start and stop string of the match that ends first."""
        found = ((text.find(stop), stop) for stop in self._stop)
        ends = [(start + len(stop), start, stop) for start, stop in found if start >= 0]
        if not ends:
            return None
        _, start, stop = min(ends)
        return start, stop

    def _longest_open_end(self, text: str) -> int:
        """Length of the longest end of `text` that is a proper prefix of a stop string."""
        longest = 0
        for stop in self._stop:
            for length in range(min(len(stop) - 1, len(text)), longest, -1):
                if text.endswith(stop[:length]):
                    longest = length
                    break
        return longest
