"""A recorded run, replayed in the scheduler alone: the same plans, or the first tick that differs."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from engine.config import Admission, Chaos, EngineConfig
from engine.engine import Engine
from engine.replay import (
    Added,
    Advanced,
    Entry,
    Finished,
    Forgotten,
    NotAJournal,
    Planned,
    PlansDiffer,
    RecordedScheduler,
    replay,
)
from engine.request import Priority
from engine.sampling import SamplingParams
from tests.fakes import FakeRunner, Recorder, fake_vocabulary, make_request

CONFIG = EngineConfig(
    num_blocks=20, max_model_len=160, max_num_seqs=6, token_budget=48, prefill_chunk=32, turn_tokens=64
)


class FailsOnce(FakeRunner):
    """Its device fails in forward pass number `at`."""

    def __init__(self, num_blocks: int, at: int) -> None:
        super().__init__(num_blocks, never_ends=False)
        self.at = at

    def execute(self, batch):
        if len(self.batches) + 1 == self.at:
            self.at = 0
            raise RuntimeError("the device failed")
        return super().execute(batch)


def recorded_run(config: EngineConfig, seed: int = 0, ticks: int = 150) -> list[Entry]:
    """Sessions of both classes that ask, share prefixes, fork, leave, and live through a fault."""
    entries: list[Entry] = []
    engine = Engine(
        FailsOnce(config.num_blocks, at=ticks // 2),
        fake_vocabulary(),
        config,
        Recorder(),
        scheduler=RecordedScheduler(config, entries.append),
    )
    dice = random.Random(seed)
    asked: list[str] = []
    for tick in range(ticks):
        for _ in range(dice.randrange(2)):
            asked.append(f"r{len(asked)}")
            prompt = "the same beginning of all of them"[: dice.choice((0, 16, 33))] + "x" * dice.randint(
                1, 40
            )
            sampling = SamplingParams(temperature=0, max_tokens=dice.randint(1, 60), n=dice.choice((1, 1, 3)))
            request = replace(
                make_request(asked[-1], prompt, sampling),
                session=f"secret key {dice.randrange(3)}",
                priority=dice.choice(list(Priority)),
            )
            engine.submit(request)
        if asked and dice.random() < 0.1:
            engine.abort(dice.choice(asked))
        if asked and dice.random() < 0.1:
            child = make_request(f"f{tick}", "", SamplingParams(temperature=0, max_tokens=20))
            engine.fork(asked[-1], child)
        engine.tick()
        engine.scheduler.check()
    return entries


def of_kind(entries: list[Entry], kind: type) -> list[Entry]:
    return [entry for entry in entries if isinstance(entry, kind)]


CONFIGS = {
    "paged": CONFIG,
    "no prefix cache": replace(CONFIG, prefix_cache=False),
    "whole prompts": replace(CONFIG, chunked_prefill=False),
    "chaos": replace(CONFIG, chaos=Chaos(preempt_every=5)),
    **{
        policy.value: replace(CONFIG, admission=policy)
        for policy in Admission
        if policy is not Admission.PAGED
    },
}


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_a_replay_gives_the_same_plans(config: EngineConfig) -> None:
    entries = recorded_run(config)
    plans = of_kind(entries, Planned)
    # It is worth nothing if nothing happened.
    assert sum(len(plan.scheduled) for plan in plans) > 200
    assert {type(entry) for entry in entries} == {Added, Planned, Advanced, Finished, Forgotten}
    assert any(entry.source is not None for entry in of_kind(entries, Added))
    assert replay(config, entries) == len(plans)


def test_runs_with_preemptions_and_copies_can_be_replayed() -> None:
    config = replace(CONFIG, num_blocks=14)
    plans: list[Planned] = []
    for seed in range(3):
        entries = recorded_run(config, seed)
        plans += of_kind(entries, Planned)
        assert replay(config, entries) == len(of_kind(entries, Planned))
    assert any(plan.preempted for plan in plans)
    assert any(plan.copies for plan in plans)


@pytest.mark.parametrize("length", [1, 10, 100])
def test_the_beginning_of_a_journal_can_be_replayed(length: int) -> None:
    entries = recorded_run(CONFIG)[:length]
    assert replay(CONFIG, entries) == len(of_kind(entries, Planned))


def test_a_replay_says_which_tick_is_the_first_that_differs() -> None:
    entries = recorded_run(CONFIG)
    index = next(
        i for i, entry in enumerate(entries) if isinstance(entry, Planned) and len(entry.scheduled) > 2
    )
    number = len(of_kind(entries[: index + 1], Planned))
    (first, count), *rest = entries[index].scheduled
    wrong = replace(entries[index], scheduled=((first, count + 1), *rest))
    with pytest.raises(PlansDiffer, match=f"tick {number} is planned otherwise: scheduled: then ") as caught:
        replay(CONFIG, [*entries[:index], wrong, *entries[index + 1 :]])
    assert (caught.value.tick, caught.value.then, caught.value.now) == (number, wrong, entries[index])


def test_another_configuration_plans_otherwise() -> None:
    with pytest.raises(PlansDiffer):
        replay(replace(CONFIG, prefill_chunk=16), recorded_run(CONFIG))


def test_a_journal_without_its_beginning_is_none() -> None:
    entries = recorded_run(CONFIG)
    with pytest.raises(NotAJournal, match="entry 1, "):
        replay(CONFIG, entries[entries.index(of_kind(entries, Advanced)[0]) :])


def test_a_journal_does_not_say_who_asked() -> None:
    entries = recorded_run(CONFIG)
    assert len({entry.session for entry in of_kind(entries, Added)}) == 4  # and the forks have none
    assert "secret" not in repr(entries)
