"""From a name or a path to a model that is ready to run.

Knows: which kind of thing a name means, and how the pieces come together. Does not know: the formats
(a module here for each), sequences, requests.
"""

from __future__ import annotations

import dataclasses
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

from engine.chat import ChatTemplate
from engine.loading import default_model, hub
from engine.loading.checkpoint import Checkpoint, SafetensorsCheckpoint, TensorTaker
from engine.loading.errors import ModelError
from engine.loading.folder import TokenizerFiles, read_config, read_tokenizer
from engine.loading.tokenizer import Tokenizer
from engine.models.config import ModelConfig
from engine.models.llama import CausalLM
from kernels import Kernels, for_device

__all__ = ["LoadedModel", "ModelError", "build_model", "load"]

DEFAULT_NAMES = ("default", default_model.NAME)

EMBEDDING = "model.embed_tokens.weight"

_PATIENCE_S = 3.0
"""Loading kernels that were compiled before takes less."""

_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model, its tokenizer, and how it wants a chat written."""

    name: str
    config: ModelConfig
    model: CausalLM
    tokenizer: Tokenizer
    chat_template: ChatTemplate | None
    """None: the model was made to continue text, not to chat."""


def load(
    path_or_name: str,
    *,
    device: str = "cpu",
    dtype: torch.dtype | None = None,
    batch_invariant: bool = True,
    cache_dir: Path,
    progress: Callable[[str], None],
) -> LoadedModel:
    """Loads a model.

    Args:
        path_or_name: a Hugging Face folder, a .gguf file (converted in memory at each start), "default", or
            a hub id.
        device: a torch device that has kernels.
        dtype: of weights and activations. None: fp32 on a CPU; on a GPU the 16 bits that the weights are
            stored in, bf16 if they are stored in more.
        batch_invariant: whether a token's logits are bit for bit the same whatever it is computed with.
        cache_dir: where the default model is kept.
        progress: gets a line for each thing that takes long.

    Raises:
        ModelError: with a message that a person can act on.
    """
    if torch.device(device).type == "cuda" and not torch.cuda.is_available():
        raise ModelError(
            f"device: got {device!r}, allowed here: 'cpu'; torch {torch.__version__} finds no GPU"
        )
    path = Path(path_or_name).expanduser()
    place = _Place(device, dtype, batch_invariant)
    if path_or_name in DEFAULT_NAMES:
        return _load_folder(default_model.ensure(cache_dir, progress), place, progress)
    if path.is_dir():
        return _load_folder(path, place, progress)
    if path.is_file():
        return _load_file(path, place, progress)
    if _HUB_ID.fullmatch(path_or_name):
        folder = hub.fetch(path_or_name, progress)
        return dataclasses.replace(_load_folder(folder, place, progress), name=path_or_name)
    raise ModelError(
        f"model: got {path_or_name!r}, which is not there; allowed: a folder with config.json and "
        "safetensors files, a .gguf file, a hub id (owner/name), or 'default'"
    )


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a model will run, in which type, and with which kernels."""

    device: str
    dtype: torch.dtype | None
    batch_invariant: bool

    def dtype_for(self, checkpoint: Checkpoint) -> torch.dtype:
        """Raises:
        ModelError: the kernels of the device compute in another type.
        """
        on_cpu = torch.device(self.device).type == "cpu"
        if self.dtype is None:
            if on_cpu:
                return torch.float32
            stored = checkpoint.read(EMBEDDING).dtype if EMBEDDING in checkpoint.names() else torch.bfloat16
            return stored if stored.itemsize == 2 else torch.bfloat16
        if on_cpu and self.dtype != torch.float32:
            raise ModelError(f"dtype: got {_name(self.dtype)} on a CPU, allowed: float32")
        return self.dtype


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _load_folder(folder: Path, place: _Place, progress: Callable[[str], None]) -> LoadedModel:
    config = read_config(folder)
    checkpoint = SafetensorsCheckpoint(folder)
    files = read_tokenizer(folder, progress)
    return _assemble(folder.resolve().name, config, checkpoint, files, place, progress)


