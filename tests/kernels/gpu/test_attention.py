"""Paged attention: equal to the oracle, blind to what it must not see, the same alone and in company."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from kernels import reference
from kernels.gpu.ahead import RecordingDevice
from kernels.gpu.attention import paged_attention
from kernels.gpu.attention_splits import Cut, cut
from kernels.gpu.device import Device
from kernels.tuning import Tiles
from tests.kernels.gpu.conftest import PLACE
from tests.kernels.gpu.rounding import E4M3, every_dtype
from tests.kernels.paged import BLOCK_SIZE, Paged, paged

TOLERANCE = {torch.float32: 4e-6, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}
"""The weights are rounded to the dtype before they are multiplied with values of the order of 1."""

MIXED = [(1, 1), (20, 20), (65, 1), (50, 9), (96, 1)]
EDGES = [(length, 1) for length in (1, 15, 16, 17, 31, 32, 33, 64, 65)]


@dataclass(frozen=True)
class Fine(Device):
    """Cuts short contexts as others cut long ones."""

    def tiles(self, kernel: str, **facts: int) -> Tiles:
        fine = {"BLOCK_M": 16, "BLOCK_N": 16, "SEGMENT": 32, "BLOCK_HEADS": 2}
        tiles = super().tiles(kernel, **facts)
        return {**tiles, **{name: fine[name] for name in fine.keys() & tiles.keys()}}


@dataclass(frozen=True)
class Way:
    """How contexts are cut: that depends on how many programs a chip has room for, and the tables' width."""

    batch_invariant: bool
    num_sms: int
    width: int = 0
    """Tables get this many columns more. Contexts are cut as if they might fill them."""

    @property
    def device(self) -> Fine:
        return Fine(Device.of(PLACE, batch_invariant=True).arch, self.num_sms, self.batch_invariant)

    def run(self, inputs: Paged, window: int | None = None) -> Tensor:
        return run(self.device, widened(inputs, self.width), window)


TOGETHER, APART = Way(True, 1), Way(True, 10_000)
WAYS = {
    "whole": Way(False, 1),
    "4 splits": Way(False, 10_000, 60),
    "segments together": TOGETHER,
    "segments apart": APART,
}
every_way = pytest.mark.parametrize("way", WAYS.values(), ids=WAYS.keys())

here = partial(paged, device=PLACE)


def widened(inputs: Paged, columns: int) -> Paged:
    more = inputs.block_tables.new_full((len(inputs.block_tables), columns), -(10**6))
    return replace(inputs, block_tables=torch.cat([inputs.block_tables, more], dim=1))


def run(device: Device, inputs: Paged, window: int | None = None) -> Tensor:
    """What is allocated holds NaN until it is written to."""
    torch.use_deterministic_algorithms(True)
    try:
        return inputs.run(SimpleNamespace(paged_attention=partial(paged_attention, device)), window)
    finally:
        torch.use_deterministic_algorithms(False)


def exact(inputs: Paged, window: int | None = None) -> Tensor:
    wide = replace(
        inputs,
        q=inputs.q.double(),
        key_cache=inputs.key_cache.double(),
        value_cache=inputs.value_cache.double(),
    )
    return wide.run(reference, window)


def assert_right(got: Tensor, inputs: Paged, window: int | None = None) -> None:
    assert got.dtype == inputs.q.dtype
    tolerance = TOLERANCE[got.dtype]
    torch.testing.assert_close(got.double(), exact(inputs, window), atol=tolerance, rtol=tolerance)


def assert_close(device: Device, inputs: Paged, window: int | None = None) -> None:
    assert_right(run(device, inputs, window), inputs, window)


@every_way
@pytest.mark.parametrize("window", [None, 1, 16, 40])
def test_decode_at_the_edges_of_blocks_and_splits(window: int | None, way: Way) -> None:
    inputs = here(EDGES, heads=2, kv_heads=1, dim=16)
    assert_right(way.run(inputs, window), inputs, window)


