"""Whose turn it is on one socket.

Knows: lanes, each FIFO, and limits. Does not know: messages, responses, what a turn does.

A lane's next turn begins when the one before has left. Turns of different lanes run at once, up to
`max_active`; beyond that they wait, in the order in which they came.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from app.protocol.errors import ApiError


@dataclass(frozen=True, slots=True)
class Limits:
    max_active: int = 16
    """Responses that run at once."""
    max_lanes: int = 32
    """Named lanes with something to do."""
    max_waiting: int = 64
    """Turns that wait for their lane or for a free place."""
    max_waiting_bytes: int = 4 * 1024 * 1024
    """Size of the messages of all these turns, and of what waits to steer."""
    max_steers: int = 16
    """What may wait to steer one response."""
    max_looks: int = 16
    """Questions for statistics that wait for an answer."""


class LaneTurn(Protocol):
    @property
    def lane(self) -> str | None:
        """Its lane's name; the lane without a name is one too."""
        ...

    @property
    def size(self) -> int:
        """Bytes that it takes while it waits."""
        ...

    @property
    def is_dropped(self) -> bool:
        """It is not to run: when it is next, it is given out, and the one after it is next."""
        ...


AnyTurn = TypeVar("AnyTurn", bound=LaneTurn)


@dataclass(slots=True)
class _Lane(Generic[AnyTurn]):
    active: AnyTurn | None = None
    waiting: deque[AnyTurn] = field(default_factory=deque)


class Lanes(Generic[AnyTurn]):
    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._lanes: dict[str | None, _Lane[AnyTurn]] = {}
        """Those with something to do."""
        self._ready: deque[str | None] = deque()
        """Lanes whose next turn could begin if a place were free. Each at most once."""
        self.waiting_bytes = 0
        self.num_active = 0
        self.num_waiting = 0

    @property
    def is_idle(self) -> bool:
        """Nothing runs or waits."""
        return not (self._lanes or self._ready or self.num_active or self.num_waiting or self.waiting_bytes)

    def check_room(self, turn: AnyTurn, other_bytes: int = 0) -> None:
        """`other_bytes` count as waiting, too.

        Raises:
            ApiError: there are too many lanes, or too much waits.
        """
        limits = self._limits
        named = sum(name is not None for name in self._lanes)
        if turn.lane is not None and turn.lane not in self._lanes and named >= limits.max_lanes:
            raise ApiError(
                400,
                f"stream_id: {named} named lanes of this connection are busy, allowed: {limits.max_lanes}",
                code="websocket_stream_limit_reached",
                param="stream_id",
            )
        waiting = self.waiting_bytes + other_bytes
        if self.num_waiting >= limits.max_waiting or waiting + turn.size > limits.max_waiting_bytes:
            raise ApiError(
                429,
                f"this connection has {self.num_waiting} requests of {waiting} bytes waiting, "
                f"allowed: {limits.max_waiting} of {limits.max_waiting_bytes} bytes in all",
                code="too_many_pending_requests",
                kind="rate_limit_error",
            )

    def of(self, name: str | None) -> Iterator[AnyTurn]:
        """What runs and what waits in a lane, in order."""
        if lane := self._lanes.get(name):
            if lane.active is not None:
                yield lane.active
            yield from lane.waiting

    def enqueue(self, turn: AnyTurn) -> list[AnyTurn]:
        """Returns the turns that are to begin, or are dropped, now."""
        lane = self._lanes.setdefault(turn.lane, _Lane())
        if lane.active is None and not lane.waiting:
            self._ready.append(turn.lane)
        lane.waiting.append(turn)
        self.num_waiting += 1
        self.waiting_bytes += turn.size
        return self._advance()

    def leave(self, turn: AnyTurn) -> list[AnyTurn]:
        """A turn is over. Returns those that are to begin, or are dropped, now.

        Raises:
            RuntimeError: it does not run.
        """
        lane = self._running(turn)
        lane.active = None
        self.num_active -= 1
        if lane.waiting:
            self._ready.append(turn.lane)
        else:
            del self._lanes[turn.lane]
        return self._advance()

    def hand_over(self, turn: AnyTurn, following: AnyTurn) -> None:
        """A turn is over, and its place goes to another one of its lane, before all that wait.

        Raises:
            RuntimeError: it does not run.
        """
        self._running(turn).active = following

    def _running(self, turn: AnyTurn) -> _Lane[AnyTurn]:
        lane = self._lanes.get(turn.lane)
        if lane is None or lane.active is not turn:
            raise RuntimeError(f"a turn ended in the lane {turn.lane!r}, but another one runs there, or none")
        return lane

    def _advance(self) -> list[AnyTurn]:
        turns: list[AnyTurn] = []
        while self._ready and self.num_active < self._limits.max_active:
            name = self._ready.popleft()
            lane = self._lanes[name]
            while lane.waiting and lane.active is None:
                turn = lane.waiting.popleft()
                self.num_waiting -= 1
                self.waiting_bytes -= turn.size
                turns.append(turn)
                if not turn.is_dropped:
                    lane.active = turn
                    self.num_active += 1
            if lane.active is None:
                del self._lanes[name]
        return turns
