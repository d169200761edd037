"""A row's bits depend on that row alone: in every kernel, and through a whole model.

Whatever a batch can look like is one of these: a token alone (decode), in a chunk of a prompt, in chunks with
other borders (a prefix hit leaves such a chunk), and beside other sequences.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from engine.blocks import BLOCK_SIZE
from engine.models.config import ModelConfig
from engine.models.llama import CausalLM
from kernels import cpu, for_device
from kernels.cpu.tile import NARROW, WIDE, Shape
from tests.kernels.paged import Paged, paged
from tests.models.paging import PagedRun

EPS = 1e-5
MANY = 300
"""Rows enough for the kernels' parallel variants."""


def assert_rows_stand_alone(kernel: Callable[[Tensor], Tensor], x: Tensor) -> None:
    """`kernel` gives each row of x the same bits in x, in parts of x of any size, and alone."""
    together = kernel(x)
    for size in (1, 2, 3, 5, 8, 13, 16, 31, 64, 256):
        for first in (0, 1, 7, len(x) - size):
            got = kernel(x[first : first + size].contiguous())
            assert torch.equal(got, together[first : first + size]), (size, first)


@pytest.mark.parametrize("shape", [WIDE, NARROW])
@pytest.mark.parametrize(("width", "fan_in"), [(960, 576), (576, 1536), (100, 64), (7, 4096)])
def test_products(width: int, fan_in: int, shape: Shape) -> None:
    product = cpu.Linear(torch.randn(width, fan_in), torch.randn(width), shape)
    assert_rows_stand_alone(product, torch.randn(MANY, fan_in))


@settings(max_examples=60)
@given(
    width=st.integers(1, 160), fan_in=st.integers(1, 1200), rows=st.integers(1, 40), seed=st.integers(0, 99)
)
def test_products_do_not_depend_on_the_processors_vectors(
    width: int, fan_in: int, rows: int, seed: int
) -> None:
    """Fused multiply-adds round in the same way everywhere."""
    torch.manual_seed(seed)
    weight, bias, x = torch.randn(width, fan_in), torch.randn(width), torch.randn(rows, fan_in)
    wide, narrow = (cpu.Linear(weight, bias, shape)(x) for shape in (WIDE, NARROW))
    assert torch.equal(wide, narrow)


@pytest.mark.parametrize("rows", [1, 5, 40])
def test_products_do_not_depend_on_the_number_of_threads(rows: int) -> None:
    product, x = cpu.Linear(torch.randn(1000, 700)), torch.randn(rows, 700)
    before = torch.get_num_threads()
    results = []
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            results.append(product(x))
    finally:
        torch.set_num_threads(before)
    assert torch.equal(*results)


def test_a_nan_in_one_row_of_a_product_stays_there() -> None:
    product, x = cpu.Linear(torch.randn(100, 64)), torch.randn(9, 64)
    expected = product(x)
    x[4, 3] = torch.nan
    got = product(x)
    assert got[4].isnan().all()
    assert torch.equal(got[torch.arange(9) != 4], expected[torch.arange(9) != 4])


@pytest.mark.parametrize("width", [576, 1000])
def test_norms_and_the_gate(width: int) -> None:
    weight = torch.randn(width)

    def add_rms_norm(both: Tensor) -> Tensor:
        x, residual = (part.clone(memory_format=torch.contiguous_format) for part in both.chunk(2, dim=1))
        return torch.cat([cpu.add_rms_norm(x, residual, weight, EPS), residual], dim=1)

    assert_rows_stand_alone(lambda x: cpu.rms_norm(x, weight, EPS), torch.randn(MANY, width))
    assert_rows_stand_alone(add_rms_norm, torch.randn(MANY, 2 * width))
    assert_rows_stand_alone(cpu.silu_mul, torch.randn(MANY, 2 * width) * 20)


