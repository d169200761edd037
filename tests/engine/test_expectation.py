"""How long answers are expected to go on, against distributions whose mean residual life is known."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.expectation import HALVED_EVERY, PRIOR_TOKENS, ExpectedLength

FAR = 10**9


def learnt(lengths: list[int]) -> ExpectedLength:
    expected = ExpectedLength()
    for length in lengths:
        expected.ended(length)
    return expected


@pytest.mark.parametrize("made", [0, 1, 100, 5000, 2**30])
def test_before_anything_is_known_the_prior_decides_at_every_length(made: int) -> None:
    assert ExpectedLength().remaining(made, at_most=FAR) == PRIOR_TOKENS


def test_it_is_never_more_than_may_come() -> None:
    assert ExpectedLength().remaining(10, at_most=7) == 7
    assert ExpectedLength().remaining(10, at_most=0) == 0


@pytest.mark.parametrize("mean", [20, 200, 3000])
def test_a_geometric_answer_is_expected_to_go_on_by_its_mean_at_every_length(mean: int) -> None:
    rng = random.Random(1)
    expected = learnt([1 + int(rng.expovariate(1 / mean)) for _ in range(4000)])
    for made in (0, mean // 4, mean // 2, mean):
        assert expected.remaining(made, FAR) == pytest.approx(mean, rel=0.2), made


def test_answers_of_one_length_are_expected_to_end_there() -> None:
    expected = learnt([100] * 500)
    assert expected.remaining(0, FAR) == 100
    assert expected.remaining(64, FAR) == pytest.approx(36, abs=1)
    # Within the bucket from 65 to 128 it knows no more than that they end in it.
    assert 1 <= expected.remaining(99, FAR) < 20


def test_an_answer_that_outgrew_the_short_ones_is_one_of_the_long_ones() -> None:
    expected = learnt([10, 1000] * 200)
    assert expected.remaining(0, FAR) == pytest.approx(505, rel=0.01)
    assert expected.remaining(16, FAR) == pytest.approx(984, rel=0.01)
    assert expected.remaining(512, FAR) == pytest.approx(488, rel=0.01)


def test_an_answer_longer_than_all_before_it_is_expected_to_go_on_by_the_prior() -> None:
    assert learnt([100] * 500).remaining(129, FAR) == PRIOR_TOKENS


def test_what_is_long_past_is_forgotten() -> None:
    expected = learnt([1000] * 10 * HALVED_EVERY + [10] * 10 * HALVED_EVERY)
    assert expected.remaining(0, FAR) == pytest.approx(10, abs=2)


def test_an_answer_without_tokens_teaches_nothing_and_is_refused() -> None:
    with pytest.raises(ValueError, match="output_tokens: got 0, allowed: at least 1"):
        ExpectedLength().ended(0)


@given(lengths=st.lists(st.integers(1, 2**26), max_size=50), bits=st.integers(0, 20))
def test_at_powers_of_two_it_is_the_mean_over_the_longer_ones(lengths: list[int], bits: int) -> None:
    made = 2**bits
    rests = [length - made for length in lengths if length > made] + [PRIOR_TOKENS]
    assert learnt(lengths).remaining(made, FAR) == pytest.approx(sum(rests) / len(rests), abs=0.51)


@given(lengths=st.lists(st.integers(1, 2**26), max_size=50), made=st.integers(0, 2**27))
def test_at_least_one_more_is_expected_of_whoever_goes_on(lengths: list[int], made: int) -> None:
    assert 1 <= learnt(lengths).remaining(made, at_most=FAR) <= max(lengths, default=0) + PRIOR_TOKENS
