"""The bound on waiting that `engine.waiting` states, in its own words and numbers.

It is checked over random lives of a queue, in which sessions flood, leave and come back, and sequences are
preempted, set aside, aborted, and dearer or cheaper than was paid for them.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from engine.request import Priority, Sequence
from engine.turns import MOST_PASSES
from engine.waiting import WaitingQueue
from tests.engine.naive_queue import NaiveQueue, make_sequence

LARGEST_COST = 40
SESSIONS = "abcde"


@dataclass
class Watched:
    """A request that came while its session had nothing waiting in its class, and what happened since."""

    sequence: Sequence
    debt: int
    there: set[str]
    """The other sessions of its class that had something waiting when it came."""
    paid: dict[str, int] = field(default_factory=dict)
    """By session of its class: what was paid before it."""
    settled: int = 0
    num_passes: int = 0
    num_of_class: int = 0
    num_of_other_class: int = 0

    def check(self, turn_tokens: int) -> None:
        own = self.sequence.request.session
        rounds = (self.debt + self.paid.get(own, 0) + self.settled) // turn_tokens + 1
        others = {session: tokens for session, tokens in self.paid.items() if session != own}
        most_in_a_turn = turn_tokens + LARGEST_COST - 1
        assert all(tokens <= rounds * most_in_a_turn for tokens in others.values())
        if rounds == 1:
            assert set(others) <= self.there
        assert self.num_passes <= MOST_PASSES
        if self.sequence.request.priority is Priority.INTERACTIVE:
            assert self.num_of_other_class <= self.num_of_class // 7 + 1
        else:
            assert self.num_of_other_class <= 7 * (self.num_of_class + 1)


class World:
    """A queue, a naive one that tells what sessions owe, and the requests that the bound is about."""

    def __init__(self, turn_tokens: int) -> None:
        self.turn_tokens = turn_tokens
        self.queue, self.naive = WaitingQueue(turn_tokens), NaiveQueue(turn_tokens)
        self.taken: list[Sequence] = []
        self.watched: dict[Sequence, Watched] = {}
        self.count = 0

    def add(self, session: str, size: int, priority: Priority) -> None:
        self.count += 1
        sequence = make_sequence(f"{session}{self.count}", session, size, priority)
        there = self.naive.sessions_waiting(priority)
        if session not in there:
            self.watched[sequence] = Watched(sequence, self.naive.account(sequence).debt, there)
        self.queue.add(sequence)
        self.naive.add(sequence)

    def take(self, cost: int) -> None:
        if (sequence := self.queue.select()) is None:
            return
        if watched := self.watched.pop(sequence, None):
            watched.check(self.turn_tokens)
        if sequence not in self.naive.put_back_ones:
            for other in self.watched.values():
                self.note(other, sequence.request.session, sequence.request.priority, cost)
        self.queue.take(sequence, cost)
        self.naive.take(sequence, cost)
        self.taken.append(sequence)

    @staticmethod
    def note(watched: Watched, session: str, priority: Priority, cost: int) -> None:
        request = watched.sequence.request
        if request.priority is not priority:
            watched.num_of_other_class += 1
            return
        watched.num_of_class += 1
        watched.paid[session] = watched.paid.get(session, 0) + cost
        watched.num_passes += request.session == session

    def settle(self, which: int, cost: int) -> None:
        sequence = self.taken.pop(which % len(self.taken))
        for watched in self.watched.values():
            request = watched.sequence.request
            if (request.session, request.priority) == (sequence.request.session, sequence.request.priority):
                watched.settled += max(0, cost)
        self.queue.settle(sequence, cost)
        self.naive.settle(sequence, cost)

    def put_back(self, which: int) -> None:
        sequence = self.taken.pop(which % len(self.taken))
        self.queue.put_back(sequence)
        self.naive.put_back(sequence)

    def remove(self, which: int) -> None:
        waiting = self.naive.waiting()
        sequence = waiting[which % len(waiting)]
        self.watched.pop(sequence, None)
        self.queue.remove(sequence)
        self.naive.remove(sequence)

    def set_aside(self) -> None:
        if sequence := self.queue.select():
            self.watched.pop(sequence, None)
            self.queue.set_aside(sequence)
            self.naive.set_aside(sequence)

    def return_aside(self) -> None:
        self.queue.return_aside()
        self.naive.return_aside()
        self.queue.tick()
        self.naive.now += 1


COSTS = st.integers(1, LARGEST_COST) | st.just(LARGEST_COST)
ACTS = st.one_of(
    st.tuples(
        st.just("add"), st.sampled_from(SESSIONS), st.sampled_from((1, 5, 9, 64)), st.sampled_from(Priority)
    ),
    st.tuples(st.just("flood"), st.sampled_from(SESSIONS), st.integers(2, 30)),
    st.tuples(st.just("take"), st.lists(COSTS, min_size=1, max_size=12)),
    st.tuples(st.just("settle"), st.integers(0, 50), st.integers(-60, 120)),
    st.tuples(st.just("put_back"), st.integers(0, 50)),
    st.tuples(st.just("remove"), st.integers(0, 50)),
    st.tuples(st.just("set_aside")),
    st.tuples(st.just("return_aside")),
)


@given(turn_tokens=st.sampled_from((1, 10, 40, 64)), acts=st.lists(ACTS, min_size=10, max_size=60))
@settings(max_examples=400)
def test_nobody_waits_longer_than_is_promised(turn_tokens: int, acts: list[tuple]) -> None:
    world = World(turn_tokens)
    for act in acts:
        match act:
            case ("flood", session, count):
                for _ in range(count):
                    world.add(session, 5, Priority.INTERACTIVE)
            case ("take", costs):
                for cost in costs:
                    world.take(cost)
            case ("settle" | "put_back" as name, *arguments):
                if world.taken:
                    getattr(world, name)(*arguments)
            case ("remove", which):
                if world.naive.waiting():
                    world.remove(which)
            case (name, *arguments):
                getattr(world, name)(*arguments)
    world.return_aside()
    while world.queue.select():
        world.take(LARGEST_COST)
    assert not world.watched


def test_the_bound_is_reached_and_not_only_kept() -> None:
    """k sessions, each a token short of the end of its turn, each with the largest cost: k * (Q + C - 1)."""
    queue = WaitingQueue(turn_tokens=10)
    for session in "abcd":
        for i in range(20):
            queue.add(make_sequence(f"{session}{i}", session))
    queue.add(late := make_sequence("z", "z"))
    paid, left = 0, dict.fromkeys("abcd", 10)
    while (sequence := queue.select()) is not late:
        assert sequence is not None
        cost = 1 if left[sequence.request.session] > 1 else LARGEST_COST
        left[sequence.request.session] -= cost
        queue.take(sequence, cost)
        paid += cost
    assert paid == 4 * (10 + LARGEST_COST - 1)
