"""Paged attention: equal to the oracle, blind to what it must not see, the same alone and in company."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels import cpu, reference
from tests.kernels.paged import Paged, paged

MIXED = [(1, 1), (300, 1), (16, 16), (17, 3), (129, 129), (257, 40), (128, 1), (700, 500)]


def assert_close(inputs: Paged, window: int | None = None) -> None:
    torch.testing.assert_close(inputs.run(cpu, window), inputs.run(reference, window), atol=3e-6, rtol=1e-5)


@pytest.mark.parametrize("length", [1, 15, 16, 17, 127, 128, 129, 256, 257])
def test_decode_at_the_edges_of_blocks_and_splits(length: int) -> None:
    assert_close(paged([(length, 1)]))


@pytest.mark.parametrize("window", [None, 1, 7, 16, 100, 130, 10_000])
def test_decode_rows_and_prompt_chunks_in_one_call(window: int | None) -> None:
    assert_close(paged(MIXED), window)


@pytest.mark.parametrize("dim", [8, 64, 96, 128, 256])
@pytest.mark.parametrize(("heads", "kv_heads"), [(2, 2), (9, 3), (8, 2), (8, 1), (12, 1)])
def test_head_sizes_and_shared_heads(heads: int, kv_heads: int, dim: int) -> None:
    assert_close(paged([(150, 1), (33, 20)], heads=heads, kv_heads=kv_heads, dim=dim), window=140)


@settings(max_examples=40)
@given(
    runs=st.lists(
        st.integers(1, 300).flatmap(lambda n: st.tuples(st.just(n), st.integers(1, n))),
        min_size=1,
        max_size=5,
    ),
    window=st.none() | st.integers(1, 300),
    seed=st.integers(0, 99),
)
def test_any_mix(runs: list[tuple[int, int]], window: int | None, seed: int) -> None:
    assert_close(paged(runs, heads=4, kv_heads=2, dim=32, seed=seed), window)


@pytest.mark.parametrize("window", [None, 50])
def test_a_token_alone_equals_the_same_token_in_a_chunk_and_in_company_bit_for_bit(
    window: int | None,
) -> None:
    inputs = paged(MIXED)
    together = inputs.run(cpu, window)
    for s, (length, count) in enumerate(MIXED):
        end_row = int(inputs.query_start[s + 1])
        for end in {length, length - count + 1, length - count // 2}:
            alone = inputs.alone(s, end).run(cpu, window)
            assert torch.equal(alone[0], together[end_row - length + end - 1])


def test_slots_outside_the_window_are_not_read() -> None:
    inputs = paged([(200, 1)])
    expected = inputs.run(cpu, 30)
    table = inputs.block_tables[0].long()
    for cache in (inputs.key_cache, inputs.value_cache):
        cache[table[:10]] = math.nan
        cache[table[10], :, :10] = math.nan
    assert torch.equal(inputs.run(cpu, 30), expected)


def test_a_nan_in_one_sequence_stays_there() -> None:
    inputs = paged([(40, 1), (40, 1)])
    expected = inputs.run(cpu)
    inputs.key_cache[inputs.block_tables[0, 0].long()] = math.nan
    got = inputs.run(cpu)
    assert got[0].isnan().all()
    assert torch.equal(got[1], expected[1])


def test_the_answer_does_not_depend_on_the_number_of_threads() -> None:
    inputs = paged(MIXED)
    expected = inputs.run(cpu)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        assert torch.equal(inputs.run(cpu), expected)
    finally:
        torch.set_num_threads(before)


def test_heads_that_do_not_fit_the_cache_are_refused() -> None:
    inputs = paged([(5, 1)])
    with pytest.raises(ValueError, match=r"q: got 8 heads of 64.*3 heads"):
        cpu.paged_attention(
            inputs.q[:, :8].contiguous(),
            inputs.key_cache,
            inputs.value_cache,
            inputs.block_tables,
            inputs.context_lens,
            inputs.query_start,
            1.0,
            None,
        )


def test_sequences_without_tokens_are_passed_over() -> None:
    assert_close(paged([(7, 0), (40, 1), (300, 0), (33, 20), (9, 0)]))
