"""The rules of the waiting queue once more, with plain lists and searches: slow, and easy to check."""

from __future__ import annotations

from dataclasses import dataclass, field

from engine.request import Priority, Request, Sequence
from engine.sampling import SamplingParams

INTERACTIVE, BATCH = Priority.INTERACTIVE, Priority.BATCH


def make_sequence(
    name: str, session: str = "", tokens: int = 10, priority: Priority = INTERACTIVE
) -> Sequence:
    request = Request(name, (1,) * tokens, SamplingParams(), 0.0, session=session, priority=priority)
    return Sequence(request, seed=0, max_output_tokens=1)


@dataclass(eq=False)
class Waiting:
    sequence: Sequence
    tick: int
    is_first: bool = False
    """It was set aside and returned."""
    passes: int = 0
    """How many later ones of its session left the line before it."""

    @property
    def size_class(self) -> int:
        return self.sequence.num_tokens.bit_length()


@dataclass(eq=False)
class Account:
    session: str
    waiting: list[Waiting] = field(default_factory=list)
    """In order of arrival, those that were set aside and returned before all others."""
    balance: int = 0
    owed: int = 0
    place: tuple[int, int] | None = None
    """Round, and order in it."""
    has_turn: bool = False

    @property
    def debt(self) -> int:
        return max(0, self.owed - min(0, self.balance))


class NaiveQueue:
    def __init__(self, turn_tokens: int) -> None:
        self.turn_tokens = turn_tokens
        self.accounts: dict[Priority, list[Account]] = {INTERACTIVE: [], BATCH: []}
        self.rounds = {INTERACTIVE: 0, BATCH: 0}
        self.alive: list[Sequence] = []
        self.put_back_ones: list[Sequence] = []
        self.were_put_back: list[Sequence] = []
        self.aside: list[tuple[Sequence, Waiting | None]] = []
        self.streak = 0
        self.now = 0
        self.order = 0

    def account(self, sequence: Sequence) -> Account:
        accounts = self.accounts[sequence.request.priority]
        for account in accounts:
            if account.session == sequence.request.session:
                return account
        accounts.append(Account(sequence.request.session))
        return accounts[-1]

    def waiting(self) -> list[Sequence]:
        listed = [w.sequence for accounts in self.accounts.values() for a in accounts for w in a.waiting]
        return listed + self.put_back_ones + [sequence for sequence, _ in self.aside]

    def sessions_waiting(self, priority: Priority) -> set[str]:
        """Those with anything waiting in the class that was not put back."""
        aside = [self.account(sequence) for sequence, entry in self.aside if entry]
        return {a.session for a in self.accounts[priority] if a.waiting or a in aside}

    def add(self, sequence: Sequence) -> None:
        self.alive.append(sequence)
        account = self.account(sequence)
        account.waiting.append(Waiting(sequence, self.now))
        self.refresh(account, sequence)

    def put_back(self, sequence: Sequence) -> None:
        self.put_back_ones.insert(0, sequence)

    def select(self) -> Sequence | None:
        if self.put_back_ones:
            return self.put_back_ones[0]
        heads = {priority: self.head(priority) for priority in Priority}
        if heads[INTERACTIVE] and heads[BATCH]:
            account = heads[BATCH] if self.streak == 7 else heads[INTERACTIVE]
        else:
            account = heads[INTERACTIVE] or heads[BATCH]
        return self.first_of(account).sequence if account else None

    def head(self, priority: Priority) -> Account | None:
        standing = [account for account in self.accounts[priority] if account.place]
        head = min(standing, key=lambda account: account.place, default=None)
        if head:
            self.rounds[priority] = head.place[0]
        return head

    def first_of(self, account: Account) -> Waiting:
        if account.waiting[0].is_first or account.waiting[0].passes == 16:
            return account.waiting[0]
        best = None
        for one in account.waiting:
            if any(
                other.size_class == one.size_class for other in account.waiting[: account.waiting.index(one)]
            ):
                continue
            ratio = (self.now - one.tick + 1) / one.sequence.num_tokens
            if best is None or ratio > (self.now - best.tick + 1) / best.sequence.num_tokens:
                best = one
        return best

    def take(self, sequence: Sequence, cost: int) -> None:
        if sequence in self.put_back_ones:
            self.put_back_ones.remove(sequence)
            return
        is_passing = sequence.request.priority is INTERACTIVE and self.head(BATCH) is not None
        self.streak = self.streak + 1 if is_passing else 0
        account = self.unlist(sequence)
        account.balance -= cost
        self.refresh(account, sequence)

    def remove(self, sequence: Sequence) -> None:
        if sequence in self.put_back_ones:
            self.put_back_ones.remove(sequence)
        elif any(sequence is one for one, _ in self.aside):
            self.aside = [(one, entry) for one, entry in self.aside if one is not sequence]
            self.refresh(self.account(sequence), sequence)
        else:
            self.refresh(self.unlist(sequence), sequence)
        self.ended(sequence)

    def settle(self, sequence: Sequence, cost: int) -> None:
        self.account(sequence).owed += cost
        self.ended(sequence)

    def ended(self, sequence: Sequence) -> None:
        self.alive.remove(sequence)
        account = self.account(sequence)
        if not any(self.account(one) is account for one in self.alive):
            self.accounts[sequence.request.priority].remove(account)

    def set_aside(self, sequence: Sequence) -> None:
        if sequence in self.put_back_ones:
            self.put_back_ones.remove(sequence)
            self.aside.append((sequence, None))
        else:
            entry = next(w for w in self.account(sequence).waiting if w.sequence is sequence)
            account = self.unlist(sequence)
            self.aside.append((sequence, entry))
            self.refresh(account, sequence)

    def return_aside(self) -> None:
        for sequence, entry in reversed(self.aside):
            self.aside = [(one, other) for one, other in self.aside if one is not sequence]
            if entry is None:
                self.put_back_ones.insert(0, sequence)
            else:
                entry.is_first = True
                self.account(sequence).waiting.insert(0, entry)
                self.refresh(self.account(sequence), sequence)

    def unlist(self, sequence: Sequence) -> Account:
        account = self.account(sequence)
        index = next(i for i, one in enumerate(account.waiting) if one.sequence is sequence)
        left = account.waiting.pop(index)
        if not left.is_first:
            for one in account.waiting[:index]:
                one.passes += 1
        return account

    def refresh(self, account: Account, sequence: Sequence) -> None:
        priority = sequence.request.priority
        self.head(priority)
        has_aside = any(entry and self.account(one) is account for one, entry in self.aside)
        if account.balance <= 0 or not (account.waiting or has_aside):
            account.balance = min(0, account.balance)
            account.has_turn = False
            account.place = None
        if not account.waiting:
            account.place = None
        elif account.place is None:
            self.order += 1
            if account.has_turn:
                account.place = (self.rounds[priority], -self.order)
                return
            missing, account.owed, account.has_turn = account.debt, 0, True
            account.balance, rounds = -missing, 0
            while account.balance <= 0:
                account.balance += self.turn_tokens
                rounds += 1
            account.place = (self.rounds[priority] + rounds, self.order)
