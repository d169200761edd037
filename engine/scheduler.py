"""Who runs in this tick, and with how many tokens.

Knows: sequences, blocks, rows, limits. Does not know: torch, time, text, threads, what a token means.

Iteration-level scheduling after Orca (Yu et al., OSDI 2022), chunked prefill beside decodes after
Sarathi-Serve (Agrawal et al., OSDI 2024), preemption by recompute after PagedAttention (Kwon et al., SOSP
2023). There are no phases: each tick lets some sequences' `num_computed` catch up with their `num_tokens`.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field

from engine.blocks import BlockPool, blocks_for
from engine.request import Sequence, Status


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of one tick.

    Raises:
        ValueError: a bound is below 1, or the budget could not let every row decode in the same tick.
    """

    max_num_seqs: int
    """Sequences running at once; also the number of rows."""
    token_budget: int
    """Tokens computed in one tick, over all sequences."""
    prefill_chunk: int
    """Tokens of one sequence in one tick."""

    def __post_init__(self) -> None:
        for name in ("max_num_seqs", "token_budget", "prefill_chunk"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: got {getattr(self, name)}, allowed: at least 1")
        if self.token_budget < self.max_num_seqs:
            raise ValueError(
                f"token_budget: got {self.token_budget}, allowed: at least max_num_seqs "
                f"({self.max_num_seqs}), so that every running sequence can advance in every tick"
            )


@dataclass(slots=True)
class Plan:
    """One tick's decision."""

    scheduled: dict[Sequence, int] = field(default_factory=dict)
    """Sequence -> number of tokens it computes, in the order of the batch."""
    admitted: list[Sequence] = field(default_factory=list)
    """Those of `scheduled` that were waiting before."""
    preempted: list[Sequence] = field(default_factory=list)


class Scheduler:
    """The queue, the running sequences, and the memory they hold.

    Invariants: a sequence holds blocks and a row exactly while it is RUNNING; `running` is in order of
    age; a preempted sequence stands before everyone who has never run.
    """

    def __init__(self, pool: BlockPool, limits: Limits) -> None:
        self.pool = pool
        self.limits = limits
        self.running: dict[str, Sequence] = {}
        self.waiting: OrderedDict[str, Sequence] = OrderedDict()
        self.num_preemptions = 0
        self._free_rows = list(range(limits.max_num_seqs - 1, -1, -1))

    def add(self, sequence: Sequence) -> None:
        """Queues a new sequence.

        Raises:
            ValueError: it is not WAITING, its id is in use, or the pool could never hold it.
        """
        if sequence.status is not Status.WAITING:
            raise ValueError(f"sequence {sequence.id}: expected {Status.WAITING}, got {sequence.status}")
        if sequence.id in self.running or sequence.id in self.waiting:
            raise ValueError(f"sequence {sequence.id}: the id is in use")
        most = sequence.num_tokens + sequence.max_output_tokens
        if blocks_for(most) > self.pool.num_blocks:
            raise ValueError(
                f"sequence {sequence.id}: {most} tokens need {blocks_for(most)} blocks, "
                f"there are {self.pool.num_blocks}"
            )
        self.waiting[sequence.id] = sequence

    def schedule(self) -> Plan:
        """Decides one tick and takes the blocks it needs.

        Decodes come first in the budget, then chunks of prompts that have begun, then the queue: nobody
        who is reading waits for somebody's long prompt.
        """
        plan = Plan()
        budget = self.limits.token_budget
        by_age = list(self.running.values())
        decodes = [s for s in by_age if s.num_uncomputed == 1]
        chunks = [s for s in by_age if s.num_uncomputed > 1]
        for sequence in decodes + chunks:
            if sequence.status is not Status.RUNNING:
                continue  # an older one took its blocks a moment ago
            count = min(sequence.num_uncomputed, self.limits.prefill_chunk, budget)
            if count and self._grow(sequence, count, plan):
                plan.scheduled[sequence] = count
                budget -= count
        if not plan.preempted:
            self._admit(plan, budget)
        return plan

    def finish(self, sequence: Sequence) -> None:
        """Ends a sequence in whatever state it is: its blocks and its row are free when this returns.

        Raises:
            ValueError: it ended before.
        """
        if sequence.status is Status.FINISHED:
            raise ValueError(f"sequence {sequence.id}: expected a live status, got {Status.FINISHED}")
        if sequence.status is Status.RUNNING:
            del self.running[sequence.id]
            self._take_back(sequence)
        else:
            del self.waiting[sequence.id]
        sequence.status = Status.FINISHED

    def check(self) -> None:
        """Compares all books with each other; for tests and diagnosis.

        Raises:
            RuntimeError: they differ.
        """
        self.pool.check([s.blocks for s in self.running.values()])
        rows = [s.row for s in self.running.values()] + self._free_rows
        if sorted(rows) != list(range(self.limits.max_num_seqs)):
            raise RuntimeError(f"rows are lost or owned twice: {sorted(rows)}")
        for sequence in self.waiting.values():
            if sequence.blocks or sequence.row != -1 or sequence.num_computed:
                raise RuntimeError(f"sequence {sequence.id} waits but holds memory")

    def _grow(self, sequence: Sequence, count: int, plan: Plan) -> bool:
        """Gives `sequence` the blocks for `count` more tokens, preempting the newest while there are too
        few. False: the newest was the sequence itself.

        The oldest is never a victim while anyone else runs, and alone it fits (checked in `add`): so
        somebody always advances.
        """
        needed = blocks_for(sequence.num_computed + count) - len(sequence.blocks)
        while self.pool.num_free < needed:
            victim = next(reversed(self.running.values()))
            self._preempt(victim)
            plan.preempted.append(victim)
            plan.scheduled.pop(victim, None)
            if victim is sequence:
                return False
        sequence.blocks += self.pool.allocate(needed)
        return True

    def _admit(self, plan: Plan, budget: int) -> None:
        """Lets the head of the queue run while rows, blocks and budget last: peek, allocate, then pop."""
        while self.waiting and self._free_rows and budget:
            head = next(iter(self.waiting.values()))
            if not self._has_room_for(head):
                return
            count = min(head.num_uncomputed, self.limits.prefill_chunk, budget)
            head.blocks += self.pool.allocate(blocks_for(count))
            head.row = self._free_rows.pop()
            head.status = Status.RUNNING
            del self.waiting[head.id]
            self.running[head.id] = head
            plan.admitted.append(head)
            plan.scheduled[head] = count
            budget -= count

    def _has_room_for(self, newcomer: Sequence) -> bool:
        """Whether the newcomer's whole prompt fits beside what the running ones are still owed: the rest
        of their prompts and one block each to grow into. Half-computed prompts would otherwise push each
        other out. With nobody running the pool is empty, and the newcomer fits (checked in `add`).
        """
        owed = sum(blocks_for(s.num_tokens) - len(s.blocks) + 1 for s in self.running.values())
        return blocks_for(newcomer.num_tokens) + owed <= self.pool.num_free

    def _preempt(self, victim: Sequence) -> None:
        del self.running[victim.id]
        self._take_back(victim)
        victim.num_computed = 0
        victim.num_preemptions += 1
        victim.status = Status.PREEMPTED
        self.waiting[victim.id] = victim
        self.waiting.move_to_end(victim.id, last=False)
        self.num_preemptions += 1

    def _take_back(self, sequence: Sequence) -> None:
        self.pool.release(sequence.blocks)
        sequence.blocks = []
        self._free_rows.append(sequence.row)
        sequence.row = -1
