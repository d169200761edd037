"""A run of the scheduler written down, and done again.

Knows: the calls that a scheduler gets, in order, and the plans it answered with. Does not know: token ids,
text, clocks, files.

A scheduler is a pure function of its configuration and of these calls, so whatever it once decided can be
looked at again at leisure, on another machine and without the model. What is written down holds lengths,
hashes under a secret that is forgotten, and digests of sessions under another one: no word that anybody said,
and nothing that says who it was. A journal can be replayed from its beginning only, and as far as it goes.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from engine.config import EngineConfig
from engine.request import Priority, Request, Sequence
from engine.sampling import SamplingParams
from engine.scheduler import Plan, Scheduler


@dataclass(frozen=True, slots=True)
class Added:
    """A sequence was queued. Sequences have numbers, from 0, in the order of their coming."""

    prompt: int
    max_output: int
    session: str
    priority: Priority
    source: int | None
    hashes: tuple[str, ...]
    """Of the prompt's full blocks, in hexadecimal."""


@dataclass(frozen=True, slots=True)
class Planned:
    """What `schedule` answered, by the sequences' numbers."""

    scheduled: tuple[tuple[int, int], ...] = ()
    """Sequence and number of tokens, in the order of the batch."""
    admitted: tuple[int, ...] = ()
    preempted: tuple[int, ...] = ()
    copies: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Row:
    sequence: int
    count: int
    """Tokens that were computed."""
    tokens: int
    """Tokens that came to it then: 0 or 1."""
    hashes: tuple[str, ...]
    """Of the block that its new token filled."""


@dataclass(frozen=True, slots=True)
class Advanced:
    rows: tuple[Row, ...]


@dataclass(frozen=True, slots=True)
class Finished:
    sequence: int
    is_own_end: bool
    is_sound: bool


@dataclass(frozen=True, slots=True)
class Forgotten:
    """KV memory was lost, and with it all content worth keeping."""


Entry = Added | Planned | Advanced | Finished | Forgotten


@dataclass(slots=True)
class _Advance:
    """A call of `advance` whose effect is not complete: the caller appends the new token after it."""

    sequence: Sequence
    count: int
    tokens_before: int
    hashes_before: int


class RecordedScheduler(Scheduler):
    """Gives an entry to `record` for every call that changes anything.

    A call that raises is not recorded: it changed nothing. At 256 rows it takes about half a millisecond per
    tick, writing to a file included.
    """

    def __init__(self, config: EngineConfig, record: Callable[[Entry], None]) -> None:
        super().__init__(config)
        self._record = record
        self._numbers: dict[Sequence, int] = {}
        self._count = 0
        self._advances: list[_Advance] = []
        self._ended: list[Sequence] = []
        """Their numbers are still needed where they are padding."""
        self._secret = secrets.token_bytes(16)

    def add(self, sequence: Sequence) -> None:
        super().add(sequence)
        self._settle()
        self._numbers[sequence] = self._count
        self._count += 1
        # A source that has ended is of no use any more.
        source = None if sequence.source is None else self._numbers.get(sequence.source)
        request = sequence.request
        self._record(
            Added(
                prompt=sequence.num_prompt_tokens,
                max_output=sequence.max_output_tokens,
                session=self._digest(request.session),
                priority=request.priority,
                source=source,
                hashes=_hex(sequence.block_hashes),
            )
        )

    def schedule(self) -> Plan:
        self._settle()
        if not self.padding:
            for sequence in self._ended:
                del self._numbers[sequence]
            self._ended = []
        plan = super().schedule()
        self._record(_planned(plan, self._numbers))
        return plan

    def advance(self, sequence: Sequence, count: int) -> None:
        self._advances.append(_Advance(sequence, count, len(sequence.tokens), len(sequence.block_hashes)))
        super().advance(sequence, count)

    def finish(self, sequence: Sequence, *, is_own_end: bool = True, is_sound: bool = True) -> None:
        self._settle()
        super().finish(sequence, is_own_end=is_own_end, is_sound=is_sound)
        self._record(Finished(self._numbers[sequence], is_own_end, is_sound))
        self._ended.append(sequence)

    def forget_all(self) -> None:
        self._settle()
        super().forget_all()
        self._record(Forgotten())

    def _settle(self) -> None:
        """Writes down the advances since the last entry, now that their new tokens are there."""
        if self._advances:
            self._record(Advanced(tuple(map(self._row, self._advances))))
            self._advances = []

    def _row(self, advance: _Advance) -> Row:
        sequence = advance.sequence
        return Row(
            self._numbers[sequence],
            advance.count,
            len(sequence.tokens) - advance.tokens_before,
            _hex(sequence.block_hashes[advance.hashes_before :]),
        )

    def _digest(self, session: str) -> str:
        return hashlib.blake2b(session.encode(), digest_size=8, key=self._secret).hexdigest()


