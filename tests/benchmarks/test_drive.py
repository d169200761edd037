"""Every arm serves every request, in whatever company, and a wrong table or a lost history shows."""

from __future__ import annotations

import math

import numpy as np
import pytest

from benchmarks.drive import (
    OwnTime,
    Run,
    SimulatedTime,
    check_same,
    run_in_turn,
    spelled_ids,
    spelled_vocabulary,
)
from benchmarks.ladder import ARMS, Machine
from benchmarks.simulated import GPU_LIKE, Cost, SimulatedRunner
from benchmarks.workloads import WORKLOADS, Conversation, Order, Turn, Workload, make
from engine.batch import Batch, StepOutput

SIZE = 500
MACHINE = Machine("small", "units", 3, 24, 128, 24, {}, context=256)


def start(workload: Workload, arm: str, **changes: object) -> Run:
    clock = SimulatedTime()
    config = MACHINE.config(ARMS[arm], workload.num_requests)
    runner = SimulatedRunner(config.num_blocks, SIZE, clock, GPU_LIKE)
    for name, value in changes.items():
        setattr(runner, name, value)
    return Run(arm, workload, config, runner, SIZE, clock)


def small(name: str, rate: float = math.inf) -> Workload:
    return make(name, Order(32, rate, SIZE, context=MACHINE.context))


@pytest.mark.parametrize("name", WORKLOADS)
@pytest.mark.parametrize("rate", [0.05, math.inf])
def test_all_arms_give_the_same_answers(name, rate):
    runs = [start(small(name, rate), arm) for arm in ARMS]
    run_in_turn(runs)
    check_same(runs)
    for figures in (run.figures() for run in runs):
        assert figures.requests == runs[0].workload.num_requests
        assert figures.useful_tokens == runs[0].workload.output_tokens
        assert figures.utilisation + figures.reserved + figures.internal == pytest.approx(1)


def test_an_answer_does_not_depend_on_its_company():
    workload = small("c")
    together = start(workload, "S5")
    run_in_turn([together])
    for number in (0, 7, 31):
        alone = start(Workload("c", "", (workload.conversations[number],)), "S0")
        run_in_turn([alone])
        assert alone.answers.by_id["0.0"].text == together.answers.by_id[f"{number}.0"].text


def test_a_turn_follows_on_the_answer_to_the_one_before():
    first, second = Turn((1, 2, 3), 4), Turn((7,), 5)
    chat = start(Workload("d", "", (Conversation(0.0, (first, second)),)), "S5")
    run_in_turn([chat])
    answer = spelled_ids("".join(chat.answers.by_id["0.0"].text))
    again = start(Workload("d", "", (Conversation(0.0, (Turn((1, 2, 3, *answer, 7), 5),)),)), "S0")
    run_in_turn([again])
    assert len(answer) == 4
    assert again.answers.by_id["0.0"].text == chat.answers.by_id["0.1"].text


def test_nobody_waits_for_an_arrival_and_nobody_comes_before_it():
    turns = (Turn((1,), 2), Turn((2,), 2, pause=50.0))
    run = start(Workload("d", "", (Conversation(1000.0, turns),)), "S4")
    run_in_turn([run])
    first, second = run.answers.by_id["0.0"].times, run.answers.by_id["0.1"].times
    tick = GPU_LIKE.fixed + GPU_LIKE.per_row
    assert first == pytest.approx([1000 + tick, 1000 + 2 * tick])
    assert second[0] == pytest.approx(first[1] + 50 + 1 + GPU_LIKE.per_prompt_token * 4)


def test_a_prompt_can_wait_for_others_tokens():
    late = Conversation(0.0, (Turn((2,), 1),), after_tokens=3)
    run = start(Workload("e", "", (Conversation(0.0, (Turn((1,), 6),)), late)), "S4")
    run_in_turn([run])
    assert run.answers.by_id["0.0"].times[2] < run.answers.by_id["1.0"].times[0]
    assert run.answers.by_id["1.0"].end.timings.arrival == run.answers.by_id["0.0"].times[2]


def test_runs_keep_abreast_of_each_other():
    runs = [start(small("c"), arm) for arm in ("S0", "S3")]
    most = MACHINE.max_num_seqs / runs[0].workload.output_tokens
    while min(run.progress for run in runs) < 0.95:
        before = [run.progress for run in runs]
        min(runs, key=lambda each: each.progress).step()
        assert abs(runs[0].progress - runs[1].progress) <= max(most, abs(before[0] - before[1]))


def test_other_tokens_or_lengths_are_noticed():
    workload = small("a")
    runs = [start(workload, "S3"), start(workload, "S3", _vocabulary=np.uint64(SIZE - 1))]
    run_in_turn(runs)
    with pytest.raises(RuntimeError, match="differ in the answers"):
        check_same(runs)
    runs[1].answers.by_id["3.0"].times.pop()
    with pytest.raises(RuntimeError, match=r"\['3.0'\] have other lengths"):
        check_same(runs)


def test_a_block_table_that_leads_elsewhere_is_noticed():
    run = start(small("a"), "S3")

    def swapped(batch: Batch) -> StepOutput:
        batch.block_tables[:] = batch.block_tables[::-1]
        return SimulatedRunner.execute(runner, batch)

    runner = run._meter._runner
    run._meter.execute = swapped
    with pytest.raises(RuntimeError, match="ended with"):
        run_in_turn([run])


def test_the_cost_of_a_tick_tells_prompts_from_decodes():
    assert Cost(1, 0.1, 0.01).of(np.array([1, 1, 30], dtype=np.int32)) == pytest.approx(1 + 0.2 + 0.3)


def test_text_of_the_spelled_vocabulary_is_its_ids():
    vocabulary = spelled_vocabulary(49_152)
    ids = (0, 7, 49_151)
    assert spelled_ids(b"".join(vocabulary.token_bytes[i] for i in ids).decode()) == ids


def test_own_time_stands_still_while_it_does_not_run():
    clock = OwnTime()
    before = clock()
    assert clock() == before
    with clock.running():
        assert clock() > before
    after = clock()
    clock.jump_to(after + 5)
    clock.jump_to(after + 1)
    assert clock() == after + 5
