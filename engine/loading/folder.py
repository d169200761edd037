"""A Hugging Face folder: which files say what.

Knows: config.json, generation_config.json, the tokenizer's files and where chat templates hide. Does
not know: what the model computes.
"""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from engine.loading.errors import ModelError
from engine.loading.tokenizer import Spec
from engine.models.config import ModelConfig, token_ids

SPECIAL_TOKEN_NAMES = (
    "bos_token",
    "eos_token",
    "unk_token",
    "sep_token",
    "pad_token",
    "cls_token",
    "mask_token",
)
"""What a template may call special tokens by."""


@dataclass(frozen=True, slots=True)
class TokenizerFiles:
    """All that a folder says about its tokenizer."""

    spec: Spec
    """The parsed tokenizer.json."""
    template: str | None
    """Source of the chat template."""
    special: Mapping[str, str]
    """Of SPECIAL_TOKEN_NAMES those that are set -> spelling."""

    def token_id(self, name: str) -> int | None:
        """The id of one of SPECIAL_TOKEN_NAMES."""
        spelling = self.special.get(name)
        return next((t["id"] for t in self.spec["added_tokens"] if t["content"] == spelling), None)


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object; an absent file is an empty one.

    Raises:
        ModelError: it is no JSON object.
    """
    if not path.is_file():
        return {}
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ModelError(f"{path}: no valid JSON ({error})") from error
    if not isinstance(value, dict):
        raise ModelError(f"{path}: got a JSON {type(value).__name__}, allowed: an object")
    return value


def read_config(folder: Path) -> ModelConfig:
    """config.json, with the end tokens of generation_config.json: each of the two may know some that the
    other lacks (Llama 3's end of turn).

    Raises:
        ModelError: there is none, or it is not one that we can serve.
    """
    path = folder / "config.json"
    if not path.is_file():
        raise ModelError(f"{folder}: has no config.json, so it is not a model in Hugging Face's format")
    raw = read_json(path)
    generation = read_json(folder / "generation_config.json")
    both = token_ids(raw, "eos_token_id") | token_ids(generation, "eos_token_id")
    return ModelConfig.from_hf({**raw, "eos_token_id": sorted(both)})


def read_tokenizer(folder: Path, progress: Callable[[str], None]) -> TokenizerFiles:
    """tokenizer.json and what stands beside it. Without a tokenizer.json, transformers makes one from the
    older files in memory, at each start.

    Raises:
        ModelError: there is no tokenizer, or it cannot be read.
    """
    path = folder / "tokenizer.json"
    settings = read_json(folder / "tokenizer_config.json")
    if path.is_file():
        try:
            spec: Spec = orjson.loads(path.read_bytes())
        except ValueError as error:
            raise ModelError(f"{path}: no valid JSON ({error})") from error
    else:
        spec = _converted(folder, progress)
    special = _special(settings, read_json(folder / "special_tokens_map.json"))
    complete(spec, settings, special)
    return TokenizerFiles(spec, _template(folder, settings), special)


def _converted(folder: Path, progress: Callable[[str], None]) -> Spec:
    if not any((folder / name).is_file() for name in ("tokenizer.model", "vocab.json")):
        raise ModelError(f"{folder}: has no tokenizer (tokenizer.json, tokenizer.model or vocab.json)")
    missing = [name for name in ("sentencepiece", "google.protobuf") if not _installed(name)]
    if (folder / "tokenizer.model").is_file() and missing:
        raise ModelError(
            f"{folder}: has a tokenizer.model and no tokenizer.json; converting it needs sentencepiece "
            f"and protobuf (missing: {', '.join(missing)})"
        )
    progress(
        "Converting the tokenizer (this folder has no tokenizer.json; it takes some seconds at each start)"
    )
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(str(folder))
        spec: Spec = orjson.loads(tokenizer.backend_tokenizer.to_str())
    except Exception as error:  # whatever its many converters raise
        raise ModelError(f"{folder}: transformers cannot convert its tokenizer: {error}") from error
    return spec


def _installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # its parent package is not there either
        return False


def _special(*sources: Mapping[str, Any]) -> dict[str, str]:
    """The first source that names a token wins. A token is a string, or an object with its content."""
    special: dict[str, str] = {}
    for name in SPECIAL_TOKEN_NAMES:
        for source in sources:
            token = source.get(name)
            spelling = token.get("content") if isinstance(token, dict) else token
            if isinstance(spelling, str):
                special.setdefault(name, spelling)
    return special


def complete(spec: Spec, settings: Mapping[str, Any], special: Mapping[str, str]) -> None:
    """Tokens that only `settings` (tokenizer_config.json) or `special` name are added tokens as well, as
    transformers has it."""
    added: list[dict[str, Any]] = spec.setdefault("added_tokens", [])
    known = {token["content"] for token in added}
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    for id_, token in (settings.get("added_tokens_decoder") or {}).items():
        if token["content"] not in known:
            added.append({**flags, "special": False, **token, "id": int(id_)})
            known.add(token["content"])
    vocab = spec["model"].get("vocab")
    for spelling in special.values():
        if spelling not in known and isinstance(vocab, dict) and spelling in vocab:
            added.append({**flags, "special": True, "content": spelling, "id": vocab[spelling]})
            known.add(spelling)
    added.sort(key=lambda token: int(token["id"]))


def _template(folder: Path, settings: Mapping[str, Any]) -> str | None:
    """chat_template.jinja, or a field of tokenizer_config.json: one template, or several by name."""
    path = folder / "chat_template.jinja"
    if path.is_file():
        return path.read_text(encoding="utf-8")
    template = settings.get("chat_template") or read_json(folder / "chat_template.json").get("chat_template")
    if isinstance(template, list):
        template = {entry["name"]: entry["template"] for entry in template}.get("default")
    if template is not None and not isinstance(template, str):
        raise ModelError(f"{folder}: chat_template: got {type(template).__name__}, allowed: a string")
    return template
