"""Trained models as safetensors files: parameters and buffers by name, and what builds the model again."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from taihu.errors import ModelError
from worker.engine import Model, build_model

__all__ = ["LoadedModel", "SavedModel", "load_model", "save_model"]

_METADATA_KEY = "taihu"
_BUFFER_PREFIX = "buffers/"


@dataclass(frozen=True)
class SavedModel:
    """What a file says about the model in it; `data` is the name of the data set it was trained on."""

    model: str
    input_shape: tuple[int, int, int]
    classes: int
    data: str
    steps: int


def save_model(path: Path, model: Model, saved: SavedModel) -> None:
    """Write parameters and buffers; the file appears whole or not at all.

    Raises:
        ModelError: the file cannot be written.
    """
    tensors = dict(model.parameters_by_name())
    tensors |= {f"{_BUFFER_PREFIX}{name}": values for name, values in model.buffers().items()}
    partial = path.with_name(f".{path.name}.partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        save_file(tensors, partial, metadata={_METADATA_KEY: json.dumps(asdict(saved))})
        partial.replace(path)
    except (OSError, SafetensorError) as error:
        raise ModelError(f"cannot save {path}: {error}") from None


@dataclass(frozen=True)
class LoadedModel:
    """A model with its parameters in place; `parameters` is the arena that it is bound to."""

    model: Model
    parameters: NDArray[np.float32]
    saved: SavedModel


def load_model(path: Path) -> LoadedModel:
    """Build the model of a file again, with its parameters and buffers in place.

    Raises:
        ModelError: the file is missing, is none of taihu's, or its tensors do not fit the model it names.
    """
    saved, tensors = _read(path)
    model = build_model(saved.model, saved.input_shape, saved.classes)
    arena = np.zeros(model.layout.elements, dtype=np.float32)
    model.bind(arena, np.zeros_like(arena))
    for name, target in model.parameters_by_name().items():
        if name not in tensors or tensors[name].shape != target.shape:
            found = tensors[name].shape if name in tensors else "nothing"
            raise ModelError(f"{path}: tensor {name}: expected shape {target.shape} of {saved.model}, found {found}")
        target[...] = tensors[name]
    model.load_buffers({name.removeprefix(_BUFFER_PREFIX): t for name, t in tensors.items() if _is_buffer(name)})
    return LoadedModel(model, arena, saved)


def _is_buffer(name: str) -> bool:
    return name.startswith(_BUFFER_PREFIX)


def _read(path: Path) -> tuple[SavedModel, dict[str, NDArray[np.float32]]]:
    try:
        with safe_open(path, framework="np") as file:
            fields = json.loads((file.metadata() or {})[_METADATA_KEY])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        return SavedModel(**{**fields, "input_shape": tuple(fields["input_shape"])}), tensors
    except FileNotFoundError:
        raise ModelError(f"{path}: not found; give the file that `taihu train --save` wrote") from None
    except (OSError, SafetensorError) as error:
        raise ModelError(f"{path}: not a readable safetensors file: {error}") from None
    except (KeyError, TypeError, ValueError):
        raise ModelError(f"{path}: not written by `taihu train --save`; its metadata lacks the model") from None
