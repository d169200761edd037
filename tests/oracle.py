"""What sampling must give, in numpy: the oracle that the kernels and the batches are compared with.

Knows: the words of `engine.sampling` and `kernels.Kernels`. Does not know: any kernel, or how a batch is
made. Written to be read; nothing of it is shared with what it checks.

There are two ways in. `choose` goes from a request's parameters and tokens; `sample_batch` from the arrays of
a batch, so that a model without weights can sample through a batch.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.batch import NOT_A_NUMBER, NOTHING_ALLOWED, Batch, LogitEdits, Logprobs, StepOutput
from engine.request import ChosenLogprob, TokenLogprob
from engine.sampling import GREEDY_BELOW, SamplingParams

FLOOR = -9999.0

Logits = NDArray[np.float32]


def choose(
    logits: Logits,
    params: SamplingParams,
    prompt: Sequence[int],
    answer: Sequence[int],
    seed: int,
    position: int,
    eos_ids: frozenset[int],
) -> tuple[int, ChosenLogprob | None]:
    """The next token after prompt and answer, or NOT_A_NUMBER or NOTHING_ALLOWED; and its log
    probabilities if the parameters ask for them (`top` is empty where the logits are no distribution).

    Args:
        logits: [V] the model's own; not changed.
        position: index of the new token in its sequence.
    """
    edited = edit(logits, params, prompt, answer, eos_ids)
    token = draw(edited, params.temperature, params.top_p, params.top_k, params.min_p, seed, position)
    if params.logprobs is None:
        return token, None
    chosen, ids, top = logprobs(logits, token, params.logprobs)
    pairs = [(i, p) for i, p in zip(ids.tolist(), top.tolist(), strict=True) if i >= 0]
    return token, ChosenLogprob(TokenLogprob(token, chosen), tuple(TokenLogprob(i, p) for i, p in pairs))


def sample_batch(logits: Logits, batch: Batch) -> StepOutput:
    """What a runner must answer to `batch` if `logits` [R, V] are the model's; they are not changed."""
    edited = logits.copy() if batch.edits is None else edit_batch(logits, batch.edits)
    s = batch.sampling
    columns = [c.tolist() for c in (s.temperature, s.top_p, s.top_k, s.min_p, s.seed, s.position)]
    ids = [draw(row, *values) for row, *values in zip(edited, *columns, strict=True)]
    wanted = np.flatnonzero(batch.num_logprobs >= 0)
    told = None
    if len(wanted):
        k = int(batch.num_logprobs.max())
        rows = [logprobs(logits[r], ids[r], k) for r in wanted.tolist()]
        told = Logprobs(
            rows=wanted,
            chosen=np.array([chosen for chosen, _, _ in rows], dtype=np.float32),
            top_ids=np.array([ids for _, ids, _ in rows], dtype=np.int32).reshape(len(rows), k),
            top=np.array([top for _, _, top in rows], dtype=np.float32).reshape(len(rows), k),
        )
    return StepOutput(np.array(ids, dtype=np.int64), told)


# -- edits ------------------------------------------------------------------------------------------------


def edit(
    logits: Logits,
    params: SamplingParams,
    prompt: Sequence[int],
    answer: Sequence[int],
    eos_ids: frozenset[int],
) -> Logits:
    """[V] the logits after bias, penalties and masks."""
    out, vocabulary = logits.copy(), range(len(logits))
    for token, bias in params.logit_bias:
        if token in vocabulary:
            out[token] += np.float32(bias)
    counts = Counter(answer)
    for token in {*prompt, *answer} & set(vocabulary):
        out[token] = _penalised(
            out[token],
            counts[token],
            np.float32(params.presence_penalty),
            np.float32(params.frequency_penalty),
            np.float32(params.repetition_penalty),
        )
    excluded = {word[-1] for word in params.bad_words if _ends_with(answer, word[:-1])}
    if params.allowed_token_ids is not None:
        excluded |= set(vocabulary) - set(params.allowed_token_ids)
    if len(answer) < params.min_tokens:
        excluded |= set(params.stop_token_ids)
        if not params.ignore_eos:
            excluded |= eos_ids
    _exclude(out, excluded)
    return out


def edit_batch(logits: Logits, edits: LogitEdits) -> Logits:
    """[R, V] the logits after a batch's edits."""
    out, vocabulary = logits.copy(), range(logits.shape[1])
    for r, row in enumerate(out):
        bias = slice(edits.bias_start[r], edits.bias_start[r + 1])
        for token, amount in zip(edits.bias_ids[bias].tolist(), edits.bias[bias], strict=True):
            if token in vocabulary:
                row[token] += amount
        seen = slice(edits.seen_start[r], edits.seen_start[r + 1])
        penalties = edits.presence[r], edits.frequency[r], edits.repetition[r]
        for token, count in zip(edits.seen_ids[seen].tolist(), edits.seen_counts[seen].tolist(), strict=True):
            if token in vocabulary:
                row[token] = _penalised(row[token], count, *penalties)
        allowed = edits.allowed_ids[edits.allowed_start[r] : edits.allowed_start[r + 1]].tolist()
        banned = edits.banned_ids[edits.banned_start[r] : edits.banned_start[r + 1]].tolist()
        _exclude(row, {*banned, *(set(vocabulary) - set(allowed) if allowed else ())})
    return out


