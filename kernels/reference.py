"""The oracle: every kernel in plain torch, written to be read, not to be fast.

Knows: what the right answer is. Does not know: devices, speed. See `kernels.Kernels` for the shapes.

What is given in fp64 is computed in fp64, everything else in fp32.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from kernels import GREEDY_BELOW, LEAST_LOGPROB

E4M3_MAX = 448.0


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return _normed(_wide(x), weight, eps).to(x.dtype)


def _normed(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * _wide(weight)


def _wide(x: Tensor) -> Tensor:
    """What to compute with."""
    return x if x.dtype == torch.float64 else x.float()


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Tensor:
    residual.copy_(_wide(residual) + _wide(x))
    return rms_norm(residual, weight, eps)


def silu_mul(gate_up: Tensor) -> Tensor:
    gate, up = _wide(gate_up).chunk(2, dim=-1)
    return (gate * torch.sigmoid(gate) * up).to(gate_up.dtype)


def rope_and_cache(
    qkv: Tensor,
    positions: Tensor,
    slots: Tensor,
    cos: Tensor,
    sin: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    q_norm: Tensor | None,
    k_norm: Tensor | None,
    eps: float,
) -> Tensor:
    _, num_kv_heads, num_slots, head_dim = key_cache.shape
    heads = qkv.view(qkv.shape[0], -1, head_dim)
    num_heads = heads.shape[1] - 2 * num_kv_heads
    q, k, v = torch.split(_wide(heads), [num_heads, num_kv_heads, num_kv_heads], dim=1)
    if q_norm is not None:
        q = _normed(q, q_norm, eps)
    if k_norm is not None:
        k = _normed(k, k_norm, eps)
    _store(key_cache, slots // num_slots, slots % num_slots, _rotate(k, cos[positions], sin[positions]))
    _store(value_cache, slots // num_slots, slots % num_slots, v)
    return _rotate(q, cos[positions], sin[positions]).to(qkv.dtype)


def _store(cache: Tensor, blocks: Tensor, offsets: Tensor, rows: Tensor) -> None:
    """rows [T, NK, D]."""
    if cache.dtype == torch.float8_e4m3fn:
        rows = rows.clamp(-E4M3_MAX, E4M3_MAX)
    # Of 8-bit numbers torch can index the bits only.
    _bits(cache)[blocks, :, offsets] = _bits(rows.to(cache.dtype))


def _bits(x: Tensor) -> Tensor:
    return x.view(torch.uint8) if x.dtype == torch.float8_e4m3fn else x


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """x[T, heads, D], cos and sin [T, D/2]."""
    first, second = x.chunk(2, dim=-1)
    cos, sin = cos[:, None], sin[:, None]
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


def paged_attention(
    q: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    block_tables: Tensor,
    context_lens: Tensor,
    query_start: Tensor,
    scale: float,
    window: int | None,
) -> Tensor:
    num_tokens, num_heads, head_dim = q.shape
    group = num_heads // key_cache.shape[1]
    out = torch.empty_like(q)
    for s, length in enumerate(context_lens.tolist()):
        first, end = int(query_start[s]), int(query_start[s + 1])
        keys = _gather(key_cache, block_tables[s], length).repeat_interleave(group, dim=0)
        values = _gather(value_cache, block_tables[s], length).repeat_interleave(group, dim=0)
        every = torch.arange(length, device=q.device)
        p = every[length - (end - first) :, None]
        seen = every <= p
        if window is not None:
            seen &= every > p - window
        scores = _wide(q[first:end]).transpose(0, 1) @ keys.transpose(1, 2) * scale
        weights = scores.masked_fill(~seen, -math.inf).softmax(dim=-1)
        out[first:end] = (weights @ values).transpose(0, 1).to(q.dtype)
    return out.reshape(num_tokens, num_heads * head_dim)


def _gather(cache: Tensor, table: Tensor, length: int) -> Tensor:
    """The first `length` positions of one sequence, contiguous: [NK, length, D]."""
    num_blocks = -(-length // cache.shape[2])
    blocks = _wide(_bits(cache)[table[:num_blocks].long()].view(cache.dtype))
    return blocks.transpose(0, 1).flatten(1, 2)[:, :length]


class Linear:
    """x @ weight.T + bias."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self._weight, self._bias = weight, bias

    def __call__(self, x: Tensor) -> Tensor:
        return torch.nn.functional.linear(x, self._weight, self._bias)


def sample(
    logits: Tensor,
    temperature: Tensor,
    top_p: Tensor,
    top_k: Tensor,
    min_p: Tensor,
    seed: Tensor,
    position: Tensor,
) -> Tensor:
    columns = [t.tolist() for t in (temperature, top_p, top_k, min_p, seed, position)]
    ids = [_sample_row(row, *values) for row, *values in zip(logits, *columns, strict=True)]
    return torch.tensor(ids, dtype=torch.int64, device=logits.device)


