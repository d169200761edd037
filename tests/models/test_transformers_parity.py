"""Tiny random models of every family: our logits are those of transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

import kernels
import kernels.reference
from engine.loading import build_model
from engine.loading.checkpoint import SafetensorsCheckpoint
from engine.loading.folder import read_config
from engine.models.llama import CausalLM
from tests.devices import DEVICES
from tests.models.paging import PagedRun

SHAPE: dict[str, Any] = {
    "vocab_size": 97,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": None,
    "attn_implementation": "eager",
}
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
YARN_ROPE = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 64}
LINEAR_ROPE = {"rope_type": "linear", "rope_theta": 1e4, "factor": 3.0}

CONFIGS = {
    "llama": transformers.LlamaConfig(**SHAPE),
    "llama-tied": transformers.LlamaConfig(**SHAPE, tie_word_embeddings=True),
    "llama-llama3-rope": transformers.LlamaConfig(**SHAPE, rope_parameters=LLAMA3_ROPE),
    "llama-linear-rope": transformers.LlamaConfig(**SHAPE, rope_parameters=LINEAR_ROPE),
    "llama-yarn-rope": transformers.LlamaConfig(**SHAPE, rope_parameters=YARN_ROPE),
    "llama-biases": transformers.LlamaConfig(**SHAPE, attention_bias=True, mlp_bias=True),
    "llama-head-dim": transformers.LlamaConfig(**SHAPE, head_dim=32),
    "mistral": transformers.MistralConfig(**SHAPE, sliding_window=9),
    "mistral-no-window": transformers.MistralConfig(**SHAPE, sliding_window=None),
    "qwen2": transformers.Qwen2Config(**SHAPE),
    "qwen2-window": transformers.Qwen2Config(
        **SHAPE, use_sliding_window=True, sliding_window=9, max_window_layers=0
    ),
    "qwen3": transformers.Qwen3Config(**SHAPE, head_dim=16),
    "qwen3-tied": transformers.Qwen3Config(**SHAPE, head_dim=32, tie_word_embeddings=True),
}
PROMPTS = {0: 43, 1: 5, 2: 17}
"""Sequence -> tokens. The longest is far beyond the sliding windows, and none ends at a block's end."""

Family = tuple[Path, Any]


@pytest.fixture(scope="module", params=CONFIGS)
def family(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Family:
    """A saved model and the transformers model that it was saved from."""
    return make_family(CONFIGS[request.param], tmp_path_factory.mktemp(request.param))


def make_family(config: Any, folder: Path, **save: Any) -> Family:
    torch.manual_seed(3)
    reference = transformers.AutoModelForCausalLM.from_config(config).eval()
    for parameter in reference.parameters():
        # transformers starts norms at one and biases at zero, which would hide a missing one.
        torch.nn.init.normal_(parameter, mean=0.1, std=0.25)
    reference.save_pretrained(folder, **save)
    return folder, reference


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture(params=["for_device", "reference"])
def model(request: pytest.FixtureRequest, family: Family, device: str) -> CausalLM:
    chosen = kernels.for_device(torch.device(device)) if request.param == "for_device" else kernels.reference
    return build_model(read_config(family[0]), SafetensorsCheckpoint(family[0]), "test", chosen, device)


def prompts() -> dict[int, list[int]]:
    generator = torch.Generator().manual_seed(11)
    return {i: torch.randint(97, (n,), generator=generator).tolist() for i, n in PROMPTS.items()}


@torch.inference_mode()
def expected(family: Family) -> dict[int, torch.Tensor]:
    return {i: family[1](torch.tensor([tokens])).logits[0] for i, tokens in prompts().items()}


def agree(got: torch.Tensor, wanted: torch.Tensor) -> None:
    assert got.dtype == torch.float32
    torch.testing.assert_close(got.cpu(), wanted, atol=1e-4, rtol=0)


def test_whole_prompts_in_one_flat_batch(family: Family, model: CausalLM) -> None:
    run = PagedRun(model.config, 3, 64, model.device)
    got = run.step(model, prompts())
    for index, wanted in expected(family).items():
        agree(got[index], wanted)


def test_chunks_of_uneven_size(family: Family, model: CausalLM) -> None:
    run = PagedRun(model.config, 3, 64, model.device)
    pieces: dict[int, list[torch.Tensor]] = {index: [] for index in PROMPTS}
    for size in (1, 7, 16, 2, 30):
        chunks = {i: tokens[run.lengths[i] : run.lengths[i] + size] for i, tokens in prompts().items()}
        for index, logits in run.step(model, {i: chunk for i, chunk in chunks.items() if chunk}).items():
            pieces[index].append(logits)
    for index, wanted in expected(family).items():
        agree(torch.cat(pieces[index]), wanted)


def test_decode_steps_beside_a_prompt(family: Family, model: CausalLM) -> None:
    """Sequence 0 goes token by token; the others come in whole while it does."""
    run = PagedRun(model.config, 3, 64, model.device)
    tokens, wanted = prompts(), expected(family)
    pieces = []
    for step, token in enumerate(tokens[0]):
        joining = {1: tokens[1]} if step == 6 else {2: tokens[2]} if step == 20 else {}
        got = run.step(model, {**joining, 0: [token]})
        pieces.append(got[0])
        for index in joining:
            agree(got[index], wanted[index])
    agree(torch.cat(pieces), wanted[0])


def test_only_sampled_rows_get_logits(family: Family, model: CausalLM) -> None:
    run = PagedRun(model.config, 3, 64, model.device)
    logits = model.forward(run.inputs(prompts(), all_rows=False), run.kv)
    assert logits.shape == (3, 97)
    for row, wanted in zip(logits, expected(family).values(), strict=True):
        agree(row, wanted[-1])


def test_a_batch_that_samples_nothing_still_fills_the_cache(tmp_path: Path) -> None:
    family = make_family(CONFIGS["llama"], tmp_path)
    model = build_model(
        read_config(tmp_path), SafetensorsCheckpoint(tmp_path), "test", kernels.reference, "cpu"
    )
    run = PagedRun(model.config, 1, 64)
    tokens = prompts()[0]
    inputs = run.inputs({0: tokens[:-1]}, all_rows=False)
    silent = type(inputs)(
        **{name: getattr(inputs, name) for name in inputs.__slots__} | {"sampled": inputs.sampled[:0]}
    )
    assert model.forward(silent, run.kv).shape == (0, 97)
    agree(run.step(model, {0: tokens[-1:]})[0][0], expected(family)[0][-1])


@pytest.mark.parametrize("save", [{"max_shard_size": "20KB"}, {}], ids=["sharded", "single"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_half_precision_files_are_widened(tmp_path: Path, dtype: torch.dtype, save: dict[str, Any]) -> None:
    folder, reference = make_family(CONFIGS["llama"], tmp_path / "full")
    reference.to(dtype).save_pretrained(tmp_path / "half", **save)
    assert (tmp_path / "half" / "model.safetensors.index.json").exists() == bool(save)
    half = tmp_path / "half"
    model = build_model(read_config(half), SafetensorsCheckpoint(half), "test", kernels.reference, "cpu")
    reference = reference.float()
    run = PagedRun(model.config, 3, 64)
    agree(run.step(model, prompts())[0], expected((folder, reference))[0])
