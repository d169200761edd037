"""How a request wants its tokens chosen, and when it wants them to end.

Knows: the parameters, their ranges, and the order in which they act. Does not know: how a token is drawn,
sequences, torch.

The order of operations on a row of logits:

1. `logit_bias` is added.
2. Penalties: repetition (tokens of prompt and answer: a positive logit is divided, another multiplied), then
   frequency times the count, and presence, of the tokens of the answer, are subtracted.
3. Masks: what is not among `allowed_token_ids` is excluded, and so is what `bad_words` and `min_tokens` ban.
4. temperature, min_p, top_k, top_p, then one draw.

Log probabilities are those of the model's own logits, before step 1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

GREEDY_BELOW = 1e-5
"""A temperature below this takes the likeliest token."""

MAX_LOGPROBS = 20
MAX_N = 128


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """See the module's docstring for the order in which these act. Ranges are checked here, by name.

    Raises:
        ValueError: a value is out of range; the message names the field, what was got and what is allowed.
    """

    temperature: float = 1.0
    """0..2. Below 1e-5 is greedy."""
    top_p: float = 1.0
    """(0, 1]. 1 keeps everything."""
    top_k: int = 0
    """0 keeps everything."""
    min_p: float = 0.0
    """[0, 1]. Keeps tokens at least this fraction as likely as the likeliest."""
    presence_penalty: float = 0.0
    """-2..2. Subtracted from the logit of each token that the answer holds."""
    frequency_penalty: float = 0.0
    """-2..2. Subtracted once for each time that the answer holds the token."""
    repetition_penalty: float = 1.0
    """0.01..2. Above 1 makes tokens of prompt and answer less likely."""
    logit_bias: tuple[tuple[int, float], ...] = ()
    """(token id, -100..100), each id at most once."""
    allowed_token_ids: tuple[int, ...] | None = None
    """Only these may be chosen. None: all."""
    bad_words: tuple[tuple[int, ...], ...] = ()
    """Token sequences; the last token of one is excluded where the answer ends with those before it."""
    min_tokens: int = 0
    """Before so many tokens are sampled, end tokens and stop ids are excluded; stop strings do not count."""
    ignore_eos: bool = False
    """The model's end token is a token like any other, without text."""
    seed: int | None = None
    """-2**63 .. 2**63-1. None: the engine draws one."""
    max_tokens: int | None = None
    """None: as many as the context leaves."""
    stop: tuple[str, ...] = ()
    """Non-empty strings; the text ends before the first one that appears."""
    stop_token_ids: tuple[int, ...] = ()
    """Ids that end the sequence like the model's own end token does; they give no text."""
    include_stop: bool = False
    """The stop string or the stop id's text that ended the answer is part of its text."""
    in_mid_text: bool = False
    """The answer goes on within a text, so a space at its beginning belongs to it."""
    seam: str = ""
    """The end of that text, where the prompt lacks it: the answer does not tell it again."""
    n: int = 1
    """1..128 answers to the same prompt, each with a seed of its own."""
    logprobs: int | None = None
    """0..20: tell each chosen token's log probability, and so many of the likeliest. None: do not."""

    def __post_init__(self) -> None:
        ids = "token ids of at least 0"
        _check_range("temperature", self.temperature, 0, 2)
        _check("top_p", self.top_p, 0 < self.top_p <= 1, "a number above 0 and at most 1")
        _check("top_k", self.top_k, 0 <= self.top_k < 2**31, "0 (off) or a positive integer below 2**31")
        _check_range("min_p", self.min_p, 0, 1)
        _check_range("presence_penalty", self.presence_penalty, -2, 2)
        _check_range("frequency_penalty", self.frequency_penalty, -2, 2)
        _check_range("repetition_penalty", self.repetition_penalty, 0.01, 2)
        biased = [token for token, _ in self.logit_bias]
        _check("logit_bias", self.logit_bias, all(t >= 0 for t in biased), ids)
        _check("logit_bias", self.logit_bias, len(set(biased)) == len(biased), "each token id at most once")
        for _, bias in self.logit_bias:
            _check_range("logit_bias", bias, -100, 100)
        if self.allowed_token_ids is not None:
            _check(
                "allowed_token_ids", self.allowed_token_ids, bool(self.allowed_token_ids), "at least one id"
            )
            _check("allowed_token_ids", self.allowed_token_ids, min(self.allowed_token_ids) >= 0, ids)
        _check("bad_words", self.bad_words, all(self.bad_words), "non-empty token sequences")
        _check("bad_words", self.bad_words, all(t >= 0 for word in self.bad_words for t in word), ids)
        _check("min_tokens", self.min_tokens, self.min_tokens >= 0, "an integer of at least 0")
        _check(
            "seed", self.seed, self.seed is None or -(2**63) <= self.seed < 2**63, "a signed 64-bit integer"
        )
        if self.max_tokens is not None:
            _check("max_tokens", self.max_tokens, self.max_tokens >= 1, "an integer of at least 1")
            most = f"at most max_tokens ({self.max_tokens})"
            _check("min_tokens", self.min_tokens, self.min_tokens <= self.max_tokens, most)
        _check("stop", self.stop, all(self.stop), "non-empty strings")
        _check("stop_token_ids", self.stop_token_ids, all(i >= 0 for i in self.stop_token_ids), ids)
        _check("n", self.n, 1 <= self.n <= MAX_N, f"an integer from 1 to {MAX_N}")
        _check(
            "logprobs",
            self.logprobs,
            self.logprobs is None or 0 <= self.logprobs <= MAX_LOGPROBS,
            f"an integer from 0 to {MAX_LOGPROBS}",
        )

    @property
    def has_penalties(self) -> bool:
        return (self.presence_penalty, self.frequency_penalty, self.repetition_penalty) != (0, 0, 1)


def _check(field_name: str, got: object, ok: bool, allowed: str) -> None:
    if not ok:
        raise ValueError(f"{field_name}: got {got!r}, allowed: {allowed}")


def _check_range(field_name: str, got: float, low: float, high: float) -> None:
    _check(field_name, got, not math.isnan(got) and low <= got <= high, f"a number from {low} to {high}")
