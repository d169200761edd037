"""Workloads have the shape that they claim, and the same seed gives the same one."""

from __future__ import annotations

import math

import numpy as np
import pytest

from benchmarks.workloads import CUT, WORKLOADS, Order, Workload, make, poisson_starts


def order(requests: int = 400, rate: float = math.inf, **changes: int) -> Order:
    return Order(requests, rate, vocabulary=1000, **changes)


def prompts(workload: Workload) -> list[int]:
    return [length for c in workload.conversations for length in c.prompt_lengths()]


def answers(workload: Workload) -> list[int]:
    return [turn.output_tokens for c in workload.conversations for turn in c.turns]


@pytest.mark.parametrize("name", WORKLOADS)
def test_the_same_seed_gives_the_same_workload_and_another_one_another(name):
    assert make(name, order(40)) == make(name, order(40))
    assert make(name, order(40)) != make(name, order(40, seed=1))


@pytest.mark.parametrize("name", WORKLOADS)
def test_the_rate_changes_when_requests_come_and_nothing_else(name):
    slow, fast = make(name, order(40, rate=2.0)), make(name, order(40, rate=4.0))
    assert [t.fresh for c in slow.conversations for t in c.turns] == [
        t.fresh for c in fast.conversations for t in c.turns
    ]
    assert answers(slow) == answers(fast)
    assert [c.start for c in slow.conversations] == pytest.approx([2 * c.start for c in fast.conversations])


@pytest.mark.parametrize("name", WORKLOADS)
def test_every_request_fits_in_its_context_whatever_that_is(name):
    for context in (256, 2048):
        workload = make(name, order(context=context))
        lengths = list(zip(prompts(workload), answers(workload), strict=True))
        assert all(prompt >= 1 and answer >= 1 and prompt + answer <= context for prompt, answer in lengths)


@pytest.mark.parametrize("name", WORKLOADS)
def test_ids_are_in_the_vocabulary_and_spread_over_it(name):
    ids = {i for c in make(name, order(40)).conversations for turn in c.turns for i in turn.fresh}
    assert min(ids) >= 0
    assert max(ids) < 1000
    assert len(ids) > 500


def test_the_totals_count_history_again_in_every_turn():
    workload = make("d", order(18))
    assert workload.num_requests == 18
    assert workload.output_tokens == sum(answers(workload))
    assert workload.prompt_tokens == sum(prompts(workload))
    assert workload.prompt_tokens > 2 * sum(len(t.fresh) for c in workload.conversations for t in c.turns)


def test_arrivals_are_offered_at_exactly_the_rate_and_gaps_are_exponential():
    starts = poisson_starts(np.random.default_rng(0), 20_000, 7.0)
    gaps = np.diff([0.0, *starts])
    assert starts[-1] == pytest.approx(20_000 / 7.0, rel=1e-12)
    assert (gaps > 0).all()
    assert gaps.std() == pytest.approx(gaps.mean(), rel=0.03)
    assert np.quantile(gaps, 0.5) == pytest.approx(gaps.mean() * math.log(2), rel=0.03)


def test_all_at_once_is_at_the_beginning():
    assert poisson_starts(np.random.default_rng(0), 3, math.inf) == [0.0, 0.0, 0.0]


def test_orca_is_uniform_in_both_lengths():
    workload = make("a", order(20_000))
    assert (min(prompts(workload)), max(prompts(workload))) == (32, 512)
    assert (min(answers(workload)), max(answers(workload))) == (1, 128)
    assert np.mean(prompts(workload)) == pytest.approx(272, rel=0.02)
    assert np.mean(answers(workload)) == pytest.approx(64.5, rel=0.02)


def test_anyscale_is_exponential_and_capped():
    workload = make("b", order(20_000))
    assert set(prompts(workload)) == {512}
    assert (min(answers(workload)), max(answers(workload))) == (1, 512)
    assert np.mean(answers(workload)) == pytest.approx(128 * (1 - math.exp(-4)), rel=0.02)
    assert np.mean(np.array(answers(workload)) == 512) == pytest.approx(math.exp(-4), rel=0.15)


def test_sharegpt_has_its_means_after_the_cut_and_nothing_that_the_filter_drops():
    workload = make("c", order(20_000))
    assert np.mean(prompts(workload)) == pytest.approx(161, rel=0.03)
    assert np.mean(answers(workload)) == pytest.approx(338, rel=0.03)
    assert min(prompts(workload)) >= 4
    assert min(answers(workload)) >= 4
    assert max(prompts(workload)) == max(answers(workload)) == CUT


def test_chats_share_their_beginning_and_grow():
    workload = make("d", order(18, rate=1.0))
    assert len(workload.conversations) == 3
    first, second, _ = (c.turns[0].fresh for c in workload.conversations)
    assert first[:96] == second[:96]
    assert first[96:] != second[96:]
    for conversation in workload.conversations:
        assert conversation.prompt_lengths() == sorted(conversation.prompt_lengths())
        assert conversation.turns[0].pause == 0
        assert all(turn.pause > 0 for turn in conversation.turns[1:])


def test_long_prompts_come_into_the_middle_of_the_streams():
    workload = make("e", order(19))
    streams, long = workload.conversations[:16], workload.conversations[16:]
    streamed = sum(c.turns[0].output_tokens for c in streams)
    assert {len(c.turns[0].fresh) for c in streams} == {32}
    assert {len(c.turns[0].fresh) for c in long} == {1536}
    assert [c.after_tokens for c in long] == [streamed // 4, 2 * (streamed // 4), 3 * (streamed // 4)]


@pytest.mark.parametrize("field", ["requests", "rate", "vocabulary", "context"])
def test_an_order_for_nothing_is_refused_by_name(field):
    with pytest.raises(ValueError, match=field):
        Order(**{"requests": 1, "rate": 1.0, "vocabulary": 1, field: 0})


def test_an_unknown_name_is_refused_with_those_there_are():
    with pytest.raises(ValueError, match=r"'x', allowed: a, b, c, d, e"):
        make("x", order())
