"""Part 1: every kernel against `kernels.reference` in fp64.

Knows: what each kernel is given and what its result may differ by. Does not know: times.

Results are as far from the exact ones as one rounding brings them: the norm of the difference over the norm
of the result is at most the unit roundoff of the dtype, and twice that where a sum has factors that were
rounded themselves, or a library may round in between. Of token ids and of bits, none may differ. What a
kernel allocates is full of NaN before it writes.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from benchmarks.gpu.clock import Part
from benchmarks.gpu.shapes import Paged, Scale, model_config, paged
from engine.blocks import BLOCK_SIZE
from engine.models.config import ModelConfig
from engine.models.rope import rope_tables
from kernels import LEAST_LOGPROB, reference

ROUNDOFF = {
    torch.float32: 2.0**-21,  # Of sums of many terms, not of one operation.
    torch.float16: 2.0**-11,
    torch.bfloat16: 2.0**-8,
    torch.float8_e4m3fn: 2.0**-4,
}
EXACT = 0.0


@dataclass(frozen=True)
class Check:
    kernel: str
    case: str
    batch_invariant: bool
    error: float
    """Relative, or how many entries differ where the bound is 0."""
    bound: float

    @property
    def passed(self) -> bool:
        return self.error <= self.bound


@contextmanager
def poisoned() -> Iterator[None]:
    """What is allocated meanwhile is full of NaN, or of the largest integer."""
    before = (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
    )
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        with warnings.catch_warnings(action="ignore"):
            yield
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])


def difference(got: Tensor, exact: Tensor) -> float:
    """Norm of the difference over the norm of the result. NaN where only one of them has it."""
    got, exact = got.to(torch.float64), exact.to(torch.float64)
    return float((got - exact).norm() / exact.norm())


def mismatches(got: Tensor, wanted: Tensor) -> float:
    """How many entries do not have the same bits."""
    integers = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[got.element_size()]
    return float((got.view(integers) != wanted.view(integers)).sum())


class Numerics:
    """
    Args:
        kernels: batch_invariant -> the kernels.
    """

    def __init__(self, scale: Scale, kernels: dict[bool, Any], part: Part) -> None:
        self.checks: list[Check] = []
        self._scale, self._kernels, self._part = scale, kernels, part
        self._device = scale.device

    @torch.inference_mode()
    def run(self) -> None:
        torch.manual_seed(0)
        # What differs most between chips comes first: the clock may cut the end off.
        steps: list[tuple[str, Callable[[], None]]] = []
        for name in self._scale.measured_models:
            config = model_config(name)
            for dtype in self._scale.checked_dtypes:
                what = f"{name} {short(dtype)}"
                steps += [
                    (f"attention {what}", lambda c=config, d=dtype: self._attention(c, d)),
                    (f"linear {what}", lambda c=config, d=dtype: self._linear(c, d)),
                    (f"rows {what}", lambda c=config, d=dtype: self._rows(c, d)),
                    (f"rope {what}", lambda c=config, d=dtype: self._rope(c, d)),
                ]
            steps.append((f"logits {name}", lambda c=config: self._logits(c.vocab_size)))
        for what, step in steps:
            if self._part.allows(f"numerics: {what}"):
                with self._part.guarded(f"numerics: {what}"):
                    step()

    def _note(self, kernel: str, case: str, invariant: bool, error: float, bound: float) -> None:
        self.checks.append(Check(kernel, case, invariant, error, bound))

    def _modes(self) -> Iterator[tuple[bool, Any]]:
        yield from self._kernels.items()

    def _randn(self, *shape: int, dtype: torch.dtype) -> Tensor:
        return torch.randn(shape, dtype=dtype, device=self._device)

    def _attention(self, config: ModelConfig, dtype: torch.dtype) -> None:
        heads = (config.num_heads, config.num_kv_heads, config.head_dim)
        decode = self._scale.pick([(1, 1), (17, 1), (255, 1), (1000, 1), (4099, 1)], [(1, 1), (37, 1)])
        mixed = self._scale.pick([*decode, (300, 129), (64, 64), (4099, 33)], [*decode, (21, 5)])
        window = self._scale.pick(128, 7)
        for cache_dtype in (dtype, torch.float8_e4m3fn):
            for case, runs, seen in (
                ("decode", decode, None),
                ("mixed", mixed, None),
                ("window", mixed, window),
            ):
                what = f"{case} {short(dtype)}/{short(cache_dtype)} {head_sizes(config)}"
                inputs = paged(runs, heads, dtype, cache_dtype, self._device)
                exact = inputs.wide().run(reference, seen)
                for invariant, kernels in self._modes():
                    with poisoned():
                        got = inputs.run(kernels, seen)
                    error = difference(got, exact)
                    self._note("paged_attention", what, invariant, error, 2 * ROUNDOFF[dtype])
                    if invariant:
                        self._attention_alone(inputs, kernels, got, seen, what)

    def _attention_alone(
        self, inputs: Paged, kernels: Any, together: Tensor, window: int | None, what: str
    ) -> None:
        """The last token of each sequence has the bits that it has without company."""
        last = inputs.query_start[1:].long() - 1
        alone = [inputs.last_of(s).run(kernels, window) for s in range(len(last))]
        self._note(
            "paged_attention", f"alone {what}", True, mismatches(torch.cat(alone), together[last]), EXACT
        )

    def _linear(self, config: ModelConfig, dtype: torch.dtype) -> None:
        hidden, inner = config.hidden_size, config.intermediate_size
        rows = self._scale.pick((1, 3, 64, 300), (1, 3, 20))
        for size_in, size_out, with_bias in ((hidden, 2 * inner, False), (inner, hidden, True)):
            weight = self._randn(size_out, size_in, dtype=dtype)
            bias = self._randn(size_out, dtype=dtype) if with_bias else None
            x = self._randn(rows[-1], size_in, dtype=dtype)
            exact = reference.Linear(weight.double(), None if bias is None else bias.double())(x.double())
            for invariant, kernels in self._modes():
                linear = kernels.Linear(weight, bias)
                for count in rows:
                    with poisoned():
                        got = linear(x[:count])
                    what = f"{count}x{size_in}x{size_out} {short(dtype)}"
                    error = difference(got, exact[:count])
                    self._note("Linear", what, invariant, error, 2 * ROUNDOFF[dtype])
                    if invariant:
                        alone = torch.cat([linear(x[i : i + 1]) for i in (0, count - 1)])
                        differ = mismatches(alone, got[[0, count - 1]])
                        self._note("Linear", f"alone {what}", True, differ, EXACT)

    def _rows(self, config: ModelConfig, dtype: torch.dtype) -> None:
        hidden, inner, eps = config.hidden_size, config.intermediate_size, config.rms_norm_eps
        rows, bound = self._scale.pick(77, 5), ROUNDOFF[dtype]
        x, weight = self._randn(rows, hidden, dtype=dtype), self._randn(hidden, dtype=dtype)
        residual, gate_up = self._randn(rows, hidden, dtype=dtype), self._randn(rows, 2 * inner, dtype=dtype)
        what = f"{rows}x{hidden} {short(dtype)}"
        summed = (residual.double() + x.double()).to(dtype)
        for invariant, kernels in self._modes():
            with poisoned():
                normed, activated = kernels.rms_norm(x, weight, eps), kernels.silu_mul(gate_up)
                stored = residual.clone()
                added = kernels.add_rms_norm(x, stored, weight, eps)
            exact = reference.rms_norm(x.double(), weight.double(), eps)
            self._note("rms_norm", what, invariant, difference(normed, exact), bound)
            # From the stored residual: that is what the next layer adds to.
            exact = reference.rms_norm(stored.double(), weight.double(), eps)
            self._note("add_rms_norm", what, invariant, difference(added, exact), bound)
            self._note("add_rms_norm", f"residual {what}", invariant, mismatches(stored, summed), EXACT)
            exact = reference.silu_mul(gate_up.double())
            self._note(
                "silu_mul", f"{rows}x{inner} {short(dtype)}", invariant, difference(activated, exact), bound
            )
            alone = mismatches(kernels.rms_norm(x[-1:], weight, eps), normed[-1:])
            self._note("rms_norm", f"alone {what}", invariant, alone, EXACT)

    def _rope(self, config: ModelConfig, dtype: torch.dtype) -> None:
        num_tokens, dim = self._scale.pick(77, 5), config.head_dim
        num_blocks = num_tokens // BLOCK_SIZE + 3
        qkv = self._randn(num_tokens, (config.num_heads + 2 * config.num_kv_heads) * dim, dtype=dtype)
        cos, sin = (t.to(self._device) for t in rope_tables(config.rope, dim, 8192))
        positions = torch.randint(8192, (num_tokens,), device=self._device)
        slots = torch.randperm(num_blocks * BLOCK_SIZE, device=self._device)[:num_tokens]
        shape = (num_blocks, config.num_kv_heads, BLOCK_SIZE, dim)
        norms = (self._randn(dim, dtype=dtype), self._randn(dim, dtype=dtype))
        for cache_dtype, (q_norm, k_norm) in ((dtype, (None, None)), (torch.float8_e4m3fn, norms)):
            what = f"{short(dtype)}/{short(cache_dtype)} {head_sizes(config)}"
            what += "" if q_norm is None else " qk-norm"
            exact_caches = [torch.zeros(shape, dtype=torch.float64, device=self._device) for _ in range(2)]
            exact = reference.rope_and_cache(
                qkv.double(), positions, slots, cos, sin, *exact_caches, q_norm, k_norm, config.rms_norm_eps
            )
            for invariant, kernels in self._modes():
                # Bits that no store leaves behind, so that whatever is written shows.
                caches = [
                    torch.full(shape, float("nan"), device=self._device).to(cache_dtype) for _ in range(2)
                ]
                with poisoned():
                    got = kernels.rope_and_cache(
                        qkv, positions, slots, cos, sin, *caches, q_norm, k_norm, config.rms_norm_eps
                    )
                self._note("rope_and_cache", f"q {what}", invariant, difference(got, exact), ROUNDOFF[dtype])
                for name, cache, wanted in zip(("k", "v"), caches, exact_caches, strict=True):
                    held, elsewhere = _split(cache, slots)
                    error = difference(held, _split(wanted, slots)[0])
                    self._note("rope_and_cache", f"{name} {what}", invariant, error, ROUNDOFF[cache_dtype])
                    written = float((~elsewhere.float().isnan()).sum())
                    self._note("rope_and_cache", f"{name} elsewhere {what}", invariant, written, EXACT)

    def _logits(self, vocab_size: int) -> None:
        rows = self._scale.pick(16, 4)
        logits = self._randn(rows, vocab_size, dtype=torch.float32) * 3
        logits[-1, vocab_size // 2] = float("nan")
        columns = sampling_columns(rows, self._device)
        wanted = reference.sample(logits, *columns)
        chosen = wanted.clamp(min=0)
        told = reference.logprobs(logits, chosen, 5)
        lists = edit_lists(rows, vocab_size, self._device)
        edited = logits.clone()
        reference.edit_logits(edited, *lists)
        what = f"{rows}x{vocab_size}"
        for invariant, kernels in self._modes():
            with poisoned():
                ids = kernels.sample(logits, *columns)
                got = kernels.logprobs(logits, chosen, 5)
            self._note("sample", what, invariant, mismatches(ids, wanted), EXACT)
            alone = kernels.sample(logits[1:2], *(column[1:2] for column in columns))
            self._note("sample", f"alone {what}", invariant, mismatches(alone, ids[1:2]), EXACT)
            self._note("logprobs", f"ids {what}", invariant, mismatches(got[1], told[1]), EXACT)
            for name, mine, theirs in (("chosen", got[0], told[0]), ("top", got[2], told[2])):
                silent = mismatches((mine == LEAST_LOGPROB).byte(), (theirs == LEAST_LOGPROB).byte())
                self._note("logprobs", f"silent {name} {what}", invariant, silent, EXACT)
                error = difference(mine, theirs)
                self._note("logprobs", f"{name} {what}", invariant, error, ROUNDOFF[torch.float32])
            mine = logits.clone()
            kernels.edit_logits(mine, *lists)
            finite = mine.isfinite() & edited.isfinite()
            kinds = [torch.nan_to_num(each, 1, 2, 3).masked_fill(finite, 0) for each in (mine, edited)]
            self._note("edit_logits", f"masks {what}", invariant, mismatches(*kinds), EXACT)
            error = difference(mine[finite], edited[finite])
            self._note("edit_logits", what, invariant, error, ROUNDOFF[torch.float32])


def _split(cache: Tensor, slots: Tensor) -> tuple[Tensor, Tensor]:
    """The rows of a cache at `slots`, [T, NK, D], and all others."""
    # Of 8-bit numbers torch can index the bits only.
    bits = cache.view(torch.uint8) if cache.dtype == torch.float8_e4m3fn else cache
    by_slot = bits.transpose(1, 2).flatten(0, 1)
    others = torch.ones(len(by_slot), dtype=torch.bool, device=cache.device)
    others[slots] = False
    return by_slot[slots].contiguous().view(cache.dtype), by_slot[others].contiguous().view(cache.dtype)


def sampling_columns(rows: int, device: torch.device, kinds: str = "all") -> tuple[Tensor, ...]:
    """What `sample` is told of each row: greedy, temperature, filters (top_k and top_p), or a mixture.

    Raises:
        KeyError: `kinds` is none of these.
    """
    settings = {
        "greedy": [(0.0, 1.0, 0, 0.0)],
        "temperature": [(0.8, 1.0, 0, 0.0)],
        "top-k top-p": [(0.8, 0.95, 50, 0.0)],
        "top-p": [(0.8, 0.95, 0, 0.0)],
        "all": [(0.0, 1.0, 0, 0.0), (0.8, 1.0, 0, 0.0), (1.3, 0.9, 0, 0.0), (0.7, 0.95, 50, 0.05)],
    }[kinds]
    of_rows = [settings[row % len(settings)] for row in range(rows)]
    temperature, top_p, top_k, min_p = zip(*of_rows, strict=True)
    seed = torch.arange(rows, dtype=torch.int64) * 0x9E3779B97F4A7C1 - 5
    columns = (
        torch.tensor(temperature, dtype=torch.float32),
        torch.tensor(top_p, dtype=torch.float32),
        torch.tensor(top_k, dtype=torch.int32),
        torch.tensor(min_p, dtype=torch.float32),
        seed,
        torch.arange(rows, dtype=torch.int64) + 100,
    )
    return tuple(column.to(device) for column in columns)


def edit_lists(rows: int, vocab_size: int, device: torch.device) -> tuple[Tensor, ...]:
    """Arguments of `edit_logits`: each row has biases, seen tokens and banned ones, the first an allowed
    list, and each list an id that the vocabulary does not have."""
    count = min(vocab_size // 8, 200)

    def ids(lengths: list[int]) -> tuple[Tensor, Tensor]:
        parts = [torch.randperm(vocab_size)[:length] for length in lengths]
        for part in parts:
            part[:1] = vocab_size + 3
        starts = torch.tensor([0, *lengths]).cumsum(0)
        return starts.to(torch.int32).to(device), torch.cat(parts).to(torch.int32).to(device)

    bias_start, bias_ids = ids([count // 4] * rows)
    seen_start, seen_ids = ids([count] * rows)
    allowed_start, allowed_ids = ids([count, *[0] * (rows - 1)])
    banned_start, banned_ids = ids([3] * rows)
    bias = torch.randn(len(bias_ids), device=device)
    counts = torch.randint(3, (len(seen_ids),), dtype=torch.int32, device=device)
    presence, frequency = torch.rand(rows, device=device), torch.rand(rows, device=device)
    return (
        bias_start, bias_ids, bias, seen_start, seen_ids, counts, presence, frequency,
        1 + torch.rand(rows, device=device), allowed_start, allowed_ids, banned_start, banned_ids,
    )  # fmt: skip


def head_sizes(config: ModelConfig) -> str:
    return f"{config.num_heads}/{config.num_kv_heads}x{config.head_dim}"


def short(dtype: torch.dtype) -> str:
    return {
        torch.float32: "fp32", torch.float16: "fp16", torch.bfloat16: "bf16", torch.float8_e4m3fn: "fp8",
    }[dtype]  # fmt: skip
