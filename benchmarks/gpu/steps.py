"""Part 3: decode steps of whole models beside the floor of their bytes, and beside transformers.

Knows: the points to measure, the bytes of a step. Does not know: requests, single kernels.

A step is what a tick asks of the runner: inputs to the device, the replay of a graph, sampling, the new ids
back. It is timed by the host's clock, to the moment at which the ids are there. `forward` is the forward pass
alone, by the device's clock, over random keys and values; KV memory of the runner holds zeros. The floor: the
weights once, and keys and values once, at the bandwidth of a copy.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass, replace
from typing import Any

import torch

from benchmarks.gpu.clock import Part, free_memory, seconds_of
from benchmarks.gpu.runners import make_runner
from benchmarks.gpu.shapes import Scale, decode_batch, weight_bytes
from benchmarks.gpu.speed import Rates
from engine.batch import Batch
from engine.blocks import BLOCK_SIZE, blocks_for
from engine.config import EngineConfig
from engine.gpu.runner import GpuRunner
from engine.models.inputs import ForwardInputs, KVCache
from engine.models.llama import CausalLM

STEPS = 20
"""That count, after a few that do not."""
MEMORY_SHARE = 0.7
"""Of what is free, for KV memory."""

Point = tuple[int, int]
"""Sequences, and their context."""


@dataclass
class Step:
    model: str
    batch: int
    context: int
    bytes: int
    floor_ms: float
    forward_ms: float | None = None
    step_ms: float | None = None
    invariant_ms: float | None = None
    """The forward pass with batch-invariant kernels."""
    transformers_generate_ms: float | None = None
    transformers_batching_ms: float | None = None

    @property
    def share(self) -> float | None:
        return None if self.step_ms is None else self.floor_ms / self.step_ms

    @property
    def forward_share(self) -> float | None:
        return None if self.forward_ms is None else self.floor_ms / self.forward_ms


def points_for(name: str, scale: Scale) -> list[Point]:
    """Where the aims are first."""
    if scale.dry:
        return [(2, 40), (1, 40)]
    if name == "llama-3-8b":
        return [(batch, context) for context in (4096, 512) for batch in (64, 1, 8, 256)]
    return [(64, 512), (1, 512)]


def compared_points(name: str, scale: Scale) -> list[Point]:
    return [(2, 40)] if scale.dry else [(64, 512), (1, 512)]


class Steps:
    """Measures one model after the other; results are there as far as it came."""

    def __init__(self, scale: Scale, rates: Rates, part: Part) -> None:
        self.steps: list[Step] = []
        self._scale, self._rates, self._part = scale, rates, part

    @torch.inference_mode()
    def ours(self, name: str, model: CausalLM, invariant: CausalLM) -> None:
        """With the kernels that a server has on a GPU by default, and the forward pass with those it can be
        asked for."""
        points = [point for point in points_for(name, self._scale) if self._fits(name, model, point)]
        if not points:
            return
        for batch, context in points:
            tokens_bytes = KVCache.bytes_per_block(model.config, model.dtype) // BLOCK_SIZE
            moved = weight_bytes(model.config, model.dtype) + batch * context * tokens_bytes
            floor = moved / self._rates.copy_bytes_per_s
            self.steps.append(Step(name, batch, context, moved, floor * 1e3))
        for which, column in ((model, "forward_ms"), (invariant, "invariant_ms")):
            self._forward_alone(name, which, points, column)
            free_memory(self._scale.device)
        self._whole_steps(name, model, points)
        free_memory(self._scale.device)

    def _fits(self, name: str, model: CausalLM, point: Point) -> bool:
        batch, context = point
        if self._scale.dry:
            return True
        free, _ = torch.cuda.mem_get_info(self._scale.device)
        wanted = batch * blocks_for(context) * KVCache.bytes_per_block(model.config, model.dtype)
        if wanted < MEMORY_SHARE * free:
            return True
        self._part.left_out.append(f"steps: {name} B={batch} x {context}: {wanted / 2**30:.0f} GiB of KV")
        return False

    def _forward_alone(self, name: str, model: CausalLM, points: list[Point], column: str) -> None:
        num_blocks = _num_blocks(points)
        kv = KVCache.allocate(model.config, num_blocks, model.dtype, self._scale.device)
        kv.storage.normal_()
        for batch, context in points:
            if self._part.allows(f"steps: {name} {column} B={batch} x {context}", 2.0):
                tick = decode_batch(batch, context, model.config.vocab_size, num_blocks)
                inputs = ForwardInputs.from_batch(tick, self._scale.device)
                seconds = seconds_of(self._scale.device, lambda i, x=inputs: model.forward(x, kv))
                setattr(self._at(name, batch, context), column, seconds * 1e3)

    def _whole_steps(self, name: str, model: CausalLM, points: list[Point]) -> None:
        # Capturing comes with the runner.
        if not self._part.allows(f"steps: {name} through the runner", 15.0):
            return
        num_blocks, most = _num_blocks(points), max(batch for batch, _ in points)
        longest = max(context for _, context in points)
        config = EngineConfig(
            num_blocks, longest, max_num_seqs=most, token_budget=max(most, self._scale.pick(512, 1))
        )
        runner = make_runner(model, config, self._scale)
        for batch, context in points:
            if self._part.allows(f"steps: {name} B={batch} x {context}", 1.0):
                tick = decode_batch(batch, context, model.config.vocab_size, num_blocks)
                seconds = _step_seconds(runner, tick, self._scale.pick(STEPS, 1))
                self._at(name, batch, context).step_ms = seconds * 1e3

    def theirs(self, name: str, model: Any) -> None:
        """transformers' `generate`."""
        from benchmarks.gpu.baseline import generate_step

        for batch, context in compared_points(name, self._scale):
            if self._part.allows(f"steps: {name} transformers B={batch} x {context}", 5.0):
                seconds = generate_step(model, batch, context)
                self._at(name, batch, context).transformers_generate_ms = seconds * 1e3
                free_memory(self._scale.device)

    def their_batching(self, name: str, model: Any) -> None:
        """A step of transformers' continuous batching: what a token of each sequence takes."""
        from benchmarks.gpu.baseline import batching_step

        for batch, context in compared_points(name, self._scale)[:1]:
            if self._part.allows(f"steps: {name} continuous batching B={batch} x {context}", 10.0):
                seconds = batching_step(model, batch, context, self._part.left)
                self._at(name, batch, context).transformers_batching_ms = seconds * 1e3
                free_memory(self._scale.device)

    def _at(self, name: str, batch: int, context: int) -> Step:
        for step in self.steps:
            if (step.model, step.batch, step.context) == (name, batch, context):
                return step
        self.steps.append(Step(name, batch, context, 0, 0.0))
        return self.steps[-1]


def _num_blocks(points: list[Point]) -> int:
    return max(batch * blocks_for(context) for batch, context in points)


def _step_seconds(runner: GpuRunner, tick: Batch, count: int) -> float:
    times = []
    for i in range(count + 3):
        start = time.perf_counter()
        output = runner.execute(tick)
        seconds = time.perf_counter() - start
        if i >= 3:
            times.append(seconds)
        # As when the engine goes on: the next tokens are those that were just chosen.
        tick = replace(tick, token_ids=output.ids)
    return statistics.median(times)
