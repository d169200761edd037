"""How many tokens an answer is expected to have still before it.

Knows: the lengths of the answers that ended. Does not know: sequences, requests, memory.

What is estimated is the mean residual life: the mean of L - m over the answers with L > m, where L is an
answer's length and m what this one has made so far. Answers are counted by powers of two of their length. At
the powers of two the mean is exact; between them a bucket's answers are taken to end at an even rate.

Old answers are forgotten by and by. One imagined answer is always among them, of which at any length 128 more
tokens are expected (a geometric distribution): before anything is known, and for an answer that grows longer
than all before it, it decides.
"""

from __future__ import annotations

from typing import NamedTuple

PRIOR_TOKENS = 128
"""What is expected before anything is known."""
HALVED_EVERY = 256
"""After so many ends all earlier ones count half."""
NUM_BUCKETS = 24
"""Bucket b counts the lengths from 2**(b-1) + 1 to 2**b; bucket 0 length 1, the last whatever is longer."""


class _Known(NamedTuple):
    """About answers that have made more than `start`, the lower end of a bucket."""

    start: int
    num_ending: float
    """Of those that end in the bucket."""
    beyond_start: float
    """Their tokens beyond `start`, together."""
    count_above: float
    """Of those that end in a later bucket."""
    tokens_above: float


class ExpectedLength:
    def __init__(self) -> None:
        self._counts = [0.0] * NUM_BUCKETS
        self._tokens = [0.0] * NUM_BUCKETS
        """The sum of each bucket's lengths."""
        self._num_ended = 0
        self._known: list[_Known] = []
        """By bucket."""
        self._rebuild()

    def ended(self, output_tokens: int) -> None:
        """Learn from an answer that ended by itself, of at least one token.

        Raises:
            ValueError: it had none.
        """
        if output_tokens < 1:
            raise ValueError(f"output_tokens: got {output_tokens}, allowed: at least 1")
        bucket = min((output_tokens - 1).bit_length(), NUM_BUCKETS - 1)
        self._counts[bucket] += 1
        self._tokens[bucket] += output_tokens
        self._num_ended += 1
        if self._num_ended % HALVED_EVERY == 0:
            self._counts = [count / 2 for count in self._counts]
            self._tokens = [tokens / 2 for tokens in self._tokens]
        self._rebuild()

    def remaining(self, sequence_output: int, at_most: int) -> int:
        """Tokens still to come for an answer that has made `sequence_output` and goes on: at least 1, and
        never more than `at_most`. O(1)."""
        bucket = min(sequence_output.bit_length(), NUM_BUCKETS - 1)
        start, num_ending, beyond_start, count_above, tokens_above = self._known[bucket]
        # Of the bucket's answers, so many are left, and of each of them so much.
        left = max(0.0, 2 - sequence_output / start) if start else 1.0
        tokens = left * left * beyond_start + tokens_above - count_above * sequence_output + PRIOR_TOKENS
        return min(at_most, max(1, round(tokens / (left * num_ending + count_above + 1))))

    def _rebuild(self) -> None:
        known, count_above, tokens_above = [], 0.0, 0.0
        for bucket in range(NUM_BUCKETS - 1, -1, -1):
            count, tokens, start = self._counts[bucket], self._tokens[bucket], 1 << bucket >> 1
            known.append(_Known(start, count, tokens - count * start, count_above, tokens_above))
            count_above += count
            tokens_above += tokens
        self._known = known[::-1]
