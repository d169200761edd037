"""Part 2: every kernel beside its floor.

Knows: the bytes and products of each kernel, at the shapes of one model. Does not know: whether the results
are right, whole models.

The floor is the longer of two times: the bytes that must be moved at least, at the bandwidth of a copy, and
the floating-point operations at the rate of a large matrix product. Both are measured first. A kernel gets
other memory at each launch, more in all than the cache holds. What moves only a megabyte or two is bound by
the launch instead; a copy of a few bytes tells how long that takes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from benchmarks.gpu.clock import Part, free_memory, seconds_of
from benchmarks.gpu.numerics import edit_lists, sampling_columns
from benchmarks.gpu.shapes import Scale, model_config, paged
from engine.blocks import BLOCK_SIZE
from engine.models.rope import rope_tables

MOST_COPIES = 64


@dataclass(frozen=True)
class Rates:
    """What the card does at best."""

    copy_bytes_per_s: float
    """Read and written bytes together."""
    flops_per_s: float
    launch_s: float
    """One launch in a graph."""
    cache_bytes: int


@dataclass(frozen=True)
class Timing:
    kernel: str
    case: str
    batch_invariant: bool
    seconds: float
    bytes: int
    flops: int
    floor_seconds: float

    @property
    def share(self) -> float:
        """Of what would be possible."""
        return self.floor_seconds / self.seconds


def measure_rates(scale: Scale) -> Rates:
    device = scale.device
    size, side = scale.pick(2**30, 2**20), scale.pick(8192, 128)
    source = torch.empty(size // 4, device=device).normal_()
    target = torch.empty_like(source)
    copied = seconds_of(device, lambda i: target.copy_(source))
    few = seconds_of(device, lambda i: target[:4].copy_(source[:4]))
    a, b = (torch.randn((side, side), dtype=scale.dtype, device=device) for _ in range(2))
    product = torch.empty_like(a)
    multiplied = seconds_of(device, lambda i: torch.mm(a, b, out=product))
    cache = torch.cuda.get_device_properties(device).L2_cache_size if device.type == "cuda" else 0
    return Rates(2 * size / copied, 2 * side**3 / multiplied, few, cache)


class Speed:
    """
    Args:
        kernels: batch_invariant -> the kernels.
    """

    def __init__(self, scale: Scale, kernels: dict[bool, Any], rates: Rates, part: Part) -> None:
        self.timings: list[Timing] = []
        self._scale, self._kernels, self._rates, self._part = scale, kernels, rates, part
        self._device, self._dtype = scale.device, scale.dtype
        self._config = model_config(scale.kernel_model)

    @torch.inference_mode()
    def run(self) -> None:
        torch.manual_seed(0)
        for family in (self._attention, self._linear, self._sample, self._rows, self._rope, self._logits):
            with self._part.guarded(f"speed: {family.__name__.strip('_')}"):
                family()
            free_memory(self._device)

    def _time(
        self, kernel: str, case: str, run: Callable[[Any, int], object], *, moved: int, flops: int = 0,
        modes: tuple[bool, ...] = (True,), copies: int = 1,
    ) -> None:  # fmt: skip
        """`run` is given the kernels and the number of the copy; `moved` is bytes."""
        rates = self._rates
        floor = max(moved / rates.copy_bytes_per_s, flops / rates.flops_per_s)
        for invariant in modes:
            if not self._part.allows(f"speed: {kernel} {case}", 1.0):
                return
            kernels = self._kernels[invariant]
            with self._part.guarded(f"speed: {kernel} {case}"):
                seconds = seconds_of(self._device, lambda i, k=kernels: run(k, i), copies)
                self.timings.append(Timing(kernel, case, invariant, seconds, moved, flops, floor))

    def _copies(self, moved: int) -> int:
        """So many that all together do not fit in the cache, twice over."""
        return min(max(2 * self._rates.cache_bytes // moved, 1), MOST_COPIES)

    def _randn(self, *shape: int) -> Tensor:
        return torch.randn(shape, dtype=self._dtype, device=self._device)

    def _attention(self) -> None:
        pick = self._scale.pick
        context, chunk, many = pick(4096, 20), pick(512, 6), pick(64, 2)
        native, fp8 = self._dtype, torch.float8_e4m3fn
        decode = [(context, 1)]
        for case, runs, cache_dtype in (
            (f"{many} rows x {context}", decode * many, native),
            (f"{many} rows x {context}, fp8", decode * many, fp8),
            (f"1 row x {context}", decode, native),
            (f"chunk of {chunk} at {context}", [(context, chunk)], native),
            (f"chunk of {chunk} at 0", [(chunk, chunk)], native),
        ):
            self._attention_case(case, runs, cache_dtype)

    def _attention_case(self, case: str, runs: list[tuple[int, int]], cache_dtype: torch.dtype) -> None:
        config = self._config
        num_heads, num_kv_heads, dim = config.num_heads, config.num_kv_heads, config.head_dim
        held, queries = sum(length for length, _ in runs), sum(count for _, count in runs)
        moved = 2 * held * num_kv_heads * dim * cache_dtype.itemsize
        moved += 2 * queries * num_heads * dim * self._dtype.itemsize
        # A token of a chunk sees, in the mean, half of the chunk less than the last one does.
        pairs = sum(count * length - count * (count - 1) // 2 for length, count in runs)
        heads = (num_heads, num_kv_heads, dim)
        inputs = [
            paged(runs, heads, self._dtype, cache_dtype, self._device) for _ in range(self._copies(moved))
        ]
        self._time(
            "paged_attention", case, lambda kernels, i: inputs[i].run(kernels), moved=moved,
            flops=4 * pairs * num_heads * dim, modes=(True, False), copies=len(inputs),
        )  # fmt: skip

    def _linear(self) -> None:
        config = self._config
        hidden, inner, vocab_size = config.hidden_size, config.intermediate_size, config.vocab_size
        qkv = (config.num_heads + 2 * config.num_kv_heads) * config.head_dim
        for name, size_in, size_out, counts in (
            ("qkv", hidden, qkv, (64,)),
            ("gate_up", hidden, 2 * inner, (64, 1, 512)),
            ("down", inner, hidden, (64, 1)),
            ("lm_head", hidden, vocab_size, (64, 1)),
        ):
            weight_bytes = size_in * size_out * self._dtype.itemsize
            weights = [self._randn(size_out, size_in) for _ in range(self._copies(weight_bytes))]
            linears = {mode: [k.Linear(w) for w in weights] for mode, k in self._kernels.items()}
            for rows in self._scale.pick(counts, (2,)):
                x = self._randn(rows, size_in)
                for mode, of_mode in linears.items():
                    self._time(
                        "Linear", f"{name} x {rows} rows", lambda kernels, i, of=of_mode, x=x: of[i](x),
                        moved=weight_bytes + rows * (size_in + size_out) * self._dtype.itemsize,
                        flops=2 * rows * size_in * size_out, modes=(mode,), copies=len(weights),
                    )  # fmt: skip

    def _sample(self) -> None:
        rows, vocab_size = self._scale.pick(64, 3), self._config.vocab_size
        moved = rows * vocab_size * 4
        logits = [
            3 * torch.randn((rows, vocab_size), device=self._device) for _ in range(self._copies(moved))
        ]
        for kind in ("greedy", "temperature", "top-k top-p", "top-p"):
            columns = sampling_columns(rows, self._device, kind)
            self._time(
                "sample", f"{kind}, {rows} rows", lambda kernels, i, c=columns: kernels.sample(logits[i], *c),
                moved=moved, copies=len(logits),
            )  # fmt: skip

    def _logits(self) -> None:
        rows, vocab_size = self._scale.pick(64, 3), self._config.vocab_size
        logits = torch.randn((rows, vocab_size), device=self._device)
        chosen = torch.zeros(rows, dtype=torch.int64, device=self._device)
        case = f"{rows} rows"
        self._time(
            "logprobs", f"k=20, {case}", lambda kernels, i: kernels.logprobs(logits, chosen, 20),
            moved=logits.nbytes,
        )  # fmt: skip
        lists = edit_lists(rows, vocab_size, self._device)
        entries = sum(len(ids) for ids in (lists[1], lists[4], lists[12]))
        # Each entry is 8 bytes, and so are the read and the write of its logit; one row is masked whole.
        self._time(
            "edit_logits", case, lambda kernels, i: kernels.edit_logits(logits, *lists),
            moved=16 * entries + 4 * vocab_size,
        )  # fmt: skip

    def _rows(self) -> None:
        config, rows = self._config, self._scale.pick(64, 3)
        hidden, inner, eps = config.hidden_size, config.intermediate_size, config.rms_norm_eps
        row_bytes = rows * hidden * self._dtype.itemsize
        weight = self._randn(hidden)
        copies = self._copies(2 * row_bytes)
        xs, residuals = ([self._randn(rows, hidden) for _ in range(copies)] for _ in range(2))
        case = f"{rows} x {hidden}"
        self._time(
            "rms_norm", case, lambda kernels, i: kernels.rms_norm(xs[i], weight, eps),
            moved=2 * row_bytes, copies=copies,
        )  # fmt: skip
        self._time(
            "add_rms_norm", case, lambda kernels, i: kernels.add_rms_norm(xs[i], residuals[i], weight, eps),
            moved=4 * row_bytes, copies=copies,
        )  # fmt: skip
        moved = 3 * rows * inner * self._dtype.itemsize
        gate_ups = [self._randn(rows, 2 * inner) for _ in range(self._copies(moved))]
        self._time(
            "silu_mul", f"{rows} x {inner}", lambda kernels, i: kernels.silu_mul(gate_ups[i]),
            moved=moved, copies=len(gate_ups),
        )  # fmt: skip

    def _rope(self) -> None:
        config, rows = self._config, self._scale.pick(64, 3)
        dim, num_kv_heads = config.head_dim, config.num_kv_heads
        width = (config.num_heads + 2 * num_kv_heads) * dim
        cos, sin = (t.to(self._device) for t in rope_tables(config.rope, dim, 8192))
        positions = torch.randint(8192, (rows,), device=self._device)
        slots = torch.randperm(rows, device=self._device) * BLOCK_SIZE + 3
        caches = [
            torch.zeros((rows, num_kv_heads, BLOCK_SIZE, dim), dtype=self._dtype, device=self._device)
            for _ in range(2)
        ]
        moved = 2 * rows * width * self._dtype.itemsize + rows * dim * 4
        qkvs = [self._randn(rows, width) for _ in range(self._copies(moved))]
        self._time(
            "rope_and_cache", f"{rows} tokens",
            lambda kernels, i: kernels.rope_and_cache(
                qkvs[i], positions, slots, cos, sin, *caches, None, None, config.rms_norm_eps
            ),
            moved=moved, copies=len(qkvs),
        )  # fmt: skip
