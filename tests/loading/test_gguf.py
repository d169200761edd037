"""GGUF files: the same model and tokenizer as the Hugging Face folder that they were made from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import pytest
import tokenizers
import torch
from tokenizers import models

from engine.detokenizer import Detokenizer
from engine.loading import LoadedModel, ModelError, load
from engine.loading.errors import UnsupportedArchitecture, UnsupportedFeature
from engine.loading.gguf_file import GGUFFile
from engine.loading.gguf_tokenizer import SPLITS, tokenizer_files
from engine.loading.tokenizer import Tokenizer
from tests.loading.tiny_gguf import (
    MODELS,
    SPECIALS,
    TEXT,
    random_model,
    sentencepiece_model,
    trained,
    write_gguf,
    write_sentencepiece,
)
from tests.models.paging import PagedRun


def load_quietly(path: Path) -> LoadedModel:
    said: list[str] = []
    loaded = load(str(path), cache_dir=Path("/nonexistent"), progress=said.append)
    assert said == [f"Converting {path.name} in memory (at each start; a safetensors folder starts faster)"]
    return loaded


@torch.inference_mode()
def assert_same_logits(loaded: LoadedModel, reference: Any) -> None:
    tokens = torch.randint(3, 300, (40,), generator=torch.Generator().manual_seed(1)).tolist()
    got = PagedRun(loaded.config, 1, 48).step(loaded.model, {0: tokens})[0]
    torch.testing.assert_close(got, reference(torch.tensor([tokens])).logits[0], atol=1e-4, rtol=0)


@pytest.mark.parametrize("name", MODELS)
def test_a_file_computes_what_its_origin_does(tmp_path: Path, name: str) -> None:
    tokenizer = trained("gpt-2")
    model = random_model(name, tokenizer.get_vocab_size())
    loaded = load_quietly(write_gguf(tmp_path / "tiny.gguf", model, tokenizer))
    assert_same_logits(loaded, model)
    assert loaded.name == "tiny"
    assert (loaded.config.bos_id, loaded.config.eos_ids) == (0, {1, 2})


def test_quantised_weights_are_dequantised(tmp_path: Path) -> None:
    tokenizer = trained("gpt-2")
    model = random_model("llama", tokenizer.get_vocab_size())
    loaded = load_quietly(write_gguf(tmp_path / "q8.gguf", model, tokenizer, quantise=True))
    kind = gguf.GGMLQuantizationType.Q8_0
    for name, parameter in model.named_parameters():
        if parameter.ndim == 2 and "q_proj" not in name and "k_proj" not in name:
            stored = gguf.quantize(parameter.detach().numpy(), kind)
            parameter.data = torch.from_numpy(gguf.dequantize(stored, kind))
    for layer in model.model.layers:
        for projection in (layer.self_attn.q_proj, layer.self_attn.k_proj):
            # A row is quantised by itself, so that the order of the rows does not matter.
            stored = gguf.quantize(projection.weight.detach().numpy(), kind)
            projection.weight.data = torch.from_numpy(gguf.dequantize(stored, kind))
    assert_same_logits(loaded, model)


@pytest.mark.parametrize("pre", ["gpt-2", "smollm"])
def test_the_tokenizer_is_the_one_it_was_made_from(tmp_path: Path, pre: str) -> None:
    tokenizer = trained(pre)
    model = random_model("llama", tokenizer.get_vocab_size())
    loaded = load_quietly(write_gguf(tmp_path / "t.gguf", model, tokenizer, pre=pre))
    for text in (TEXT, "a  12  345", "Grüße 🙂\n\n x", ""):
        assert loaded.tokenizer.encode(text) == tokenizer.encode(text).ids
    assert loaded.tokenizer.special_tokens == {"<|begin|>": 0, "<|end|>": 1, "<|turn|>": 2}
    assert not {0, 1, 2} & set(loaded.tokenizer.encode("".join(SPECIALS)))
    assert loaded.chat_template is not None
    chat = loaded.chat_template.encode([{"role": "user", "content": "the fox"}])
    assert chat == [0, *tokenizer.encode("the fox").ids, 2]


@pytest.mark.parametrize(
    ("pre", "pieces"),
    [
        # Llama 3 keeps up to three digits together, Qwen one; both keep contractions and line ends whole.
        ("llama-bpe", ["It", "'s", "Ġ", "202", "6", ",", "ĠI", "'LL", "Ġ", "Ġgo", "!!Ċ", "x", "123", "Ċ"]),
        ("qwen2", ["It", "'s", "Ġ", *"2026", ",", "ĠI", "'LL", "Ġ", "Ġgo", "!!Ċ", "x", *"123", "Ċ"]),
        ("gpt-2", ["It", "'s", "Ġ2026", ",", "ĠI", "'", "LL", "Ġ", "Ġgo", "!!", "Ċ", "x", "123", "Ċ"]),
        ("smollm", ["It", "'s", "Ġ", *"2026", ",", "ĠI", "'", "LL", "Ġ", "Ġgo", "!!", "Ċ", "x", *"123", "Ċ"]),
    ],
)
def test_text_is_split_as_the_family_splits_it(pre: str, pieces: list[str]) -> None:
    spec = json.loads(tokenizers.Tokenizer(models.BPE()).to_str())
    spec["pre_tokenizer"] = SPLITS[pre]["pre_tokenizer"]
    splitter = tokenizers.Tokenizer.from_str(json.dumps(spec)).pre_tokenizer
    assert [piece for piece, _ in splitter.pre_tokenize_str("It's 2026, I'LL  go!!\nx123\n")] == pieces


@pytest.mark.parametrize("space_prefix", [True, False])
@pytest.mark.parametrize("text", ["the quick fox", "over  12 <s> dogs</s>\n", "Grüße 🙂", "a"])
def test_a_sentencepiece_vocabulary_is_read(tmp_path: Path, space_prefix: bool, text: str) -> None:
    model = sentencepiece_model([TEXT] * 20)
    files = tokenizer_files(
        GGUFFile(write_sentencepiece(tmp_path / "s.gguf", model, space_prefix=space_prefix))
    )
    tokenizer = Tokenizer(files.spec, vocab_size=model.get_piece_size(), eos_ids=[2], bos_id=1)
    ids = tokenizer.encode(text)
    assert not {0, 1, 2} & set(ids)
    detokenizer = Detokenizer(tokenizer.vocabulary)
    assert "".join(detokenizer.push(id_) for id_ in ids) + detokenizer.flush() == text
    if space_prefix:
        assert ids == model.encode(text)
    else:
        assert ids == model.encode("\n" + text)[-len(ids) :]
    assert files.special == {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}


def test_an_unknown_split_is_refused(tmp_path: Path) -> None:
    tokenizer = trained("gpt-2")
    path = write_gguf(tmp_path / "x.gguf", random_model("llama", 320), tokenizer, pre="mystery")
    with pytest.raises(UnsupportedFeature, match=r"tokenizer\.ggml\.pre: got 'mystery', supported: .*smollm"):
        load_quietly(path)


def test_an_unknown_architecture_is_told_the_known_ones(tmp_path: Path) -> None:
    model = random_model("llama", 320)
    path = write_gguf(tmp_path / "x.gguf", model, trained("gpt-2"), architecture="command-r")
    with pytest.raises(UnsupportedArchitecture, match="is 'command-r'; those known are llama, qwen2, qwen3"):
        load_quietly(path)


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("expert_count", 8, r"llama\.expert_count: got a mixture of experts"),
        ("logit_scale", 0.5, r"llama\.logit_scale: got 0\.5, supported: none"),
        ("rope.dimension_count", 8, r"partial_rotary_factor: got 0\.5"),
        ("rope.scaling.type", "longrope", "rope_type: got 'longrope'"),
        ("attention.value_length", 8, r"llama\.attention\.value_length: got 8, supported: the key_length"),
    ],
)
def test_what_would_change_the_maths_is_refused(tmp_path: Path, key: str, value: Any, says: str) -> None:
    model = random_model("llama", 320)
    path = write_gguf(tmp_path / "x.gguf", model, trained("gpt-2"), extra={key: value})
    with pytest.raises(UnsupportedFeature, match=says):
        load_quietly(path)


def test_a_window_makes_a_llama_file_a_mistral(tmp_path: Path) -> None:
    model = random_model("llama", 320)
    path = write_gguf(tmp_path / "x.gguf", model, trained("gpt-2"), extra={"attention.sliding_window": 7})
    config = GGUFFile(path).config()
    assert (config["architectures"], config["sliding_window"]) == (["MistralForCausalLM"], 7)


@pytest.mark.parametrize("keep", [0, 3, 200, -50])
def test_a_damaged_file_is_refused(tmp_path: Path, keep: int) -> None:
    path = write_gguf(tmp_path / "x.gguf", random_model("llama", 320), trained("gpt-2"))
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(ModelError, match=r"x\.gguf: no readable GGUF file"):
        load_quietly(path)
