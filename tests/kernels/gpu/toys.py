"""Kernels that misbehave, to see that it is noticed."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def greedy(x, BLOCK: tl.constexpr):
    """Keeps BLOCK numbers in registers, however many those are."""
    at = tl.arange(0, BLOCK)
    numbers = tl.load(x + at)
    tl.store(x + at, numbers - tl.max(numbers))


@triton.jit(do_not_specialize=["free"])
def counting(x, number, free):
    tl.store(x, number + free)
