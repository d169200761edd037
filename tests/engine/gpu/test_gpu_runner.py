"""The runner for GPUs is in every tick the plain runner's twin, whatever the engine does to rows and blocks.

Without a GPU, captured decode steps are run again instead of being replayed; all else is the same code.
"""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from engine.batch import BatchBuilder
from engine.blocks import BLOCK_SIZE
from engine.config import Admission, Chaos, EngineConfig
from engine.engine import Engine
from engine.gpu.passes import _views
from engine.gpu.runner import GpuRunner
from engine.gpu.staging import FIRST_BYTES
from engine.models.llama import CausalLM
from engine.request import FinishReason, Request, Sequence
from engine.sampling import SamplingParams
from engine.scheduler import Plan
from kernels import reference
from tests.devices import DEVICES, needs_gpu
from tests.engine import table
from tests.engine.gpu.twins import Twins
from tests.engine.tiny import broken_model, tiny_model
from tests.fakes import Recorder, fake_ids, fake_vocabulary, make_request, run_until_idle

GREEDY = SamplingParams(temperature=0, max_tokens=20)
SAMPLINGS = [
    *table.parameters(5, 0, (7, 9), "ab").values(),
    SamplingParams(temperature=0, logprobs=5, frequency_penalty=0.5, max_tokens=30),
    SamplingParams(seed=3, logprobs=0, n=2, max_tokens=25),
]


@pytest.fixture(scope="module", params=DEVICES)
def model(request: pytest.FixtureRequest) -> CausalLM:
    return tiny_model(request.param)


def make_twins(model: CausalLM, graphs: bool = True, **config: object) -> tuple[Engine, Twins, Recorder]:
    defaults = {"num_blocks": 200, "max_model_len": 512, "max_num_seqs": 20, "token_budget": 160}
    sizes = EngineConfig(**{**defaults, **config})  # type: ignore[arg-type]
    twins, recorder = Twins(model, sizes, graphs=graphs), Recorder()
    return Engine(twins, fake_vocabulary(), sizes, recorder), twins, recorder


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"prefill_chunk": 7, "token_budget": 33},
        {"num_blocks": 14, "max_model_len": 200},
        {"max_num_seqs": 2},
        {"chaos": Chaos(preempt_every=2)},
        {"admission": Admission.STATIC},
        {"chunked_prefill": False},
        {"graphs": False},
    ],
    ids=[
        "company", "chunks", "preemption", "two rows", "chaos", "static", "prompts alone", "without graphs",
    ],
)  # fmt: skip
def test_every_parameter_in_every_arrangement(model: CausalLM, config: dict[str, object]) -> None:
    engine, twins, recorder = make_twins(model, **config)
    for index, sampling in enumerate(SAMPLINGS):
        engine.submit(make_request(f"r{index}", f"prompt {index % 4} " * (1 + index % 5), sampling))
        if index % 7 == 3:
            engine.tick()
    run_until_idle(engine)
    engine.scheduler.check()
    assert (engine.stats().num_preemptions > 0) == ("num_blocks" in config or "chaos" in config)
    assert len(twins.steps) > 20
    if config.get("admission") is not Admission.STATIC:
        assert any(len(batch.copies) for batch in twins.batches)
    assert any(batch.edits is not None for batch in twins.batches)
    assert all(recorder.has_finished(f"r{index}") for index in range(len(SAMPLINGS)))


def random_life(model: CausalLM, seed: int, num_ticks: int, **config: object) -> tuple[Engine, Twins]:
    """Requests come, a few of them forks, and are aborted, until all are through."""
    rng = random.Random(seed)
    engine, twins, _ = make_twins(model, **config)
    beginnings = ["a common beginning, which is shared ", "another one ", ""]
    live: list[str] = []
    for tick in range(num_ticks):
        if rng.random() < 0.25:
            name = f"t{tick}"
            prompt = rng.choice(beginnings) + "word " * rng.randint(1, 12)
            if live and rng.random() < 0.3:
                engine.fork(rng.choice(live), make_request(name, "and then", max_tokens=rng.randint(1, 30)))
            else:
                engine.submit(make_request(name, prompt, rng.choice(SAMPLINGS)))
            live.append(name)
        if live and rng.random() < 0.08:
            engine.abort(live.pop(rng.randrange(len(live))))
        engine.tick()
        engine.scheduler.check()
    run_until_idle(engine)
    return engine, twins


