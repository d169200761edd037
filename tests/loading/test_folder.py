"""Folders that are not as they should be, and what a person is told."""

from __future__ import annotations

import importlib.util
import json
import threading
from pathlib import Path
from typing import Any

import pytest
import tokenizers
import torch
import transformers
from safetensors.torch import load_file, save_file
from tokenizers import decoders, models, pre_tokenizers

from engine import loading
from engine.loading import LoadedModel, ModelError, load
from engine.loading.errors import InvalidConfig, UnsupportedArchitecture, UnsupportedFeature
from engine.loading.folder import read_tokenizer
from engine.loading.tokenizer import Tokenizer
from engine.models.config import ModelConfig
from kernels import Kernels, for_device
from tests.loading.tiny_gguf import TEXT, sentencepiece_model

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 260,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}
K_PROJ = "model.layers.1.self_attn.k_proj.weight"


def byte_tokenizer() -> tokenizers.Tokenizer:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = tokenizers.Tokenizer(models.BPE({letter: i for i, letter in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<s>", "</s>", "<|turn|>"])
    return tokenizer


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A tiny Llama with a tokenizer; tests then break it."""
    fields = {key: value for key, value in LLAMA.items() if key != "architectures"}
    config = transformers.LlamaConfig(**fields, bos_token_id=256, eos_token_id=257, pad_token_id=None)
    torch.manual_seed(0)
    made = tmp_path / "tiny"
    transformers.LlamaForCausalLM(config).save_pretrained(made)
    byte_tokenizer().save(str(made / "tokenizer.json"))
    write(made, "tokenizer_config.json", {"bos_token": "<s>", "eos_token": {"content": "</s>"}})
    return made


def write(folder: Path, name: str, value: object) -> None:
    (folder / name).write_text(json.dumps(value))


def change(folder: Path, name: str, **fields: object) -> None:
    write(folder, name, {**json.loads((folder / name).read_text()), **fields})


def change_tensors(folder: Path, **tensors: torch.Tensor | None) -> None:
    file = folder / "model.safetensors"
    kept = {name: tensor for name, tensor in {**load_file(file), **tensors}.items() if tensor is not None}
    save_file(kept, file)


def load_quietly(path: Path | str, cache: Path = Path("/nonexistent")) -> LoadedModel:
    said: list[str] = []
    return load(str(path), cache_dir=cache, progress=said.append)


def test_a_folder_loads_with_its_name_ids_and_no_template(folder: Path) -> None:
    loaded = load_quietly(folder)
    assert loaded.name == "tiny"
    assert loaded.chat_template is None
    assert (loaded.config.bos_id, loaded.config.eos_ids) == (256, {257})
    assert loaded.tokenizer.encode("a</s>") == loaded.tokenizer.encode("a") + loaded.tokenizer.encode("</s>")
    assert len(loaded.tokenizer.vocabulary.token_bytes) == 260


def test_loading_leaves_torch_with_as_many_threads_as_it_had(folder: Path) -> None:
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        load_quietly(folder)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_whoever_waits_for_kernels_to_be_compiled_is_told(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = threading.Event()

    def compiling(device: torch.device, *, batch_invariant: bool) -> Kernels:
        assert told.wait(20)
        return for_device(device, batch_invariant=batch_invariant)

    def progress(message: str) -> None:
        if "compiles them" in message:
            told.set()

    monkeypatch.setattr(loading, "for_device", compiling)
    monkeypatch.setattr(loading, "_PATIENCE_S", 0)
    load(str(folder), cache_dir=folder, progress=progress)
    assert told.is_set()


def test_ends_are_gathered_from_all_files(folder: Path) -> None:
    """Llama 3 has its end of text in one file and its end of turn in another."""
    change(folder, "config.json", eos_token_id=5)
    write(folder, "generation_config.json", {"eos_token_id": [258, 6]})
    loaded = load_quietly(folder)
    assert loaded.config.eos_ids == {5, 6, 257, 258}
    assert loaded.tokenizer.eos_ids == loaded.tokenizer.vocabulary.eos_ids == {5, 6, 257, 258}
    assert loaded.tokenizer.vocabulary.token_bytes[5] == b""


@pytest.mark.parametrize(
    "place",
    ["file", "field", "named"],
)
def test_a_template_is_found_wherever_it_is_kept(folder: Path, place: str) -> None:
    template = "{{ bos_token }}{% for message in messages %}{{ message.content }}{% endfor %}"
    if place == "file":
        (folder / "chat_template.jinja").write_text(template)
    else:
        several = [{"name": "tool_use", "template": "x"}, {"name": "default", "template": template}]
        change(folder, "tokenizer_config.json", chat_template=several if place == "named" else template)
    loaded = load_quietly(folder)
    assert loaded.chat_template is not None
    wanted = [256, *loaded.tokenizer.encode("hi")]
    assert loaded.chat_template.encode([{"role": "user", "content": "hi"}]) == wanted


def test_a_missing_tensor_is_named_with_its_shape(folder: Path) -> None:
    change_tensors(folder, **{K_PROJ: None})
    with pytest.raises(ModelError, match=rf"{K_PROJ} is missing \(expected shape \[16, 32\]\)"):
        load_quietly(folder)


def test_a_misshapen_tensor_is_named_with_both_shapes(folder: Path) -> None:
    change_tensors(folder, **{K_PROJ: torch.zeros(8, 32)})
    with pytest.raises(ModelError, match=rf"{K_PROJ} has shape \[8, 32\], expected \[16, 32\]"):
        load_quietly(folder)


def test_an_unexpected_tensor_is_named(folder: Path) -> None:
    change_tensors(folder, **{"model.layers.0.self_attn.q_proj.bias": torch.zeros(32)})
    with pytest.raises(ModelError, match=r"does not have: model\.layers\.0\.self_attn\.q_proj\.bias"):
        load_quietly(folder)


def test_a_tensor_of_integers_is_refused(folder: Path) -> None:
    change_tensors(folder, **{K_PROJ: torch.zeros(16, 32, dtype=torch.int8)})
    with pytest.raises(ModelError, match=rf"{K_PROJ} is torch\.int8, allowed: float32"):
        load_quietly(folder)


def test_stored_rope_frequencies_are_passed_over(folder: Path) -> None:
    change_tensors(folder, **{"model.layers.0.self_attn.rotary_emb.inv_freq": torch.zeros(4)})
    load_quietly(folder)


@pytest.mark.parametrize("equal", [True, False])
def test_a_head_stored_though_tied(folder: Path, equal: bool) -> None:
    """Equal: the same thing twice. Not equal: the weights say that they are not tied, and they win."""
    change(folder, "config.json", tie_word_embeddings=True)
    if equal:
        change_tensors(folder, **{"lm_head.weight": None})
        table = load_file(folder / "model.safetensors")["model.embed_tokens.weight"]
        change_tensors(folder, **{"lm_head.weight": table.clone()})
    assert load_quietly(folder).config.tie_word_embeddings == equal


def test_a_damaged_file_is_named(folder: Path) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(ModelError, match=r"model\.safetensors: not a readable safetensors file"):
        load_quietly(folder)


def test_a_missing_shard_is_named(folder: Path) -> None:
    transformers.LlamaForCausalLM.from_pretrained(folder).save_pretrained(folder, max_shard_size="20KB")
    (folder / "model.safetensors").unlink()
    shard = sorted(folder.glob("model-*.safetensors"))[1]
    shard.unlink()
    with pytest.raises(ModelError, match=rf"{shard.name}: named in model\.safetensors\.index\.json"):
        load_quietly(folder)


@pytest.mark.parametrize("name", ["../other.safetensors", "/etc/passwd"])
def test_an_index_cannot_point_out_of_the_folder(folder: Path, name: str) -> None:
    write(folder, "model.safetensors.index.json", {"weight_map": {"model.norm.weight": name}})
    with pytest.raises(ModelError, match="allowed: names of files in the same folder"):
        load_quietly(folder)


def test_pickle_files_are_not_opened(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(ModelError, match=r"pytorch_model\.bin: pickle files, which are not opened"):
        load_quietly(folder)


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("config.json", "{", "no valid JSON"),
        ("config.json", "[]", "got a JSON list"),
        ("config.json", None, "has no config.json"),
        ("tokenizer.json", "{", "no valid JSON"),
        ("tokenizer.json", None, "has no tokenizer"),
        ("tokenizer_config.json", "nonsense", "no valid JSON"),
        ("model.safetensors", None, r"has neither model\.safetensors nor"),
    ],
)
def test_files_missing_or_broken(folder: Path, name: str, content: str | None, says: str) -> None:
    (folder / name).unlink()
    if content is not None:
        (folder / name).write_text(content)
    with pytest.raises(ModelError, match=says):
        load_quietly(folder)


def test_a_sentencepiece_file_alone_is_converted(folder: Path) -> None:
    pytest.importorskip("google.protobuf", reason="transformers reads tokenizer.model through protobuf")
    model = sentencepiece_model([TEXT] * 20)
    (folder / "tokenizer.json").unlink()
    (folder / "tokenizer.model").write_bytes(model.serialized_model_proto())
    change(folder, "tokenizer_config.json", tokenizer_class="LlamaTokenizer", eos_token="</s>")
    files = read_tokenizer(folder, print)
    tokenizer = Tokenizer(files.spec, vocab_size=model.get_piece_size(), eos_ids=[2], bos_id=1)
    assert tokenizer.encode("the quick <s> fox") == model.encode("the quick <s> fox")


def test_what_converting_a_sentencepiece_file_needs_is_named(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "tokenizer.json").rename(folder / "tokenizer.model")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(
        ModelError, match=r"needs sentencepiece and protobuf \(missing: sentencepiece, google"
    ):
        read_tokenizer(folder, print)


def test_a_tokenizer_of_unknown_kind_is_refused(folder: Path) -> None:
    change(folder, "tokenizer.json", decoder={"type": "WordPiece", "prefix": "##", "cleanup": True})
    with pytest.raises(ModelError, match="its decoder is 'WordPiece'"):
        load_quietly(folder)


def test_tokens_beyond_the_embedding_are_plain_text(folder: Path) -> None:
    """Feeding such an id to the model would read outside its table."""
    tokenizer = byte_tokenizer()
    tokenizer.add_special_tokens(["<a>", "<b>", "<c>"])
    tokenizer.save(str(folder / "tokenizer.json"))
    loaded = load_quietly(folder)
    assert loaded.tokenizer.special_tokens.get("<a>") == 259
    assert "<b>" not in loaded.tokenizer.special_tokens
    assert max(loaded.tokenizer.encode("<a><b><c>")) < 256


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("no-such-thing", "not there; allowed: a folder"),
        ("weights.bin", r"ending in '\.bin', allowed: \.gguf"),
    ],
)
def test_names_that_mean_nothing(tmp_path: Path, name: str, says: str) -> None:
    (tmp_path / "weights.bin").write_bytes(b"x")
    with pytest.raises(ModelError, match=says):
        load_quietly(tmp_path / name)


def test_a_hub_id_that_cannot_be_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub

    def unreachable(*args: object, **kwargs: object) -> str:
        raise ConnectionError("no route to host")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", unreachable)
    with pytest.raises(ModelError, match=r"someone/model: no such folder.*ConnectionError: no route to host"):
        load_quietly("someone/model")


def test_a_hub_id_loads_what_was_fetched(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub

    asked: list[str] = []

    def fetched(repo_id: str, *, allow_patterns: list[str]) -> str:
        asked.append(repo_id)
        return str(folder)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fetched)
    assert load_quietly("someone/model").name == "someone/model"
    assert asked == ["someone/model"]


def test_unknown_architectures_are_told_the_known_ones() -> None:
    with pytest.raises(UnsupportedArchitecture) as error:
        ModelConfig.from_hf({**LLAMA, "architectures": ["GPT2LMHeadModel"]})
    assert "'GPT2LMHeadModel'" in str(error.value)
    for known in ("LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM"):
        assert known in str(error.value)


def test_a_model_type_stands_in_for_architectures() -> None:
    raw = {key: value for key, value in LLAMA.items() if key != "architectures"}
    assert ModelConfig.from_hf({**raw, "model_type": "qwen2"}).architecture == "qwen2"
    with pytest.raises(UnsupportedArchitecture, match="None"):
        ModelConfig.from_hf(raw)


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"hidden_act": "gelu"}, "hidden_act: got 'gelu', supported: 'silu'"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor: got 0.5"),
        (
            {"rope_scaling": {"type": "dynamic", "factor": 2.0}},
            "rope_type: got 'dynamic', supported: default",
        ),
        ({"rope_parameters": {"rope_type": "longrope"}}, "rope_type: got 'longrope'"),
        ({"rope_scaling": {"type": "yarn", "factor": 2.0, "mscale": 1.0}}, "mscale: got 1.0"),
        ({"quantization_config": {"quant_method": "gptq"}}, "quantization_config: got 'gptq'"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "layer_types: got"),
        ({"architectures": ["MistralForCausalLM"], "attention_bias": True}, "attention_bias: got true"),
        ({"architectures": ["Qwen3ForCausalLM"], "mlp_bias": True}, "mlp_bias: got true"),
        (
            {"architectures": ["Qwen2ForCausalLM"], "use_sliding_window": True, "max_window_layers": 1}
            | {"sliding_window": 8},
            "use_sliding_window: got true with max_window_layers 1",
        ),
    ],
)
def test_what_would_change_the_maths_is_refused_by_name(fields: dict[str, Any], says: str) -> None:
    with pytest.raises(UnsupportedFeature) as error:
        ModelConfig.from_hf({**LLAMA, **fields})
    assert says in str(error.value)


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"vocab_size": None}, "config field vocab_size: got None, allowed: an integer above 0"),
        ({"hidden_size": "32"}, "config field hidden_size: got '32'"),
        ({"num_key_value_heads": 3}, "num_key_value_heads: got 3, allowed: a divisor"),
        ({"rope_theta": -1}, "config field rope_theta: got -1"),
        ({"rope_scaling": {"type": "linear"}}, "config field rope_scaling.factor: got nothing"),
        ({"tie_word_embeddings": 1}, "config field tie_word_embeddings: got 1, allowed: true or false"),
        ({"eos_token_id": "</s>"}, "eos_token_id: got '</s>', allowed: a token id, a list"),
        ({"head_dim": 7}, "head_dim: got 7, allowed: an even number"),
        ({"hidden_size": 33}, "num_attention_heads (4) does not divide hidden_size (33)"),
    ],
)
def test_malformed_fields_are_named(fields: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidConfig) as error:
        ModelConfig.from_hf({**LLAMA, **fields})
    assert says in str(error.value)


LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}


def test_both_dialects_of_rope_say_the_same() -> None:
    stretched = {**LLAMA3, "rope_type": "llama3", "original_max_position_embeddings": 32}
    old = ModelConfig.from_hf({**LLAMA, "rope_theta": 5e5, "rope_scaling": stretched})
    new = ModelConfig.from_hf({**LLAMA, "rope_parameters": {**stretched, "rope_theta": 5e5}})
    assert old == new
    assert (new.rope.theta, new.rope.factor, new.rope.original_max_position_embeddings) == (5e5, 8.0, 32)


def test_mistral_without_a_window_field_has_the_window_of_its_class() -> None:
    mistral = {**LLAMA, "architectures": ["MistralForCausalLM"]}
    assert ModelConfig.from_hf(mistral).sliding_window == 4096
    assert ModelConfig.from_hf({**mistral, "sliding_window": None}).sliding_window is None