def _load_file(path: Path, place: _Place, progress: Callable[[str], None]) -> LoadedModel:
    if path.suffix != ".gguf":
        raise ModelError(f"{path}: got a file ending in {path.suffix!r}, allowed: .gguf, or a folder")
    # gguf is only needed by those who have such a file.
    from engine.loading.gguf_file import GGUFFile
    from engine.loading.gguf_tokenizer import tokenizer_files

    progress(f"Converting {path.name} in memory (at each start; a safetensors folder starts faster)")
    file = GGUFFile(path)
    config = ModelConfig.from_hf(file.config())
    config = dataclasses.replace(
        config, rope=dataclasses.replace(config.rope, frequency_divisors=file.rope_divisors())
    )
    return _assemble(path.stem, config, file, tokenizer_files(file), place, progress)


def _assemble(
    name: str,
    config: ModelConfig,
    checkpoint: Checkpoint,
    files: TokenizerFiles,
    place: _Place,
    progress: Callable[[str], None],
) -> LoadedModel:
    ends = {id_ for id_ in (*config.eos_ids, files.token_id("eos_token")) if id_ is not None}
    bos_id = files.token_id("bos_token")
    config = dataclasses.replace(
        config, eos_ids=frozenset(ends), bos_id=config.bos_id if bos_id is None else bos_id
    )
    tokenizer = Tokenizer(
        files.spec,
        vocab_size=config.vocab_size,
        eos_ids=config.eos_ids,
        bos_id=config.bos_id,
        template=files.template or "",
    )
    template = ChatTemplate(files.template, tokenizer, files.special) if files.template else None
    kernels, dtype = _kernels(place, progress), place.dtype_for(checkpoint)
    try:
        model = build_model(config, checkpoint, name, kernels, place.device, dtype)
    except torch.OutOfMemoryError as error:
        raise ModelError(
            f"model: {name} in {_name(dtype)} does not fit in the GPU's memory: {error}"
        ) from error
    return LoadedModel(name, model.config, model, tokenizer, template)


def _kernels(place: _Place, progress: Callable[[str], None]) -> Kernels:
    """The first use of the kernels on a machine compiles them; whoever has to wait for that is told."""
    notice = threading.Timer(
        _PATIENCE_S, progress, ["Preparing the kernels; the first start on a machine compiles them"]
    )
    notice.daemon = True
    notice.start()
    try:
        return for_device(torch.device(place.device), batch_invariant=place.batch_invariant)
    except ModuleNotFoundError as error:
        if error.name != "triton":
            raise
        raise ModelError(
            f"device: got {place.device!r}, whose kernels need Triton; install it with: pip install triton"
        ) from error
    finally:
        notice.cancel()


def build_model(
    config: ModelConfig,
    checkpoint: Checkpoint,
    source: str,
    kernels: Kernels,
    device: str,
    dtype: torch.dtype = torch.float32,
) -> CausalLM:
    """The model from its weights. `source` is how messages name the checkpoint.

    Raises:
        ModelError: tensors are missing, of another shape or type, or left over.
    """
    take = TensorTaker(checkpoint, source)
    # Old Llama checkpoints store what follows from the config.
    take.drop(".rotary_emb.inv_freq")
    head = "lm_head.weight"
    if config.tie_word_embeddings and {head, EMBEDDING} <= checkpoint.names():
        if torch.equal(checkpoint.read(head), checkpoint.read(EMBEDDING)):
            take.drop(head)
        else:
            # Fine-tuned apart; the weights are right and the config is not. transformers decides likewise.
            config = dataclasses.replace(config, tie_word_embeddings=False)
    with _one_thread():
        model = CausalLM(config, take, kernels, device, dtype)
    take.finish()
    return model


@contextmanager
def _one_thread() -> Iterator[None]:
    """Building a model is hundreds of short copies. One thread does them at the speed of memory; several
    wait for each other after each, which on a busy machine took four times as long."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
