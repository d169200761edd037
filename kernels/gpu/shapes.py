"""What the kernels are called with when real models run: shapes, dtypes, and arguments made to fit.

Knows: the sizes of some models, and how many tokens and sequences a tick has. Does not know: kernels, tiles.

The arguments hold random numbers that every kernel can be run with. On the meta device they hold none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from typing import Any, Protocol

import torch
from torch import Tensor

from kernels.gpu.device import Device

META = torch.device("meta")
BLOCK_SIZE = 16
"""Token slots of a block."""
NUM_BLOCKS = 1 << 18
"""Of a cache without memory: so many that offsets into it need 64 bits."""
EPS = 1e-5

DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
FP8 = torch.float8_e4m3fn

MODULES = {
    "rms_norm": "norms",
    "add_rms_norm": "norms",
    "silu_mul": "norms",
    "rope_and_cache": "rope",
    "paged_attention": "attention",
    "Linear": "linear",
    "sample": "sampling",
    "edit_logits": "edits",
    "logprobs": "logprobs",
}
"""Function of `kernels.Kernels` -> the module of `kernels.gpu` that has it. Each can be used while others are
broken."""


@dataclass(frozen=True)
class Model:
    name: str
    num_heads: int
    num_kv_heads: int
    head_dim: int
    hidden: int
    intermediate: int
    vocabulary: int


LLAMA_1B = Model("Llama-3.2-1B", 32, 8, 64, 2048, 8192, 128_256)
QWEN_8B = Model("Qwen3-8B", 32, 8, 128, 4096, 12_288, 151_936)
MODELS = (
    LLAMA_1B,
    QWEN_8B,
    Model("SmolLM2-135M", 9, 3, 64, 576, 1536, 49_152),
    Model("Phi-3-mini", 32, 32, 96, 3072, 8192, 32_064),
    Model("Gemma-2B", 8, 1, 256, 2048, 16_384, 256_000),
)


@dataclass(frozen=True)
class Tick:
    """What one forward pass computes."""

    name: str
    queries: tuple[int, ...]
    """Tokens of each sequence."""
    contexts: tuple[int, ...]
    """Their positions so far, these tokens included."""

    @property
    def num_tokens(self) -> int:
        return sum(self.queries)


DECODE = Tick("decode", (1,) * 64, (1000,) * 64)
MIXED = Tick("mixed", (1,) * 31 + (512,), (1000,) * 31 + (4096,))
TICKS = (DECODE, MIXED, Tick("one row", (1,), (4096,)), Tick("prefill", (2047, 1024), (2047, 3000)))
# Triton compiles anew for a number that is 1, or no multiple of 16, unless it is told not to.
ROWS = {"": 64, ", 1 row": 1, ", 2047 rows": 2047}
SAMPLED = {"": 64, ", 1 row": 1, ", 255 rows": 255}


class Arguments(Protocol):
    """Makes them anew on a device."""

    def __call__(self, place: torch.device) -> dict[str, Any]: ...


@dataclass(frozen=True)
class Case:
    """One call of a function of `kernels.Kernels`."""

    function: str
    name: str
    arguments: Arguments
    everywhere: bool = True
    """Whether it must be compiled for every chip, or for the first only: what head sizes and options do to
    a kernel is much the same on all."""

    def on(self, device: Device, arguments: dict[str, Any]) -> Callable[[], Any]:
        """The call, to be made any number of times."""
        function = getattr(import_module(f"kernels.gpu.{MODULES[self.function]}"), self.function)
        return self.of(partial(function, device), arguments)

    def of(self, function: Callable[..., Any], arguments: dict[str, Any]) -> Callable[[], Any]:
        if self.function == "Linear":
            product = function(arguments["weight"], arguments["bias"])
            return partial(product, arguments["x"])
        return partial(function, **arguments)


def norm_arguments(model: Model, rows: int, dtype: torch.dtype, place: torch.device) -> dict[str, Any]:
    return {
        "x": _normal(rows, model.hidden, dtype=dtype, place=place),
        "weight": _normal(model.hidden, dtype=dtype, place=place),
        "eps": EPS,
    }


def add_norm_arguments(model: Model, rows: int, dtype: torch.dtype, place: torch.device) -> dict[str, Any]:
    residual = _normal(rows, model.hidden, dtype=dtype, place=place)
    return {**norm_arguments(model, rows, dtype, place), "residual": residual}


def silu_arguments(model: Model, rows: int, dtype: torch.dtype, place: torch.device) -> dict[str, Any]:
    return {"gate_up": _normal(rows, 2 * model.intermediate, dtype=dtype, place=place)}


def linear_arguments(
    outputs: int, inputs: int, rows: int, bias: bool, dtype: torch.dtype, place: torch.device
) -> dict[str, Any]:
    return {
        "weight": _normal(outputs, inputs, dtype=dtype, place=place) * inputs**-0.5,
        "bias": _normal(outputs, dtype=dtype, place=place) if bias else None,
        "x": _normal(rows, inputs, dtype=dtype, place=place),
    }


def rope_arguments(
    model: Model,
    rows: int,
    dtype: torch.dtype,
    cache_dtype: torch.dtype,
    qk_norm: bool,
    place: torch.device,
) -> dict[str, Any]:
    num_blocks = NUM_BLOCKS if place == META else -(-rows // BLOCK_SIZE)
    num_positions = max(rows, 8192)
    angles = torch.rand(num_positions, model.head_dim // 2, device=place) * 6.28
    norm = partial(_normal, model.head_dim, dtype=dtype, place=place)
    return {
        "qkv": _normal(
            rows, (model.num_heads + 2 * model.num_kv_heads) * model.head_dim, dtype=dtype, place=place
        ),
        "positions": torch.randint(num_positions, (rows,), device=place),
        "slots": torch.randperm(num_blocks * BLOCK_SIZE, device=place)[:rows],
        "cos": angles.cos(),
        "sin": angles.sin(),
        "key_cache": _cache(model, num_blocks, cache_dtype, place),
        "value_cache": _cache(model, num_blocks, cache_dtype, place),
        "q_norm": norm() if qk_norm else None,
        "k_norm": norm() if qk_norm else None,
        "eps": EPS,
    }


def attention_arguments(
    model: Model,
    tick: Tick,
    dtype: torch.dtype,
    cache_dtype: torch.dtype,
    window: int | None,
    place: torch.device,
) -> dict[str, Any]:
    width = -(-max(tick.contexts) // BLOCK_SIZE)
    num_used = width * len(tick.contexts)
    num_blocks = NUM_BLOCKS if place == META else num_used
    starts = torch.tensor((0, *tick.queries), dtype=torch.int32, device=place).cumsum(0)
    return {
        "q": _normal(tick.num_tokens, model.num_heads, model.head_dim, dtype=dtype, place=place),
        "key_cache": _cache(model, num_blocks, cache_dtype, place),
        "value_cache": _cache(model, num_blocks, cache_dtype, place),
        "block_tables": torch.randperm(num_used, device=place).int().view(-1, width),
        "context_lens": torch.tensor(tick.contexts, dtype=torch.int32, device=place),
        "query_start": starts.int(),
        "scale": model.head_dim**-0.5,
        "window": window,
    }


def sample_arguments(vocabulary: int, rows: int, place: torch.device) -> dict[str, Any]:
    """Rows take turns: the largest logit, all of the vocabulary, and every filter at once."""
    turn = torch.arange(rows, device=place) % 3
    return {
        "logits": _logits(vocabulary, rows, place),
        "temperature": (turn > 0).float(),
        "top_p": 1 - (turn > 1) * 0.1,
        "top_k": ((turn > 1) * 50).int(),
        "min_p": (turn > 1) * 0.02,
        "seed": torch.randint(2**62, (rows,), device=place),
        "position": torch.randint(8192, (rows,), device=place),
    }


def edit_arguments(vocabulary: int, rows: int, place: torch.device) -> dict[str, Any]:
    """All rows have a bias, seen and banned ids; the second half has allowed ids as well."""
    each = {"bias": 300, "seen": 1000, "banned": 20, "allowed": 100}
    each = {name: min(length, vocabulary // 2) for name, length in each.items()}
    lists: dict[str, Any] = {}
    for name, length in each.items():
        without = rows // 2 if name == "allowed" else 0
        row = torch.arange(rows + 1, device=place)
        lists[f"{name}_start"] = ((row - without).clamp(min=0) * length).int()
        # In steps of a prime number no id comes twice in the length of a list.
        lists[f"{name}_ids"] = (torch.arange((rows - without) * length, device=place) * 31 % vocabulary).int()
    return {
        "logits": _logits(vocabulary, rows, place),
        **lists,
        "bias": _normal(each["bias"] * rows, dtype=torch.float32, place=place),
        "seen_counts": torch.randint(5, (each["seen"] * rows,), device=place).int(),
        "presence": torch.rand(rows, device=place),
        "frequency": torch.rand(rows, device=place),
        "repetition": torch.rand(rows, device=place) + 0.5,
    }


def logprob_arguments(vocabulary: int, rows: int, k: int, place: torch.device) -> dict[str, Any]:
    return {
        "logits": _logits(vocabulary, rows, place),
        "chosen": torch.randint(vocabulary, (rows,), device=place),
        "k": k,
    }


def _normal(*shape: int, dtype: torch.dtype, place: torch.device) -> Tensor:
    return torch.randn(*shape, device=place).to(dtype)


def _logits(vocabulary: int, rows: int, place: torch.device) -> Tensor:
    return _normal(rows, vocabulary, dtype=torch.float32, place=place) * 3


def _cache(model: Model, num_blocks: int, dtype: torch.dtype, place: torch.device) -> Tensor:
    return _normal(num_blocks, model.num_kv_heads, BLOCK_SIZE, model.head_dim, dtype=dtype, place=place)


@dataclass(frozen=True)
class Sizes:
    """Combined with each other they make cases."""

    models: tuple[Model, ...]
    dtypes: tuple[str, ...]
    rows: dict[str, int]
    """Tokens, where whose they are is no matter. By what a case's name says of them."""
    sampled: dict[str, int]
    """Rows of logits."""
    ticks: tuple[Tick, ...]
    listed: tuple[int, ...]
    """How many log probabilities are asked for."""
    window: int | None = None
    everywhere: bool = False


