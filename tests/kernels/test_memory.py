"""Memory that is taken only as it is written to."""

from __future__ import annotations

import resource
import sys
from pathlib import Path

import pytest
import torch

from kernels import memory


@pytest.mark.parametrize("shape", [(3, 5), (1,), (1000, 70)])
def test_it_is_zero_and_writable(shape: tuple[int, ...]) -> None:
    array = memory.zeros(shape, torch.float32)
    assert torch.equal(array, torch.zeros(shape))
    array += 1
    assert torch.equal(array, torch.ones(shape))


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_a_gigabyte_that_nobody_writes_to_takes_no_memory() -> None:
    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()

    before = resident()
    array = memory.zeros((2**28,), torch.float32)
    array[-1] = 1
    assert resident() - before < 2**26
    assert array[-1] == 1
