"""What crosses between host and device in a tick: one copy there, one copy back.

Knows: how arrays are packed into bytes, when the bytes may be overwritten. Does not know: what they mean.

A copy costs the host a few microseconds however small it is, and one of memory that is not pinned makes it
wait: so everything that a tick needs is packed into one pinned buffer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from engine.gpu.driver import Driver

Array = NDArray[Any]

ALIGNMENT = 16
"""Bytes. Triton compiles a kernel anew for pointers that are no multiples of it."""

FIRST_BYTES = 1 << 18
"""Enough for thousands of tokens; what is bigger makes the buffers grow."""

_TORCH: dict[np.dtype[Any], torch.dtype] = {
    np.dtype(np.int64): torch.int64,
    np.dtype(np.int32): torch.int32,
    np.dtype(np.float32): torch.float32,
}
_NUMPY = {theirs: ours for ours, theirs in _TORCH.items()}


class Staging:
    """The way to the device.

    Two buffers on the host take turns, so that one can be filled while the other is still being copied. One
    on the device is enough: what reads it was asked for before the next copy is.
    """

    def __init__(self, driver: Driver, device: torch.device) -> None:
        self._driver = driver
        self._hosts = [driver.host_memory(FIRST_BYTES) for _ in range(2)]
        self._copied = [driver.event() for _ in range(2)]
        self._on_device = torch.empty(FIRST_BYTES, dtype=torch.uint8, device=device)
        self._turn = 0

    def send(self, arrays: Mapping[str, Array]) -> dict[str, torch.Tensor]:
        """The same on the device, valid until the next call. Waits only for the copy before the last.

        Args:
            arrays: one-dimensional, of int64, int32 or float32.

        Moves: the arrays' bytes.
        """
        starts, end = [], 0
        for array in arrays.values():
            starts.append(end)
            end += -(-array.nbytes // ALIGNMENT) * ALIGNMENT
        turn = self._turn = 1 - self._turn
        self._copied[turn].synchronize()
        self._make_room(turn, end)
        # One view per dtype, of which parts are taken: a part costs a microsecond, a view several.
        host, on_device = self._hosts[turn].numpy(), self._on_device
        here = {dtype: host.view(dtype) for dtype in _TORCH}
        there = {dtype: on_device.view(theirs) for dtype, theirs in _TORCH.items()}
        parts: dict[str, torch.Tensor] = {}
        for start, (name, array) in zip(starts, arrays.items(), strict=True):
            first = start // array.itemsize
            here[array.dtype][first : first + len(array)] = array
            parts[name] = there[array.dtype][first : first + len(array)]
        self._driver.copy(self._hosts[turn][:end], on_device[:end])
        self._copied[turn].record()
        return parts

    def _make_room(self, turn: int, num_bytes: int) -> None:
        # What is replaced stays allocated until the work that was asked of it is done: torch sees to that.
        if num_bytes > len(self._hosts[turn]):
            self._hosts[turn] = self._driver.host_memory(_roomy(num_bytes))
        if num_bytes > len(self._on_device):
            self._on_device = self._on_device.new_empty(_roomy(num_bytes))


class Results:
    """The way back."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._host = driver.host_memory(FIRST_BYTES)
        self._done = driver.event()

    def fetch(self, tensors: Sequence[torch.Tensor]) -> list[Array]:
        """Copies of contiguous `tensors`, each of a dtype at most as wide as those before it. Waits for all
        that the device was asked for: the one wait of a tick.

        Moves: the tensors' bytes.
        """
        parts = [tensor.view(-1).view(torch.uint8) for tensor in tensors]
        packed = parts[0] if len(parts) == 1 else torch.cat(parts)
        if len(packed) > len(self._host):
            self._host = self._driver.host_memory(_roomy(len(packed)))
        self._driver.copy(packed, self._host[: len(packed)])
        self._done.record()
        self._done.synchronize()
        everything = self._host.numpy()[: len(packed)].copy()
        ends = np.cumsum([len(part) for part in parts])
        return [
            piece.view(_NUMPY[tensor.dtype]).reshape(tensor.shape)
            for piece, tensor in zip(np.split(everything, ends[:-1]), tensors, strict=True)
        ]


def _roomy(num_bytes: int) -> int:
    """The next power of two, so that sizes that creep up don't allocate each time."""
    return 1 << (num_bytes - 1).bit_length()
