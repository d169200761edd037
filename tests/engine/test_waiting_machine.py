"""Random life of the waiting queue beside a naive one with the same rules: at every moment both select the
same sequence."""

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from engine.request import Priority, Sequence
from engine.waiting import WaitingQueue
from tests.engine.naive_queue import NaiveQueue, make_sequence

SESSIONS = ("a", "b", "c")
SIZES = st.sampled_from((1, 2, 3, 5, 8, 9, 30, 33, 100))


class QueueMachine(RuleBasedStateMachine):
    @initialize(turn_tokens=st.sampled_from((1, 10, 64)))
    def start(self, turn_tokens: int) -> None:
        self.queue, self.naive = WaitingQueue(turn_tokens), NaiveQueue(turn_tokens)
        self.taken: list[Sequence] = []
        self.count = 0

    @rule(
        session=st.sampled_from(SESSIONS),
        size=SIZES,
        priority=st.sampled_from(Priority),
        many=st.integers(1, 5),
    )
    def add(self, session: str, size: int, priority: Priority, many: int) -> None:
        for _ in range(many):
            self.count += 1
            sequence = make_sequence(f"{session}{self.count}", session, size, priority)
            self.queue.add(sequence)
            self.naive.add(sequence)

    @rule(cost=st.integers(1, 150), most=st.integers(1, 20))
    def take(self, cost: int, most: int) -> None:
        for _ in range(most):
            if sequence := self.queue.select():
                assert sequence is self.naive.select()
                self.queue.take(sequence, cost)
                self.naive.take(sequence, cost)
                self.taken.append(sequence)

    @precondition(lambda self: self.queue.select())
    @rule()
    def set_aside(self) -> None:
        sequence = self.queue.select()
        self.queue.set_aside(sequence)
        self.naive.set_aside(sequence)

    @rule()
    def return_aside(self) -> None:
        self.queue.return_aside()
        self.naive.return_aside()

    @precondition(lambda self: self.taken)
    @rule(data=st.data())
    def put_back(self, data: st.DataObject) -> None:
        sequence = self.taken.pop(data.draw(st.integers(0, len(self.taken) - 1)))
        self.queue.put_back(sequence)
        self.naive.put_back(sequence)

    @precondition(lambda self: self.taken)
    @rule(data=st.data(), cost=st.integers(-100, 300))
    def settle(self, data: st.DataObject, cost: int) -> None:
        sequence = self.taken.pop(data.draw(st.integers(0, len(self.taken) - 1)))
        self.queue.settle(sequence, cost)
        self.naive.settle(sequence, cost)

    @precondition(lambda self: len(self.queue))
    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        waiting = self.naive.waiting()
        sequence = waiting[data.draw(st.integers(0, len(waiting) - 1))]
        self.queue.remove(sequence)
        self.naive.remove(sequence)

    @rule(ticks=st.integers(1, 30))
    def tick(self, ticks: int) -> None:
        for _ in range(ticks):
            self.queue.tick()
        self.naive.now += ticks

    @invariant()
    def both_agree(self) -> None:
        waiting = self.naive.waiting()
        assert self.queue.select() is self.naive.select()
        assert len(self.queue) == len(waiting)
        assert all(sequence.id in self.queue for sequence in waiting)
        assert not any(sequence.id in self.queue for sequence in self.taken)
        for session in SESSIONS:
            assert self.queue.num_of_session(session) == sum(s.request.session == session for s in waiting)

    def teardown(self) -> None:
        """When all have ended, nothing is remembered of anybody."""
        if not hasattr(self, "queue"):
            return
        for sequence in self.naive.waiting():
            self.queue.remove(sequence)
        for sequence in self.taken:
            self.queue.settle(sequence, 1000)
        assert not self.queue._sessions
        assert not self.queue._alive
        assert self.queue.select() is None


QueueMachine.TestCase.settings = settings(max_examples=100, stateful_step_count=60)
TestQueue = QueueMachine.TestCase
