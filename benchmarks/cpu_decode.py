"""How close a decode step comes to what memory allows, and to transformers on the same weights.

    python -m benchmarks.cpu_decode [--json PATH] [--quick]

At each point B sequences with some context get one more token. Four things are timed in turn, round by
round, so that a busy machine slows all of them alike: reading memory, our forward pass, our attention
alone in all layers, and a decode step of transformers with its own cache. The floor of the step is its
bytes (the weights once, keys and values once) at the bandwidth of the same round; that of attention, the
bytes of keys and values. Times and ratios are medians over the rounds.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from app.settings import default_cache_dir
from engine.blocks import BLOCK_SIZE
from engine.loading import default_model, load
from engine.models.config import ModelConfig
from engine.models.inputs import ForwardInputs, KVCache
from engine.models.llama import CausalLM
from kernels import for_device

POINTS = [(batch, context) for context in (256, 1024) for batch in (1, 8, 16, 32)]
QUICK_POINTS = [(1, 64), (4, 64)]
ROUNDS, QUICK_ROUNDS = 15, 3
READ_BYTES = 512 * 2**20


@dataclass(frozen=True)
class Result:
    """One point. Times in milliseconds, ratios without unit."""

    batch: int
    context: int
    read_gb_per_s: float
    step_ms: float
    step_floor_ms: float
    step_over_floor: float
    attention_ms: float
    attention_floor_ms: float
    attention_over_floor: float
    transformers_ms: float
    transformers_over_step: float


def main() -> None:
    parser = argparse.ArgumentParser(description="Time decode steps on the CPU.")
    parser.add_argument("--json", type=Path, metavar="PATH", help="also write the results there")
    parser.add_argument("--quick", action="store_true", help="a smoke run: two small points, few rounds")
    parser.add_argument("--cache-dir", type=Path, default=default_cache_dir())
    arguments = parser.parse_args()

    loaded = load("default", cache_dir=arguments.cache_dir, progress=print)
    theirs = _transformers_model(default_model.ensure(arguments.cache_dir, print))
    memory = torch.ones(READ_BYTES // 4)
    points, rounds = (QUICK_POINTS, QUICK_ROUNDS) if arguments.quick else (POINTS, ROUNDS)
    results = []
    for batch, context in points:
        print(f"B={batch}, {context} tokens of context", flush=True)
        results.append(_measure(loaded.model, theirs, memory, batch, context, rounds))
    if arguments.json:
        arguments.json.write_text(json.dumps([asdict(result) for result in results], indent=2))
    _print_table(results)


def _transformers_model(folder: Path) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


def _measure(
    ours: CausalLM, theirs: Any, memory: torch.Tensor, batch: int, context: int, rounds: int
) -> Result:
    config = ours.config
    inputs, kv = decode_inputs(config, batch, context)
    read, step, attention, transformers = time_in_turn(
        [
            memory.sum,
            lambda: ours.forward(inputs, kv),
            _attention_alone(config, inputs, kv),
            _transformers_step(theirs, config, batch, context),
        ],
        rounds,
    )
    bandwidths = [READ_BYTES / seconds for seconds in read]
    kv_bytes = batch * context * KVCache.bytes_per_block(config, torch.float32) // BLOCK_SIZE
    attention_floor = [kv_bytes / bandwidth for bandwidth in bandwidths]
    floor = [(kv_bytes + _weight_bytes(config)) / bandwidth for bandwidth in bandwidths]
    return Result(
        batch=batch,
        context=context,
        read_gb_per_s=statistics.median(bandwidths) / 1e9,
        step_ms=_milliseconds(step),
        step_floor_ms=_milliseconds(floor),
        step_over_floor=_ratio(step, floor),
        attention_ms=_milliseconds(attention),
        attention_floor_ms=_milliseconds(attention_floor),
        attention_over_floor=_ratio(attention, attention_floor),
        transformers_ms=_milliseconds(transformers),
        transformers_over_step=_ratio(transformers, step),
    )


def _weight_bytes(config: ModelConfig) -> int:
    """The matrices that a step reads whole. Of the embedding table, as such, it reads a few rows."""
    heads = config.num_heads + 2 * config.num_kv_heads
    attention = config.hidden_size * config.head_dim * (heads + config.num_heads)
    mlp = 3 * config.hidden_size * config.intermediate_size
    return 4 * (config.num_layers * (attention + mlp) + config.vocab_size * config.hidden_size)


def decode_inputs(config: ModelConfig, batch: int, context: int) -> tuple[ForwardInputs, KVCache]:
    """A decode tick of sequences whose blocks lie scattered over a cache of random keys and values."""
    width = -(-context // BLOCK_SIZE)
    kv = KVCache.allocate(config, batch * width, torch.float32, "cpu")
    for cache in (*kv.keys, *kv.values):
        cache.normal_()
    tables = torch.randperm(batch * width, dtype=torch.int32).view(batch, width)
    last_block = tables[:, (context - 1) // BLOCK_SIZE].long()
    inputs = ForwardInputs(
        token_ids=torch.randint(config.vocab_size, (batch,)),
        positions=torch.full((batch,), context - 1),
        slots=last_block * BLOCK_SIZE + (context - 1) % BLOCK_SIZE,
        query_start=torch.arange(batch + 1, dtype=torch.int32),
        context_lens=torch.full((batch,), context, dtype=torch.int32),
        block_tables=tables,
        sampled=torch.arange(batch),
    )
    return inputs, kv


def _attention_alone(config: ModelConfig, inputs: ForwardInputs, kv: KVCache) -> Callable[[], object]:
    kernels = for_device(torch.device("cpu"))
    q = torch.randn(len(inputs.token_ids), config.num_heads, config.head_dim)
    scale = config.head_dim**-0.5

    def run() -> None:
        for keys, values in zip(kv.keys, kv.values, strict=True):
            kernels.paged_attention(
                q, keys, values, inputs.block_tables, inputs.context_lens, inputs.query_start, scale, None
            )

    return run


def _transformers_step(model: Any, config: ModelConfig, batch: int, context: int) -> Callable[[], object]:
    """What one turn of `generate` computes: a forward pass of one token each over its cache, and the best."""
    from transformers import DynamicCache

    cache = DynamicCache(config=model.config)
    shape = (batch, config.num_kv_heads, context - 1, config.head_dim)
    for layer in range(config.num_layers):
        cache.update(torch.randn(shape), torch.randn(shape), layer)
    ids = torch.randint(config.vocab_size, (batch, 1))
    positions = torch.full((batch, 1), context - 1)

    @torch.inference_mode()
    def run() -> torch.Tensor:
        logits = model(ids, past_key_values=cache, position_ids=positions, use_cache=True).logits
        # Back to the same context for the next round; it drops views, and costs next to nothing.
        cache.crop(-1)
        best: torch.Tensor = logits[:, -1].argmax(dim=-1)
        return best

    return run


def time_in_turn(runs: list[Callable[[], object]], rounds: int) -> list[list[float]]:
    """Seconds of each run in each round, after one round that does not count."""
    seconds: list[list[float]] = [[] for _ in runs]
    for round_ in range(rounds + 1):
        for run, times in zip(runs, seconds, strict=True):
            start = time.perf_counter()
            run()
            if round_ > 0:
                times.append(time.perf_counter() - start)
    return seconds


def _milliseconds(seconds: list[float]) -> float:
    return statistics.median(seconds) * 1e3


def _ratio(above: list[float], below: list[float]) -> float:
    return statistics.median(a / b for a, b in zip(above, below, strict=True))


def _print_table(results: list[Result]) -> None:
    print(f"\n{torch.get_num_threads()} threads, torch {torch.__version__}; milliseconds")
    print(
        f"{'B':>3} {'context':>7} {'GB/s':>6} | {'step':>7} {'floor':>7} {'ratio':>5} |"
        f" {'attention':>9} {'floor':>7} {'ratio':>5} | {'transformers':>12} {'ratio':>5}"
    )
    for r in results:
        print(
            f"{r.batch:>3} {r.context:>7} {r.read_gb_per_s:>6.1f} | {r.step_ms:>7.1f} {r.step_floor_ms:>7.1f}"
            f" {r.step_over_floor:>5.2f} | {r.attention_ms:>9.2f} {r.attention_floor_ms:>7.2f}"
            f" {r.attention_over_floor:>5.2f} | {r.transformers_ms:>12.1f} {r.transformers_over_step:>5.2f}"
        )


if __name__ == "__main__":
    main()
