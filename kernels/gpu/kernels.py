"""All Triton kernels as one object behind `kernels.Kernels`.

Knows: which module has which kernel. Does not know: how any works.
"""

from __future__ import annotations

from functools import partial

import torch

from kernels.gpu import attention, edits, linear, logprobs, norms, rope, sampling
from kernels.gpu.device import Device


class GpuKernels:
    """Implements `kernels.Kernels` on one chip."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self.rms_norm = partial(norms.rms_norm, device)
        self.add_rms_norm = partial(norms.add_rms_norm, device)
        self.silu_mul = partial(norms.silu_mul, device)
        self.rope_and_cache = partial(rope.rope_and_cache, device)
        self.paged_attention = partial(attention.paged_attention, device)
        self.Linear = partial(linear.Linear, device)
        self.sample = partial(sampling.sample, device)
        self.edit_logits = partial(edits.edit_logits, device)
        self.logprobs = partial(logprobs.logprobs, device)


def for_device(device: torch.device, *, batch_invariant: bool) -> GpuKernels:
    """Raises:
    ValueError: no Triton kernel can run there.
    """
    return GpuKernels(Device.of(device, batch_invariant=batch_invariant))
