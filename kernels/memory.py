"""Memory for arrays of many megabytes on a CPU.

Knows: how the operating system hands out pages. Does not know: what is stored.
"""

from __future__ import annotations

import contextlib
import math
import mmap

import torch


def zeros(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """As torch.zeros on the CPU, with two differences: memory is taken only as it is written to, and it
    lies on huge pages where the system has them, so that a reader who jumps, or streams faster than
    addresses can be looked up, does not wait for page tables. The shape has no zero in it."""
    # Python's default, shared memory, gets no huge pages on most systems.
    private = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    memory = mmap.mmap(-1, math.prod(shape) * dtype.itemsize, flags=private)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):  # a kernel built without them
            memory.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(memory, dtype=dtype).view(shape)
