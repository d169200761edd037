"""Weights on disk, by name: safetensors, in one file or several.

Knows: the safetensors files of a Hugging Face folder and their index. Does not know: what the weights
are for. Pickle files are never opened: reading one runs the code in it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors import SafetensorError, safe_open

from engine.loading.errors import ModelError

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"

_FLOATS = (torch.float32, torch.float16, torch.bfloat16)


class Checkpoint(Protocol):
    """A set of named tensors."""

    def names(self) -> set[str]:
        """The Hugging Face names of all tensors."""

    def read(self, name: str) -> torch.Tensor:
        """The tensor, as fp32 or a narrower float."""


class SafetensorsCheckpoint:
    """The safetensors files of a folder. Tensors are views into the mapped file: nothing is copied.

    Raises:
        ModelError: files are missing or damaged.
    """

    def __init__(self, folder: Path) -> None:
        self._files: dict[str, Any] = {}
        """Tensor name -> open file."""
        for file in _files(folder):
            try:
                opened: Any = safe_open(file, framework="pt")
            except FileNotFoundError as error:
                raise ModelError(f"{file}: named in {INDEX_FILE}, but not there; fetch it again") from error
            except (SafetensorError, OSError) as error:
                raise ModelError(
                    f"{file}: not a readable safetensors file ({error}); fetch it again"
                ) from error
            self._files.update((name, opened) for name in opened.keys())  # noqa: SIM118 (no mapping)

    def names(self) -> set[str]:
        return set(self._files)

    def read(self, name: str) -> torch.Tensor:
        tensor: torch.Tensor = self._files[name].get_tensor(name)
        return tensor


def _files(folder: Path) -> list[Path]:
    index = folder / INDEX_FILE
    if index.is_file():
        return [folder / name for name in _indexed_names(index)]
    if (folder / SINGLE_FILE).is_file():
        return [folder / SINGLE_FILE]
    pickled = sorted(path.name for pattern in ("*.bin", "*.pt", "*.pth") for path in folder.glob(pattern))
    found = f" (it has {', '.join(pickled)}: pickle files, which are not opened)" if pickled else ""
    raise ModelError(f"{folder}: has neither {SINGLE_FILE} nor {INDEX_FILE}{found}")


def _indexed_names(index: Path) -> list[str]:
    try:
        names = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
        outside = [name for name in names if Path(name).name != name]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelError(
            f"{index}: no weight_map of tensor names to file names can be read from it"
        ) from error
    if outside:
        raise ModelError(
            f"{index}: got the file name {outside[0]!r}, allowed: names of files in the same folder"
        )
    return names


class TensorTaker:
    """Gives a checkpoint's tensors to a model, and knows which are left.

    Calling it gives the tensor of that name, in the float type that it is stored in.

    Raises:
        ModelError: on a call, the tensor is missing, of another shape, or not of a float type.
    """

    def __init__(self, checkpoint: Checkpoint, source: str) -> None:
        self._checkpoint = checkpoint
        self._source = source
        self._left = checkpoint.names()

    def __call__(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        if name not in self._left:
            raise ModelError(f"{self._source}: the tensor {name} is missing (expected shape {list(shape)})")
        self._left.discard(name)
        tensor = self._checkpoint.read(name)
        if tuple(tensor.shape) != shape:
            raise ModelError(
                f"{self._source}: the tensor {name} has shape {list(tensor.shape)}, expected {list(shape)}"
            )
        if tensor.dtype not in _FLOATS:
            raise ModelError(
                f"{self._source}: the tensor {name} is {tensor.dtype}, allowed: float32, float16, bfloat16"
            )
        return tensor

    def drop(self, suffix: str) -> None:
        """Passes over the tensors whose names end so: stored, but computed anew by every reader."""
        self._left = {name for name in self._left if not name.endswith(suffix)}

    def finish(self) -> None:
        """To be called when the model has taken all that it wants.

        Raises:
            ModelError: tensors are left: the model computes something else than its config says.
        """
        if self._left:
            names = sorted(self._left)
            more = f" and {len(names) - 3} more" if len(names) > 3 else ""
            raise ModelError(
                f"{self._source}: holds tensors that the architecture in its config does not have: "
                f"{', '.join(names[:3])}{more}"
            )
