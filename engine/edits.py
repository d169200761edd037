"""What one sequence's parameters do to its logits: lists of token ids, with numbers beside them.

Knows: sampling parameters, a sequence's tokens, numpy. Does not know: logits, batches, in which order the
lists act (`engine.sampling` says it).

Penalties need to know which tokens a sequence holds, and how often. A row of counts for the whole vocabulary
would cost 200 KB per sequence for 50,000 tokens; a list in which each token stands once costs what was said.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from engine.request import Sequence

Int32 = NDArray[np.int32]
Float32 = NDArray[np.float32]


class RowLists(NamedTuple):
    """One row's entries in the lists of `engine.batch.LogitEdits`."""

    bias_ids: Int32
    bias: Float32
    seen_ids: Int32
    seen_counts: Int32
    allowed_ids: Int32
    banned_ids: Int32


class SeenTokens:
    """The tokens of prompt and answer, each once, and how often the answer holds it."""

    def __init__(self, prompt: Iterable[int]) -> None:
        self._place = {token: place for place, token in enumerate(dict.fromkeys(prompt))}
        self._ids = _int32(self._place)
        self._counts = np.zeros_like(self._ids)

    def count(self, answer: Iterable[int]) -> None:
        """Takes in tokens that the answer has grown by."""
        for token in answer:
            place = self._place.setdefault(token, len(self._place))
            if place == len(self._ids):
                self._ids = np.concatenate([self._ids, np.zeros(place + 16, dtype=np.int32)])
                self._counts = np.concatenate([self._counts, np.zeros(place + 16, dtype=np.int32)])
            self._ids[place] = token
            self._counts[place] += 1

    @property
    def ids(self) -> Int32:
        return self._ids[: len(self._place)]

    @property
    def counts(self) -> Int32:
        return self._counts[: len(self._place)]


class RowEdits:
    """Keeps the lists of the sequence that owns a row. One that comes back after preemption gets a new one.

    Raises:
        OverflowError: the parameters name an id that is no 32-bit number.
    """

    def __init__(self, sequence: Sequence, eos_ids: frozenset[int]) -> None:
        params = sequence.request.sampling
        self._bias_ids = _int32(token for token, _ in params.logit_bias)
        self._bias = np.array([bias for _, bias in params.logit_bias], dtype=np.float32)
        self._allowed_ids = _int32(dict.fromkeys(params.allowed_token_ids or ()))
        self._seen = SeenTokens(sequence.request.prompt if params.has_penalties else ())
        self._num_counted = sequence.num_prompt_tokens
        self._end_ids = _int32({*params.stop_token_ids, *(() if params.ignore_eos else eos_ids)})
        self._always_banned = _int32(word[0] for word in params.bad_words if len(word) == 1)
        self._words_after: dict[int, list[tuple[tuple[int, ...], Int32]]] = {}
        """Bad words by their last token but one: (all but the last, the last). So only those are looked at
        whose turn it may be."""
        for word in params.bad_words:
            if len(word) > 1:
                self._words_after.setdefault(word[-2], []).append((word[:-1], _int32(word[-1:])))

    def now(self, sequence: Sequence) -> RowLists:
        """The lists for the sequence's next token."""
        if sequence.request.sampling.has_penalties:
            self._seen.count(sequence.tokens[self._num_counted :])
            self._num_counted = sequence.num_tokens
        return RowLists(
            self._bias_ids,
            self._bias,
            self._seen.ids,
            self._seen.counts,
            self._allowed_ids,
            self._banned_ids(sequence),
        )

    def _banned_ids(self, sequence: Sequence) -> Int32:
        banned = [self._always_banned]
        if sequence.num_output_tokens < sequence.request.sampling.min_tokens:
            banned.append(self._end_ids)
        for before, last in self._words_after.get(sequence.tokens[-1], ()):
            if _ends_with(sequence, before):
                banned.append(last)
        return np.concatenate(banned) if len(banned) > 1 else banned[0]


def edits_of(sequence: Sequence, eos_ids: frozenset[int]) -> RowEdits | None:
    """None: its parameters leave all logits as they are. Raises as `RowEdits` does."""
    params = sequence.request.sampling
    touches_logits = (
        params.has_penalties
        or params.logit_bias
        or params.allowed_token_ids is not None
        or params.bad_words
        or params.min_tokens
    )
    return RowEdits(sequence, eos_ids) if touches_logits else None


def _ends_with(sequence: Sequence, tail: tuple[int, ...]) -> bool:
    """Whether the answer does; the prompt is no part of it."""
    return len(tail) <= sequence.num_output_tokens and tuple(sequence.tokens[-len(tail) :]) == tail


def _int32(ids: Iterable[int]) -> Int32:
    return np.array(list(ids), dtype=np.int32)
