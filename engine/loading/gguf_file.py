"""A GGUF file, seen as a Hugging Face folder: the same config fields, tensor names and tokenizer.json.

Knows: GGUF's metadata keys and tensor names for the Llama family, and how llama.cpp's converter changed
the weights on the way in. Does not know: what is done with the result.

The gguf library reads the file and dequantises; nothing of a file that is opened here is run.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch

from engine.loading.errors import InvalidConfig, ModelError, UnsupportedArchitecture, UnsupportedFeature

ARCHITECTURES: Mapping[str, str] = {
    "llama": "LlamaForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}
"""`general.architecture` -> the Hugging Face class. Mistral models call themselves llama in GGUF."""

_CHANGES_THE_MATHS = (
    "attention.scale",
    "attention.clamp_kqv",
    "attn_logit_softcapping",
    "embedding_scale",
    "final_logit_softcapping",
    "logit_scale",
    "residual_scale",
    "rope.scale_linear",
    "rope.scaling.attn_factor",
    "rope.scaling.yarn_attn_factor",
    "rope.scaling.yarn_beta_fast",
    "rope.scaling.yarn_beta_slow",
    "rope.scaling.yarn_ext_factor",
    "rope.scaling.yarn_log_multiplier",
    "use_parallel_residual",
)
"""Keys (after the architecture's name) that we would have to ignore. Absent or neutral they do nothing."""

_NEUTRAL = (0, 1, False)

_LAYER_NAMES: Mapping[str, str] = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_OTHER_NAMES: Mapping[str, str] = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
_ROPE_DIVISORS = "rope_freqs.weight"
_LAYER = re.compile(r"blk\.(\d+)\.(\w+)\.(weight|bias)")


class GGUFFile:
    """An opened GGUF file; a `Checkpoint`.

    Raises:
        ModelError: it is no GGUF file, or a part of one.
        UnsupportedArchitecture: none of ARCHITECTURES.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            reader = gguf.GGUFReader(path)
        except (OSError, ValueError, IndexError, KeyError) as error:
            raise ModelError(f"{path}: no readable GGUF file ({error})") from error
        self.metadata: dict[str, Any] = {key: field.contents() for key, field in reader.fields.items()}
        """All key-values of the file."""
        self.architecture = str(self.metadata.get("general.architecture"))
        if self.architecture not in ARCHITECTURES:
            known = ", ".join(sorted(ARCHITECTURES))
            raise UnsupportedArchitecture(
                f"{path}: the file's general.architecture is {self.architecture!r}; those known are {known}"
            )
        if self.metadata.get("split.count", 1) > 1:
            raise ModelError(
                f"{path}: one of {self.metadata['split.count']} parts; join them with gguf-split"
            )
        stored = {tensor.name: tensor for tensor in reader.tensors}
        self._rope_divisors = stored.pop(_ROPE_DIVISORS, None)
        self._tensors = {_hf_name(name): tensor for name, tensor in stored.items()}

    def names(self) -> set[str]:
        return set(self._tensors)

    def read(self, name: str) -> torch.Tensor:
        """The tensor, dequantised to fp32.

        Raises:
            UnsupportedFeature: a quantisation that the gguf library cannot undo.
        """
        array = _dequantise(self._tensors[name])
        if self.architecture == "llama":
            if ".q_proj." in name:
                array = _unpermute(array, self._integer("attention.head_count"))
            elif ".k_proj." in name:
                array = _unpermute(array, self._num_kv_heads())
        return torch.from_numpy(np.array(array, dtype=np.float32))

    def rope_divisors(self) -> tuple[float, ...]:
        """Llama 3's stretched context, as one divisor per rope frequency; empty where there is none."""
        if self._rope_divisors is None:
            return ()
        return tuple(float(divisor) for divisor in _dequantise(self._rope_divisors))

    def config(self) -> dict[str, Any]:
        """The fields of a config.json.

        Raises:
            UnsupportedFeature, InvalidConfig: by the key's name.
        """
        self._refuse_unsupported()
        heads, width = self._integer("attention.head_count"), self._integer("embedding_length")
        head_dim = self._key("attention.key_length") or width // heads
        config = {
            "architectures": [ARCHITECTURES[self.architecture]],
            "model_type": self.architecture,
            "vocab_size": self._vocab_size(),
            "hidden_size": width,
            "intermediate_size": self._integer("feed_forward_length"),
            "num_hidden_layers": self._integer("block_count"),
            "num_attention_heads": heads,
            "num_key_value_heads": self._num_kv_heads(),
            "head_dim": head_dim,
            "hidden_act": "silu",
            "max_position_embeddings": self._integer("context_length"),
            "rms_norm_eps": _shortest_float32(self._key("attention.layer_norm_rms_epsilon", 1e-6)),
            "rope_parameters": self._rope(),
            "partial_rotary_factor": self._key("rope.dimension_count", head_dim) / head_dim,
            "tie_word_embeddings": "lm_head.weight" not in self._tensors,
            "attention_bias": "model.layers.0.self_attn.o_proj.bias" in self._tensors,
            "mlp_bias": "model.layers.0.mlp.up_proj.bias" in self._tensors,
            "bos_token_id": self.metadata.get("tokenizer.ggml.bos_token_id"),
            "eos_token_id": self.eos_ids(),
        }
        window = self._key("attention.sliding_window")
        if window:
            config |= {
                "architectures": ["MistralForCausalLM"],
                "model_type": "mistral",
                "sliding_window": window,
            }
        return config

    def eos_ids(self) -> list[int]:
        """The end of a text, and the end of a turn where the file names another token for it."""
        keys = ("tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id")
        return sorted({self.metadata[key] for key in keys if key in self.metadata})

    def _vocab_size(self) -> int:
        """Rows of the embedding, which may be padded beyond the tokens that exist."""
        embedding = self._tensors.get("model.embed_tokens.weight")
        if embedding is None:
            raise ModelError(f"{self.path}: the tensor token_embd.weight is missing")
        return int(embedding.shape[1])

    def _refuse_unsupported(self) -> None:
        for key in _CHANGES_THE_MATHS:
            value = self._key(key)
            if value is not None and value not in _NEUTRAL:
                raise UnsupportedFeature(f"{self._full(key)}: got {value!r}, supported: none")
        if self._key("expert_count"):
            raise UnsupportedFeature(
                f"{self._full('expert_count')}: got a mixture of experts, supported: none"
            )
        if self._key("attention.sliding_window") and self.architecture != "llama":
            raise UnsupportedFeature(
                f"{self._full('attention.sliding_window')}: supported in llama files only"
            )
        key, value = self._key("attention.key_length"), self._key("attention.value_length")
        if key != value:
            raise UnsupportedFeature(
                f"{self._full('attention.value_length')}: got {value}, supported: the key_length ({key})"
            )

    def _rope(self) -> dict[str, Any]:
        rope: dict[str, Any] = {"rope_theta": float(self._key("rope.freq_base", 10000.0))}
        kind = self._key("rope.scaling.type", "none")
        if kind == "none":
            return {**rope, "rope_type": "default"}
        rope |= {"rope_type": kind, "factor": float(self._key("rope.scaling.factor", 1.0))}
        original = self._key("rope.scaling.original_context_length")
        return rope if original is None else {**rope, "original_max_position_embeddings": original}

    def _full(self, key: str) -> str:
        return f"{self.architecture}.{key}"

    def _key(self, key: str, default: Any = None) -> Any:
        return self.metadata.get(self._full(key), default)

    def _integer(self, key: str) -> int:
        value = self._key(key)
        if not isinstance(value, int) or value < 1:
            raise InvalidConfig(
                f"{self.path}: {self._full(key)}: got {value!r}, allowed: one integer above 0"
            )
        return value

    def _num_kv_heads(self) -> int:
        return self._integer(
            "attention.head_count_kv" if self._key("attention.head_count_kv") else "attention.head_count"
        )


def _hf_name(name: str) -> str:
    """A name that we do not know stays as it is: the model then says that it has no such tensor."""
    layer = _LAYER.fullmatch(name)
    if layer:
        index, part, kind = layer.groups()
        return f"model.layers.{index}.{_LAYER_NAMES[part]}.{kind}" if part in _LAYER_NAMES else name
    part, _, kind = name.rpartition(".")
    return f"{_OTHER_NAMES[part]}.{kind}" if part in _OTHER_NAMES else name


def _dequantise(tensor: Any) -> Any:
    try:
        return gguf.dequantize(tensor.data, tensor.tensor_type)
    except NotImplementedError as error:
        kind = tensor.tensor_type.name
        raise UnsupportedFeature(
            f"the tensor {tensor.name}: got type {kind}, which the gguf library cannot dequantise"
        ) from error


def _unpermute(rows: Any, num_heads: int) -> Any:
    """llama.cpp rotates neighbouring elements of a head, Hugging Face the two halves; so its converter
    interleaves the rows of q and k. rows[num_heads * head_dim, ...]"""
    half = rows.shape[0] // num_heads // 2
    return rows.reshape(num_heads, half, 2, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)


def _shortest_float32(value: float) -> float:
    """1e-05 and not 9.999999747378752e-06: what was meant before it was stored as fp32."""
    return float(str(np.float32(value)))
