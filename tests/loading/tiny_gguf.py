"""Tiny random models written as GGUF files, the way llama.cpp's converter does it."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import sentencepiece
import tokenizers
import torch
import transformers
from tokenizers import decoders, models, pre_tokenizers, trainers

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


def sentencepiece_model(text: list[str]) -> sentencepiece.SentencePieceProcessor:
    """A SentencePiece BPE model of Llama 2's kind: <unk>, <s>, </s>, bytes, pieces."""
    written = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(text),
        model_writer=written,
        vocab_size=320,
        model_type="bpe",
        byte_fallback=True,
        character_coverage=0.99,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        hard_vocab_limit=False,
        minloglevel=2,
    )
    return sentencepiece.SentencePieceProcessor(model_proto=written.getvalue())


def write_sentencepiece(
    path: Path, model: sentencepiece.SentencePieceProcessor, *, space_prefix: bool
) -> Path:
    """A GGUF file of nothing but such a vocabulary."""
    size = model.get_piece_size()
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tokenizer_model("llama")
    writer.add_token_list([model.id_to_piece(id_) for id_ in range(size)])
    writer.add_token_scores([model.get_score(id_) for id_ in range(size)])
    writer.add_token_types(
        [
            2 if model.is_unknown(i) else 3 if model.is_control(i) else 6 if model.is_byte(i) else 1
            for i in range(size)
        ]
    )
    writer.add_bos_token_id(model.bos_id())
    writer.add_eos_token_id(model.eos_id())
    writer.add_unk_token_id(model.unk_id())
    writer.add_add_space_prefix(space_prefix)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


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
