"""How many may wait, and when there will be room for more.

Knows: sessions, counts, when places became free. Does not know: who waits in a place, why, ticks.

May be used from any thread. Times are seconds of one monotonic clock, given by the caller.
"""

from __future__ import annotations

import threading
from collections import Counter, deque
from typing import NamedTuple

from engine.request import QueueFull

_REMEMBERED = 64
"""Freed places from whose times the rate is measured."""
_UNKNOWN_RATE_S = 1.0
"""Seconds to wait where nothing was measured yet: the queue has just filled for the first time."""
_LONGEST_WAIT_S = 600.0


class Room(NamedTuple):
    """What one session may still have of the queue."""

    limit: int
    """Places that it may take at most."""
    left: int
    """Of these, those that it could take now."""
    free_in: float
    """Seconds in which, at the rate of the recent past, the places that it has now will be free again."""


class QueuePlaces:
    """The places of a queue. A sequence takes one when it is submitted and frees it when it first enters, or
    ends before.

    Args:
        places: how many there are.
        per_session: how many of them one session may take.
    """

    def __init__(self, places: int, per_session: int) -> None:
        self._places = places
        self._per_session = per_session
        self._taken: Counter[str] = Counter()
        self._num_taken = 0
        self._freed: deque[float] = deque(maxlen=_REMEMBERED)
        """When places became free, by a clock that stands while none is taken: of a time in which nobody
        waited, nobody's wait should be made."""
        self._stood_at = 0.0
        """That clock's time when it last began to run."""
        self._runs_since = 0.0
        self._lock = threading.Lock()

    @property
    def num_taken(self) -> int:
        return self._num_taken

    def of_sessions(self) -> dict[str, int]:
        """Places by session."""
        with self._lock:
            return dict(self._taken)

    def room(self, session: str, now: float) -> Room:
        with self._lock:
            mine = self._taken[session]
            limit = min(self._places, self._per_session)
            left = max(0, min(limit - mine, self._places - self._num_taken))
            before = min(mine * len(self._taken), self._num_taken)  # the others get their turns in between
            return Room(limit, left, self._wait_for(before, now) if mine else 0.0)

    def take(self, session: str, count: int, now: float) -> None:
        """Takes `count` places, or none.

        Raises:
            QueueFull: there are fewer, or the session has too many. A request for more answers than there
                could ever be places for gets this too.
        """
        with self._lock:
            mine = self._taken[session]
            if mine + count > self._per_session:
                excess = mine + count - self._per_session
                # The others get their turns in between.
                wait = self._wait_for(excess * max(1, len(self._taken)), now)
                raise QueueFull(mine, self._per_session, of_session=True, retry_after=wait)
            if self._num_taken + count > self._places:
                wait = self._wait_for(self._num_taken + count - self._places, now)
                raise QueueFull(self._num_taken, self._places, of_session=False, retry_after=wait)
            if not self._num_taken:
                self._runs_since = now
            self._taken[session] += count
            self._num_taken += count

    def free(self, session: str, now: float) -> None:
        """Frees one place."""
        with self._lock:
            self._freed.append(self._clock(now))
            self._num_taken -= 1
            if not self._num_taken:
                self._stood_at = self._freed[-1]
            self._taken[session] -= 1
            if not self._taken[session]:
                del self._taken[session]

    def _clock(self, now: float) -> float:
        # Threads read their times before they come here, so one may be a little behind.
        return self._stood_at + (max(0.0, now - self._runs_since) if self._num_taken else 0.0)

    def _wait_for(self, count: int, now: float) -> float:
        """Seconds in which `count` places will be freed, at the rate of the recent past. While nothing is
        freed for longer than usual, the rate gets lower."""
        if len(self._freed) < 2:
            return _UNKNOWN_RATE_S
        usual = (self._freed[-1] - self._freed[0]) / (len(self._freed) - 1)
        return min(count * max(usual, self._clock(now) - self._freed[-1]), _LONGEST_WAIT_S)
