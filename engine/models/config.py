"""What a model is: its shapes and options, read from a Hugging Face config.

Knows: the config.json dialects of transformers 4 and 5 and the defaults they leave out. Does not
know: torch, files, tokenizers. GGUF metadata comes here already renamed to the same fields.

An option that changes the maths is either honoured or refused by name; none is passed over.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from engine.models.errors import InvalidConfig, UnsupportedArchitecture, UnsupportedFeature

ARCHITECTURES: Mapping[str, str] = {
    "LlamaForCausalLM": "llama",
    "LLaMAForCausalLM": "llama",
    "MistralForCausalLM": "mistral",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
}
"""Class name in a config's `architectures` -> our name, which is also its `model_type`."""

ROPE_TYPES = ("default", "linear", "llama3", "yarn")

_DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "llama": {"max_position_embeddings": 2048},
    "mistral": {"max_position_embeddings": 131072, "num_key_value_heads": 8, "sliding_window": 4096},
    "qwen2": {"max_position_embeddings": 32768, "num_key_value_heads": 32},
    "qwen3": {"max_position_embeddings": 32768, "num_key_value_heads": 32, "head_dim": 128},
}
"""What an absent key means, where the architectures differ: the defaults of transformers' config classes.
A key that is there and null is another thing: `"sliding_window": null` turns Mistral's window off."""


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """Rotary position embedding. The fields after `type` matter only for the types named."""

    theta: float
    type: str
    """One of ROPE_TYPES."""
    factor: float = 1.0
    """linear, llama3, yarn: how many times longer the context became."""
    original_max_position_embeddings: int = 0
    """llama3, yarn: the context in tokens before it was stretched."""
    low_freq_factor: float = 1.0
    """llama3"""
    high_freq_factor: float = 1.0
    """llama3"""
    attention_factor: float = 1.0
    """yarn: cos and sin are multiplied by it."""
    beta_fast: float = 32.0
    """yarn"""
    beta_slow: float = 1.0
    """yarn"""
    truncate: bool = True
    """yarn: round the ends of the blended range of frequencies to whole dimensions."""
    frequency_divisors: tuple[float, ...] = ()
    """Of type default: each frequency is divided by its own number (GGUF's `rope_freqs`). Empty: by 1."""


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """One decoder-only model of the Llama family. Sizes are counts of elements, positions are tokens."""

    architecture: str
    """A value of ARCHITECTURES."""
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_norm_eps: float
    rope: RopeConfig
    max_position_embeddings: int
    tie_word_embeddings: bool
    qkv_bias: bool
    o_bias: bool
    mlp_bias: bool
    qk_norm: bool
    """RMS norm over each head of q and k, before rope."""
    sliding_window: int | None
    """A token sees this many positions, its own included. None: all."""
    eos_ids: frozenset[int]
    bos_id: int | None

    @classmethod
    def from_hf(cls, raw: Mapping[str, Any]) -> ModelConfig:
        """Reads a config.json.

        Raises:
            UnsupportedArchitecture: none of ARCHITECTURES.
            UnsupportedFeature: an option that we would have to ignore.
            InvalidConfig: a field is missing or malformed.
        """
        architecture = _architecture(raw)
        fields = _Fields({**_DEFAULTS[architecture], **raw})
        _refuse_unsupported(fields, architecture)
        heads, hidden = fields.integer("num_attention_heads"), fields.integer("hidden_size")
        kv_heads = fields.optional_integer("num_key_value_heads") or heads
        head_dim = fields.optional_integer("head_dim") or hidden // heads
        _check_heads(heads, kv_heads, head_dim, hidden, explicit=fields.get("head_dim") is not None)
        attention_bias = fields.flag("attention_bias")
        return cls(
            architecture=architecture,
            vocab_size=fields.integer("vocab_size"),
            hidden_size=hidden,
            intermediate_size=fields.integer("intermediate_size"),
            num_layers=fields.integer("num_hidden_layers"),
            num_heads=heads,
            num_kv_heads=kv_heads,
            head_dim=head_dim,
            rms_norm_eps=fields.number("rms_norm_eps", 1e-6),
            rope=_rope(fields),
            max_position_embeddings=fields.integer("max_position_embeddings"),
            tie_word_embeddings=fields.flag("tie_word_embeddings"),
            qkv_bias=attention_bias or architecture == "qwen2",
            o_bias=attention_bias,
            mlp_bias=fields.flag("mlp_bias"),
            qk_norm=architecture == "qwen3",
            sliding_window=_sliding_window(fields, architecture),
            eos_ids=token_ids(raw, "eos_token_id"),
            bos_id=fields.optional_integer("bos_token_id"),
        )


