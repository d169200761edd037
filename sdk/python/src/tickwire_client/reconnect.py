"""When to try again after a connection was lost.

Knows: the delays. Does not know: clocks, sockets.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Reconnect:
    """Delays that double, each cut by chance to between half of it and all of it: clients that were cut
    together must not come back together. The defaults go on for 26 to 52 seconds, within the time that a
    server keeps an answer for.

    Args:
        first: seconds.
        longest: seconds.
        attempts: after so many in vain there is no further one.
        rng: where chance comes from.
    """

    first: float = 0.1
    longest: float = 8.0
    attempts: int = 12
    rng: random.Random = field(default_factory=random.Random)

    def delays(self) -> Iterator[float]:
        """Seconds to wait before each attempt."""
        for attempt in range(self.attempts):
            delay: float = min(self.longest, self.first * 2**attempt)
            yield delay * self.rng.uniform(0.5, 1.0)
