"""The arithmetic of the model, one module per kind of device behind one interface.

Knows: which module serves which device, and what every kernel must do: shapes, dtypes, what is
changed in place. Does not know: models, sequences, requests, or how any kernel is made.

`kernels.reference` is the oracle: plain torch, written to be read. Every other module has the same
functions and is tested against it.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Protocol, cast

import torch
from torch import Tensor

GREEDY_BELOW = 1e-5
"""`sample` takes the largest logit below this temperature."""

LEAST_LOGPROB = -9999.0
"""`logprobs` says this for tokens that are less likely still, or impossible: JSON knows no infinity."""


class Kernels(Protocol):
    """What a device module offers. Sizes: T tokens, S sequences, R sampled rows, H hidden, I intermediate,
    D head_dim, NQ query heads, NK key-value heads (NQ is a multiple of NK), B blocks of SLOTS token
    slots, W blocks in the longest table, P positions, V vocabulary, L rows to tell log probabilities of.

    Activations, weights and their results have one dtype: fp32 on a CPU; fp32, fp16 or bf16 on a GPU.
    Arithmetic is in fp32 at least, and what a function returns or stores is rounded once. Key and value
    caches have that dtype too, or e4m3 (torch.float8_e4m3fn), which holds +-448: what is beyond is clamped
    when it is stored. Tables of angles, logits and the parameters of sampling are fp32 where nothing
    else is said, integers as stated. Inputs are contiguous, are not changed unless "in place" is said,
    and results are fresh tensors that alias no input.

    A row of a result depends on that row's own inputs only, bit for bit, whatever else is in the batch. That
    goes for `Linear`, and on a GPU for `paged_attention`, only where the kernels were asked for as
    batch-invariant.

    On a GPU nothing waits for the device: no function looks at a value that lies there.
    """

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """x[T, H] / sqrt(mean(x^2) + eps) * weight[H] -> [T, H]. Zhang and Sennrich, 2019 (RMSNorm)."""

    def add_rms_norm(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Tensor:
        """residual[T, H] += x[T, H] in place; returns rms_norm(residual, weight, eps)."""

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        """gate_up[T, 2I], gate first -> gate * sigmoid(gate) * up, [T, I]. Shazeer, 2020 (SwiGLU)."""

    def rope_and_cache(
        self,
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
        """Rotate queries and keys, store keys and values, return the queries.

        qkv[T, (NQ + 2 NK) D]: all query heads, then all key heads, then all value heads.
        positions[T] i64 < P select the rows of cos[P, D/2] and sin[P, D/2].
        slots[T] i64: block * SLOTS + offset. If tokens share one, as padding does, it gets any of theirs.
        key_cache, value_cache [B, NK, SLOTS, D]: written in place at `slots`, nowhere else.
        q_norm[D], k_norm[D]: RMS norm per head before the rotation (Qwen3), or None for both.

        Rotation pairs element d with d + D/2 ("rotate half"). Su et al., 2021 (RoFormer).
        Returns q[T, NQ, D].
        """

    def paged_attention(
        self,
        q: Tensor,
        key_cache: Tensor,
        value_cache: Tensor,
        block_tables: Tensor,
        context_lens: Tensor,
        query_start: Tensor,
        scale: float,
        window: int | None,
    ) -> Tensor:
        """Causal attention over the blocks where they lie; decode rows and prompt chunks in one call.

        q[T, NQ, D]; key_cache, value_cache [B, NK, SLOTS, D], this tick's keys and values included;
        block_tables[S, W] i32, of which only the first ceil(context_lens / SLOTS) of a row are read;
        context_lens[S] i32; query_start[S + 1] i32, ascending from 0 to T: a sequence may have no tokens.

        Token t of sequence s stands at position p = context_lens[s] - (query_start[s + 1] - t) and sees
        the positions <= p, and of those, with a window, only the ones > p - window. Slots that no token
        sees are never read: they may hold anything.

        Query head h reads key-value head h // (NQ / NK).
        Returns [T, NQ * D]. Kwon et al., 2023 (PagedAttention); split contexts as in Flash-Decoding (2023).
        """

    def Linear(self, weight: Tensor, bias: Tensor | None = None) -> Callable[[Tensor], Tensor]:  # noqa: N802
        """Prepare weight[O, I] and bias[O] once; the result maps x[T, I] to x @ weight.T + bias, [T, O]."""

    def sample(
        self,
        logits: Tensor,
        temperature: Tensor,
        top_p: Tensor,
        top_k: Tensor,
        min_p: Tensor,
        seed: Tensor,
        position: Tensor,
    ) -> Tensor:
        """One token id per row: logits[R, V] -> ids[R] i64.

        temperature, top_p, min_p [R] f32; top_k[R] i32, 0 for off; seed, position [R] i64.
        A row with temperature < GREEDY_BELOW takes its largest logit, the lowest id of equals. Other rows:

        1. z = (logit - largest logit) / temperature, in fp64.
        2. min_p keeps z >= log(min_p).
        3. top_k keeps the k largest of those, exactly k (equals: lower ids first).
        4. top_p keeps, in that same order, each token before which the sum of exp(z) is less than top_p
           times the sum over all that step 3 kept.
        5. The largest z + Gumbel noise wins (the lowest id of equals), which is a draw from the softmax.

        The noise of a token is -log(-log(u)) in fp64, u = (word + 1/2) / 2^32, so 0 < u < 1. The word is
        the first of Philox4x32-10 (Salmon et al., 2011) with the key (seed low, seed high) and the counter
        (token id, position low, position high, 0): it does not depend on the row's place in the batch.

        A row that holds a NaN, or whose largest logit is +infinity, gives -1; another whose logits are all
        -infinity gives -2.
        """

    def edit_logits(
        self,
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
        """Change logits[R, V] in place, row by row, as sparse lists say.

        Of row r, list x has the entries x_start[r]:x_start[r + 1]; x_start[R + 1], ids and counts are i32,
        the rest f32; presence, frequency, repetition [R]. No id stands twice in one row's list, except in
        banned_ids. An id that the vocabulary does not have changes nothing: no token has it.

        1. bias is added to the logits of bias_ids.
        2. For each of seen_ids, in fp64 and rounded once: a positive logit is divided by repetition, another
           multiplied (Keskar et al., 2019, CTRL); then frequency * count is subtracted, then presence where
           the count is above 0.
        3. A row with allowed_ids keeps those; the others, and in every row the banned_ids, become -infinity.
           NaN and +infinity stay, so that no mask hides from `sample` that the model's output is broken.
        """

    def logprobs(self, logits: Tensor, chosen: Tensor, k: int) -> tuple[Tensor, Tensor, Tensor]:
        """Natural logarithms of the softmax of logits[L, V], computed in fp64, at least LEAST_LOGPROB.

        chosen[L] i64 < V. Returns that of each chosen id, [L] f32; the k likeliest ids, likeliest first
        (equals: lower ids first), [L, k] i32; and theirs, [L, k] f32.

        Where the vocabulary has no k-th token, the id is -1. So are all ids of a row that holds a NaN or
        whose largest logit is not finite, for it is no distribution. Wherever an id is below 0, those of
        `chosen` included, and for all of such a row the value is LEAST_LOGPROB.
        """


def for_device(device: torch.device, *, batch_invariant: bool = True) -> Kernels:
    """The kernels for tensors on `device`.

    Args:
        batch_invariant: False takes the matrix products of a library, in which a row's last bits may depend
            on how many rows are computed with it, and on a GPU the tiles and splits of attention that fit
            the batch best. The other kernels are the same.

    Raises:
        ValueError: no kernels exist for this kind of device.
    """
    # Imported late: it loads or compiles machine code, which the oracle's users need not wait for.
    if device.type == "cuda":
        on_gpu = importlib.import_module("kernels.gpu.kernels")
        return cast("Kernels", on_gpu.for_device(device, batch_invariant=batch_invariant))
    if device.type != "cpu":
        raise ValueError(f"device: got {device.type!r}, allowed: 'cpu' or 'cuda'")
    name = "kernels.cpu" if batch_invariant else "kernels.cpu.onednn"
    return cast("Kernels", importlib.import_module(name))
