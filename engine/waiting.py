"""Who comes next of those that wait.

Knows: sequences, their sessions, priorities and sizes, and how many ticks they have waited. Does not know:
blocks, rows, budgets, clocks. It is told what each one costs when it is taken, in tokens.

The order, from the outside in:

1. Those that were put back (preempted) come first, the one put back last before the others.
2. Of the two classes, INTERACTIVE comes before BATCH; but while both wait, at least one of every 8 takes
   is BATCH.
3. Inside a class the sessions take turns: deficit round robin (Shreedhar and Varghese, SIGCOMM 1995) in the
   surplus variant, where a turn may end in debt. Sessions stand in a ring. The one whose turn it is takes
   requests while its balance is above 0; then it goes to the ring's end, with Q more. A session whose debt is
   more than Q sits rounds out, and is not looked at meanwhile. Whoever comes, or comes back, joins at the
   ring's end with Q; what was left of an earlier turn is lost, a debt is not, as long as any of the session's
   sequences lives. What is settled after the fact counts when the session next joins the ring's end: it
   changes no turn that has been given.
4. Inside a session: highest response ratio next (Brinch Hansen, 1971), so that short prompts need not wait
   for long ones, and long ones get old. The ratio is (wait + service) / service, with the prompt's tokens as
   service; the unit of the wait does not matter for the order. Requests stand in lists by powers of two of
   their service, oldest first, and only the lists' heads are compared: the order is that of the ratios up to
   a factor of 2 in service. Nobody is passed over by more than 16 later ones of its session.

No operation looks at all that wait, or at all sessions.

The bound on waiting. Let Q be `turn_tokens` and C the largest cost that anybody pays. A request comes while
its session has nothing waiting in its class, and owes d tokens there (0 for one that had nothing living). Let
W be what its session pays before it for later ones of its own, at most 16 of them, and what is settled for
the session meanwhile; let k other sessions of its class have something waiting when it comes. Then, as long
as it is not set aside, it is selected within R = floor((d + W) / Q) + 1 rounds of the ring:

- Each other session of its class has at most R turns before it, and pays less than Q + C in a turn. If R is
  1, these are the k sessions alone: whoever comes later comes after it. So a session that asks for one at a
  time, and owes less than Q, waits for less than k * (Q + C) tokens of its class, however much others ask.
- If its class takes m before it, BATCH takes at most floor(m / 7) + 1 beside them if it is INTERACTIVE, and
  INTERACTIVE takes at most 7 * (m + 1) if it is BATCH.
- Those that were put back go before it and pay nothing; each of them had been taken earlier.

How many ticks that is depends on how fast the scheduler takes.
"""

from __future__ import annotations

from collections import OrderedDict

from engine.request import Priority, Sequence
from engine.turns import Entry, Session, Turns

BATCH_ONE_IN = 8
"""While both classes wait, at least one of so many takes is BATCH."""