@pytest.mark.parametrize("seed", range(3))
def test_random_lives(model: CausalLM, seed: int) -> None:
    sizes = {
        "num_blocks": 40,
        "max_model_len": 240,
        "max_num_seqs": 7,
        "prefill_chunk": 24,
        "token_budget": 40,
    }
    engine, twins = random_life(model, seed, 250, chaos=Chaos(preempt_every=3 + seed), **sizes)
    assert engine.stats().num_preemptions > 0
    assert set(twins.steps) >= {1, 2, 3, 5, 7}
    assert len(twins.batches) - len(twins.steps) > 50
    assert any(len(batch.copies) for batch in twins.batches)


class RowByRow:
    """The oracle's matrix product, in which a row's bits don't depend on how many there are."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> None:
        self._weight, self._bias = weight, bias

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return torch.stack([torch.nn.functional.linear(row, self._weight, self._bias) for row in x])


@pytest.mark.parametrize("device", DEVICES)
def test_kv_memory_of_8_bits(device: str) -> None:
    """On a CPU with the oracle's kernels: its own have no such caches."""
    oracle: Any = SimpleNamespace(**{**vars(reference), "Linear": RowByRow})
    kernels = oracle if device == "cpu" else None
    config = EngineConfig(num_blocks=40, max_model_len=200, max_num_seqs=5, token_budget=60)
    twins = Twins(tiny_model(device, kernels), config, kv_dtype=torch.float8_e4m3fn)
    engine = Engine(twins, fake_vocabulary(), config, Recorder())
    for index, sampling in enumerate(SAMPLINGS[-2:]):
        engine.submit(make_request(f"r{index}", f"prompt {index} " * 3, sampling))
    run_until_idle(engine)
    assert len(twins.steps) > 10
    assert any(len(batch.copies) for batch in twins.batches)


@pytest.mark.parametrize("fault_in", [0, 9, 40])
def test_a_fault_is_forgotten(model: CausalLM, fault_in: int) -> None:
    """All of KV memory is broken by it, and whoever comes later still gets what the twin says."""
    engine, twins, recorder = make_twins(model, max_num_seqs=4)
    twins.fault_in = fault_in
    for index in range(12):
        engine.submit(
            make_request(f"r{index}", f"prompt {index} " * 3, SamplingParams(seed=1, max_tokens=30))
        )
    run_until_idle(engine)
    assert engine.stats().num_restarts == 1
    reasons = [recorder.finished(f"r{index}").reason for index in range(12)]
    assert 1 <= reasons.count(FinishReason.ERROR) <= 4
    assert len(twins.batches) > fault_in + 10


def test_weights_that_give_no_numbers(model: CausalLM) -> None:
    """The ids below 0 that mark them are fed back, too, and never used."""
    engine, twins, recorder = make_twins(broken_model(model.device.type), admission=Admission.STATIC)
    for name in ("a", "b"):
        engine.submit(make_request(name, "hello", SamplingParams(seed=1, logprobs=2)))
    run_until_idle(engine)
    for name in ("a", "b"):
        assert recorder.finished(name).reason is FinishReason.ERROR
    assert twins.batches


