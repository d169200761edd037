"""GGUF files: the same model and tokenizer as the Hugging Face folder that they were made from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import tokenizers
import torch
import transformers
from tokenizers import decoders, models, pre_tokenizers, trainers

from engine.loading import LoadedModel, ModelError, load
from engine.loading.errors import UnsupportedArchitecture, UnsupportedFeature
from engine.loading.gguf_file import GGUFFile
from engine.loading.gguf_tokenizer import SPLITS
from tests.models.paging import PagedRun

SHAPE: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": None,
}
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
SPECIALS = ["<|begin|>", "<|end|>", "<|turn|>"]
TEXT = "the quick brown fox jumps over 12 lazy dogs; hello world, it's   fine"
TEMPLATE = "{{ bos_token }}{% for message in messages %}{{ message.content + '<|turn|>' }}{% endfor %}"


def trained(pre: str) -> tokenizers.Tokenizer:
    """A byte-level tokenizer that splits text as `pre` says, with its control tokens first."""
    tokenizer = tokenizers.Tokenizer(models.BPE())
    if pre == "smollm":
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
        )
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=320, special_tokens=SPECIALS, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator([TEXT] * 5, trainer)
    return tokenizer


def permuted(rows: np.ndarray, heads: int) -> np.ndarray:
    """What llama.cpp's converter does to q and k: the two halves of each head are interleaved."""
    halves = rows.reshape(heads, 2, rows.shape[0] // heads // 2, *rows.shape[1:])
    return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(rows.shape))


def write_gguf(
    path: Path,
    model: Any,
    tokenizer: tokenizers.Tokenizer,
    *,
    pre: str = "gpt-2",
    quantise: bool = False,
    extra: dict[str, Any] | None = None,
    architecture: str | None = None,
) -> Path:
    """`model` as llama.cpp's converter would write it. `extra` are further keys after the architecture."""
    config = model.config
    arch = architecture or config.model_type
    writer = gguf.GGUFWriter(path, arch)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    writer.add_key_length(head_dim)
    if "attention.value_length" not in (extra or {}):
        writer.add_value_length(head_dim)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    for key, value in (extra or {}).items():
        add = writer.add_string if isinstance(value, str) else writer.add_float32
        (writer.add_uint32 if isinstance(value, int) else add)(f"{arch}.{key}", value)
    write_tokenizer(writer, tokenizer, pre)
    names = gguf.get_tensor_name_map(arch_number(config.model_type), config.num_hidden_layers)
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        array = tensor.numpy()
        if arch == "llama" and ".q_proj." in name:
            array = permuted(array, config.num_attention_heads)
        if arch == "llama" and ".k_proj." in name:
            array = permuted(array, config.num_key_value_heads)
        new_name = names.get_name(name, try_suffixes=(".weight", ".bias"))
        if quantise and array.ndim == 2:
            kind = gguf.GGMLQuantizationType.Q8_0
            writer.add_tensor(new_name, gguf.quantize(array, kind), raw_dtype=kind)
        else:
            writer.add_tensor(new_name, array)
    if config.rope_parameters.get("rope_type") == "llama3":
        default = 1.0 / config.rope_parameters["rope_theta"] ** (np.arange(0, head_dim, 2) / head_dim)
        stretched = model.model.rotary_emb.inv_freq.numpy()
        writer.add_tensor("rope_freqs.weight", (default / stretched).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def arch_number(arch: str) -> Any:
    return next(number for number, name in gguf.MODEL_ARCH_NAMES.items() if name == arch)


def write_tokenizer(writer: Any, tokenizer: tokenizers.Tokenizer, pre: str) -> None:
    model = json.loads(tokenizer.to_str())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].get)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types([3 if token in SPECIALS else 1 for token in tokens])
    writer.add_token_merges([" ".join(merge) for merge in model["merges"]])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(1)
    writer.add_eot_token_id(2)
    writer.add_chat_template(TEMPLATE)


MODELS: dict[str, Any] = {
    "llama": lambda size: transformers.LlamaConfig(vocab_size=size, **SHAPE),
    "llama-tied": lambda size: transformers.LlamaConfig(vocab_size=size, **SHAPE, tie_word_embeddings=True),
    "llama-llama3-rope": lambda size: transformers.LlamaConfig(
        vocab_size=size, **SHAPE, rope_parameters=LLAMA3_ROPE
    ),
    "qwen2": lambda size: transformers.Qwen2Config(vocab_size=size, **SHAPE),
    "qwen3": lambda size: transformers.Qwen3Config(vocab_size=size, **SHAPE, head_dim=32),
}


def random_model(name: str, vocab_size: int) -> Any:
    torch.manual_seed(5)
    model = transformers.AutoModelForCausalLM.from_config(MODELS[name](vocab_size)).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, mean=0.1, std=0.25)
    return model


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
