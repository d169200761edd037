"""Numbers of 8 bits, e4m3 (Micikevicius et al., 2022): one sign, four exponent and three mantissa bits, no
infinity.

Knows: which chip converts them by an instruction, and how integer arithmetic does it on the others. Does not
know: caches, what the numbers mean.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.gpu.device import Device


def readable(device: Device, numbers: Tensor) -> Tensor:
    """What a kernel gets of a tensor: where the chip knows no e4m3, its bytes. Shares the memory."""
    if numbers.dtype == torch.float8_e4m3fn and not device.has_fp8:
        return numbers.view(torch.uint8)
    return numbers


@triton.jit
def widen(x, dtype: tl.constexpr):
    """A tile as it was loaded from a `readable` tensor -> the same numbers in a wider float `dtype`."""
    # Bytes are e4m3 here: nothing else of 8 bits is ever widened.
    if x.dtype == tl.uint8:
        x = _decode(x)
    return x.to(dtype)


@triton.jit
def _decode(byte):
    """Bits of e4m3 -> fp16, exactly, NaN included."""
    bits = byte.to(tl.uint16)
    magnitude = bits & 0x7F
    # In the exponent's place of an fp16 the four bits mean 2^-8 of what they do in e4m3, and so do the
    # subnormal ones. Only all ones are NaN, which for an fp16 they are not.
    magnitude = tl.where(magnitude == 0x7F, 0x7E00, magnitude << 7).to(tl.uint16)
    return (magnitude | ((bits & 0x80) << 8)).to(tl.float16, bitcast=True) * 256.0