class PlansDiffer(RuntimeError):
    """The scheduler decided otherwise than it did when the journal was written.

    Attributes are the number of the tick, from 1, and what was planned then and now.
    """

    def __init__(self, tick: int, then: Planned, now: Planned) -> None:
        self.tick, self.then, self.now = tick, then, now
        names = [name for name in Planned.__slots__ if getattr(then, name) != getattr(now, name)]
        what = "; ".join(f"{name}: then {getattr(then, name)}, now {getattr(now, name)}" for name in names)
        super().__init__(f"tick {tick} is planned otherwise: {what}")


class NotAJournal(ValueError):
    """The entries cannot have come from a run of a scheduler; the message says why."""


@dataclass(slots=True)
class _Replay:
    scheduler: Scheduler
    sequences: list[Sequence] = field(default_factory=list)
    numbers: dict[Sequence, int] = field(default_factory=dict)
    ticks: int = 0

    def do(self, entry: Entry) -> None:
        match entry:
            case Added():
                self._add(entry)
            case Planned():
                self.ticks += 1
                now = _planned(self.scheduler.schedule(), self.numbers)
                if now != entry:
                    raise PlansDiffer(self.ticks, entry, now)
            case Advanced(rows):
                for row in rows:
                    sequence = self.sequences[row.sequence]
                    self.scheduler.advance(sequence, row.count)
                    sequence.tokens += [0] * row.tokens
                    sequence.block_hashes += map(bytes.fromhex, row.hashes)
            case Finished(number, is_own_end, is_sound):
                sequence = self.sequences[number]
                self.scheduler.finish(sequence, is_own_end=is_own_end, is_sound=is_sound)
            case Forgotten():
                self.scheduler.forget_all()

    def _add(self, entry: Added) -> None:
        request = Request(
            id=str(len(self.sequences)),
            prompt=(0,) * entry.prompt,
            sampling=SamplingParams(),
            arrival=0.0,
            session=entry.session,
            priority=entry.priority,
        )
        source = None if entry.source is None else self.sequences[entry.source]
        sequence = Sequence(request, seed=0, max_output_tokens=entry.max_output, source=source)
        sequence.block_hashes = list(map(bytes.fromhex, entry.hashes))
        self.numbers[sequence] = len(self.sequences)
        self.sequences.append(sequence)
        self.scheduler.add(sequence)


def replay(config: EngineConfig, entries: Iterable[Entry]) -> int:
    """Makes the same calls to a new scheduler. Returns how many ticks were planned, all as they were then.

    Raises:
        PlansDiffer: at the first tick that is planned otherwise.
        NotAJournal: the calls cannot be made in this order.
    """
    replayed = _Replay(Scheduler(config))
    for index, entry in enumerate(entries):
        try:
            replayed.do(entry)
        except (ValueError, KeyError, IndexError) as error:
            raise NotAJournal(f"entry {index + 1}, {entry}: {error!r}") from error
    return replayed.ticks


def _hex(hashes: list[bytes]) -> tuple[str, ...]:
    return tuple(each.hex() for each in hashes)


def _planned(plan: Plan, numbers: dict[Sequence, int]) -> Planned:
    return Planned(
        scheduled=tuple((numbers[sequence], count) for sequence, count in plan.scheduled.items()),
        admitted=tuple(numbers[sequence] for sequence in plan.admitted),
        preempted=tuple(numbers[sequence] for sequence in plan.preempted),
        copies=tuple(plan.copies),
    )
