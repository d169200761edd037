"""What a runner asks of CUDA beside tensors: pinned memory, copies that nobody waits for, events, graphs.

Knows: torch.cuda, which drives AMD's GPUs by the same names. Does not know: what is copied, what is captured.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch


class Event(Protocol):
    """A point in the device's work."""

    def record(self) -> None:
        """Puts the point behind all that was asked for so far."""
        ...

    def synchronize(self) -> None:
        """Waits until the device has passed it; not at all where it was never recorded."""
        ...


class Driver(Protocol):
    """The seam at which tests stand in for a GPU."""

    def bind(self) -> None:
        """Makes the device the calling thread's own: launches and events go to whichever that is."""
        ...

    def host_memory(self, num_bytes: int) -> torch.Tensor:
        """[num_bytes] u8 on the host, from which and to which a device copies by itself."""
        ...

    def copy(self, source: torch.Tensor, target: torch.Tensor) -> None:
        """Asks for a copy between `host_memory` and the device. Neither may be touched until it is done."""
        ...

    def event(self) -> Event: ...

    def capture(self, run: Callable[[], None]) -> Callable[[], None]:
        """Runs it once, then records what it asks of the device. The result asks for the same again, on
        the same memory. Results share what memory they need beside that: only one may be under way, and
        nothing that a run leaves in tensors of its own outlives it.
        """
        ...

    def synchronize(self) -> None:
        """Waits for all work of the device.

        Raises:
            RuntimeError: it has failed and can do no more.
        """
        ...


class Cuda:
    """Implements `Driver`."""

    def __init__(self, device: torch.device) -> None:
        index = torch.cuda.current_device() if device.index is None else device.index
        self._device = torch.device(device.type, index)
        self._side = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
        self._pool = torch.cuda.graph_pool_handle()

    def bind(self) -> None:
        torch.cuda.set_device(self._device)

    def host_memory(self, num_bytes: int) -> torch.Tensor:
        return torch.empty(num_bytes, dtype=torch.uint8, pin_memory=True)

    def copy(self, source: torch.Tensor, target: torch.Tensor) -> None:
        target.copy_(source, non_blocking=True)

    def event(self) -> Event:
        return torch.cuda.Event()  # type: ignore[no-untyped-call]

    def capture(self, run: Callable[[], None]) -> Callable[[], None]:
        # The run before the capture compiles kernels and lets libraries make what they need once per
        # stream: nothing of that may happen within a capture.
        self._side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._side):
            run()
        torch.cuda.current_stream().wait_stream(self._side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool, stream=self._side):
            run()
        return graph.replay

    def synchronize(self) -> None:
        torch.cuda.synchronize(self._device)
