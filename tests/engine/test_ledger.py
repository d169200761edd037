"""Where the memory is, as the ledger says, and as a walk over all slots finds it."""

from __future__ import annotations

import random
from collections.abc import Collection
from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from engine.blocks import BLOCK_SIZE, blocks_for
from engine.config import Admission
from engine.ledger import MemoryLedger, MemoryTruth, PoolCounts
from engine.request import Request, Sequence
from engine.sampling import SamplingParams
from tests.fakes import make_engine, make_request

NUM_BLOCKS = 16


@dataclass
class Pool:
    """A block pool that keeps nothing but who holds what. Blocks that nobody holds any more stay cached until
    they are needed."""

    num_blocks: int = NUM_BLOCKS
    references: list[int] = field(default_factory=lambda: [0] * NUM_BLOCKS)
    cached: set[int] = field(default_factory=set)

    @property
    def num_free(self) -> int:
        return self.references.count(0)

    @property
    def num_cached(self) -> int:
        return len(self.cached)

    @property
    def num_shared(self) -> int:
        return sum(max(0, count - 1) for count in self.references)

    def take(self, count: int) -> list[int]:
        blocks = [b for b in range(self.num_blocks) if not self.references[b]][:count]
        self.hold(blocks)
        return blocks

    def hold(self, blocks: list[int]) -> None:
        for block in blocks:
            self.references[block] += 1
            self.cached.discard(block)

    def release(self, blocks: list[int], *, keep: bool = False) -> None:
        for block in blocks:
            self.references[block] -= 1
            if keep and not self.references[block]:
                self.cached.add(block)


def sequence(name: str, prompt: int, max_output: int) -> Sequence:
    request = Request(name, (1,) * prompt, SamplingParams(), arrival=0.0)
    return Sequence(request, seed=0, max_output_tokens=max_output)


def reach(each: Sequence, has_ended: bool) -> int:
    """How many of its tokens can ever be computed: the last one of an answer never is."""
    return each.num_computed if has_ended else each.num_prompt_tokens + each.max_output_tokens - 1


def recount(holders: Collection[Sequence], ended: Collection[Sequence], pool: PoolCounts) -> MemoryTruth:
    """Slot by slot: whoever fills it makes it used; else whoever can still fill it makes it reserved."""
    used: set[int] = set()
    reserved: set[int] = set()
    held: set[int] = set()
    for each in holders:
        slots = [b * BLOCK_SIZE + i for b in each.blocks for i in range(BLOCK_SIZE)]
        held |= set(slots)
        used |= set(slots[: each.num_computed])
        reserved |= set(slots[each.num_computed : reach(each, each in ended)])
    total, cached = pool.num_blocks * BLOCK_SIZE, pool.num_cached * BLOCK_SIZE
    return MemoryTruth(
        total=total,
        used=len(used),
        reserved=len(reserved - used),
        internal=len(held - used - reserved),
        cached=cached,
        free=total - len(held) - cached,
    )


class Memory:
    """A pool and its ledger, and the moves of a scheduler over both."""

    def __init__(self) -> None:
        self.pool, self.ledger = Pool(), MemoryLedger()
        self.running: list[Sequence] = []
        self.ended: set[Sequence] = set()

    def admit(
        self, each: Sequence, blocks: int, shared: list[int] | None = None, computed: int = 0
    ) -> Sequence:
        self.pool.hold(shared or [])
        each.blocks = (shared or []) + self.pool.take(blocks)
        each.num_computed = computed
        self.ledger.admitted(each)
        self.running.append(each)
        return each

    def compute(self, each: Sequence, count: int) -> None:
        """Takes blocks as needed."""
        before = len(each.blocks)
        each.blocks += self.pool.take(max(0, blocks_for(each.num_computed + count) - len(each.blocks)))
        self.ledger.grew(each, before)
        each.num_computed += count
        self.ledger.computed(count)

    def release(self, each: Sequence, *, keep: bool = False) -> None:
        self.ledger.released(each)
        self.pool.release(each.blocks, keep=keep)
        self.running.remove(each)
        self.ended.discard(each)

    def end_but_hold(self, each: Sequence) -> None:
        self.ledger.ended_but_held(each)
        self.ended.add(each)

    def reach(self, each: Sequence) -> int:
        return reach(each, each in self.ended)

    def recount(self) -> MemoryTruth:
        return recount(self.running, self.ended, self.pool)

    def truth(self) -> MemoryTruth:
        return self.ledger.truth(self.pool)


def test_an_answer_that_still_runs_has_used_and_reserved_slots_and_none_that_are_lost():
    memory = Memory()
    each = memory.admit(sequence("a", prompt=20, max_output=100), blocks=2)
    memory.compute(each, 20)
    assert memory.truth() == MemoryTruth(256, used=20, reserved=12, internal=0, cached=0, free=224)


def test_slots_beyond_the_longest_answer_are_lost():
    memory = Memory()
    each = memory.admit(sequence("a", prompt=20, max_output=5), blocks=4)
    memory.compute(each, 20)
    # 24 tokens can be computed at most: the fifth of the answer is sampled, and that is the end.
    assert memory.truth() == MemoryTruth(256, used=20, reserved=4, internal=40, cached=0, free=192)


def test_the_blocks_of_an_ended_answer_are_lost_until_they_are_released():
    memory = Memory()
    each = memory.admit(sequence("a", prompt=20, max_output=100), blocks=8)
    memory.compute(each, 20)
    memory.end_but_hold(each)
    assert memory.truth() == MemoryTruth(256, used=20, reserved=0, internal=108, cached=0, free=128)
    memory.release(each)
    assert memory.truth() == MemoryTruth(256, used=0, reserved=0, internal=0, cached=0, free=256)