def token_ids(raw: Mapping[str, Any], name: str) -> frozenset[int]:
    """A config field that holds one token id, a list of them (Llama 3) or null.

    Raises:
        InvalidConfig: it holds something else.
    """
    value = raw.get(name)
    ids = [] if value is None else value if isinstance(value, list) else [value]
    if not all(_is_integer(i) and i >= 0 for i in ids):
        raise InvalidConfig(f"{name}: got {value!r}, allowed: a token id, a list of token ids, or null")
    return frozenset(ids)


def _is_integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


class _Fields:
    """A config's fields, read with their type checked. `prefix` is how messages name a nested object."""

    def __init__(self, raw: Mapping[str, Any], prefix: str = "") -> None:
        self._raw = raw
        self._prefix = prefix

    def get(self, name: str, default: Any = None) -> Any:
        value = self._raw.get(name)
        return default if value is None else value

    def _fail(self, name: str, allowed: str) -> InvalidConfig:
        got = repr(self._raw[name]) if name in self._raw else "nothing"
        return InvalidConfig(f"config field {self._prefix}{name}: got {got}, allowed: {allowed}")

    def optional_integer(self, name: str) -> int | None:
        value = self._raw.get(name)
        if value is not None and not (_is_integer(value) and value >= 0):
            raise self._fail(name, "an integer of at least 0, or null")
        return None if value is None else int(value)

    def integer(self, name: str, default: int | None = None) -> int:
        value = self.get(name, default)
        if not (_is_integer(value) and value > 0):
            raise self._fail(name, "an integer above 0")
        return int(value)

    def number(self, name: str, default: float | None = None) -> float:
        value = self.get(name, default)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not value > 0:
            raise self._fail(name, "a number above 0")
        return float(value)

    def flag(self, name: str, default: bool = False) -> bool:
        value = self.get(name, default)
        if not isinstance(value, bool):
            raise self._fail(name, "true or false")
        return value

    def mapping(self, name: str) -> Mapping[str, Any]:
        value = self.get(name, {})
        if not isinstance(value, Mapping):
            raise self._fail(name, "an object or null")
        return value


def _architecture(raw: Mapping[str, Any]) -> str:
    named = raw.get("architectures") or []
    got = named[0] if isinstance(named, list) and named else raw.get("model_type")
    architecture = ARCHITECTURES.get(str(got))
    if architecture is None and not named and got in ARCHITECTURES.values():
        architecture = str(got)
    if architecture is None:
        known = ", ".join(sorted(ARCHITECTURES))
        raise UnsupportedArchitecture(f"the model's architecture is {got!r}; those known are {known}")
    return architecture


def _refuse_unsupported(fields: _Fields, architecture: str) -> None:
    act = fields.get("hidden_act", "silu")
    if act != "silu":
        raise UnsupportedFeature(f"hidden_act: got {act!r}, supported: 'silu'")
    if fields.get("quantization_config") is not None:
        method = fields.mapping("quantization_config").get("quant_method", "of an unnamed method")
        raise UnsupportedFeature(
            f"quantization_config: got {method!r} weights, supported: plain float weights, and GGUF files"
        )
    if architecture in ("mistral", "qwen2") and fields.flag("attention_bias"):
        raise UnsupportedFeature(
            f"attention_bias: got true, but the {architecture} architecture has no such option"
        )
    if architecture != "llama" and fields.flag("mlp_bias"):
        raise UnsupportedFeature(
            f"mlp_bias: got true, but the {architecture} architecture has no such option"
        )


