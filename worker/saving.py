"""Trained models as safetensors files: parameters and buffers by name, and what builds the model again."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from taihu.errors import ModelError
from worker.engine import Model, build_model

__all__ = ["LoadedModel", "SavedModel", "load_model", "save_model"]

_METADATA_KEY = "taihu"
_BUFFER_PREFIX = "buffers/"
_LENGTH_BYTES = 8
_ALIGNMENT = 8


@dataclass(frozen=True)
class SavedModel:
    """What a file says about the model in it; `data` is the name of the data set it was trained on."""

    model: str
    input_shape: tuple[int, ...]
    classes: int
    data: str
    steps: int


def save_model(
    path: Path, model: Model, saved: SavedModel, read_layer: Callable[[int], None] = lambda layer: None
) -> None:
    """Write parameters and buffers, all of them float32; the file appears whole or not at all.

    `read_layer(i)` is called before the parameters of layer i are read, in the order of the layout: a model need not
    be in memory all at once.

    Raises:
        ModelError: the file cannot be written.
    """
    buffers = {f"{_BUFFER_PREFIX}{name}": values for name, values in model.buffers().items()}
    header = _header({**model.parameters_by_name(), **buffers}, saved)
    with _new_file(path) as file:
        file.write(header)
        for index, layer in enumerate(model.parameter_layers):
            read_layer(index)
            for values in layer.parameters.values():
                _write(file, values)
        for values in buffers.values():
            _write(file, values)


def _header(tensors: Mapping[str, NDArray[np.float32]], saved: SavedModel) -> bytes:
    """The beginning of a safetensors file with `tensors` in this order, whose values may come later."""
    fields: dict[str, object] = {"__metadata__": {_METADATA_KEY: json.dumps(asdict(saved))}}
    offset = 0
    for name, values in tensors.items():
        end = offset + values.nbytes
        fields[name] = {"dtype": "F32", "shape": values.shape, "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(fields).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    return len(text).to_bytes(_LENGTH_BYTES, "little") + text


def _write(file: BinaryIO, values: NDArray[np.float32]) -> None:
    file.write(np.ascontiguousarray(values, dtype="<f4").data)


@contextmanager
def _new_file(path: Path) -> Iterator[BinaryIO]:
    """What is written takes the place of `path` when the block ends, or is gone."""
    partial = path.with_name(f".{path.name}.partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with partial.open("wb") as file:
            yield file
        partial.replace(path)
    except BaseException as error:
        with suppress(OSError):
            partial.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise ModelError(f"cannot save {path}: {error}") from None
        raise


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