def test_only_what_changed_is_sent(model: CausalLM) -> None:
    engine, twins, _ = make_twins(model)
    for index in range(3):
        engine.submit(
            make_request(
                f"r{index}", "x" * (6 + index), SamplingParams(seed=1, max_tokens=60, ignore_eos=True)
            )
        )
    run_until_idle(engine)
    entries = [len(arrays["changed_places"]) for arrays in twins.arrays]
    assert entries[0] == 3
    assert sum(entries) == 3 * -(-65 // BLOCK_SIZE)
    assert len(twins.steps) == 59
    for batch, count in zip(twins.batches[1:], entries[1:], strict=True):
        assert count == sum(length % BLOCK_SIZE == 1 for length in batch.context_lens.tolist())
    assert not any(len(arrays["changed_rows"]) for arrays in twins.arrays[1:])
    assert max(twins.driver.sent[10:]) < 700
    assert twins.driver.num_allocated == 3


def test_nothing_that_is_captured_moves_when_a_batch_is_bigger_than_ever(model: CausalLM) -> None:
    engine, twins, recorder = make_twins(model)
    addresses = twins.addresses()
    many = SamplingParams(bad_words=tuple((word % 60,) for word in range(FIRST_BYTES // 4)), max_tokens=9)
    engine.submit(make_request("small", "hello", GREEDY))
    engine.tick()
    engine.submit(make_request("big", "hello", many))
    run_until_idle(engine)
    assert twins.driver.num_allocated == 5
    assert twins.addresses() == addresses
    assert len(recorder.text("small")) == 20


class Rows:
    """Batches by hand: who stands in which row, with which blocks, is the test's choice."""

    def __init__(self, model: CausalLM) -> None:
        config = EngineConfig(num_blocks=24, max_model_len=96, max_num_seqs=4, token_budget=96)
        self.twins = Twins(model, config)
        self.builder = BatchBuilder(4, 6, frozenset())

    def enter(self, name: str, text: str, row: int, blocks: list[int], num_computed: int = 0) -> Sequence:
        sequence = Sequence(Request(name, fake_ids(text), GREEDY, 0.0), seed=0, max_output_tokens=99)
        return self.again(sequence, row, blocks, num_computed)

    def again(self, sequence: Sequence, row: int, blocks: list[int], num_computed: int) -> Sequence:
        sequence.row, sequence.blocks, sequence.num_computed = row, blocks, num_computed
        self.builder.enter(sequence)
        return sequence

    def tick(self, *sequences: Sequence, copies: tuple[tuple[int, int], ...] = ()) -> dict[str, int]:
        """Computes all of each, appends the tokens, and tells how many entries of each kind were sent."""
        plan = Plan(copies=[*copies])
        for sequence in sequences:
            plan.scheduled[sequence] = sequence.num_uncomputed
        ids = self.twins.execute(self.builder.build(plan)).ids.tolist()
        for sequence, token in zip(sequences, ids, strict=True):
            sequence.num_computed = sequence.num_tokens
            sequence.tokens.append(token)
        sent = self.twins.arrays[-1]
        return {name: len(array) for name, array in sent.items() if name.startswith("changed")}


LONG = "a text of twenty letters and more"


class TestWhatTheDeviceRemembersOfARow:
    def test_is_enough_for_the_next_step(self, model: CausalLM) -> None:
        rows = Rows(model)
        a, b = rows.enter("a", LONG, 2, [9, 3, 5]), rows.enter("b", "hello", 0, [7])
        assert rows.tick(a, b) == {"changed_places": 4, "changed_blocks": 4}
        for _ in range(3):
            nothing = {"changed_places": 0, "changed_blocks": 0, "changed_rows": 0, "changed_tokens": 0}
            assert rows.tick(b, a) == nothing
        assert rows.twins.steps == [2, 2, 2]

    def test_is_corrected_for_who_comes_back_with_one_token_left(self, model: CausalLM) -> None:
        """Its blocks were found again, so its last token is all that is left; another had its row."""
        rows = Rows(model)
        a = rows.enter("a", "hello", 1, [4])
        rows.tick(a)
        for row in (1, 3):
            b = rows.enter("b", "good morning", row, [row + 10])
            rows.tick(b)
        rows.again(a, 3, [4], num_computed=5)
        assert rows.tick(a)["changed_tokens"] == 1
        assert rows.twins.steps == [1]
        assert rows.tick(a)["changed_tokens"] == 0

    def test_is_corrected_for_a_new_owner(self, model: CausalLM) -> None:
        rows = Rows(model)
        rows.tick(rows.enter("a", LONG, 1, [4, 5, 6]))
        b = rows.enter("b", LONG + LONG, 1, [4, 8, 9, 6, 10])
        assert rows.tick(b)["changed_places"] == 4
        assert rows.tick(b)["changed_places"] == 0

    def test_is_corrected_when_blocks_are_exchanged(self, model: CausalLM) -> None:
        rows = Rows(model)
        a = rows.enter("a", LONG, 1, [4, 5, 6])
        rows.tick(a)
        rows.again(a, 1, [4, 9, 6], a.num_computed)
        assert rows.tick(a, copies=((5, 9),))["changed_places"] == 1

    def test_is_compared_only_as_far_as_the_context_reaches(self, model: CausalLM) -> None:
        """A short row beside a long one; the short one's later blocks are known but not used yet."""
        rows = Rows(model)
        long = rows.enter("long", LONG, 1, [4, 5, 6])
        short = rows.enter("short", "hello", 2, [7, 8, 9, 10])
        assert rows.tick(long, short)["changed_places"] == 4

    def test_is_nothing_after_a_reset(self, model: CausalLM) -> None:
        rows = Rows(model)
        a = rows.enter("a", LONG, 1, [4, 5, 6])
        rows.tick(a)
        rows.tick(a)
        rows.twins.reset()
        rows.again(a, 1, [4, 5, 6], num_computed=0)
        assert rows.tick(a)["changed_places"] == 3
        assert rows.tick(a)["changed_tokens"] == 0


def test_copies_of_copies_come_before_the_step_that_reads_them(model: CausalLM) -> None:
    rows = Rows(model)
    a = rows.enter("a", LONG, 0, [0, 1, 2])
    rows.tick(a)
    b = rows.again(rows.enter("b", LONG, 1, [0, 1, 7]), 1, [0, 1, 7], len(LONG) - 1)
    rows.tick(b, copies=((2, 5), (5, 7), (0, 5)))
    assert rows.twins.steps == [1]
    assert b.tokens[-1] == a.tokens[-1]


def test_one_token_of_each_is_no_step_where_prompts_go_on(model: CausalLM) -> None:
    engine, twins, _ = make_twins(model, prefill_chunk=1)
    for name in ("a", "longer"):
        engine.submit(make_request(name, f"hello {name}", GREEDY))
    run_until_idle(engine)
    one_of_each = [batch for batch in twins.batches if len(batch.token_ids) == len(batch.rows)]
    assert len(one_of_each) > len(twins.steps) > 10


def test_padding_is_of_a_row_and_a_block_that_nobody_has(model: CausalLM) -> None:
    rows = Rows(model)
    sequences = [rows.enter(f"r{row}", "hello", row, [row]) for row in (2, 0, 1)]
    rows.tick(*sequences)
    rows.tick(*sequences)
    columns = rows.twins.arrays[-1]["step"].reshape(4, 4)
    assert columns[0].tolist() == [2, 0, 1, rows.twins.gpu._rows.padding_row]
    assert columns[:, 3].tolist() == [4, 0, rows.twins.null_block * BLOCK_SIZE, 1]


def test_a_device_that_is_lost_is_not_taken_for_one_that_starts_anew(
    model: CausalLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lost() -> None:
        raise RuntimeError("an illegal address")

    runner = Rows(model).twins
    monkeypatch.setattr(runner.driver, "synchronize", lost)
    with pytest.raises(RuntimeError, match="an illegal address"):
        runner.reset()


@needs_gpu
def test_nothing_waits_for_the_device_but_the_results() -> None:
    engine, twins, _ = make_twins(tiny_model("cuda"))
    for index, sampling in enumerate(SAMPLINGS):
        engine.submit(make_request(f"r{index}", f"prompt {index % 4} " * (1 + index % 5), sampling))
    run_until_idle(engine)
    torch.cuda.synchronize()
    runner: GpuRunner = twins.gpu
    batches = twins.batches
    twins.reset()
    torch.cuda.set_sync_debug_mode("error")
    try:
        for batch in batches:
            runner.execute(batch)
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_padding_among_prompts_is_shared_by_sequences_that_are_not_there(model: CausalLM) -> None:
    rows = Rows(model)
    rows.tick(rows.enter("a", LONG, 2, [9, 3, 5]), rows.enter("b", "hello", 0, [7]))
    packed = rows.twins.arrays[-1]["chunks"]
    used = len(LONG) + 5
    tokens, sequences, starts = _views(packed, 64, 5)
    assert (tokens[:, used:] == [[0], [0], [rows.twins.null_block * BLOCK_SIZE]]).all()
    assert sequences[0].tolist() == [2, 0, *[rows.twins.gpu._rows.padding_row] * 3]
    gaps = [0, (64 - used) // 3, (64 - used) * 2 // 3, 64 - used]
    assert starts.tolist() == [0, len(LONG), *(used + gap for gap in gaps)]
    assert sequences[1].tolist() == [len(LONG), 5, *np.diff(gaps)]


def test_a_padded_batch_with_prompts_never_has_as_many_sequences_as_tokens(model: CausalLM) -> None:
    """Attention would take it for a decode step, and choose its tiles for one."""
    engine, twins, _ = make_twins(model, max_num_seqs=7, max_model_len=32, token_budget=8)
    for index in range(7):
        engine.submit(make_request(f"r{index}", "hello"[: 1 + index % 5], GREEDY))
    run_until_idle(engine)
    assert twins.chunk_sizes == [8]
    packed = {len(arrays["chunks"]) for arrays in twins.arrays if "chunks" in arrays}
    assert packed == {3 * 8 + 3 * 9 + 1}


def test_a_prompt_that_is_longer_than_all_captured_is_computed_too(model: CausalLM) -> None:
    engine, twins, _ = make_twins(model, chunked_prefill=False, token_budget=40)
    for index in range(3):
        engine.submit(make_request(f"r{index}", "word " * 20, GREEDY))
    run_until_idle(engine)
    assert max(len(batch.token_ids) for batch in twins.batches) > 40
