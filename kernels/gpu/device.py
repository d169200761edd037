"""Where a kernel is launched.

Knows: which chip, how wide it is, how Triton starts a kernel. Does not know: any kernel.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from triton import knobs

from kernels.tuning import Tiles, tiles_for

INTERPRETER = "interpreter"


@dataclass(frozen=True)
class Device:
    """A chip, and what the kernels need to know of it to choose their grids and tiles.

    Every launch goes through `launch`, so that a subclass that notes what would be launched, instead of
    launching it, sees all there is to compile.
    """

    arch: str
    """"cuda:90", "hip:gfx942", or INTERPRETER: Triton's, on the CPU."""
    num_sms: int
    """Multiprocessors."""
    batch_invariant: bool
    """Grids may depend on the batch; tiles, splits and orders of sums may not."""

    @classmethod
    def of(cls, device: torch.device, *, batch_invariant: bool) -> Device:
        """The chip behind a torch device; for the CPU the interpreter.

        Raises:
            ValueError: no Triton kernel can run there.
        """
        if device.type == "cpu" and knobs.runtime.interpret:
            return cls(INTERPRETER, 8, batch_invariant)
        if device.type != "cuda":
            raise ValueError(
                f"device: got {device.type!r}, allowed: 'cuda', or 'cpu' under TRITON_INTERPRET=1"
            )
        properties = torch.cuda.get_device_properties(device)
        if torch.version.hip:
            arch = f"hip:{properties.gcnArchName.split(':')[0]}"
        else:
            arch = f"cuda:{properties.major}{properties.minor}"
        return cls(arch, properties.multi_processor_count, batch_invariant)

    @property
    def has_fp8(self) -> bool:
        """Whether it converts e4m3 by an instruction. Where not, kernels take the bits apart."""
        kind, _, version = self.arch.partition(":")
        return kind == "cuda" and int(version) >= 89

    def tiles(self, kernel: str, **facts: int) -> Tiles:
        """The tile sizes, warps and stages for a kernel, from the table of this chip."""
        return tiles_for(self.arch, kernel, **facts)

    def launch(
        self, kernel: Any, grid: tuple[int, ...], *, num_warps: int, num_stages: int, **arguments: Any
    ) -> None:
        """Starts `kernel` on `grid` programs and does not wait for it.

        Args:
            arguments: by the kernel's names: tensors, numbers, None, and the compile-time constants.
        """
        kernel[grid](**arguments, num_warps=num_warps, num_stages=num_stages)
