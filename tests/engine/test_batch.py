"""From a request's parameters to the chosen token: batches and kernels together do what the oracle does.

Made-up logits stand for a model's, and the histories of tokens are made up too: what is asked is what the
parameters make of them, tick by tick, in company, and across preemption.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.batch import NOT_A_NUMBER, NOTHING_ALLOWED, Batch, BatchBuilder, StepOutput
from engine.blocks import BLOCK_SIZE
from engine.request import Request, Sequence, Status
from engine.runner import ModelRunner
from engine.sampling import SamplingParams
from engine.scheduler import Plan
from kernels import for_device, reference
from tests import oracle

WIDTH = 37
"""The vocabulary: a multiple of nothing."""
EOS = frozenset({0, 5})
MOST_BLOCKS = 8


class MadeUpModel:
    """Gives the logits that it is told to."""

    config: Any = SimpleNamespace(num_layers=1, num_kv_heads=1, head_dim=1)
    device, dtype = torch.device("cpu"), torch.float32
    logits = np.empty((0, WIDTH), dtype=np.float32)

    def __init__(self, kernels: Any) -> None:
        self.kernels = kernels

    def forward(self, inputs: Any, kv: Any) -> torch.Tensor:
        return torch.from_numpy(self.logits.copy())


def made_up(kernels: Any) -> ModelRunner:
    model: Any = MadeUpModel(kernels)
    return ModelRunner(model, 1)


WITH_CPU_KERNELS = made_up(for_device(torch.device("cpu")))
WITH_REFERENCE = made_up(reference)


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """More would only wait for each other: the rows are short."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class Company:
    """Sequences in the rows of one builder."""

    def __init__(self, num_rows: int) -> None:
        self.builder = BatchBuilder(num_rows, MOST_BLOCKS, EOS)

    def admit(self, sequence: Sequence, row: int) -> Sequence:
        sequence.row, sequence.num_computed = row, 0
        sequence.blocks = [row * MOST_BLOCKS + i for i in range(MOST_BLOCKS)]
        self.builder.enter(sequence)
        return sequence

    def build(self, *sequences: Sequence, **counts: int) -> Batch:
        """All that is left of each, or as many tokens as `counts` says by request id."""
        plan = Plan()
        for sequence in sequences:
            plan.scheduled[sequence] = counts.get(sequence.id, sequence.num_uncomputed)
        return self.builder.build(plan)


def make(params: SamplingParams, prompt: tuple[int, ...] = (1, 2, 3), name: str = "r") -> Sequence:
    return Sequence(Request(name, prompt, params, arrival=0.0), seed=params.seed or 0, max_output_tokens=100)


def expect(output: StepOutput, logits: Any, sequences: list[Sequence]) -> None:
    """What a runner said about each of `sequences` is what the oracle says."""
    told = iter([]) if output.logprobs is None else iter(range(len(output.logprobs.rows)))
    for r, sequence in enumerate(sequences):
        params, length = sequence.request.sampling, sequence.num_prompt_tokens
        prompt, answer = sequence.tokens[:length], sequence.tokens[length:]
        token, logprob = oracle.choose(
            logits[r], params, prompt, answer, sequence.seed, sequence.num_tokens, EOS
        )
        assert output.ids[r] == token, (params, prompt, answer)
        if logprob is None:
            continue
        found, i, k = output.logprobs, next(told), len(logprob.top)
        assert found is not None
        assert found.rows[i] == r
        assert found.top_ids[i, :k].tolist() == [token for token, _ in logprob.top]
        values = [found.chosen[i], *found.top[i, :k]]
        # The kernels add up in another order than numpy: the last bit may differ.
        expected = [logprob.chosen.logprob, *(value for _, value in logprob.top)]
        np.testing.assert_allclose(values, expected, rtol=1.2e-7, atol=1e-12)
    assert next(told, None) is None


def run(batch: Batch, logits: Any, sequences: list[Sequence]) -> StepOutput:
    """Both kinds of kernels, and the oracle for batches, agree with the oracle for parameters."""
    MadeUpModel.logits = logits
    output = WITH_CPU_KERNELS.execute(batch)
    for each in (output, WITH_REFERENCE.execute(batch), oracle.sample_batch(logits, batch)):
        expect(each, logits, sequences)
    return output


@functools.cache
def answers(params: SamplingParams, num_ticks: int = 40) -> list[int]:
    """The tokens chosen from logits with many near and exact ties, whose history is the answer itself."""
    rng = np.random.default_rng(3)
    company = Company(1)
    sequence = company.admit(make(params, (1, 2, 3, 2, 9, 9, 30)), 0)
    for _ in range(num_ticks):
        logits = np.round(rng.standard_normal((1, WIDTH)) * 2).astype(np.float32) / 2
        token = int(run(company.build(sequence), logits, [sequence]).ids[0])
        sequence.num_computed = sequence.num_tokens
        sequence.tokens.append(token)
    return sequence.tokens[sequence.num_prompt_tokens :]


