"""Who runs in this tick, and with how many tokens.

Knows: sequences, blocks, rows, limits, the queue, what can be shared. Does not know: torch, time, text,
threads, what a token means, how hashes are made.

Iteration-level scheduling after Orca (Yu et al., OSDI 2022), chunked prefill beside decodes after
Sarathi-Serve (Agrawal et al., OSDI 2024), preemption by recompute after PagedAttention (Kwon et al., SOSP
2023). There are no phases: each tick lets some sequences' `num_computed` catch up with their `num_tokens`.

The caller's order: `schedule`, compute the plan, then for each scheduled sequence that is still running
`advance`, and append its new token; `finish` at any time outside of these.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from engine.admission import Shared, make_policy
from engine.blocks import BLOCK_SIZE, BlockPool, blocks_for
from engine.config import EngineConfig
from engine.expectation import ExpectedLength
from engine.ledger import MemoryLedger
from engine.request import Priority, Sequence, Status
from engine.waiting import WaitingQueue

MOST_SET_ASIDE = 8
"""Sequences that one tick lets wait for somebody's prefix; it looks no further down the queue."""


@dataclass(slots=True)
class Plan:
    """One tick's decision."""

    scheduled: dict[Sequence, int] = field(default_factory=dict)
    """Sequence -> number of tokens it computes, in the order of the batch."""
    admitted: list[Sequence] = field(default_factory=list)
    """Those that were waiting before."""
    preempted: list[Sequence] = field(default_factory=list)
    copies: list[tuple[int, int]] = field(default_factory=list)
    """(block to copy, its copy), before the forward pass."""
    num_tokens: int = 0
    """Tokens of all scheduled sequences."""

    def schedule(self, sequence: Sequence, count: int) -> None:
        self.scheduled[sequence] = count
        self.num_tokens += count


