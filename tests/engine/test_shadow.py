"""The shadow arms, against a simulation that walks over every row in every tick."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine import shadow
from engine.admission import make_policy, reserved_blocks
from engine.blocks import BLOCK_SIZE
from engine.config import Admission, EngineConfig
from engine.engine import Engine
from engine.expectation import ExpectedLength
from engine.request import Request, Sequence
from engine.sampling import SamplingParams
from engine.shadow import ShadowArms, ShadowStats
from tests.fakes import make_engine, make_request, run_until_idle

ARMS = (Admission.STATIC, Admission.RESERVE_MAX, Admission.RESERVE_POW2)
CONTEXT, NUM_BLOCKS, ROWS = 128, 20, 3
"""Two whole contexts fit, and half of a third."""


@dataclass
class Row:
    name: str
    prompt: int
    blocks: int
    ages: list[int] = field(default_factory=list)
    """Its age in ticks at the end of each tick at which it held memory."""
    age: int = 0
    has_ended: bool = False


class SlowArm:
    """One arm, tick by tick and row by row."""

    def __init__(self, policy: Admission) -> None:
        self.policy = policy
        self.lengths: dict[str, int] = {}
        self.waiting: list[tuple[str, int, int]] = []
        self.rows: list[Row] = []
        self.ticks = self.used = self.allocated = 0

    def arrived(self, name: str, prompt: int, most: int) -> None:
        self.waiting.append((name, prompt, most))

    def ended(self, name: str, length: int) -> None:
        self.lengths[name] = length
        if not length:
            self.waiting = [each for each in self.waiting if each[0] != name]

    def tick(self) -> None:
        if self.policy is not Admission.STATIC or not self.rows:
            self.admit()
        self.ticks += bool(self.rows)
        for row in self.rows:
            row.age += 1
            row.has_ended |= row.name in self.lengths and row.age >= self.lengths[row.name]
        if self.policy is Admission.STATIC:
            leaving = self.rows if all(row.has_ended for row in self.rows) else []
        else:
            leaving = [row for row in self.rows if row.has_ended]
        for row in leaving:
            length = max(1, self.lengths[row.name])
            self.used += sum(row.prompt + min(age, length) - 1 for age in row.ages)
            self.allocated += sum(row.blocks * BLOCK_SIZE for _ in row.ages)
        self.rows = [row for row in self.rows if row not in leaving]
        for row in self.rows:
            row.ages.append(row.age)

    def admit(self) -> None:
        while self.waiting and len(self.rows) < ROWS:
            name, prompt, most = self.waiting[0]
            blocks = reserved_blocks(self.policy, prompt, most, CONTEXT)
            if blocks + sum(row.blocks for row in self.rows) > NUM_BLOCKS:
                return
            self.rows.append(Row(name, prompt, blocks))
            self.waiting.pop(0)

    def stats(self) -> ShadowStats:
        return ShadowStats(
            slots=sum(row.blocks for row in self.rows) * BLOCK_SIZE,
            running=sum(not row.has_ended for row in self.rows),
            waiting=len(self.waiting),
            missed=0,
            ticks=self.ticks,
            used=self.used,
            allocated=self.allocated,
        )


ANSWERS = st.tuples(
    st.integers(0, 12).map(lambda n: n * n),  # ticks since the one before came
    st.integers(1, 60),  # prompt
    st.integers(0, 60),  # output
    st.integers(0, 4),  # how much longer than that it may become
    st.integers(0, 30),  # ticks it waits for the real engine, or is preempted
)


@given(st.lists(ANSWERS, min_size=1, max_size=25))
@settings(max_examples=150)
def test_arms_do_what_a_slow_simulation_does(answers: list[tuple[int, int, int, int, int]]) -> None:
    arms = ShadowArms(NUM_BLOCKS, CONTEXT, ROWS)
    slow = {policy: SlowArm(policy) for policy in ARMS}
    arrivals: dict[int, list[tuple[str, int, int]]] = {}
    ends: dict[int, list[tuple[str, int]]] = {}
    now = 0
    for index, (pause, prompt, output, more, delay) in enumerate(answers):
        now += pause
        arrivals.setdefault(now, []).append((str(index), prompt, max(1, output + more)))
        ends.setdefault(now + max(0, output - 1) + delay, []).append((str(index), output))
    alive = 0
    for tick in range(max(ends) + 1):
        for arm in (arms, *slow.values()):
            for arrival in arrivals.get(tick, ()):
                arm.arrived(*arrival)
            for end in ends.get(tick, ()):
                arm.ended(*end)
            arm.tick()
        alive += len(arrivals.get(tick, ())) - len(ends.get(tick, ()))
        if not alive:
            for arm in slow.values():
                while arm.rows or arm.waiting:
                    arm.tick()
        assert arms.stats() == {policy: arm.stats() for policy, arm in slow.items()}


def test_an_answer_takes_as_many_ticks_as_it_has_tokens() -> None:
    arms = ShadowArms(NUM_BLOCKS, CONTEXT, ROWS)
    arms.arrived("a", 40, 24)
    for _ in range(9):
        arms.tick()
    arms.ended("a", 10)
    arms.tick()
    stats = arms.stats()
    # After the ticks 1 to 9 the memory is held, with 40 to 48 computed tokens in it.
    for policy, slots in zip(ARMS, (128, 128, 80), strict=True):
        assert stats[policy] == ShadowStats(0, 0, 0, 0, 10, used=sum(range(40, 49)), allocated=9 * slots)
    assert stats[Admission.RESERVE_POW2].utilisation == 396 / 720


def test_a_static_batch_holds_its_memory_until_the_longest_answer_ends() -> None:
    arms = ShadowArms(NUM_BLOCKS, CONTEXT, ROWS)
    for name in "abc":
        arms.arrived(name, 10, 50)
    arms.tick()
    arms.ended("a", 2)
    arms.tick()
    static, reserve = arms.stats()[Admission.STATIC], arms.stats()[Admission.RESERVE_MAX]
    assert (static.slots, static.running, static.waiting) == (256, 1, 1)
    assert (reserve.slots, reserve.running, reserve.waiting) == (128, 1, 1)
    arms.tick()
    assert arms.stats()[Admission.STATIC].waiting == 1
    assert arms.stats()[Admission.RESERVE_MAX].waiting == 0


def test_without_anything_left_to_do_the_arms_run_to_their_end() -> None:
    arms = ShadowArms(NUM_BLOCKS, CONTEXT, ROWS)
    for index in range(10):
        arms.arrived(str(index), 10, 50)
    for index in range(10):
        arms.ended(str(index), 50)
    arms.tick()
    stats = arms.stats()
    assert {(each.slots, each.running, each.waiting) for each in stats.values()} == {(0, 0, 0)}
    assert stats[Admission.STATIC].ticks == stats[Admission.RESERVE_MAX].ticks == 5 * 50  # two at a time
    assert stats[Admission.RESERVE_POW2].ticks == 4 * 50  # three rows


def test_whoever_leaves_before_the_first_token_leaves_the_queues_too() -> None:
    arms = ShadowArms(NUM_BLOCKS, CONTEXT, max_num_seqs=1)
    arms.arrived("a", 10, 50)
    arms.arrived("b", 10, 50)
    arms.tick()
    arms.ended("b", 0)
    assert {each.waiting for each in arms.stats().values()} == {0}


def test_a_full_queue_takes_no_more_and_says_how_many_it_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shadow, "MOST_WAITING", 4)
    arms = ShadowArms(NUM_BLOCKS, CONTEXT, ROWS)
    for index in range(6):
        arms.arrived(str(index), 10, 50)
    assert {(each.waiting, each.missed) for each in arms.stats().values()} == {(4, 2)}
    for index in range(6):
        arms.ended(str(index), 50)
    arms.tick()
    assert {(each.waiting, each.missed) for each in arms.stats().values()} == {(0, 2)}


def test_an_answer_ends_once() -> None:
    arms = ShadowArms(NUM_BLOCKS, CONTEXT, ROWS)
    arms.arrived("a", 10, 50)
    arms.ended("a", 3)
    with pytest.raises(KeyError):
        arms.ended("a", 3)


@pytest.mark.parametrize("policy", ARMS)
@given(prompt=st.integers(1, CONTEXT - 1), output=st.integers(1, CONTEXT))
def test_the_reservations_are_those_of_the_engine(policy: Admission, prompt: int, output: int) -> None:
    output = min(output, CONTEXT - prompt)
    config = EngineConfig(num_blocks=NUM_BLOCKS, max_model_len=CONTEXT, admission=policy)
    request = Request("a", (1,) * prompt, SamplingParams(), arrival=0.0)
    sequence = Sequence(request, seed=0, max_output_tokens=output)
    real = make_policy(config, ExpectedLength()).blocks_at_entry(sequence, prompt)
    assert reserved_blocks(policy, prompt, output, CONTEXT) == real


@pytest.mark.parametrize("policy", ARMS)
def test_what_the_shadow_says_is_what_the_engine_does_under_that_policy(policy: Admission) -> None:
    def run(admission: Admission) -> Engine:
        engine, _, _ = make_engine(
            num_blocks=40, max_model_len=128, max_num_seqs=4, prefix_cache=False, admission=admission
        )
        for index, length in enumerate((3, 60, 17, 1, 40, 8, 25, 33, 2, 50)):
            engine.submit(make_request(str(index), "x" * 20, max_tokens=length))
        run_until_idle(engine)
        return engine

    real = run(policy).stats().memory_over_ticks
    told = run(Admission.PAGED).stats().shadow[policy]
    assert (told.ticks, told.used, told.allocated) == (real.ticks, real.used, real.allocated)