class WaitingQueue:
    """See the module's docstring for the order. A sequence is known by its `id`.

    Args:
        turn_tokens: what a session may take in one turn, Q above.

    Raises:
        ValueError: `turn_tokens` is below 1.
    """

    def __init__(self, turn_tokens: int) -> None:
        if turn_tokens < 1:
            raise ValueError(f"turn_tokens: got {turn_tokens}, allowed: at least 1")
        self._turns = {priority: Turns(turn_tokens) for priority in Priority}
        self._sessions: dict[tuple[str, Priority], Session] = {}
        """Those with anything that waits or runs: the others are forgotten."""
        self._alive: dict[str, Session] = {}
        """By sequence: whatever waits, or was taken and has not been settled."""
        self._waiting: dict[str, Entry] = {}
        self._put_back: OrderedDict[str, Entry] = OrderedDict()
        self._aside: OrderedDict[str, Entry] = OrderedDict()
        self._interactive_in_a_row = 0
        """INTERACTIVE takes since the last BATCH one, while both waited."""
        self._now = 0
        self._count = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def __contains__(self, sequence_id: object) -> bool:
        return sequence_id in self._waiting

    def num_of_session(self, session: str) -> int:
        """How many of a session's sequences wait, in both classes, those put back and set aside included."""
        known = (self._sessions.get((session, priority)) for priority in Priority)
        return sum(one.num_waiting for one in known if one is not None)

    def find(self, sequence_id: str) -> Sequence | None:
        """The one of that name that waits."""
        entry = self._waiting.get(sequence_id)
        return None if entry is None else entry.sequence

    def position(self, sequence_id: str) -> int:
        """For people: how many stand before one that waits, if nobody's turn came before that of somebody who
        asked earlier. Those put back stand before all others, INTERACTIVE before BATCH. Looks at all that
        wait.

        Raises:
            KeyError: it does not wait.
        """
        entry = self._waiting[sequence_id]
        back = list(reversed(self._put_back))
        if entry.was_put_back:
            return back.index(sequence_id) if sequence_id in self._put_back else 0
        priority = entry.sequence.request.priority
        others = [each for each in self._waiting.values() if not each.was_put_back and each is not entry]
        of_class = [each for each in others if each.sequence.request.priority is priority]
        before = sum(each.number < entry.number for each in of_class)
        if priority is Priority.BATCH:
            before += len(others) - len(of_class)
        return len(back) + before

    def of_sessions(self) -> dict[str, int]:
        """A picture of the queue: how many wait of each session that has any. Looks at all sessions."""
        counts: dict[str, int] = {}
        for (session, _), account in self._sessions.items():
            if account.num_waiting:
                counts[session] = counts.get(session, 0) + account.num_waiting
        return counts

    def tick(self) -> None:
        """One tick passed: whoever waits is older now."""
        self._now += 1

    def add(self, sequence: Sequence) -> None:
        """A new one, at the end of its session's.

        Raises:
            ValueError: it waits already.
        """
        entry = self._enter(sequence)
        entry.session.requests.add(entry)
        self._turn_of(entry.session)

    def put_back(self, sequence: Sequence) -> None:
        """One that had been taken: it stands before everyone else, and has paid.

        Raises:
            ValueError: it waits already.
        """
        entry = self._put_back[sequence.id] = self._enter(sequence)
        entry.was_put_back = True

    def remove(self, sequence: Sequence) -> None:
        """It ended while it waited, wherever it stands; nothing is left to settle.

        Raises:
            KeyError: it does not wait.
        """
        entry = self._leave(sequence)
        self._aside.pop(sequence.id, None)
        if entry.was_put_back:
            self._put_back.pop(sequence.id, None)
        else:
            entry.session.requests.remove(entry)
            self._turn_of(entry.session)
        self._ended(sequence)

    def select(self) -> Sequence | None:
        """Whose turn it is; None if nobody waits, or all that wait are set aside. Changes nothing."""
        if self._put_back:
            return next(reversed(self._put_back.values())).sequence
        session = self._class_whose_turn_it_is().current()
        return None if session is None else session.requests.first(self._now).sequence

    def take(self, sequence: Sequence, cost: int) -> None:
        """The selected one leaves, and its session pays `cost` tokens. One that was put back has paid.

        Raises:
            ValueError: it is not the selected one, or `cost` is below 1.
        """
        self._check_selected(sequence)
        if cost < 1:
            raise ValueError(f"cost of sequence {sequence.id}: got {cost}, allowed: at least 1")
        entry = self._leave(sequence)
        if entry.was_put_back:
            del self._put_back[sequence.id]
            return
        is_passing_batch = sequence.request.priority is Priority.INTERACTIVE and self._batch_waits()
        self._interactive_in_a_row = self._interactive_in_a_row + 1 if is_passing_batch else 0
        entry.session.requests.remove(entry)
        entry.session.balance -= cost
        self._turn_of(entry.session)

    def set_aside(self, sequence: Sequence) -> None:
        """The selected one steps aside until `return_aside`, and nothing is paid. Its session keeps its turn.

        Raises:
            ValueError: it is not the selected one.
        """
        self._check_selected(sequence)
        entry = self._aside[sequence.id] = self._waiting[sequence.id]
        if self._put_back.pop(sequence.id, None) is None:
            entry.session.requests.set_aside(entry)
            self._turn_of(entry.session)

    def return_aside(self) -> None:
        """Those set aside stand first again: in their sessions, or of all if they had been put back."""
        while self._aside:
            sequence_id, entry = self._aside.popitem()
            if entry.was_put_back:
                self._put_back[sequence_id] = entry
            else:
                entry.session.requests.return_aside(entry)
                self._turn_of(entry.session)

    def settle(self, sequence: Sequence, cost: int) -> None:
        """One that was taken ended: it cost so many tokens more, or (negative) fewer, than was paid. What is
        given back lowers the session's debt and gives no right to a longer turn."""
        session = self._sessions.get(_key(sequence))
        if session is not None:
            session.owed += cost
        self._ended(sequence)

    # -- inside -----------------------------------------------------------------------------------------

    def _enter(self, sequence: Sequence) -> Entry:
        if sequence.id in self._waiting:
            raise ValueError(f"sequence {sequence.id}: it waits already")
        session = self._alive.get(sequence.id)
        if session is None:
            session = self._sessions.setdefault(_key(sequence), Session(_key(sequence)))
            self._alive[sequence.id] = session
            session.num_alive += 1
        session.num_waiting += 1
        entry = self._waiting[sequence.id] = Entry(sequence, session, self._count, self._now)
        self._count += 1
        return entry

    def _leave(self, sequence: Sequence) -> Entry:
        entry = self._waiting.pop(sequence.id)
        entry.session.num_waiting -= 1
        return entry

    def _ended(self, sequence: Sequence) -> None:
        session = self._alive.pop(sequence.id, None)
        if session is not None:
            session.num_alive -= 1
            if not session.num_alive:
                del self._sessions[session.key]

    def _check_selected(self, sequence: Sequence) -> None:
        if (selected := self.select()) is not sequence:
            raise ValueError(
                f"sequence {sequence.id}: got no turn, allowed: the selected one, "
                f"{selected.id if selected else 'and there is none'}"
            )

    def _batch_waits(self) -> bool:
        return self._turns[Priority.BATCH].current() is not None

    def _class_whose_turn_it_is(self) -> Turns:
        interactive = self._turns[Priority.INTERACTIVE]
        if interactive.current() is None:
            return self._turns[Priority.BATCH]
        is_owed_to_batch = self._interactive_in_a_row >= BATCH_ONE_IN - 1 and self._batch_waits()
        return self._turns[Priority.BATCH] if is_owed_to_batch else interactive

    def _turn_of(self, session: Session) -> None:
        self._turns[session.key[1]].update(session)


def _key(sequence: Sequence) -> tuple[str, Priority]:
    return sequence.request.session, sequence.request.priority