def _sample_row(
    logits: Tensor, temperature: float, top_p: float, top_k: int, min_p: float, seed: int, position: int
) -> int:
    largest = logits.max()  # NaN, if there is one.
    if not torch.isfinite(largest):
        return -2 if largest == -math.inf else -1
    by_size = torch.sort(logits, descending=True, stable=True)
    ids = by_size.indices
    if temperature < GREEDY_BELOW:
        return int(ids[0])
    z = (by_size.values.double() - by_size.values[0].double()) / temperature
    kept = int((z >= (math.log(min_p) if min_p > 0 else -math.inf)).sum())
    if top_k > 0:
        kept = min(kept, top_k)
    weights = z[:kept].exp()
    before = torch.cat([weights.new_zeros(1), weights.cumsum(0)[:-1]])
    if top_p < 1:
        kept = int((before < top_p * weights.sum()).sum())
    # In order of id, so that the first of equal scores is the lowest id.
    ids, order = ids[:kept].sort()
    return int(ids[(z[:kept][order] + gumbel(ids, seed, position)).argmax()])


def gumbel(ids: Tensor, seed: int, position: int) -> Tensor:
    """Gumbel noise, fp64, for each token id of one row."""
    counter = (ids, _low(position), _high(position), 0)
    word = philox(counter, (_low(seed), _high(seed)))[0]
    u = (word.double() + 0.5) * 2.0**-32
    return -torch.log(-torch.log(u))


Word = Tensor | int
"""32 bits, unsigned, held in a wider signed integer."""


def philox(counter: tuple[Word, Word, Word, Word], key: tuple[int, int]) -> tuple[Word, Word, Word, Word]:
    """Philox4x32-10: four random words for a counter and a key. Salmon et al., "Parallel random numbers: as
    easy as 1, 2, 3", 2011."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        high0, low0 = _multiply(0xD2511F53, c0)
        high1, low1 = _multiply(0xCD9E8D57, c2)
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
        k0, k1 = _low(k0 + 0x9E3779B9), _low(k1 + 0xBB67AE85)
    return c0, c1, c2, c3


def _multiply(a: int, b: Word) -> tuple[Word, Word]:
    """The high and the low word of a * b, from 16-bit halves of b: torch has no unsigned 64-bit product."""
    low = a * (b & 0xFFFF)
    high = a * (b >> 16) + (low >> 16)
    return high >> 16, (high & 0xFFFF) << 16 | low & 0xFFFF


def _low(x: int) -> int:
    return x & 0xFFFFFFFF


def _high(x: int) -> int:
    return (x >> 32) & 0xFFFFFFFF


def edit_logits(
    logits: Tensor,
    bias_start: Tensor,
    bias_ids: Tensor,
    bias: Tensor,
    seen_start: Tensor,
    seen_ids: Tensor,
    seen_counts: Tensor,
    presence: Tensor,
    frequency: Tensor,
    repetition: Tensor,
    allowed_start: Tensor,
    allowed_ids: Tensor,
    banned_start: Tensor,
    banned_ids: Tensor,
) -> None:
    for r, row in enumerate(logits):
        ids, amounts = _entries(r, row, bias_start, bias_ids, bias)
        row[ids] += amounts
        ids, counts = _entries(r, row, seen_start, seen_ids, seen_counts)
        x, factor = row[ids].double(), repetition[r].double()
        x = torch.where(x > 0, x / factor, x * factor) - frequency[r].double() * counts
        row[ids] = torch.where(counts > 0, x - presence[r].double(), x).float()
        excluded = torch.zeros_like(row, dtype=torch.bool)
        if allowed_start[r] < allowed_start[r + 1]:
            excluded[:] = True
            excluded[_entries(r, row, allowed_start, allowed_ids)[0]] = False
        excluded[_entries(r, row, banned_start, banned_ids)[0]] = True
        row[excluded & (row < math.inf)] = -math.inf


def _entries(r: int, row: Tensor, start: Tensor, ids: Tensor, *values: Tensor) -> list[Tensor]:
    """Row r's part of a list: the ids that the vocabulary has, and the values beside them."""
    part = slice(int(start[r]), int(start[r + 1]))
    known = (ids[part] >= 0) & (ids[part] < len(row))
    return [ids[part][known].long(), *(value[part][known] for value in values)]


def logprobs(logits: Tensor, chosen: Tensor, k: int) -> tuple[Tensor, Tensor, Tensor]:
    num_rows, width = logits.shape
    listed = min(k, width)
    of_chosen = logits.new_full((num_rows,), LEAST_LOGPROB)
    top_ids = logits.new_full((num_rows, k), -1, dtype=torch.int32)
    top = logits.new_full((num_rows, k), LEAST_LOGPROB)
    for r, row in enumerate(logits):
        if not torch.isfinite(row.max()):
            continue
        every = row.double().log_softmax(dim=0).clamp(min=LEAST_LOGPROB).float()
        likeliest = torch.sort(row, descending=True, stable=True).indices[:listed]
        top_ids[r, :listed], top[r, :listed] = likeliest.int(), every[likeliest]
        if chosen[r] >= 0:
            of_chosen[r] = every[chosen[r]]
    return of_chosen, top_ids, top
