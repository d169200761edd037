"""Turns between sessions, and the order inside one.

Knows: sessions' accounts in tokens, requests' sizes and ages in ticks. Does not know: classes, who was
preempted, what a turn is for. `engine.waiting` says the rules, and what they promise.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from dataclasses import dataclass, field

from engine.request import Priority, Sequence

MOST_PASSES = 16
"""So many later requests of its own session may be taken before one that waits."""


class Turns:
    """The sessions of one class, by the round of their next turn.

    Invariant: a session stands in a round exactly while it has requests that are not set aside, and its
    balance is then 1 to `turn_tokens`.
    """

    def __init__(self, turn_tokens: int) -> None:
        self._turn_tokens = turn_tokens
        self._round = 0
        self._rounds: dict[int, OrderedDict[str, Session]] = {}
        self._numbers: list[int] = []
        """The keys of `_rounds`, as a heap."""

    def current(self) -> Session | None:
        """Whose turn it is."""
        self._skip_empty_rounds()
        return next(iter(self._rounds[self._round].values())) if self._numbers else None

    def update(self, session: Session) -> None:
        """Puts a session where it belongs, after its balance or its requests have changed."""
        self._skip_empty_rounds()
        requests = session.requests
        is_ready = requests.num_ready > 0
        is_over = session.balance <= 0 or not (is_ready or requests.num_aside)
        if session.round is not None and (is_over or not is_ready):
            del self._rounds[session.round][session.key[0]]
            session.round = None
        if is_over:
            session.has_turn = False
            session.balance = min(0, session.balance)
        if is_ready and session.round is None:
            self._stand(session)

    def _stand(self, session: Session) -> None:
        if session.has_turn:
            # It stepped out with all its requests set aside, and goes on where it was.
            self._join(session, self._round)
            self._rounds[self._round].move_to_end(session.key[0], last=False)
            return
        debt = max(0, session.owed - session.balance)
        rounds = debt // self._turn_tokens + 1
        session.balance = rounds * self._turn_tokens - debt
        session.owed = 0
        session.has_turn = True
        self._join(session, self._round + rounds)

    def _skip_empty_rounds(self) -> None:
        """Before anybody joins: else it would matter how often somebody has asked whose turn it is."""
        while self._numbers and not self._rounds[self._numbers[0]]:
            del self._rounds[heapq.heappop(self._numbers)]
        if self._numbers:
            self._round = self._numbers[0]

    def _join(self, session: Session, number: int) -> None:
        if number not in self._rounds:
            self._rounds[number] = OrderedDict()
            heapq.heappush(self._numbers, number)
        self._rounds[number][session.key[0]] = session
        session.round = number


class Requests:
    """One session's requests of one class: the highest response ratio first."""

    def __init__(self) -> None:
        self._by_size: dict[int, OrderedDict[str, Entry]] = {}
        """By the bit length of the service, oldest first; no list is empty."""
        self._num_listed = 0
        self._num_left = 0
        """How many have left these lists."""
        self._aside: set[str] = set()
        self._returned: OrderedDict[str, Entry] = OrderedDict()
        """Those that were set aside and are so no longer: they come before those in the lists."""

    @property
    def num_ready(self) -> int:
        """Those that are not set aside."""
        return self._num_listed + len(self._returned)

    @property
    def num_aside(self) -> int:
        return len(self._aside)

    def add(self, entry: Entry) -> None:
        entry.left_once_oldest = self._num_left + self._num_listed
        self._by_size.setdefault(entry.service.bit_length(), OrderedDict())[entry.sequence.id] = entry
        self._num_listed += 1

    def remove(self, entry: Entry) -> None:
        sequence_id, size = entry.sequence.id, entry.service.bit_length()
        if sequence_id in self._aside:
            self._aside.remove(sequence_id)
        elif self._returned.pop(sequence_id, None) is None:
            same_size = self._by_size[size]
            del same_size[sequence_id]
            if not same_size:
                del self._by_size[size]
            self._num_listed -= 1
            self._num_left += 1

    def set_aside(self, entry: Entry) -> None:
        self.remove(entry)
        self._aside.add(entry.sequence.id)

    def return_aside(self, entry: Entry) -> None:
        self._aside.remove(entry.sequence.id)
        self._returned[entry.sequence.id] = entry
        self._returned.move_to_end(entry.sequence.id, last=False)

    def first(self, now: int) -> Entry:
        """Whose turn it is. There must be one."""
        if self._returned:
            return next(iter(self._returned.values()))
        heads = [next(iter(same_size.values())) for same_size in self._by_size.values()]
        if len(heads) == 1:
            return heads[0]
        # Whoever passes somebody over passes the oldest over, too. All that were before the oldest have left,
        # so the rest of those that have left came after it; the removed ones count, which errs on its side.
        oldest = min(heads, key=lambda entry: entry.number)
        if self._num_left - oldest.left_once_oldest >= MOST_PASSES:
            return oldest
        return max(heads, key=lambda entry: (entry.ratio(now), -entry.number))


@dataclass(slots=True, eq=False)
class Session:
    """A session's account in one class, and what of it waits."""

    key: tuple[str, Priority]
    requests: Requests = field(default_factory=Requests)
    num_waiting: int = 0
    num_alive: int = 0
    balance: int = 0
    """Tokens it may still pay in its turn; below 0, its debt."""
    owed: int = 0
    """Settled since it last joined the ring's end."""
    round: int | None = None
    """Where it stands in its class."""
    has_turn: bool = False
    """It joined the ring, and its turn is not over."""


@dataclass(slots=True, eq=False)
class Entry:
    """One that waits."""

    sequence: Sequence
    session: Session
    number: int
    """Order of arrival."""
    tick: int
    """Of its arrival."""
    service: int = field(init=False)
    """Tokens that it computes before its first new one."""
    left_once_oldest: int = 0
    """How many will have left its session's lists when all before it have, if nobody passes it over."""
    was_put_back: bool = False

    def __post_init__(self) -> None:
        self.service = self.sequence.num_tokens

    def ratio(self, now: int) -> float:
        """Grows as the response ratio does. The tick of its arrival counts, so that of those that come
        together the shortest is first."""
        return (now - self.tick + 1) / self.service