def _check_heads(heads: int, kv_heads: int, head_dim: int, hidden: int, *, explicit: bool) -> None:
    if heads % kv_heads:
        raise InvalidConfig(
            f"num_key_value_heads: got {kv_heads}, allowed: a divisor of num_attention_heads ({heads})"
        )
    if not explicit and hidden % heads:
        raise InvalidConfig(
            f"head_dim: got nothing, and num_attention_heads ({heads}) does not divide hidden_size ({hidden})"
        )
    if head_dim % 2:
        raise InvalidConfig(f"head_dim: got {head_dim}, allowed: an even number")


def _sliding_window(fields: _Fields, architecture: str) -> int | None:
    """The window that all layers share.

    Qwen2 and Qwen3 have it behind a switch, off by default, and start it at a layer; `layer_types` spells
    that out. One window for every layer or for none is what we have.
    """
    window = fields.optional_integer("sliding_window") or None
    num_layers = fields.integer("num_hidden_layers")
    if architecture == "llama":
        window = None
    elif architecture in ("qwen2", "qwen3"):
        first = fields.optional_integer("max_window_layers")
        first = 28 if first is None else first
        if not fields.flag("use_sliding_window") or window is None or first >= num_layers:
            window = None
        elif first > 0 and fields.get("layer_types") is None:
            raise UnsupportedFeature(
                f"use_sliding_window: got true with max_window_layers {first}, so that only some of the "
                f"{num_layers} layers have a window; supported: all layers or none"
            )
    kind = "sliding_attention" if window else "full_attention"
    layer_types = fields.get("layer_types", [kind])
    if any(layer != kind for layer in layer_types):
        raise UnsupportedFeature(
            f"layer_types: got {sorted(set(layer_types))}, supported: {kind!r} in every layer"
        )
    return window


def _rope(fields: _Fields) -> RopeConfig:
    """`rope_parameters` (transformers 5), or `rope_theta` beside `rope_scaling` (transformers 4)."""
    name = "rope_scaling" if fields.get("rope_scaling") else "rope_parameters"
    raw = fields.mapping(name)
    rope = _Fields(raw, prefix=f"{name}.")
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind not in ROPE_TYPES:
        raise UnsupportedFeature(f"{name}.rope_type: got {kind!r}, supported: {', '.join(ROPE_TYPES)}")
    partial = rope.get("partial_rotary_factor", fields.get("partial_rotary_factor", 1.0))
    if partial != 1.0:
        raise UnsupportedFeature(f"partial_rotary_factor: got {partial!r}, supported: 1.0")
    theta = rope.number("rope_theta", fields.number("rope_theta", 10000.0))
    if kind == "default":
        return RopeConfig(theta, kind)
    if kind == "linear":
        return RopeConfig(theta, kind, factor=rope.number("factor"))
    original = fields.integer(
        "original_max_position_embeddings",
        rope.integer("original_max_position_embeddings", fields.integer("max_position_embeddings")),
    )
    if kind == "llama3":
        return RopeConfig(
            theta,
            kind,
            factor=rope.number("factor"),
            original_max_position_embeddings=original,
            low_freq_factor=rope.number("low_freq_factor"),
            high_freq_factor=rope.number("high_freq_factor"),
        )
    return _yarn(fields, rope, theta, original)


def _yarn(fields: _Fields, rope: _Fields, theta: float, original: int) -> RopeConfig:
    """YaRN (Peng et al. 2023). Its attention factor is 0.1 ln(factor) + 1 unless the config states it."""
    for name in ("mscale", "mscale_all_dim"):
        if rope.get(name):
            raise UnsupportedFeature(f"yarn rope with {name}: got {rope.get(name)!r}, supported: none")
    factor = rope.number("factor", fields.integer("max_position_embeddings") / original)
    inferred = 1.0 if factor <= 1 else 0.1 * math.log(factor) + 1.0
    return RopeConfig(
        theta,
        "yarn",
        factor=factor,
        original_max_position_embeddings=original,
        attention_factor=rope.number("attention_factor", inferred),
        beta_fast=rope.number("beta_fast", 32.0),
        beta_slow=rope.number("beta_slow", 1.0),
        truncate=rope.flag("truncate", True),
    )