@pytest.mark.parametrize("columns", [300, 600])
def test_more_splits_than_a_context_has_tiles(columns: int) -> None:
    inputs = here([(70, 1), (5, 1)], heads=2, kv_heads=1, dim=16)
    assert_right(Way(False, 10_000, columns).run(inputs), inputs)


@every_way
@pytest.mark.parametrize("window", [None, 7, 33])
def test_decode_rows_and_prompt_chunks_in_one_call(window: int | None, way: Way) -> None:
    inputs = here(MIXED, heads=3, kv_heads=1, dim=16)
    assert_right(way.run(inputs, window), inputs, window)


@pytest.mark.parametrize("dim", [8, 64, 96, 128, 256])
@pytest.mark.parametrize(("heads", "kv_heads"), [(2, 2), (9, 3), (8, 2), (8, 1), (20, 1)])
def test_head_sizes_and_shared_heads(device: Device, heads: int, kv_heads: int, dim: int) -> None:
    inputs = here([(150, 1), (33, 20)], heads=heads, kv_heads=kv_heads, dim=dim)
    assert_close(device, inputs, window=140)
    assert_close(device, inputs.alone(0, 150))


@pytest.mark.parametrize("heads", [33, 40])
def test_more_heads_share_one_than_a_tile_has_rows(heads: int) -> None:
    assert_close(Way(False, 1).device, here([(40, 1), (9, 3)], heads=heads, kv_heads=1, dim=16))


@pytest.mark.parametrize("cache_dtype", [None, E4M3], ids=str)
@every_dtype
def test_dtypes(device: Device, dtype: torch.dtype, cache_dtype: torch.dtype | None) -> None:
    for runs in ([(150, 1), (64, 1)], [(70, 30), (40, 1)]):
        assert_close(device, here(runs, dtype=dtype, cache_dtype=cache_dtype), window=100)


@pytest.mark.skipif(PLACE.type == "cpu", reason="the interpreter always takes the bits apart")
@every_dtype
def test_e4m3_is_the_same_by_an_instruction_and_by_its_bits(device: Device, dtype: torch.dtype) -> None:
    inputs = here(MIXED, dtype=dtype, cache_dtype=E4M3)
    assert torch.equal(run(device, inputs), run(replace(device, arch="cuda:80"), inputs))


@pytest.mark.parametrize("block_size", [4, 24, 64])
def test_blocks_of_another_size_than_tiles(
    device: Device, block_size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.kernels.paged.BLOCK_SIZE", block_size)
    assert_close(device, here([(90, 1), (70, 5)], heads=4, kv_heads=2, dim=16), window=50)


def test_scores_of_any_size(device: Device) -> None:
    inputs = here([(100, 1), (60, 8)], heads=4, kv_heads=2, dim=16)
    inputs.q[:, 0] *= 1e4
    inputs.q[:, 1] *= 1e-30
    inputs.q[:, 2] = 0
    assert_close(device, inputs)


@settings(max_examples=15)
@given(
    runs=st.lists(
        st.integers(1, 70).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, min(n, 12)))),
        min_size=1,
        max_size=5,
    ).filter(lambda runs: sum(count for _, count in runs) > 0),
    window=st.none() | st.integers(1, 80) | st.just(10_000),
    heads=st.sampled_from([(1, 1), (4, 2), (3, 1)]),
    way=st.sampled_from(list(WAYS.values())),
    seed=st.integers(0, 99),
)
def test_any_mix(
    runs: list[tuple[int, int]],
    window: int | None,
    heads: tuple[int, int],
    way: Way,
    seed: int,
) -> None:
    inputs = here(runs, heads=heads[0], kv_heads=heads[1], dim=16, seed=seed)
    assert_right(way.run(inputs, window), inputs, window)


@every_way
def test_sequences_without_tokens_are_passed_over(way: Way) -> None:
    """As a padded batch has them: among the others, and behind them all."""
    inputs = here([(7, 0), (40, 1), (99, 0), (20, 20), (9, 0), (5, 0)], heads=4, kv_heads=2, dim=16)
    assert_right(way.run(inputs), inputs)


