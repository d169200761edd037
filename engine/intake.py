"""From a request to the sequences that will answer it.

Knows: what a request may ask of this engine, seeds, prefix hashes. Does not know: the queue, ticks, memory.
All of it may be done on any thread: it is the part of a request's work that grows with its prompt.
"""

from __future__ import annotations

import secrets
from dataclasses import replace

from engine.prefix import PrefixHasher
from engine.request import ContextLengthExceeded, Request, Sequence

_SEED_STEP = 0x9E3779B97F4A7C15
"""2**64 over the golden ratio: spreads the seeds of a request's answers far from those of other requests."""


class Intake:
    """
    Args:
        vocabulary_size: token ids are 0 to one less.
        max_model_len: most tokens of one sequence.
        hasher: names prefixes; None where they are not shared.
    """

    def __init__(self, vocabulary_size: int, max_model_len: int, hasher: PrefixHasher | None) -> None:
        self._vocabulary_size = vocabulary_size
        self._max_model_len = max_model_len
        self._hasher = hasher

    def sequences(self, request: Request) -> list[Sequence]:
        """One for each of the n answers. The others can share what the first has computed.

        Raises:
            ContextLengthExceeded: it can never fit.
            ValueError: the prompt is empty, or an id is not in the vocabulary; the message names the field.
        """
        if not request.prompt:
            raise ValueError("prompt: got no tokens, allowed: at least 1")
        first = self._sequence(request)
        self.check_ids(request)
        self.extend_hashes(first)
        others = [self._sequence(request, choice, first) for choice in range(1, request.sampling.n)]
        for other in others:
            other.block_hashes = list(first.block_hashes)
        return [first, *others]

    def fork(self, parent: Sequence, child: Request) -> Sequence:
        """A sequence that goes on from all of the parent's tokens. The ids have been checked.

        Raises:
            ContextLengthExceeded: it can never fit.
        """
        sequence = self._sequence(replace(child, prompt=tuple(parent.tokens)), source=parent)
        self.extend_hashes(sequence)
        return sequence

    def extend_hashes(self, sequence: Sequence) -> None:
        """After its tokens have grown. O(new tokens)."""
        if self._hasher is not None:
            self._hasher.extend(sequence.block_hashes, sequence.tokens, sequence.request.cache_salt)

    def check_ids(self, request: Request) -> None:
        """
        Raises:
            ValueError: an id is not in the vocabulary; the message names the field.
        """
        size, sampling = self._vocabulary_size, request.sampling
        for name, ids in (
            ("prompt", request.prompt),
            ("logit_bias", tuple(token for token, _ in sampling.logit_bias)),
            ("allowed_token_ids", sampling.allowed_token_ids or ()),
            ("bad_words", tuple(token for word in sampling.bad_words for token in word)),
            ("stop_token_ids", sampling.stop_token_ids),
        ):
            if ids and not 0 <= min(ids) <= max(ids) < size:
                wrong = next(each for each in ids if not 0 <= each < size)
                raise ValueError(f"{name}: got the token id {wrong}, allowed: 0 to {size - 1}")

    def _sequence(self, request: Request, choice: int = 0, source: Sequence | None = None) -> Sequence:
        length, sampling = len(request.prompt), request.sampling
        room = self._max_model_len - length
        if room < (sampling.max_tokens or 1):
            raise ContextLengthExceeded(length, sampling.max_tokens, self._max_model_len)
        seed = secrets.randbits(63) if sampling.seed is None else sampling.seed
        return Sequence(
            request,
            seed=(seed + choice * _SEED_STEP + 2**63) % 2**64 - 2**63,
            max_output_tokens=sampling.max_tokens or room,
            choice=choice,
            source=source,
        )