PLAIN = SamplingParams(seed=11)
BAD_TOKENS = tuple((token,) for token in range(12))
BAD_PAIRS = tuple((a, b) for a in range(WIDTH) for b in range(0, WIDTH, 2))
BAD_TRIPLES = tuple((a, b, c) for a in range(WIDTH) for b in range(0, WIDTH, 3) for c in range(0, WIDTH, 3))


CASES: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0},
    "cool": {"temperature": 0.3},
    "top_p": {"top_p": 0.3},
    "top_k": {"top_k": 3},
    "min_p": {"min_p": 0.4},
    "presence": {"presence_penalty": 1.7},
    "presence wanted": {"presence_penalty": -2},
    "frequency": {"frequency_penalty": 0.9},
    "frequency wanted": {"frequency_penalty": -0.3},
    "repetition": {"repetition_penalty": 1.9},
    "repetition wanted": {"repetition_penalty": 0.4},
    "bias": {"logit_bias": ((4, 3.5), (7, -100), (36, 1.0))},
    "allowed": {"allowed_token_ids": (1, 3, 5, 3, 36)},
    "bad tokens": {"bad_words": BAD_TOKENS},
    "bad pairs": {"bad_words": BAD_PAIRS},
    "bad triples": {"bad_words": BAD_TRIPLES},
    "bad words": {"bad_words": ((2,), (2, 3), (9, 30, 4), (30, 30), (9,))},
    "min_tokens": {"min_tokens": 39, "stop_token_ids": (1, 2, 3, 4, 11, 12)},
    "min_tokens, ignore_eos": {"min_tokens": 39, "ignore_eos": True, "stop_token_ids": (2, 4)},
    "seed": {"seed": 12},
}


@pytest.mark.parametrize("name", CASES)
def test_each_parameter_changes_the_answer_as_the_oracle_says(name: str) -> None:
    assert answers(SamplingParams(**{"seed": 11, **CASES[name]})) != answers(PLAIN)


def test_logprobs_change_nothing_but_are_told() -> None:
    assert answers(SamplingParams(seed=11, logprobs=20)) == answers(PLAIN)


def test_a_minimum_of_tokens_bans_the_ends_before_it_and_not_after() -> None:
    likely = {"seed": 11, "logit_bias": ((0, 4.0), (5, 4.0), (8, 4.0))}
    assert {0, 5, 8} <= set(answers(SamplingParams(**likely))[:10])
    late = answers(SamplingParams(**likely, min_tokens=20, stop_token_ids=(8,)))
    assert {0, 5, 8}.isdisjoint(late[:20])
    assert {0, 5, 8} & set(late[20:23])
    ignoring = answers(SamplingParams(**likely, min_tokens=20, stop_token_ids=(8,), ignore_eos=True))
    assert {0, 5} <= set(ignoring[:20])
    assert 8 not in ignoring[:20]


TOKENS = st.integers(0, 7)
IDS = st.integers(0, WIDTH + 2)
PARAMS = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 0.0, 9e-6, 0.7, 1.0, 2.0]),
    top_p=st.sampled_from([1.0, 1.0, 0.9, 0.37, 1e-6]),
    top_k=st.sampled_from([0, 0, 1, 3, 50]),
    min_p=st.sampled_from([0.0, 0.0, 0.05, 0.5, 1.0]),
    presence_penalty=st.sampled_from([0.0, 0.0, 0.1, 2.0, -2.0]),
    frequency_penalty=st.sampled_from([0.0, 0.0, 0.1, 2.0, -2.0]),
    repetition_penalty=st.sampled_from([1.0, 1.0, 1.3, 0.5, 2.0]),
    logit_bias=st.lists(
        st.tuples(IDS, st.sampled_from([0.1, -3.0, 100.0, -100.0])),
        max_size=4,
        unique_by=lambda pair: pair[0],
    ).map(tuple),
    allowed_token_ids=st.none() | st.lists(IDS, min_size=1, max_size=9).map(tuple),
    bad_words=st.lists(st.lists(TOKENS, min_size=1, max_size=3).map(tuple), max_size=9).map(tuple),
    min_tokens=st.sampled_from([0, 0, 1, 3]),
    ignore_eos=st.booleans(),
    stop_token_ids=st.lists(IDS, max_size=3).map(tuple),
    seed=st.integers(-(2**63), 2**63 - 1),
    logprobs=st.sampled_from([None, None, 0, 1, 5, 20]),
)