PLAIN = Sizes((LLAMA_1B,), tuple(DTYPES), ROWS, SAMPLED, TICKS, (0, 1, 5, 20), everywhere=True)
WINDOWED = Sizes((LLAMA_1B,), ("bf16",), {}, {}, TICKS, (), window=1024)
OTHERS = Sizes(MODELS[1:], ("bf16",), ROWS, SAMPLED, TICKS, (5,))

USUAL = (PLAIN, WINDOWED, OTHERS)
"""Every kernel, dtype and option, at sizes that compile differently; first the plainest of each."""
EXHAUSTIVE = (replace(PLAIN, models=MODELS), replace(PLAIN, models=MODELS, window=1024))
"""All of them combined."""


def cases(*groups: Sizes) -> Iterator[Case]:
    for sizes in groups:
        for model in sizes.models:
            yield from _logit_cases(model, sizes)
            for name in sizes.dtypes:
                dtype = DTYPES[name]
                yield from _row_cases(model, name, dtype, sizes)
                yield from _cache_cases(model, name, dtype, dtype, sizes)
                yield from _cache_cases(model, f"{name}, fp8 cache", dtype, FP8, sizes)


def _row_cases(model: Model, name: str, dtype: torch.dtype, sizes: Sizes) -> Iterator[Case]:
    products = {
        "": (model.hidden, model.intermediate, False),
        ", up": (2 * model.intermediate, model.hidden, False),
        ", bias": (model.hidden, model.intermediate, True),
    }
    for suffix, rows in sizes.rows.items():
        named = f"{name}, {model.name}{suffix}"
        for function, make in {
            "rms_norm": norm_arguments,
            "add_rms_norm": add_norm_arguments,
            "silu_mul": silu_arguments,
        }.items():
            yield Case(function, named, partial(make, model, rows, dtype), sizes.everywhere)
        for kind, (outputs, inputs, bias) in products.items():
            product = partial(linear_arguments, outputs, inputs, rows, bias, dtype)
            yield Case("Linear", named + kind, product, sizes.everywhere)