def _penalised(
    logit: np.float32, count: int, presence: np.float32, frequency: np.float32, repetition: np.float32
) -> np.float32:
    """In double precision, rounded once."""
    x = float(logit)
    x = x / float(repetition) if x > 0 else x * float(repetition)
    x -= float(frequency) * count
    x -= float(presence) if count else 0.0
    with np.errstate(over="ignore"):
        return np.float32(x)


def _ends_with(answer: Sequence[int], tail: Sequence[int]) -> bool:
    return len(answer) >= len(tail) and list(answer[len(answer) - len(tail) :]) == list(tail)


def _exclude(row: Logits, ids: set[int]) -> None:
    """A logit that shows that the model is broken stays, so that it is noticed."""
    for token in ids & set(range(len(row))):
        if not (np.isnan(row[token]) or row[token] == np.inf):
            row[token] = -np.inf


# -- draws ------------------------------------------------------------------------------------------------


def draw(
    logits: Logits, temperature: float, top_p: float, top_k: int, min_p: float, seed: int, position: int
) -> int:
    """The token of one row [V], or NOT_A_NUMBER or NOTHING_ALLOWED."""
    if np.isnan(logits).any() or logits.max() == np.inf:
        return NOT_A_NUMBER
    if logits.max() == -np.inf:
        return NOTHING_ALLOWED
    temperature, top_p, min_p = (float(np.float32(p)) for p in (temperature, top_p, min_p))
    if temperature < GREEDY_BELOW:
        return int(logits.argmax())
    x = logits.astype(np.float64)
    z = (x - x.max()) / temperature
    kept = np.arange(len(z))
    if min_p > 0:
        kept = kept[z >= math.log(min_p)]
    kept = kept[np.argsort(-z[kept], kind="stable")]
    if top_k > 0:
        kept = kept[:top_k]
    if top_p < 1:
        weights = np.exp(z[kept])
        before = np.concatenate([[0.0], np.cumsum(weights)[:-1]])
        kept = kept[before < top_p * weights.sum()]
    kept = np.sort(kept)
    return int(kept[np.argmax(z[kept] + gumbel(kept, seed, position))])


def gumbel(ids: NDArray[np.int64], seed: int, position: int) -> NDArray[np.float64]:
    """Gumbel noise of the token ids."""
    mask = 0xFFFFFFFF
    counter = (ids.astype(np.uint64), position & mask, (position >> 32) & mask, 0)
    word = philox(counter, (seed & mask, (seed >> 32) & mask))[0]
    u = (np.asarray(word).astype(np.float64) + 0.5) / 2.0**32
    noise: NDArray[np.float64] = -np.log(-np.log(u))
    return noise


def philox(counter: tuple[Any, Any, Any, Any], key: tuple[int, int]) -> tuple[Any, Any, Any, Any]:
    """Philox4x32-10 (Salmon et al., 2011). Words are Python integers or arrays of uint64, all below 2^32."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    mask = 0xFFFFFFFF
    for _ in range(10):
        a, b = 0xD2511F53 * c0, 0xCD9E8D57 * c2
        c0, c1, c2, c3 = (b >> 32) ^ c1 ^ k0, b & mask, (a >> 32) ^ c3 ^ k1, a & mask
        k0, k1 = (k0 + 0x9E3779B9) & mask, (k1 + 0xBB67AE85) & mask
    return c0, c1, c2, c3


# -- log probabilities ------------------------------------------------------------------------------------


def logprobs(logits: Logits, chosen: int, k: int) -> tuple[float, NDArray[np.int32], Logits]:
    """Of one row [V] of the model's own logits: the chosen token's log probability, the ids [k] and the log
    probabilities [k] of the likeliest. -1 and the floor beyond the vocabulary, and everywhere where the
    logits are no distribution; the floor for a chosen id below 0."""
    ids, top = np.full(k, -1, dtype=np.int32), np.full(k, FLOOR, dtype=np.float32)
    if not np.isfinite(logits.max()):
        return FLOOR, ids, top
    x = logits.astype(np.float64)
    with np.errstate(divide="ignore"):
        every = np.maximum(x - x.max() - np.log(np.exp(x - x.max()).sum()), FLOOR).astype(np.float32)
    likeliest = np.argsort(-x, kind="stable")[:k]
    ids[: len(likeliest)], top[: len(likeliest)] = likeliest, every[likeliest]
    return float(every[chosen]) if chosen >= 0 else FLOOR, ids, top
