"""Where a model may be loaded to, and in which float type it then computes."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NoReturn

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

import kernels.reference
from engine import loading
from engine.loading import ModelError, build_model, load
from engine.loading.checkpoint import SafetensorsCheckpoint
from engine.loading.folder import read_config
from engine.models.inputs import KVCache
from tests.loading.test_folder import byte_tokenizer
from tests.models.paging import PagedRun

TINY = transformers.LlamaConfig(
    vocab_size=260,
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=64,
    bos_token_id=256,
    eos_token_id=257,
    pad_token_id=None,
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    transformers.LlamaForCausalLM(TINY).save_pretrained(tmp_path)
    byte_tokenizer().save(str(tmp_path / "tokenizer.json"))
    return tmp_path


def store_as(folder: Path, dtype: torch.dtype) -> None:
    file = folder / "model.safetensors"
    save_file({name: tensor.to(dtype) for name, tensor in load_file(file).items()}, file)


def loading_fails(folder: Path, says: str, **place: Any) -> None:
    with pytest.raises(ModelError, match=says):
        load(str(folder), cache_dir=folder, progress=print, **place)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there_is_told(folder: Path) -> None:
    loading_fails(folder, "device: got 'cuda', allowed here: 'cpu'; torch .* finds no GPU", device="cuda")


def test_a_cpu_computes_in_float32_only(folder: Path) -> None:
    says = "dtype: got bfloat16 on a CPU, allowed: float32"
    loading_fails(folder, says, dtype=torch.bfloat16)


def test_what_a_gpus_kernels_need_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def without_triton(device: torch.device, *, batch_invariant: bool) -> NoReturn:
        raise ModuleNotFoundError("No module named 'triton'", name="triton")

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(loading, "for_device", without_triton)
    loading_fails(folder, "device: got 'cuda', whose kernels need Triton; install it", device="cuda")


@pytest.mark.parametrize(
    ("device", "stored", "wanted", "expected"),
    [
        ("cpu", torch.bfloat16, None, torch.float32),
        ("cuda", torch.bfloat16, None, torch.bfloat16),
        ("cuda", torch.float16, None, torch.float16),
        ("cuda", torch.float32, None, torch.bfloat16),
        ("cuda", torch.bfloat16, torch.float16, torch.float16),
        ("cuda", torch.float16, torch.float32, torch.float32),
    ],
)
def test_the_type_is_what_the_device_and_the_checkpoint_suggest(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    device: str,
    stored: torch.dtype,
    wanted: torch.dtype | None,
    expected: torch.dtype,
) -> None:
    store_as(folder, stored)
    got: list[Any] = []

    def note(*arguments: Any) -> NoReturn:
        got.append(arguments[-1])
        raise torch.OutOfMemoryError("a small card")

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(loading, "for_device", lambda device, batch_invariant: kernels.reference)
    monkeypatch.setattr(loading, "build_model", note)
    says = f"model: .* in {str(expected).removeprefix('torch.')} does not fit in the GPU's memory: a small"
    loading_fails(folder, says, device=device, dtype=wanted)
    assert got == [expected]


@pytest.mark.parametrize(("dtype", "error"), [(torch.bfloat16, 2e-2), (torch.float16, 3e-3)])
def test_a_model_in_16_bits_gives_the_logits_of_32_but_for_rounding(
    folder: Path, dtype: torch.dtype, error: float
) -> None:
    config, checkpoint = read_config(folder), SafetensorsCheckpoint(folder)
    logits = []
    for each in (torch.float32, dtype):
        model = build_model(config, checkpoint, "tiny", kernels.reference, "cpu", each)  # type: ignore[arg-type]
        run = PagedRun(config, 1, 20)
        run.kv = KVCache.allocate(config, run.kv.keys[0].shape[0], each, "cpu")
        logits.append(run.step(model, {0: list(range(20))})[0])
    expected, got = logits
    assert got.dtype == torch.float32
    assert 0 < float((got - expected).norm() / expected.norm()) < error
