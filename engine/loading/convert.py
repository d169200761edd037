"""A GGUF file to a Hugging Face folder.

Knows: which files a folder holds. Does not know: where the file came from, or when to convert.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import orjson
from safetensors.torch import save_file

from engine.loading.checkpoint import SINGLE_FILE
from engine.loading.gguf_file import GGUFFile
from engine.loading.gguf_tokenizer import tokenizer_files

_GENERATION_KEYS = ("bos_token_id", "eos_token_id")


def convert(file: GGUFFile, folder: Path) -> None:
    """Writes the new `folder`, which transformers can load as well: fp32 weights, config, tokenizer and chat
    template. A rope that only a list of divisors describes has no place in a config.json: not for such files.
    """
    folder.mkdir()
    tensors = {name: file.read(name) for name in sorted(file.names())}
    save_file(tensors, folder / SINGLE_FILE, metadata={"format": "pt"})
    config = file.config()
    _write_json(folder / "config.json", {**config, "dtype": "float32"})
    # safetensors makes files that only their owner may read; whoever may read the rest may read this too.
    (folder / SINGLE_FILE).chmod((folder / "config.json").stat().st_mode)
    _write_json(folder / "generation_config.json", {key: config[key] for key in _GENERATION_KEYS})
    tokenizer = tokenizer_files(file)
    (folder / "tokenizer.json").write_bytes(orjson.dumps(tokenizer.spec))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "model_max_length": config["max_position_embeddings"],
        **tokenizer.special,
    }
    _write_json(folder / "tokenizer_config.json", settings)
    if tokenizer.template is not None:
        (folder / "chat_template.jinja").write_text(tokenizer.template, encoding="utf-8")


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