def _cache_cases(
    model: Model, name: str, dtype: torch.dtype, cache_dtype: torch.dtype, sizes: Sizes
) -> Iterator[Case]:
    for suffix, rows in sizes.rows.items():
        named = f"{name}, {model.name}{suffix}"
        for qk_norm in (False, True):
            full = f"{named}, qk-norm" if qk_norm else named
            rotated = partial(rope_arguments, model, rows, dtype, cache_dtype, qk_norm)
            yield Case("rope_and_cache", full, rotated, sizes.everywhere)
    for tick in sizes.ticks:
        named = f"{name}, {model.name}, {tick.name}" + (", window" if sizes.window else "")
        paged = partial(attention_arguments, model, tick, dtype, cache_dtype, sizes.window)
        yield Case("paged_attention", named, paged, sizes.everywhere)


def _logit_cases(model: Model, sizes: Sizes) -> Iterator[Case]:
    for suffix, rows in sizes.sampled.items():
        named, some = f"{model.name}{suffix}", sizes.everywhere
        yield Case("sample", named, partial(sample_arguments, model.vocabulary, rows), some)
        yield Case("edit_logits", named, partial(edit_arguments, model.vocabulary, rows), some)
        for k in sizes.listed:
            told = partial(logprob_arguments, model.vocabulary, rows, k)
            yield Case("logprobs", f"{named}, k={k}", told, some)
