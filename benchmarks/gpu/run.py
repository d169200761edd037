"""The run: its parts in turn, each in its own time, and what they found.

Knows: the order of the parts, which model lies on the device. Does not know: how anything is measured.
"""

from __future__ import annotations

import platform
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata
from typing import Any

import torch

from benchmarks.gpu.clock import Clock, Part, free_memory
from benchmarks.gpu.numerics import Numerics
from benchmarks.gpu.results import Results, Serving
from benchmarks.gpu.runners import make_runner
from benchmarks.gpu.serving import load_for, serve
from benchmarks.gpu.shapes import Order, RandomWeights, Scale, make_model, model_config
from benchmarks.gpu.speed import Rates, Speed, measure_rates
from benchmarks.gpu.steps import Steps
from kernels.gpu.device import Device
from kernels.gpu.kernels import for_device

WEIGHTS = {"1": 0.25, "2": 0.2, "3": 0.3, "4": 0.25}
"""Part -> its share of the time."""
COMPILE_SECONDS = 75.0
"""At most, before the parts begin."""
THEIR_SHARE = 0.5
"""Of what is left for the last part, for transformers on one model."""


class Run:
    """
    Args:
        seconds: of all parts together.
    """

    def __init__(self, scale: Scale, seconds: float, parts: list[str]) -> None:
        self._scale = scale
        self._parts = parts
        self._ends = time.monotonic() + seconds
        self.results = Results(scale.dry, _machine(scale))

    def run(self) -> Results:
        """Every chosen part, whatever becomes of the others."""
        results = self.results
        if not self._scale.dry:
            self._precompile()
        results.rates = measure_rates(self._scale)
        kernels = {mode: for_device(self._scale.device, batch_invariant=mode) for mode in (True, False)}
        clock = Clock(self._ends - time.monotonic(), {part: WEIGHTS[part] for part in self._parts})
        works = {"1": self._numerics, "2": self._speed, "3": self._steps, "4": self._serving}
        for name in self._parts:
            start = time.monotonic()
            part = clock.begin(name)
            print(f"part {name}: {part.left:.0f} s", flush=True)
            with part.enforced():
                works[name](part, kernels, results.rates)
            results.left_out += part.left_out
            results.failed += part.failed
            results.seconds[name] = time.monotonic() - start
            free_memory(self._scale.device)
        return results

    def _precompile(self) -> None:
        device = Device.of(self._scale.device, batch_invariant=True)
        names = ",".join(self._scale.measured_models)
        start = time.monotonic()
        try:
            subprocess.run(
                [sys.executable, "-m", "benchmarks.gpu.precompile", device.arch, names],
                check=True,
                timeout=COMPILE_SECONDS,
            )
        except subprocess.SubprocessError as error:
            self.results.failed.append(f"compiling beforehand: {error}")
        self.results.seconds["compiling"] = time.monotonic() - start

    def _numerics(self, part: Part, kernels: dict[bool, Any], rates: Rates) -> None:
        numerics = Numerics(self._scale, kernels, part)
        self.results.numerics = numerics.checks
        numerics.run()

    def _speed(self, part: Part, kernels: dict[bool, Any], rates: Rates) -> None:
        speed = Speed(self._scale, kernels, rates, part)
        self.results.speed = speed.timings
        speed.run()

    def _steps(self, part: Part, kernels: dict[bool, Any], rates: Rates) -> None:
        steps = Steps(self._scale, rates, part)
        self.results.steps = steps.steps
        for name in self._scale.models:
            if not part.allows(f"steps: {name}", self._scale.pick(10.0, 0.0)):
                continue
            with self._weights() as weights:
                with part.guarded(f"steps: {name}"):
                    self._our_steps(name, weights, kernels, steps)
                free_memory(self._scale.device)
                with part.guarded(f"steps: {name}, transformers"):
                    self._their_steps(name, weights, steps)

    def _our_steps(self, name: str, weights: RandomWeights, kernels: dict[bool, Any], steps: Steps) -> None:
        ours, invariant = (make_model(name, weights, kernels[mode], self._scale) for mode in (False, True))
        steps.ours(name, ours, invariant)

    def _their_steps(self, name: str, weights: RandomWeights, steps: Steps) -> None:
        model = self._transformers(name, weights)
        steps.theirs(name, model)
        steps.their_batching(name, model)

    def _serving(self, part: Part, kernels: dict[bool, Any], rates: Rates) -> None:
        load = load_for(self._scale)
        for name in self._scale.models:
            if not part.allows(f"serving: {name}", self._scale.pick(15.0, 0.0)):
                continue
            orders = load.orders(model_config(name).vocab_size)
            found = Serving(name)
            self.results.serving.append(found)
            with self._weights() as weights:
                with part.guarded(f"serving: {name}"):
                    self._our_serving(found, weights, kernels[False], orders, part)
                free_memory(self._scale.device)
                with part.guarded(f"serving: {name}, transformers"):
                    self._their_serving(found, weights, orders, part)

    def _our_serving(
        self, found: Serving, weights: RandomWeights, kernels: Any, orders: list[Order], part: Part
    ) -> None:
        name, config = found.model, load_for(self._scale).config()
        model = make_model(name, weights, kernels, self._scale)
        runner = make_runner(model, config, self._scale)
        vocab_size = model.config.vocab_size
        found.ours = serve(runner, config, orders, vocab_size, part, name)
        found.sampled = serve(runner, config, orders, vocab_size, part, f"{name}, sampled", greedy=False)

    def _their_serving(self, found: Serving, weights: RandomWeights, orders: list[Order], part: Part) -> None:
        from benchmarks.gpu.baseline import continuous_batching

        load = load_for(self._scale)
        model = self._transformers(found.model, weights)
        served = continuous_batching(model, orders, load.rows, load.context, THEIR_SHARE * part.left)
        found.transformers_tokens_per_s = served.tokens_per_s
        found.transformers_requests = len(served.times)
        found.transformers_attention = served.attention

    def _transformers(self, name: str, weights: RandomWeights) -> Any:
        from benchmarks.gpu.baseline import load

        return load(name, weights, self._scale)

    @contextmanager
    def _weights(self) -> Iterator[RandomWeights]:
        """Of one model at a time. All that use them share them."""
        weights = RandomWeights(self._scale.dtype, self._scale.device)
        yield weights
        weights.by_name.clear()
        free_memory(self._scale.device)


def _machine(scale: Scale) -> dict[str, str]:
    device = torch.cuda.get_device_name(scale.device) if scale.device.type == "cuda" else "interpreter"
    versions = {name: metadata.version(name) for name in ("torch", "triton", "transformers")}
    return {"device": device, "python": platform.python_version(), **versions}
