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


@triton.jit
def narrow(x, dtype: tl.constexpr):
    """A tile of fp32 -> what a `readable` tensor of this element type stores: the nearest number, the even
    one of two equally near. In e4m3 what is beyond +-448 becomes that, and NaN stays NaN."""
    # As in `widen`, bytes are e4m3.
    if dtype == tl.uint8:
        x = _encode(x)
    elif dtype == tl.float8e4nv:
        x = tl.clamp(x, -448.0, 448.0, propagate_nan=tl.PropagateNan.ALL)
    return x.to(dtype)


@triton.jit
def _encode(x):
    """fp32 -> bits of e4m3."""
    bits = x.to(tl.uint32, bitcast=True)
    magnitude = bits & 0x7FFFFFFF
    clamped = tl.minimum(magnitude, 0x43E00000)  # 448
    # Twenty bits of the mantissa go, a carry runs into the exponent, and the exponents differ by 120.
    normal = ((clamped + 0x7FFFF + ((clamped >> 20) & 1)) >> 20) - (120 << 3)
    # Below 2^-6 e4m3 has steps of 2^-9, and so has fp32 from 2^14 on: there the addition rounds as we need.
    subnormal = (clamped.to(tl.float32, bitcast=True) + 16384.0).to(tl.uint32, bitcast=True) - 0x46800000
    code = tl.where(clamped < 0x3C800000, subnormal, normal)
    code = tl.where(magnitude > 0x7F800000, 0x7F, code)
    return (code | ((bits >> 24) & 0x80)).to(tl.uint8)