def test_a_shared_prefix_counts_once():
    memory = Memory()
    first = memory.admit(sequence("a", prompt=40, max_output=100), blocks=3)
    memory.compute(first, 40)
    memory.admit(sequence("b", prompt=40, max_output=100), 1, shared=first.blocks[:2], computed=32)
    assert memory.truth() == MemoryTruth(256, used=40, reserved=24, internal=0, cached=0, free=192)
    memory.release(first, keep=True)
    assert memory.truth() == MemoryTruth(256, used=32, reserved=16, internal=0, cached=16, free=192)


def test_the_sums_over_ticks_give_utilisation_and_the_split_of_the_rest():
    memory = Memory()
    assert memory.ledger.over_ticks().utilisation == 1.0
    each = memory.admit(sequence("a", prompt=16, max_output=11), blocks=2)
    for _ in range(2):
        memory.compute(each, 8)
        memory.ledger.tick(memory.pool)
    sums = memory.ledger.over_ticks()
    assert (sums.ticks, sums.used, sums.reserved, sums.internal) == (2, 8 + 16, 18 + 10, 6 + 6)
    assert sums.allocated == 2 * 32
    assert sums.utilisation == 24 / 64


def test_a_preempted_sequence_starts_from_nothing():
    memory = Memory()
    each = memory.admit(sequence("a", prompt=20, max_output=100), blocks=2)
    memory.compute(each, 20)
    memory.release(each)
    memory.admit(each, 2)
    assert memory.truth() == MemoryTruth(256, used=0, reserved=32, internal=0, cached=0, free=224)


@pytest.mark.parametrize("admission", Admission)
def test_the_engine_tells_its_ledger_everything(admission: Admission) -> None:
    engine, _, _ = make_engine(
        num_blocks=30, max_model_len=160, max_num_seqs=5, token_budget=48, prefill_chunk=32,
        never_ends=False, admission=admission,
    )  # fmt: skip
    dice = random.Random(admission.value)
    scheduler, asked, most_shared = engine.scheduler, 0, 0
    for _ in range(300):
        if dice.random() < 0.3:
            prompt = "the same beginning of them all"[: dice.choice((0, 20, 30))] + "x" * dice.randint(1, 50)
            request = make_request(str(asked), prompt, max_tokens=dice.randint(1, 60), n=dice.choice((1, 3)))
            engine.submit(request)
            asked += 1
        if asked and dice.random() < 0.1:
            engine.abort(str(dice.randrange(asked)))
        engine.tick()
        holders = [*scheduler.running.values(), *scheduler.padding.values()]
        truth = recount(holders, scheduler.padding.values(), scheduler.pool)
        assert engine.stats().memory == truth
        most_shared = max(most_shared, scheduler.pool.num_shared)
    assert most_shared > 0
    assert engine.stats().memory_over_ticks.ticks > 200


class LedgerMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.memory = Memory()
        self.count = 0

    def name(self) -> str:
        self.count += 1
        return str(self.count)

    def pick(self, data: st.DataObject) -> Sequence:
        return data.draw(st.sampled_from(self.memory.running))

    @rule(prompt=st.integers(1, 70), output=st.integers(1, 70), blocks=st.integers(0, 6))
    def admit(self, prompt: int, output: int, blocks: int) -> None:
        blocks = min(blocks, self.memory.pool.num_free)
        self.memory.admit(sequence(self.name(), prompt, output), blocks)

    @precondition(lambda self: self.memory.running)
    @rule(data=st.data(), rest=st.integers(1, 40), output=st.integers(1, 40), copies_tail=st.booleans())
    def share_a_prefix(self, data: st.DataObject, rest: int, output: int, copies_tail: bool) -> None:
        source = self.pick(data)
        full = data.draw(st.integers(0, source.num_computed // BLOCK_SIZE))
        other = sequence(self.name(), full * BLOCK_SIZE + rest, output)
        copied = rest - 1 if copies_tail else 0
        if blocks_for(copied) <= self.memory.pool.num_free:
            computed = full * BLOCK_SIZE + copied
            self.memory.admit(other, blocks_for(copied), shared=source.blocks[:full], computed=computed)

    @precondition(lambda self: self.memory.running)
    @rule(data=st.data(), count=st.integers(1, 40))
    def compute(self, data: st.DataObject, count: int) -> None:
        each = self.pick(data)
        count = min(count, self.memory.reach(each) - each.num_computed)
        needed = blocks_for(each.num_computed + count) - len(each.blocks)
        if each not in self.memory.ended and count > 0 and needed <= self.memory.pool.num_free:
            self.memory.compute(each, count)

    @precondition(lambda self: self.memory.running)
    @rule(data=st.data())
    def end_but_hold(self, data: st.DataObject) -> None:
        each = self.pick(data)
        if each not in self.memory.ended:
            self.memory.end_but_hold(each)

    @precondition(lambda self: self.memory.running)
    @rule(data=st.data(), keep=st.booleans())
    def release(self, data: st.DataObject, keep: bool) -> None:
        self.memory.release(self.pick(data), keep=keep)

    @invariant()
    def books_agree(self) -> None:
        truth = self.memory.truth()
        assert truth == self.memory.recount()
        assert (
            truth.used + truth.reserved + truth.internal + truth.cached + truth.free
            == truth.total
            == NUM_BLOCKS * BLOCK_SIZE
        )


LedgerMachine.TestCase.settings = settings(max_examples=100, stateful_step_count=40)
TestLedger = LedgerMachine.TestCase
