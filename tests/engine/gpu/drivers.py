"""What stands in for CUDA where there is none, and what watches either.

`Eager` captures a run by remembering it, and replays it by running it again: the same function over the same
tensors. Copies are as on a device. Until an event behind it was waited for, nobody may have touched what is
copied to the device, and nothing has come of what is copied to the host.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from engine.gpu.driver import Cuda, Driver, Event


@dataclass(eq=False)
class _Copy:
    """One that was asked for, and what the source held then."""

    source: torch.Tensor
    target: torch.Tensor
    is_to_host: bool
    content: torch.Tensor

    def arrive(self) -> None:
        if self.is_to_host:
            self.target.copy_(self.content)
        else:
            assert torch.equal(self.source, self.content), "overwritten while it was being copied"


class Eager:
    """Implements `Driver` on the CPU."""

    def __init__(self) -> None:
        self._hosts: set[int] = set()
        self.under_way: list[_Copy] = []

    def bind(self) -> None:
        pass

    def host_memory(self, num_bytes: int) -> torch.Tensor:
        memory = torch.full((num_bytes,), 0xA5, dtype=torch.uint8)
        self._hosts.add(memory.data_ptr())
        return memory

    def copy(self, source: torch.Tensor, target: torch.Tensor) -> None:
        is_to_host = target.data_ptr() in self._hosts
        target.copy_(torch.full_like(target, 0xA5) if is_to_host else source)
        self.under_way.append(_Copy(source, target, is_to_host, source.clone()))

    def event(self) -> Event:
        return _EagerEvent(self)

    def capture(self, run: Callable[[], None]) -> Callable[[], None]:
        run()
        return run

    def synchronize(self) -> None:
        self.arrive(self.under_way)

    def arrive(self, copies: list[_Copy]) -> None:
        for copy in self.under_way:
            if copy in copies:
                copy.arrive()
        self.under_way = [copy for copy in self.under_way if copy not in copies]


@dataclass
class _EagerEvent:
    driver: Eager
    before: list[_Copy] = field(default_factory=list)

    def record(self) -> None:
        self.before = [*self.driver.under_way]

    def synchronize(self) -> None:
        self.driver.arrive(self.before)


class Watched:
    """Implements `Driver` by another one, and counts."""

    def __init__(self, inner: Driver) -> None:
        self._inner = inner
        self._hosts: set[int] = set()
        self.sent: list[int] = []
        """Bytes of each copy to the device."""
        self.fetched: list[int] = []
        """Bytes of each copy to the host."""
        self.replayed: list[int] = []
        """For each replay, which capture it was of."""
        self.num_captures = 0
        self.num_allocated = 0
        """Host buffers."""

    def bind(self) -> None:
        self._inner.bind()

    def host_memory(self, num_bytes: int) -> torch.Tensor:
        self.num_allocated += 1
        memory = self._inner.host_memory(num_bytes)
        self._hosts.add(memory.data_ptr())
        return memory

    def copy(self, source: torch.Tensor, target: torch.Tensor) -> None:
        is_from_host, is_to_host = source.data_ptr() in self._hosts, target.data_ptr() in self._hosts
        assert is_from_host != is_to_host
        (self.sent if is_from_host else self.fetched).append(source.numel())
        self._inner.copy(source, target)

    def event(self) -> Event:
        return self._inner.event()

    def capture(self, run: Callable[[], None]) -> Callable[[], None]:
        index, replay = self.num_captures, self._inner.capture(run)
        self.num_captures += 1

        def counted() -> None:
            self.replayed.append(index)
            replay()

        return counted

    def synchronize(self) -> None:
        self._inner.synchronize()


def driver_for(device: torch.device) -> Watched:
    return Watched(Cuda(device) if device.type == "cuda" else Eager())
