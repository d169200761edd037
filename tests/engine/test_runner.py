"""The engine over a real, tiny model: the same answer alone, in company, in chunks and after preemption."""

from __future__ import annotations

import weakref
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from engine.batch import BatchBuilder
from engine.config import EngineConfig
from engine.engine import Engine
from engine.models.inputs import KVCache
from engine.models.llama import CausalLM
from engine.request import FinishReason, Request, Sequence
from engine.runner import ModelRunner, make_runner
from engine.sampling import SamplingParams
from engine.scheduler import Plan
from tests.devices import DEVICES
from tests.engine.tiny import broken_model, tiny_model
from tests.fakes import Recorder, fake_ids, fake_vocabulary, make_request, run_until_idle


@pytest.fixture(scope="module", params=DEVICES)
def model(request: pytest.FixtureRequest) -> CausalLM:
    return tiny_model(request.param)


def run(
    model: CausalLM, requests: dict[str, tuple[str, SamplingParams]], **sizes: int
) -> tuple[Recorder, Engine]:
    recorder = Recorder()
    config = EngineConfig(**{"num_blocks": 400, "max_model_len": 512, **sizes})
    engine = Engine(make_runner(model, config), fake_vocabulary(), config, recorder)
    for name, (prompt, sampling) in requests.items():
        engine.submit(make_request(name, prompt, sampling))
    run_until_idle(engine)
    engine.scheduler.check()
    return recorder, engine


SAMPLINGS = [
    SamplingParams(temperature=0, max_tokens=40),
    SamplingParams(seed=1, max_tokens=40),
    SamplingParams(temperature=0.7, top_p=0.9, seed=2, max_tokens=30),
    SamplingParams(temperature=1.5, top_k=5, seed=-3, max_tokens=35),
    SamplingParams(temperature=1.2, min_p=0.1, top_k=20, top_p=0.8, seed=4, max_tokens=20),
    SamplingParams(frequency_penalty=0.5, presence_penalty=1, repetition_penalty=1.3, seed=5, max_tokens=40),
    SamplingParams(
        temperature=0.8, logit_bias=((3, 2.0),), bad_words=((3, 3), (4,)), min_tokens=9, seed=6, max_tokens=30
    ),
    SamplingParams(temperature=0, allowed_token_ids=tuple(range(1, 9)), frequency_penalty=0.2, max_tokens=30),
]
REQUESTS = {f"r{i}": (f"prompt {i} " * (1 + i % 5), SAMPLINGS[i % 8]) for i in range(16)}


@pytest.fixture(scope="module")
def alone(model: CausalLM) -> dict[str, str]:
    return {name: run(model, {name: request})[0].text(name) for name, request in REQUESTS.items()}


@pytest.mark.parametrize(
    "sizes",
    [
        {},
        {"prefill_chunk": 7, "token_budget": 33},
        {"num_blocks": 8, "max_model_len": 112},
        {"max_num_seqs": 2},
    ],
    ids=["company", "chunks", "preemption", "two rows"],
)
def test_sampled_answers_do_not_depend_on_the_company(
    model: CausalLM, alone: dict[str, str], sizes: dict[str, int]
) -> None:
    recorder, engine = run(model, REQUESTS, **sizes)
    assert (engine.stats().num_preemptions > 0) == ("num_blocks" in sizes)
    assert {name: recorder.text(name) for name in REQUESTS} == alone
    assert all(recorder.finished(name).reason is FinishReason.LENGTH or alone[name] for name in REQUESTS)


def test_another_seed_gives_another_answer(model: CausalLM) -> None:
    requests = {f"s{seed}": ("hello", SamplingParams(seed=seed, max_tokens=30)) for seed in range(4)}
    recorder, _ = run(model, requests)
    assert len({recorder.text(name) for name in requests}) == 4


def test_weights_that_give_no_numbers_end_the_request_with_an_error(model: CausalLM) -> None:
    recorder, _ = run(broken_model(model.device.type), {"a": ("hello", SamplingParams(seed=1))})
    assert recorder.finished("a").reason is FinishReason.ERROR


def test_blocks_are_copied_in_all_layers_in_order_before_anything_is_computed(model: CausalLM) -> None:
    """The second sequence finds its prefix in a copy of a copy, and says what the first one says."""
    runner = make_runner(model, EngineConfig(num_blocks=8, max_model_len=64, max_num_seqs=2))
    tokens = fake_ids("a prompt of some length")
    batches = BatchBuilder(2, 4, frozenset())

    def step(row: int, blocks: list[int], num_computed: int, copies: list[tuple[int, int]]) -> int:
        sequence = Sequence(Request(f"r{row}", tokens, SamplingParams(temperature=0), 0.0), 0, 1)
        sequence.row, sequence.blocks, sequence.num_computed = row, blocks, num_computed
        batches.enter(sequence)
        plan = Plan(copies=copies)
        plan.scheduled[sequence] = len(tokens) - num_computed
        return int(runner.execute(batches.build(plan)).ids[0])

    expected = step(0, [0, 1], 0, [])
    assert step(1, [0, 7], len(tokens) - 1, [(1, 5), (5, 7), (0, 5)]) == expected
    assert step(1, [5, 7], len(tokens) - 1, []) == expected
    runner.reset()
    assert step(1, [5, 7], len(tokens) - 1, []) != expected


def test_each_device_has_its_runner(monkeypatch: pytest.MonkeyPatch) -> None:
    config = EngineConfig(num_blocks=8, max_model_len=64)
    asked: list[dict[str, Any]] = []
    monkeypatch.setattr("engine.runner.GpuRunner", lambda *_, **options: asked.append(options))
    on_gpu: Any = SimpleNamespace(device=torch.device("cuda"), dtype=torch.bfloat16)
    make_runner(on_gpu, config)
    make_runner(on_gpu, config, kv_dtype=torch.float8_e4m3fn, graphs=False)
    assert asked == [
        {"kv_dtype": torch.bfloat16, "graphs": True},
        {"kv_dtype": torch.float8_e4m3fn, "graphs": False},
    ]
    assert isinstance(make_runner(tiny_model("cpu"), config), ModelRunner)


def test_a_reset_gives_the_old_memory_back_before_it_takes_new(monkeypatch: pytest.MonkeyPatch) -> None:
    runner = ModelRunner(tiny_model("cpu"), 4)
    old, allocate = weakref.ref(runner._kv.storage), KVCache.allocate

    def allocate_later(*arguments: Any) -> KVCache:
        assert old() is None
        return allocate(*arguments)

    monkeypatch.setattr(KVCache, "allocate", allocate_later)
    runner.reset()
    assert not runner._kv.storage.any()
