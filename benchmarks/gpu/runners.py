"""Runners for what is measured: on a card as the server makes them, in a dry run over a stand-in for CUDA.

Knows: how a runner is made. Does not know: what it computes.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from benchmarks.gpu.shapes import Scale
from engine.config import EngineConfig
from engine.gpu.runner import GpuRunner
from engine.models.llama import CausalLM


class _Immediately:
    """An event of a device that has done everything when it is asked."""

    def record(self) -> None:
        pass

    def synchronize(self) -> None:
        pass


class HostDriver:
    """Implements `engine.gpu.driver.Driver` on the CPU, where a captured run is simply run again."""

    def bind(self) -> None:
        pass

    def host_memory(self, num_bytes: int) -> torch.Tensor:
        return torch.empty(num_bytes, dtype=torch.uint8)

    def copy(self, source: torch.Tensor, target: torch.Tensor) -> None:
        target.copy_(source)

    def event(self) -> _Immediately:
        return _Immediately()

    def capture(self, run: Callable[[], None]) -> Callable[[], None]:
        run()
        return torch.inference_mode()(run)

    def synchronize(self) -> None:
        pass


def make_runner(model: CausalLM, config: EngineConfig, scale: Scale) -> GpuRunner:
    driver = HostDriver() if scale.dry else None
    return GpuRunner(model, config, kv_dtype=scale.dtype, driver=driver)