class Scheduler:
    """The queue, the running sequences, and the memory they hold.

    Invariants: a sequence holds blocks and a row exactly while it is RUNNING, or is padding of a static
    batch; `running` is in the order of entry; a preempted sequence stands before everyone who has never run.
    """

    def __init__(self, config: EngineConfig) -> None:
        self.config = config
        self.pool = BlockPool(config.num_blocks)
        self.ledger = MemoryLedger()
        self.running: dict[str, Sequence] = {}
        self.waiting = WaitingQueue(config.turn_tokens)
        self.padding: dict[str, Sequence] = {}
        """Ended sequences of a static batch that has not: they hold their memory and compute on."""
        self.num_preemptions = 0
        self.num_queried_tokens = 0
        self.num_hit_tokens = 0
        """Of the prompt tokens of all that entered: those found computed."""
        self._expected = ExpectedLength()
        self._policy = make_policy(config, self._expected)
        self._free_rows = list(range(config.max_num_seqs - 1, -1, -1))
        self._computing: dict[bytes, Sequence] = {}
        """Hashes of blocks that somebody is about to fill."""
        self._num_batch_running = 0
        self._tick = 0
        self._num_forced = 0
        """Preemptions of this tick for want of memory."""

    def add(self, sequence: Sequence) -> None:
        """Queues a new sequence.

        Raises:
            ValueError: it is not WAITING, its id is in use, or the pool could never hold it.
        """
        if sequence.status is not Status.WAITING:
            raise ValueError(f"sequence {sequence.id}: expected {Status.WAITING}, got {sequence.status}")
        if sequence.id in self.running or sequence.id in self.waiting or sequence.id in self.padding:
            raise ValueError(f"sequence {sequence.id}: the id is in use")
        most = sequence.num_tokens + sequence.max_output_tokens
        if blocks_for(most) > self.pool.num_blocks:
            raise ValueError(
                f"sequence {sequence.id}: {most} tokens need {blocks_for(most)} blocks, "
                f"there are {self.pool.num_blocks}"
            )
        self.waiting.add(sequence)

    def schedule(self) -> Plan:
        """Decides one tick and takes the blocks it needs."""
        plan = Plan()
        self._tick += 1
        self._num_forced = 0
        self.waiting.tick()
        self._disturb(plan)
        if self.config.chunked_prefill:
            self._plan_mixed(plan)
        else:
            self._plan_prompts_alone(plan)
        for sequence in self.padding.values():
            plan.schedule(sequence, 1)
        self._policy.tick(self._num_forced)
        return plan

    def advance(self, sequence: Sequence, count: int) -> None:
        """`count` of its tokens were computed as planned. Blocks that are full now can be shared."""
        sequence.num_computed = computed = sequence.num_computed + count
        self.ledger.computed(count)
        if computed // BLOCK_SIZE > sequence.num_registered and sequence.block_hashes:
            for index in range(sequence.num_registered, computed // BLOCK_SIZE):
                self.pool.register(sequence.blocks[index], sequence.block_hashes[index])
                self._no_longer_computing(sequence, index)
            sequence.num_registered = computed // BLOCK_SIZE

    def finish(self, sequence: Sequence, *, is_own_end: bool = True, is_sound: bool = True) -> None:
        """Ends a sequence in whatever state it is: its blocks and its row are free when this returns, unless
        it is part of a static batch.

        Args:
            is_own_end: its answer was complete, so its length tells something about others.
            is_sound: False: what it computed must not be shared.

        Raises:
            ValueError: it ended before.
        """
        if sequence.status is Status.FINISHED:
            raise ValueError(f"sequence {sequence.id}: expected a live status, got {Status.FINISHED}")
        was_running = sequence.status is Status.RUNNING
        sequence.status = Status.FINISHED
        sequence.source = None
        if is_own_end:
            self.expect(sequence.num_output_tokens)
        if not was_running:
            self.waiting.remove(sequence)
            return
        if not is_sound:
            self.pool.forget(sequence.blocks)
        self.waiting.settle(sequence, sequence.num_output_tokens - sequence.num_charged_tokens)
        self._stop_running(sequence)
        if self._policy.admits_whole_batches and self.running:
            self.padding[sequence.id] = sequence
            self.ledger.ended_but_held(sequence)
        else:
            self._take_back(sequence)

    def expect(self, output_tokens: int) -> None:
        """Learns that there are answers of so many tokens."""
        self._expected.ended(output_tokens)

    def forget_all(self) -> None:
        """KV memory was made anew: no content is worth keeping. Nobody must be running."""
        self.pool.forget_all()

    def check(self) -> None:
        """Compares all books with each other; for tests and diagnosis.

        Raises:
            RuntimeError: they differ.
        """
        holders = [*self.running.values(), *self.padding.values()]
        self.pool.check([s.blocks for s in holders])
        rows = [s.row for s in holders] + self._free_rows
        if sorted(rows) != list(range(self.config.max_num_seqs)):
            raise RuntimeError(f"rows are lost or owned twice: {sorted(rows)}")
        for content, sequence in self._computing.items():
            if sequence.status is not Status.RUNNING or content not in sequence.block_hashes:
                raise RuntimeError(f"sequence {sequence.id} is not about to fill the block it is said to")
        batch = sum(s.request.priority is Priority.BATCH for s in self.running.values())
        if batch != self._num_batch_running:
            raise RuntimeError(f"{batch} of the batch class are running, counted: {self._num_batch_running}")

    # -- one tick ---------------------------------------------------------------------------------------

    def _plan_mixed(self, plan: Plan) -> None:
        """Decodes come first in the budget, then chunks of prompts that have begun, then the queue: nobody
        who is reading waits for somebody's long prompt."""
        decodes: list[Sequence] = []
        chunks: list[Sequence] = []
        for sequence in self.running.values():
            (decodes if len(sequence.tokens) - sequence.num_computed == 1 else chunks).append(sequence)
        if self._num_batch_running:
            chunks.sort(key=lambda sequence: sequence.request.priority is Priority.BATCH)
        for sequence in decodes:
            if plan.preempted and sequence.status is not Status.RUNNING:
                continue  # another one took its blocks a moment ago
            if sequence.num_computed < len(sequence.blocks) * BLOCK_SIZE or self._grow(sequence, 1, plan):
                plan.scheduled[sequence] = 1
                plan.num_tokens += 1
        for sequence in chunks:
            count = self._chunk(sequence.num_uncomputed, plan)
            if sequence.status is Status.RUNNING and count and self._grow(sequence, count, plan):
                plan.schedule(sequence, count)
        if not plan.preempted:
            self._admit(plan)

    def _plan_prompts_alone(self, plan: Plan) -> None:
        """Whole prompts, in ticks of their own; those who decode wait meanwhile."""
        for sequence in list(self.running.values()):
            count = sequence.num_uncomputed
            if count > 1 and self._fits_whole(count, plan) and self._grow(sequence, count, plan):
                plan.schedule(sequence, count)
        if not plan.preempted:
            self._admit(plan)
        if not plan.scheduled:
            for sequence in list(self.running.values()):
                if sequence.status is Status.RUNNING and self._grow(sequence, 1, plan):
                    plan.schedule(sequence, 1)

    def _chunk(self, uncomputed: int, plan: Plan) -> int:
        return min(uncomputed, self.config.prefill_chunk, self.config.token_budget - plan.num_tokens)

    def _fits_whole(self, uncomputed: int, plan: Plan) -> bool:
        return not plan.scheduled or plan.num_tokens + uncomputed <= self.config.token_budget

    def _disturb(self, plan: Plan) -> None:
        """Chaos: the newest gives way that got a token since it entered; the others would never end."""
        every = self.config.chaos.preempt_every
        if every and self._tick % every == 0:
            victims = (s for s in reversed(self.running.values()) if s.num_tokens > s.num_tokens_at_entry)
            if (victim := next(victims, None)) is not None:
                self._preempt(victim, plan)

    def _grow(self, sequence: Sequence, count: int, plan: Plan) -> bool:
        """Gives `sequence` the blocks for `count` more tokens, preempting others while there are too few.
        False: the one to give way was the sequence itself.

        Whoever gives way goes to the front of the queue, and alone it fits (checked in `add`): so somebody
        always advances.
        """
        held = len(sequence.blocks)
        needed = blocks_for(sequence.num_computed + count) - held
        if needed <= 0:
            return True
        while self.pool.num_free < needed:
            victim = self._victim()
            self._preempt(victim, plan)
            self._num_forced += 1
            if victim is sequence:
                return False
        sequence.blocks += self.pool.allocate(needed)
        self.ledger.grew(sequence, held)
        self._policy.holds(sequence)
        return True

    def _victim(self) -> Sequence:
        """The newest, and of the batch class before the interactive."""
        newest_first = reversed(self.running.values())
        if self._num_batch_running:
            return next(s for s in newest_first if s.request.priority is Priority.BATCH)
        return next(newest_first)

    # -- entering and leaving ---------------------------------------------------------------------------

    def _admit(self, plan: Plan) -> None:
        """Lets those whose turn it is run while rows, blocks and budget last: peek, allocate, then pop."""
        whole_batch = self._policy.admits_whole_batches
        if whole_batch and self.running:
            return
        num_aside = 0
        while self._free_rows and num_aside < MOST_SET_ASIDE:
            newcomer = self.waiting.select()
            if newcomer is None:
                break
            shared = self._shareable(newcomer)
            if shared is None:
                self.waiting.set_aside(newcomer)
                num_aside += 1
                continue
            uncomputed = newcomer.num_tokens - shared.num_tokens
            if self.config.chunked_prefill:
                count = self._chunk(uncomputed, plan)
            else:
                count = uncomputed if self._fits_whole(uncomputed, plan) else 0
            if not (count or whole_batch):
                break
            if not self._policy.has_room_for(newcomer, shared, self.pool):
                break
            self._enter(newcomer, shared, count, plan)
        if num_aside:
            self.waiting.return_aside()

    def _shareable(self, newcomer: Sequence) -> Shared | None:
        """What of the newcomer is computed already; None: somebody is just computing more of it, which is
        worth waiting for. Those who have run before do not wait."""
        is_new = newcomer.status is Status.WAITING
        most = newcomer.num_tokens - 1
        hashes = newcomer.block_hashes[: most // BLOCK_SIZE]
        found = self.pool.find(hashes)
        source = newcomer.source
        if source is not None and source.status is Status.RUNNING:
            common = min(newcomer.num_prompt_tokens, most)
            if source.num_computed >= common > len(found) * BLOCK_SIZE:
                full, rest = divmod(common, BLOCK_SIZE)
                return Shared(source.blocks[:full], common, source.blocks[full] if rest else None)
            if source.num_computed < common and is_new:
                return None
        if is_new and len(found) < len(hashes) and hashes[len(found)] in self._computing:
            return None
        return Shared(found, len(found) * BLOCK_SIZE)

    def _enter(self, newcomer: Sequence, shared: Shared, count: int, plan: Plan) -> None:
        is_new = newcomer.status is Status.WAITING
        if is_new:
            self.num_queried_tokens += newcomer.num_tokens
            self.num_hit_tokens += shared.num_tokens
            newcomer.num_cached_tokens = shared.num_tokens
            newcomer.num_charged_tokens = self._expected.remaining(0, newcomer.max_output_tokens)
        self.waiting.take(newcomer, newcomer.num_tokens - shared.num_tokens + newcomer.num_charged_tokens)
        self.pool.share(shared.blocks)
        held = self._policy.blocks_at_entry(newcomer, shared.num_tokens + count)
        own = self.pool.allocate(held - len(shared.blocks))
        if shared.tail is not None:
            plan.copies.append((shared.tail, own[0]))
        newcomer.blocks = shared.blocks + own
        newcomer.num_computed = shared.num_tokens
        newcomer.num_registered = len(shared.blocks) if newcomer.block_hashes else 0
        newcomer.num_tokens_at_entry = newcomer.num_tokens
        newcomer.row = self._free_rows.pop()
        newcomer.status = Status.RUNNING
        self.running[newcomer.id] = newcomer
        self._num_batch_running += newcomer.request.priority is Priority.BATCH
        for content in newcomer.block_hashes[newcomer.num_registered :]:
            self._computing.setdefault(content, newcomer)
        self.ledger.admitted(newcomer)
        self._policy.holds(newcomer)
        plan.admitted.append(newcomer)
        if count:
            plan.schedule(newcomer, count)

    def _preempt(self, victim: Sequence, plan: Plan) -> None:
        self._stop_running(victim)
        self._take_back(victim)
        victim.num_computed = victim.num_registered = 0
        victim.num_preemptions += 1
        victim.status = Status.PREEMPTED
        self.waiting.put_back(victim)
        self.num_preemptions += 1
        plan.preempted.append(victim)
        plan.num_tokens -= plan.scheduled.pop(victim, 0)

    def _stop_running(self, sequence: Sequence) -> None:
        del self.running[sequence.id]
        self._policy.left(sequence)
        self._num_batch_running -= sequence.request.priority is Priority.BATCH
        for index in range(sequence.num_registered, len(sequence.block_hashes)):
            self._no_longer_computing(sequence, index)

    def _no_longer_computing(self, sequence: Sequence, index: int) -> None:
        content = sequence.block_hashes[index]
        if self._computing.get(content) is sequence:
            del self._computing[content]

    def _take_back(self, sequence: Sequence) -> None:
        """Its blocks and its row, and with those of the last one of a static batch all of the batch's."""
        givers = [sequence]
        if not self.running:
            givers += self.padding.values()
            self.padding = {}
        for giver in givers:
            self.ledger.released(giver)
            self.pool.release(giver.blocks)
            self._free_rows.append(giver.row)
            giver.blocks, giver.row = [], -1