@pytest.mark.parametrize("with_norm", [False, True])
@pytest.mark.parametrize("dim", [64, 80])
def test_rotation_and_what_goes_into_the_cache(dim: int, with_norm: bool) -> None:
    heads, kv_heads = 9, 3
    angles = torch.rand(500, dim // 2) * 6
    norms = (torch.rand(dim), torch.rand(dim)) if with_norm else (None, None)

    def rotate(rows: Tensor) -> Tensor:
        """The first column is the token's position; the result is its query, key and value, side by side."""
        tokens = len(rows)
        key_cache, value_cache = torch.zeros(2, tokens, kv_heads, BLOCK_SIZE, dim)
        slots = torch.randperm(tokens) * BLOCK_SIZE + torch.arange(tokens) % BLOCK_SIZE
        q = cpu.rope_and_cache(
            rows[:, 1:].contiguous(),
            rows[:, 0].long(),
            slots,
            angles.cos(),
            angles.sin(),
            key_cache,
            value_cache,
            *norms,
            EPS,
        )
        stored = (cache[slots // BLOCK_SIZE, :, slots % BLOCK_SIZE] for cache in (key_cache, value_cache))
        return torch.cat([q.flatten(1), *(part.flatten(1) for part in stored)], dim=1)

    positions = torch.randint(0, 500, (MANY, 1)).float()
    assert_rows_stand_alone(
        rotate, torch.cat([positions, torch.randn(MANY, (heads + 2 * kv_heads) * dim)], dim=1)
    )


def chunk(whole: Paged, first: int, end: int) -> Paged:
    """The tokens first..end of the only sequence of `whole`, as a chunk of their own."""
    return Paged(
        whole.q[first:end].contiguous(),
        whole.key_cache,
        whole.value_cache,
        whole.block_tables,
        torch.tensor([end], dtype=torch.int32),
        torch.tensor([0, end - first], dtype=torch.int32),
    )


@settings(max_examples=30)
@given(
    cuts=st.lists(st.integers(1, 399), max_size=12),
    window=st.none() | st.integers(1, 300),
    kv_heads=st.sampled_from([1, 3]),
)
def test_attention_at_any_borders_of_chunks(cuts: list[int], window: int | None, kv_heads: int) -> None:
    whole = paged([(400, 400)], heads=3, kv_heads=kv_heads)
    borders = sorted({0, *cuts, 400})
    parts = [chunk(whole, first, end).run(cpu, window) for first, end in pairwise(borders)]
    assert torch.equal(torch.cat(parts), whole.run(cpu, window))


def test_sampling() -> None:
    logits = torch.randn(MANY, 1000) * 3
    columns = {
        "temperature": torch.rand(MANY) * 2,
        "top_p": torch.rand(MANY),
        "top_k": torch.randint(0, 50, (MANY,), dtype=torch.int32),
        "min_p": torch.rand(MANY) * 0.1,
        "seed": torch.randint(0, 2**40, (MANY,)),
        "position": torch.randint(0, 2**40, (MANY,)),
    }

    def sample(rows: Tensor) -> Tensor:
        """The first column is the row's number."""
        own = rows[:, 0].long()
        return cpu.sample(
            rows[:, 1:].contiguous(), *(column[own].contiguous() for column in columns.values())
        )

    assert_rows_stand_alone(sample, torch.cat([torch.arange(MANY)[:, None], logits], dim=1))


LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 515,
    "hidden_size": 192,
    "intermediate_size": 640,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "rms_norm_eps": EPS,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": True,
    "eos_token_id": 0,
    "bos_token_id": 1,
}
FAMILIES = {
    "llama": LLAMA,
    "qwen3": LLAMA | {"architectures": ["Qwen3ForCausalLM"], "head_dim": 32},
    "mistral": LLAMA | {"architectures": ["MistralForCausalLM"], "sliding_window": 90},
}
LENGTH, COMPANY = 260, 4


@pytest.fixture(scope="module", params=FAMILIES)
def model(request: pytest.FixtureRequest) -> CausalLM:
    generator = torch.Generator().manual_seed(5)

    def take(name: str, shape: tuple[int, ...]) -> Tensor:
        return torch.randn(shape, generator=generator) * 0.2

    config = ModelConfig.from_hf(FAMILIES[request.param])
    return CausalLM(config, take, for_device(torch.device("cpu")), "cpu")


class Arrangement:
    """One way through the prompts of all sequences; `logits` and `memory` are those of sequence 0."""

    def __init__(self, model: CausalLM) -> None:
        generator = torch.Generator().manual_seed(9)
        self.prompts = torch.randint(515, (1 + COMPANY, LENGTH), generator=generator).tolist()
        self._model = model
        self._run = PagedRun(model.config, 1 + COMPANY, LENGTH)
        self._logits: list[Tensor] = []

    def step(self, counts: dict[int, int]) -> None:
        """The next `counts` tokens of each sequence; what is not there any more is left out."""
        at = self._run.lengths
        chunks = {s: self.prompts[s][at[s] : at[s] + count] for s, count in counts.items() if at[s] < LENGTH}
        if chunks:
            got = self._run.step(self._model, chunks)
            self._logits.extend([got[0]] if 0 in got else [])

    @property
    def done(self) -> bool:
        return self._run.lengths[0] == LENGTH

    @property
    def logits(self) -> Tensor:
        return torch.cat(self._logits)

    @property
    def memory(self) -> Tensor:
        """[layers, keys and values, positions, heads * dim]"""
        table, kv = self._run.tables[0].long(), self._run.kv
        layers = [
            torch.stack([cache[table].transpose(1, 2).flatten(2).flatten(0, 1) for cache in layer])
            for layer in zip(kv.keys, kv.values, strict=True)
        ]
        return torch.stack(layers)[:, :, :LENGTH]


@pytest.fixture(scope="module")
def whole(model: CausalLM) -> Arrangement:
    arrangement = Arrangement(model)
    arrangement.step({0: LENGTH})
    return arrangement


def assert_same(got: Arrangement, whole: Arrangement) -> None:
    assert torch.equal(got.memory, whole.memory)
    assert torch.equal(got.logits, whole.logits)


def test_a_model_token_by_token(model: CausalLM, whole: Arrangement) -> None:
    got = Arrangement(model)
    while not got.done:
        got.step({0: 1})
    assert_same(got, whole)


@settings(max_examples=12)
@given(sizes=st.lists(st.sampled_from([1, 2, 3, 15, 16, 17, 33, 64, 100, 128, 250]), min_size=1, max_size=20))
def test_a_model_in_chunks(model: CausalLM, whole: Arrangement, sizes: list[int]) -> None:
    got = Arrangement(model)
    for size in sizes:
        got.step({0: size})
    got.step({0: LENGTH})
    assert_same(got, whole)


@settings(max_examples=6)
@given(data=st.data())
def test_a_model_in_company(model: CausalLM, whole: Arrangement, data: st.DataObject) -> None:
    """Decode rows and chunks of others come and go, before sequence 0 in the batch and after it."""
    got = Arrangement(model)
    sizes = st.sampled_from([1, 1, 2, 7, 16, 40, 120])
    while not got.done:
        order = data.draw(st.permutations(range(1 + COMPANY)))
        present = order[: data.draw(st.integers(1, len(order)))]
        got.step({s: data.draw(sizes) for s in {**dict.fromkeys(present), 0: None}})
    assert_same(got, whole)
