"""A model by its hub id, like `Qwen/Qwen3-0.6B`, into the hub library's own cache.

Knows: huggingface_hub. Does not know: what is in the files.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from engine.loading.errors import ModelError

_WANTED = ["*.safetensors", "*.safetensors.index.json", "*config.json", "tokenizer*", "*.jinja", "*_map.json"]
_WANTED += ["vocab.json", "merges.txt", "chat_template.json"]


def fetch(repo_id: str, progress: Callable[[str], None]) -> Path:
    """The folder of the model's files; only what is missing is fetched.

    Raises:
        ModelError: no such model, no access to it, or no network and not in the cache.
    """
    from huggingface_hub import snapshot_download

    progress(f"Looking up {repo_id} on the hub")
    try:
        return Path(snapshot_download(repo_id, allow_patterns=_WANTED))
    except Exception as error:  # HTTP, DNS, disk and access errors of several libraries
        raise ModelError(
            f"{repo_id}: no such folder or file here, and it cannot be fetched from the hub "
            f"({type(error).__name__}: {str(error).splitlines()[0] if str(error) else 'no reason given'})"
        ) from error
