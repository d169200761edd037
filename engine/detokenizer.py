"""Token ids to text, one token at a time, with stop strings.

Knows: the bytes of each token, UTF-8, stop strings. Does not know: how the ids came about, sequences,
torch, the tokenizer library.

A token is a piece of a byte string, not of a text: a character may span several tokens. Bytes are
decoded incrementally, so what is given out is always whole characters, and all of it joined equals the
decoding of all bytes in one go.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """What each token id says.

    `token_bytes[id]` is empty for special tokens: they never give text.
    """

    token_bytes: tuple[bytes, ...]
    eos_ids: frozenset[int]
    strip_leading_space: bool = False
    """SentencePiece models write a space before the first word; decoding takes that one away."""
    texts: tuple[str | None, ...] = field(init=False, repr=False)
    """`token_bytes` as text; None where they are not whole characters."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "texts", tuple(map(_text, self.token_bytes)))


def _text(token: bytes) -> str | None:
    try:
        return token.decode()
    except UnicodeDecodeError:
        return None


def common_prefix(one: Sequence[object], other: Sequence[object]) -> int:
    """How many elements both begin with."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((at for at, (a, b) in pairs if a != b), min(len(one), len(other)))


class Detokenizer:
    """The text of one sequence as it grows.

    Text is held back only while its end could be the beginning of a stop string, and then only that end.
    A stop string counts at the character that completes it; of two completed by the same character the
    longer wins. So the result does not depend on how the text was cut into tokens.

    Args:
        include_stop: the stop string that ended the text is part of it.
        in_mid_text: other text comes before, so a space at the beginning is one between words.
        seam: the end of that text, which this one may begin with: as far as it does, it leaves it out.
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        stop: Sequence[str] = (),
        include_stop: bool = False,
        in_mid_text: bool = False,
        seam: str = "",
    ) -> None:
        self._vocabulary = vocabulary
        self._texts = vocabulary.texts
        self._stop = tuple(stop)
        self._include_stop = include_stop
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._is_whole = True
        """No character is open."""
        self._held = ""
        self._seam = " " if vocabulary.strip_leading_space and not in_mid_text else seam
        """What is still left out if it comes next."""
        self.stopped_by: str | None = None
        """The stop string that was completed; from then on no more text comes."""
        self.num_released = 0
        """Characters given out so far."""

    @property
    def num_decoded(self) -> int:
        """Characters given out or held back so far."""
        return self.num_released + len(self._held)

    def push(self, token_id: int, may_stop: bool = True) -> str:
        """The text that `token_id` makes readable; "" while a character or a stop string is open.

        With `may_stop` false, stop strings do not count, nor does this text as the beginning of one.
        """
        text = self._texts[token_id] if self._is_whole else None
        if text is None:
            text = self._decoder.decode(self._vocabulary.token_bytes[token_id])
            self._is_whole = not self._decoder.getstate()[0]
        if self._stop or self._seam:
            return self._advance(text, may_stop)
        self.num_released += len(text)
        return text

    def flush(self) -> str:
        """The text still held back, for an ending other than a stop string. Bytes of a character that
        was never completed become U+FFFD, as in decoding all in one go."""
        rest = "" if self._is_whole else self._decoder.decode(b"", final=True)
        released = self._advance(rest, may_stop=True)
        if self.stopped_by is None:
            self.num_released += len(self._held)
            released, self._held = released + self._held, ""
        return released

    def _advance(self, text: str, may_stop: bool) -> str:
        if self.stopped_by is not None:
            return ""
        if self._seam:
            known = common_prefix(self._seam, text)
            self._seam = self._seam[known:] if known == len(text) else ""
            text = text[known:]
        if self._stop and may_stop:
            text = self._hold_back(self._held + text)
        self.num_released += len(text)
        return text

    def _hold_back(self, text: str) -> str:
        """What of `text` is certain."""
        self._held = ""
        match = self._first_completed(text)
        if match is not None:
            start, self.stopped_by = match
            return text[: start + len(self.stopped_by)] if self._include_stop else text[:start]
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


def text_of(ids: Iterable[int], vocabulary: Vocabulary) -> str:
    """The decoding of all tokens in one go."""
    detokenizer = Detokenizer(vocabulary)
    return "".join(map(detokenizer.push, ids)) + detokenizer.flush()