def test_sequences_without_tokens_among_as_many_tokens_as_sequences(device: Device) -> None:
    assert_close(device, here([(9, 0), (30, 2), (50, 3), (7, 0), (8, 0)], heads=4, kv_heads=2, dim=16))


@pytest.mark.parametrize("window", [None, 20])
@every_dtype
def test_a_token_alone_equals_the_same_token_in_a_chunk_and_in_company_bit_for_bit(
    window: int | None, dtype: torch.dtype
) -> None:
    inputs = here([(1, 1), (20, 20), (69, 38), (96, 1)], heads=2, kv_heads=1, dim=16, dtype=dtype)
    together = TOGETHER.run(inputs, window)
    assert torch.equal(APART.run(inputs, window), together)
    for s, end in [(0, 1), (1, 7), (1, 20), (2, 33), (2, 64), (2, 69), (3, 96)]:
        row = int(inputs.query_start[s + 1]) - int(inputs.context_lens[s]) + end - 1
        for way in (TOGETHER, APART):
            assert torch.equal(way.run(inputs.alone(s, end), window)[0], together[row])


def test_wider_tables_change_no_bit() -> None:
    inputs = here(EDGES[4:], heads=2, kv_heads=1, dim=16)
    assert torch.equal(replace(APART, width=12).run(inputs), TOGETHER.run(inputs))


def test_rows_of_padding_share_a_block(device: Device) -> None:
    inputs = here([(40, 1), (1, 1), (1, 1), (1, 1)])
    inputs.block_tables[2:, 0] = inputs.block_tables[1, 0]
    assert_close(device, inputs)


def test_slots_outside_the_window_are_not_read(device: Device) -> None:
    inputs = here([(200, 1), (200, 30)], heads=4, kv_heads=2, dim=16)
    expected = run(device, inputs, 30)
    for s, unseen in ((0, 170), (1, 141)):
        table = inputs.block_tables[s].long()
        whole, rest = unseen // BLOCK_SIZE, unseen % BLOCK_SIZE
        for cache in (inputs.key_cache, inputs.value_cache):
            cache[table[:whole]] = math.nan
            cache[table[whole], :, :rest] = math.nan
        inputs.block_tables[s, :whole] = -(10**6)
    assert torch.equal(run(device, inputs, 30), expected)


@pytest.mark.parametrize("poisoned", ["key_cache", "value_cache"])
def test_a_nan_in_one_sequence_stays_there(device: Device, poisoned: str) -> None:
    inputs = here([(40, 1), (40, 1), (40, 3)])
    expected = run(device, inputs)
    getattr(inputs, poisoned)[inputs.block_tables[0, 0].long()] = math.nan
    got = run(device, inputs)
    assert got[0].isnan().all()
    assert torch.equal(got[1:], expected[1:])


def test_offsets_beyond_32_bits(device: Device) -> None:
    kv_heads, dim = 2, 128
    last = 2**31 // (kv_heads * BLOCK_SIZE * dim) + 1
    # 2 GiB, of which only the last block is ever touched.
    cache = torch.empty((last + 1, kv_heads, BLOCK_SIZE, dim), dtype=torch.uint8, device=PLACE)
    block = torch.randn(1, kv_heads, BLOCK_SIZE, dim, device=PLACE).to(E4M3)
    cache[last:] = block.view(torch.uint8)
    inputs = replace(
        here([(BLOCK_SIZE, 1)], heads=2, kv_heads=kv_heads, dim=dim),
        key_cache=cache.view(E4M3),
        value_cache=cache.view(E4M3),
    )
    inputs.block_tables[0, 0] = last
    got = run(device, inputs)
    inputs.block_tables[0, 0] = 0
    assert torch.equal(got, run(device, replace(inputs, key_cache=block, value_cache=block)))


