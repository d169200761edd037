"""The tokenizer of a GGUF file, written as a tokenizer.json.

Knows: GGUF's tokenizer keys, and how the vocabularies of the Llama family split text. Does not know:
weights, templates.

Byte-level vocabularies are spelled out here rather than by transformers, which gives some of them
another model's way of splitting text (no splitting of digits for SmolLM) without a word.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from engine.loading.errors import InvalidConfig, UnsupportedFeature
from engine.loading.folder import TokenizerFiles, complete
from engine.loading.gguf_file import GGUFFile
from engine.loading.tokenizer import Spec

_CONTROL, _USER_DEFINED, _UNUSED = 3, 4, 5
"""Values of `tokenizer.ggml.token_type`; all others are plain pieces of text."""

_BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
_LLAMA3_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN2_SPLIT = _LLAMA3_SPLIT.replace(r"\p{N}{1,3}", r"\p{N}")


def _split_by(pattern: str) -> dict[str, Any]:
    split = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    return {"type": "Sequence", "pretokenizers": [split, {**_BYTE_LEVEL, "use_regex": False}]}


_SMOLLM: dict[str, Any] = {
    "type": "Sequence",
    "pretokenizers": [{"type": "Digits", "individual_digits": True}, _BYTE_LEVEL],
}
_LLAMA3 = {"pre_tokenizer": _split_by(_LLAMA3_SPLIT), "ignore_merges": True}
_QWEN2 = {"pre_tokenizer": _split_by(_QWEN2_SPLIT), "normalizer": {"type": "NFC"}}

SPLITS: Mapping[str, Mapping[str, Any]] = {
    "gpt-2": {"pre_tokenizer": _BYTE_LEVEL},
    "smollm": {"pre_tokenizer": _SMOLLM},
    "llama-bpe": _LLAMA3,
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
    "qwen2": _QWEN2,
    "deepseek-r1-qwen": _QWEN2,
}
"""`tokenizer.ggml.pre` -> how text is split before the merges, as the model's own tokenizer.json says."""


_SPECIAL_IDS = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}


def tokenizer_files(file: GGUFFile) -> TokenizerFiles:
    """The file's tokenizer as a Hugging Face folder would state it.

    Raises:
        UnsupportedFeature: a vocabulary type, or a way to split text, that we do not have.
    """
    kind = file.metadata.get("tokenizer.ggml.model")
    if kind == "gpt2":
        spec = _byte_level_spec(file.metadata)
    elif kind == "llama":
        spec = _sentencepiece_spec(file)
    else:
        raise UnsupportedFeature(f"tokenizer.ggml.model: got {kind!r}, supported: 'gpt2', 'llama'")
    tokens = _array(file.metadata, "tokens")
    ids = {name: file.metadata.get(f"tokenizer.ggml.{key}_token_id") for name, key in _SPECIAL_IDS.items()}
    special = {name: tokens[id_] for name, id_ in ids.items() if id_ is not None}
    if file.metadata.get("tokenizer.ggml.add_bos_token") and "bos_token" in special:
        spec["post_processor"] = _bos_first(special["bos_token"], ids["bos_token"])
    complete(spec, {}, special)
    return TokenizerFiles(spec, file.metadata.get("tokenizer.chat_template"), special)


def _bos_first(spelling: str, id_: int | None) -> dict[str, Any]:
    name = {"id": spelling, "type_id": 0}
    return {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": name}, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {spelling: {"id": spelling, "ids": [id_], "tokens": [spelling]}},
    }


def _byte_level_spec(metadata: Mapping[str, Any]) -> Spec:
    pre = str(metadata.get("tokenizer.ggml.pre"))
    if pre not in SPLITS:
        raise UnsupportedFeature(f"tokenizer.ggml.pre: got {pre!r}, supported: {', '.join(sorted(SPLITS))}")
    split = SPLITS[pre]
    tokens, types, merges = (_array(metadata, name) for name in ("tokens", "token_type", "merges"))
    kinds = list(zip(tokens, types, strict=True))
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            _added(id_, token, special=kind == _CONTROL)
            for id_, (token, kind) in enumerate(kinds)
            if kind in (_CONTROL, _USER_DEFINED)
        ],
        "normalizer": split.get("normalizer"),
        "pre_tokenizer": split["pre_tokenizer"],
        "post_processor": None,
        "decoder": {**_BYTE_LEVEL, "add_prefix_space": True},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": split.get("ignore_merges", False),
            "vocab": {token: id_ for id_, (token, kind) in enumerate(kinds) if kind != _UNUSED},
            "merges": [merge.split(" ") for merge in merges],
        },
    }


def _array(metadata: Mapping[str, Any], name: str) -> list[Any]:
    key = f"tokenizer.ggml.{name}"
    value = metadata.get(key)
    if not isinstance(value, list):
        raise InvalidConfig(f"{key}: got {value!r}, allowed: a list")
    return value


def _added(id_: int, token: str, *, special: bool) -> dict[str, Any]:
    return {
        "id": id_,
        "content": token,
        "single_word": False,
        "lstrip": False,
        "rstrip": False,
        "normalized": False,
        "special": special,
    }


def _sentencepiece_spec(file: GGUFFile) -> Spec:
    """Through transformers, which knows how to get merges out of SentencePiece's scores."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(str(file.path.parent), gguf_file=file.path.name)
    spec: Spec = orjson.loads(tokenizer.backend_tokenizer.to_str())
    if file.metadata.get("tokenizer.ggml.add_space_prefix", True) is False:
        _without_prefix_space(spec)
    return spec


def _without_prefix_space(spec: Spec) -> None:
    """Honours `add_space_prefix` = false, which transformers passes over: no step adds or strips a prefix."""
    for step in (spec.get(part) or {} for part in ("normalizer", "pre_tokenizer", "decoder")):
        inner = step.get("decoders") or step.get("normalizers") or step.get("pretokenizers") or [step]
        for simple in inner:
            kind = simple.get("type")
            if kind == "Metaspace":
                simple["prepend_scheme"] = "never"
            elif kind == "Prepend":
                simple["prepend"] = ""
            elif kind == "Strip":
                simple["start"] = 0
