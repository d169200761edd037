"""Nothing but the results is waited for: the runner and the Triton kernels never look at a value that lies on
the device. Here the device is torch's "meta", whose tensors have shapes and no values, so that to look at one
is an error.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

pytest.importorskip("triton", reason="Triton has no build for this platform")

from engine.batch import Batch, StepOutput
from engine.config import Chaos, EngineConfig
from engine.engine import Engine
from engine.gpu.runner import GpuRunner
from engine.request import FinishedEvent, FinishReason
from kernels.gpu.device import Device
from kernels.gpu.kernels import GpuKernels
from tests.engine.gpu.drivers import Eager
from tests.engine.gpu.test_gpu_runner import SAMPLINGS
from tests.engine.tiny import tiny_model
from tests.fakes import Recorder, fake_vocabulary, make_request, run_until_idle


class Silent(Device):
    """Starts nothing."""

    def launch(self, kernel: Any, *_: Any, **__: Any) -> None:
        pass


class Blind(Eager):
    """Brings ids of 1 where results would be, and counts replays."""

    num_replays = 0

    def copy(self, source: torch.Tensor, target: torch.Tensor) -> None:
        assert {source.device.type, target.device.type} == {"cpu", "meta"}
        if target.device.type == "cpu":
            target.zero_()
            target[::8] = 1

    def capture(self, run: Callable[[], None]) -> Callable[[], None]:
        def replay() -> None:
            self.num_replays += 1

        run()
        return replay


class NoCrossing(TorchDispatchMode):
    """Only a driver's copies go from the host to the device or back: any other is of memory that is not
    pinned, and waits."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        tensors = [x for x in (*args, *(kwargs or {}).values(), result) if isinstance(x, torch.Tensor)]
        assert len({x.device.type for x in tensors}) <= 1, f"{func} goes to another device"
        return result


class Guarded:
    """Implements `Runner` by another one, within `NoCrossing`."""

    def __init__(self, runner: GpuRunner) -> None:
        self._runner = runner

    def execute(self, batch: Batch) -> StepOutput:
        with NoCrossing():
            return self._runner.execute(batch)

    def reset(self) -> None:
        raise AssertionError("nothing failed")


@pytest.mark.parametrize("kv_dtype", [torch.bfloat16, torch.float8_e4m3fn], ids=str)
@pytest.mark.parametrize("arch", ["cuda:80", "cuda:90", "hip:gfx942"])
def test_no_value_on_the_device_is_looked_at(arch: str, kv_dtype: torch.dtype) -> None:
    kernels: Any = GpuKernels(Silent(arch, 100, batch_invariant=False))
    model = tiny_model("meta", kernels, torch.bfloat16)
    config = EngineConfig(num_blocks=60, max_model_len=300, chaos=Chaos(preempt_every=5))
    recorder, driver = Recorder(), Blind()
    runner = Guarded(GpuRunner(model, config, kv_dtype=kv_dtype, driver=driver))
    engine = Engine(runner, fake_vocabulary(), config, recorder)
    for index, sampling in enumerate(SAMPLINGS):
        engine.submit(make_request(f"r{index}", f"prompt {index % 4} " * (1 + index % 5), sampling))
    run_until_idle(engine)
    ends = [event for tick in recorder.ticks for event in tick if isinstance(event, FinishedEvent)]
    assert len(ends) == sum(sampling.n for sampling in SAMPLINGS)
    assert not any(end.reason is FinishReason.ERROR for end in ends)
    assert driver.num_replays > 20


def test_looking_at_a_value_would_be_told() -> None:
    x = torch.zeros(3, device="meta")
    for look in (x.tolist, x.nonzero, lambda: x[x > 0], lambda: bool(x[0])):
        with pytest.raises((RuntimeError, NotImplementedError)):
            look()
    with NoCrossing(), pytest.raises(AssertionError, match="goes to another device"):
        torch.ones(3).to("meta")