@settings(max_examples=80)
@given(
    params=st.lists(PARAMS, min_size=1, max_size=5),
    num_ticks=st.integers(1, 6),
    seed=st.integers(0, 2**32 - 1),
)
def test_any_combination_in_any_company_is_what_the_oracle_says(
    params: list[SamplingParams], num_ticks: int, seed: int
) -> None:
    """Histories are of few tokens, so that they repeat and bad words come true; now and then a row's logits
    are broken, or a sequence is preempted and comes back to another row."""
    rng = random.Random(seed)
    company, rows = Company(6), list(range(6))
    rng.shuffle(rows)
    sequences = [
        company.admit(make(p, tuple(rng.choices(range(8), k=rng.randint(1, 9))), f"r{i}"), rows.pop())
        for i, p in enumerate(params)
    ]
    for _ in range(num_ticks):
        here = [s for s in sequences if rng.random() < 0.8] or sequences
        halves = {s.id: s.num_uncomputed // 2 for s in here if s.num_uncomputed > 1 and rng.random() < 0.3}
        sampled = [s for s in here if s.id not in halves]
        logits = np.array([[rng.gauss(0, 3) for _ in range(WIDTH)] for _ in sampled], dtype=np.float32)
        logits = np.round(logits.reshape(-1, WIDTH) * 2) / 2  # so that many are equal
        for row in logits:
            if rng.random() < 0.2:
                row[rng.randrange(WIDTH)] = rng.choice([np.nan, np.inf, -np.inf, 3e38, -3e38])
            if rng.random() < 0.05:
                row[:] = -np.inf
        batch = company.build(*here, **halves)
        assert len(batch.sampled) == len(sampled)
        output = run(batch, logits, sampled)
        for sequence in here:
            sequence.num_computed += halves.get(sequence.id, sequence.num_uncomputed)
        for sequence, token in zip(sampled, output.ids.tolist(), strict=True):
            sequence.tokens.append(token if token >= 0 and rng.random() < 0.3 else rng.randrange(8))
        if rng.random() < 0.3:
            victim = rng.choice(sequences)
            rows.insert(0, victim.row)
            company.admit(victim, rows.pop())


def test_codes_tell_what_is_wrong() -> None:
    company = Company(3)
    nothing = company.admit(make(SamplingParams(allowed_token_ids=(4,), bad_words=((4,),), logprobs=2)), 0)
    masked = company.admit(make(SamplingParams(allowed_token_ids=(4,)), name="masked"), 1)
    normal = company.admit(make(SamplingParams(temperature=0), name="normal"), 2)
    logits = np.zeros((3, WIDTH), dtype=np.float32)
    logits[1, 20] = np.nan
    output = run(company.build(nothing, masked, normal), logits, [nothing, masked, normal])
    assert output.ids.tolist() == [NOTHING_ALLOWED, NOT_A_NUMBER, 0]
    assert output.logprobs is not None
    assert output.logprobs.chosen.tolist() == [-9999.0]
    assert output.logprobs.top_ids.tolist() == [[0, 1]]


class TestNoRowNeedsEdits:
    def test_when_no_parameter_touches_logits(self) -> None:
        company = Company(1)
        plain = SamplingParams(
            temperature=0.5, top_p=0.5, top_k=5, min_p=0.1, stop_token_ids=(3,), logprobs=1
        )
        assert company.build(company.admit(make(plain), 0)).edits is None

    def test_when_the_only_one_that_does_is_not_sampled(self) -> None:
        company = Company(2)
        edited = company.admit(make(SamplingParams(presence_penalty=1), name="edited"), 0)
        plain = company.admit(make(SamplingParams(), name="plain"), 1)
        assert company.build(edited, plain, edited=1).edits is None
        assert company.build(edited, plain).edits is not None

    def test_when_the_minimum_has_been_reached_and_no_bad_word_has_begun(self) -> None:
        company = Company(1)
        sequence = company.admit(make(SamplingParams(min_tokens=1, bad_words=((1, 2),))), 0)
        assert company.build(sequence).edits is not None
        sequence.tokens.append(2)
        assert company.build(sequence).edits is None
        sequence.tokens.append(1)
        assert company.build(sequence).edits is not None

    def test_when_the_row_has_a_new_owner(self) -> None:
        company = Company(1)
        company.admit(make(SamplingParams(presence_penalty=1, bad_words=((1,),), logprobs=3)), 0)
        batch = company.build(company.admit(make(SamplingParams()), 0))
        assert (batch.edits, batch.num_logprobs.tolist()) == (None, [-1])


def test_a_row_forgets_its_owner_and_a_sequence_that_comes_back_is_counted_anew() -> None:
    company = Company(2)
    first = company.admit(make(SamplingParams(frequency_penalty=1, temperature=0), (1, 1), "first"), 0)
    first.tokens += [2, 2, 3]
    biased = SamplingParams(repetition_penalty=2, logit_bias=((4, 1.0),), temperature=0)
    second = company.admit(make(biased, (3,), "second"), 1)
    logits = np.ones((2, WIDTH), dtype=np.float32)
    run(company.build(first, second), logits, [first, second])
    second.tokens.append(6)
    for rows in ((0, 1), (1, 0), (0, 1)):
        company.admit(first, rows[0])
        company.admit(second, rows[1])
        edits = company.build(first, second).edits
        assert edits is not None
        assert edits.seen_ids.tolist() == [1, 2, 3, 3, 6]
        assert edits.seen_counts.tolist() == [0, 2, 1, 0, 1]
        assert edits.bias_start.tolist() == [0, 0, 1]
        run(company.build(first, second), logits, [first, second])


def test_a_bad_word_begins_in_the_answer_and_not_in_the_prompt() -> None:
    company = Company(1)
    sequence = company.admit(make(SamplingParams(temperature=0, bad_words=((3, 4, 5),)), (3, 4)), 0)
    logits = np.zeros((1, WIDTH), dtype=np.float32)
    logits[0, 5] = 1
    for token, expected in ((4, 5), (3, 5), (4, 5), (9, 0), (4, 5)):
        assert run(company.build(sequence), logits, [sequence]).ids.tolist() == [expected]
        sequence.tokens.append(token)


def test_a_broken_request_fails_at_its_entry_and_nobody_else_notices() -> None:
    company = Company(2)
    fine = company.admit(make(SamplingParams(presence_penalty=1), name="fine"), 0)
    for broken in (
        SamplingParams(logit_bias=((2**40, 1.0),)),
        SamplingParams(allowed_token_ids=(2**40,)),
        SamplingParams(bad_words=((1, 2**40),)),
        SamplingParams(min_tokens=1, stop_token_ids=(2**40,)),
    ):
        with pytest.raises(OverflowError):
            company.admit(make(broken), 1)
    company.admit(make(SamplingParams(), name="next"), 1)
    logits = np.zeros((1, WIDTH), dtype=np.float32)
    run(company.build(fine), logits, [fine])


def test_slots_and_tables_follow_the_blocks() -> None:
    company = Company(3)
    long = company.admit(make(SamplingParams(), tuple(range(20)), "long"), 2)
    short = company.admit(make(SamplingParams(), (7, 8), "short"), 0)
    batch = company.build(long, short, long=18)
    assert batch.rows.tolist() == [2, 0]
    assert batch.query_start.tolist() == [0, 18, 20]
    assert batch.context_lens.tolist() == [18, 2]
    assert batch.block_tables.tolist() == [[16, 17], [0, 1]]
    assert batch.slots.tolist() == [*range(16 * BLOCK_SIZE, 16 * BLOCK_SIZE + 18), 0, 1]
    assert batch.sampled.tolist() == [19]
    long.num_computed = 18
    batch = company.build(long)
    assert batch.token_ids.tolist() == [18, 19]
    assert batch.positions.tolist() == [18, 19]
    assert batch.sampled.tolist() == [1]


def test_a_sequence_that_begins_with_shared_blocks_computes_only_the_rest() -> None:
    company = Company(2)
    sequence = company.admit(make(SamplingParams(), tuple(range(20))), 1)
    sequence.blocks, sequence.num_computed = [5, 3], 16
    batch = company.build(sequence)
    assert batch.positions.tolist() == [16, 17, 18, 19]
    assert batch.slots.tolist() == [3 * BLOCK_SIZE + i for i in range(4)]
    assert batch.block_tables.tolist() == [[5, 3]]


def test_an_ended_sequence_computes_on_in_its_row_as_padding() -> None:
    company = Company(2)
    ended = company.admit(make(SamplingParams(min_tokens=3, presence_penalty=1), name="ended"), 0)
    ended.tokens.append(0)
    ended.num_computed, ended.status = 3, Status.FINISHED
    other = company.admit(make(SamplingParams(temperature=0), name="other"), 1)
    for _ in range(2):
        batch = company.build(ended, other)
        assert batch.token_ids.tolist() == [0, 1, 2, 3]
        assert batch.slots[0] == 3
        run(batch, np.zeros((2, WIDTH), dtype=np.float32), [ended, other])


def test_copies_keep_their_order() -> None:
    company = Company(1)
    plan = Plan()
    plan.scheduled[company.admit(make(SamplingParams()), 0)] = 3
    assert company.builder.build(plan).copies.shape == (0, 2)
    plan.copies += [(4, 2), (2, 9), (4, 1)]
    assert company.builder.build(plan).copies.tolist() == [[4, 2], [2, 9], [4, 1]]
