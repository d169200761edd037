"""One answer as it grows: its text, its log probabilities, and the rules by which it ends.

Knows: token ids, the detokenizer, sampling parameters. Does not know: where tokens come from, blocks, ticks,
events, torch.

What ends an answer: a stop string; else the model's end token or a stop id (never before `min_tokens`: the
sampler excludes them until then); else the length.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from engine.detokenizer import Detokenizer, Vocabulary
from engine.request import ChosenLogprob, FinishReason
from engine.sampling import SamplingParams


@dataclass(frozen=True, slots=True)
class Ending:
    """Why an answer ended; `stop` as in `FinishedEvent`."""

    reason: FinishReason
    stop: str | int | None = None


class Answer:
    """The text side of one sequence.

    Args:
        max_tokens: how many tokens it may have.
    """

    def __init__(self, vocabulary: Vocabulary, sampling: SamplingParams, max_tokens: int) -> None:
        self.detokenizer = Detokenizer(
            vocabulary, sampling.stop, sampling.include_stop, sampling.in_mid_text, sampling.seam
        )
        self._max_tokens = max_tokens
        self._min_tokens = sampling.min_tokens
        self._include_stop = sampling.include_stop
        self._eos_ids = frozenset() if sampling.ignore_eos else vocabulary.eos_ids
        self._end_ids = self._eos_ids | frozenset(sampling.stop_token_ids)
        self._untold: deque[tuple[int, ChosenLogprob]] = deque()
        """Log probabilities not given out yet, each with the character at which its token begins."""

    def push(self, token: int, count: int, logprob: ChosenLogprob | None) -> tuple[str, Ending | None]:
        """Takes the answer's token number `count`. The text that became readable, and the end if it is one.

        At an end the rest of the text is in it.
        """
        ending, text = None, ""
        if token in self._end_ids:
            ending = Ending(FinishReason.STOP, None if token in self._eos_ids else token)
        if ending is None or self._include_stop:
            if logprob is not None:
                self._untold.append((self.detokenizer.num_decoded, logprob))
            text = self.detokenizer.push(token, may_stop=count > self._min_tokens)
        if ending is None and count >= self._max_tokens:
            ending = Ending(FinishReason.LENGTH)
        if ending is not None:
            text += self.detokenizer.flush()
        if self.detokenizer.stopped_by is not None:
            ending = Ending(FinishReason.STOP, self.detokenizer.stopped_by)
        return text, ending

    def flush(self) -> str:
        """The text still held back, for an end that no token brought."""
        return self.detokenizer.flush()

    def logprobs(self, at_end: bool) -> tuple[ChosenLogprob, ...]:
        """Those of tokens that begin in the text given out so far, each told once. At the end also those of
        tokens without text, unless a stop string cut them off."""
        if not self._untold:
            return ()
        all_text_is_out = at_end and self.detokenizer.stopped_by is None
        told = []
        while self._untold and (all_text_is_out or self._untold[0][0] < self.detokenizer.num_released):
            told.append(self._untold.popleft()[1])
        return tuple(told)