@pytest.mark.skipif(PLACE.type == "cpu", reason="graphs need a GPU")
def test_a_captured_call_serves_other_contexts(device: Device) -> None:
    long, short = here([(300, 1), (257, 1)]), here([(5, 1), (20, 1)], seed=1)
    static = replace(
        long,
        key_cache=torch.cat([long.key_cache, short.key_cache]),
        value_cache=torch.cat([long.value_cache, short.value_cache]),
    )
    run(device, static)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = run(device, static)
    graph.replay()
    torch.testing.assert_close(out.double(), exact(long), atol=4e-6, rtol=4e-6)
    static.q.copy_(short.q)
    static.context_lens.copy_(short.context_lens)
    static.block_tables[:, : short.block_tables.shape[1]] = short.block_tables + len(long.key_cache)
    graph.replay()
    torch.testing.assert_close(out.double(), exact(short), atol=4e-6, rtol=4e-6)


def test_it_looks_at_no_value(device: Device) -> None:
    inputs = here(MIXED)
    on_meta = Paged(*(getattr(inputs, name).to("meta") for name in Paged.__dataclass_fields__))
    got = run(RecordingDevice(device.arch, device.num_sms, device.batch_invariant), on_meta)
    assert got.is_meta
    assert got.shape == (32, 9 * 64)


def grid(num_tokens: int, num_sequences: int, window: int | None = None, segment: int | None = None) -> Cut:
    return cut(
        num_tokens, num_sequences, 4096, window, block_q=4, segment=segment, per_block=8, enough=1056
    )  # fmt: skip


def test_the_fewer_query_blocks_the_more_splits() -> None:
    assert grid(1, 1) == Cut(query_blocks=1, tokens=1, splits=16)
    assert grid(32, 32) == Cut(query_blocks=32, tokens=1, splits=4)
    assert grid(64, 64) == Cut(query_blocks=64, tokens=1, splits=2)
    assert grid(256, 256) == Cut(query_blocks=256, tokens=1, splits=1)
    assert grid(100, 4) == Cut(query_blocks=29, tokens=4, splits=4)


def test_a_window_needs_no_more_splits_than_it_has_positions() -> None:
    assert grid(1, 1, window=200).splits == 1
    assert grid(1, 1, window=500).splits == 2
    assert grid(1, 1, window=10**9).splits == 16


def test_segments_are_computed_all_together_or_each_alone() -> None:
    assert grid(1, 1, segment=1024).splits == 4
    assert grid(100, 4, segment=1024).splits == 4
    assert grid(256, 256, segment=1024).splits == 1
    # Positions 1023 and 1024 lie in two.
    assert grid(1, 1, window=2, segment=1024).splits == 2
    assert grid(1, 1, window=1, segment=1024).splits == 1
    assert grid(100, 4, window=1, segment=1024).splits == 2


def test_what_does_not_fit_is_refused(device: Device) -> None:
    inputs = here([(5, 1)])
    with pytest.raises(ValueError, match=r"q: got 8 heads of 64.*3 heads"):
        run(device, replace(inputs, q=inputs.q[:, :8].contiguous()))
    with pytest.raises(ValueError, match=r"q: got 9 heads of 32.*of 64"):
        run(device, replace(inputs, q=inputs.q[:, :, :32].contiguous()))
    with pytest.raises(ValueError, match=r"key_cache: got torch\.float16"):
        run(device, replace(inputs, key_cache=inputs.key_cache.half()))
    with pytest.raises(ValueError, match=r"value_cache: got shape \(2, .*, allowed: \(3, 3, 16, 64\)"):
        run(device, replace(inputs, value_cache=inputs.value_cache[:2]))
    with pytest.raises(ValueError, match=r"query_start: got shape \(1,\), allowed: \(2,\)"):
        run(device, replace(inputs, query_start=inputs.query_start[:1]))
    with pytest.raises(ValueError, match=r"block_tables: got torch\.int64"):
        run(device, replace(inputs, block_tables=inputs.block_tables.long()))
    with pytest.raises(ValueError, match=r"q: got torch\.float64"):
        run(device, replace(inputs, q=inputs.q.double()))
    with pytest.raises(ValueError, match=r"window: got 0, allowed: at least 1"):
        run(device, inputs, window=0)
