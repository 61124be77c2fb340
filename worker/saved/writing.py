"""Models become safetensors files: parameters and buffers by name, and what builds the model again."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Final

from numpy.typing import NDArray
from pydantic import ValidationError

from taihu.core.base.errors import ModelError
from taihu.core.base.tensor_file import TensorSlot, header_of, write_values
from taihu.core.base.whole_file import make_durably, replaced, reserve
from taihu.core.job import Job
from taihu.worker.data.base.dataset import Dataset
from taihu.worker.engine import Model
from taihu.worker.saved.metadata import LARGEST_METADATA, LONGEST_TEXT, SavedModel

METADATA_KEY = "taihu"
BUFFER_PREFIX = "buffers/"
_BYTES: Final = 4  # of a float32


def describe_model(job: Job, dataset: Dataset, model: Model, steps: int) -> SavedModel:
    """Metadata of `model`, trained by `job` on `dataset` for so many steps.

    Raises:
        ModelError: the model is larger than a file may say.
    """
    try:
        saved = SavedModel.model_validate(
            {
                "model": _one_line(job.model.name),
                "definition": model.definition(),
                "input_shape": dataset.input_shape,
                "outputs": model.outputs,
                "targets": dataset.targets,
                "loss": model.loss.name,
                "mean": tuple(map(float, dataset.mean if dataset.offset is None else dataset.mean + dataset.offset)),
                "offset": () if dataset.offset is None else tuple(map(float, dataset.offset)),
                "scale": tuple(map(float, dataset.scale)),
                "class_names": tuple(map(_one_line, dataset.class_names)),
                "columns": tuple((_one_line(name), tuple(map(_one_line, texts))) for name, texts in dataset.columns),
                "depth": dataset.depth and (dataset.depth.kind, dataset.depth.white),
                **_reading(dataset),
                "data": _one_line(dataset.name),
                "steps": steps,
                "job": job.model_dump(mode="json", exclude_none=True),
            }
        )
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise ModelError(f"the model cannot be saved: {first['loc']} {first['msg']}") from None
    if (length := len(saved.to_metadata())) > LARGEST_METADATA:
        raise ModelError(
            f"the model cannot be saved: layers, classes and columns are {length:,} characters, at most "
            f"{LARGEST_METADATA:,} are read"
        )
    return saved


def _reading(dataset: Dataset) -> dict[str, Any]:
    """The reading of a table's columns, whose names and texts `columns` has."""
    if dataset.reading is None:
        return {}
    columns = dataset.reading.columns
    fills = tuple(_one_line(each.fill) if isinstance(each.fill, str) else each.fill for each in columns)
    return {"forms": tuple(each.form for each in columns), "fills": fills, "decimal": dataset.reading.decimal}


def _one_line(text: str) -> str:
    return "".join(each if each.isprintable() else "?" for each in text)[:LONGEST_TEXT]


def bound_pieces(model: Model, read_layer: Callable[[int], None] = lambda layer: None) -> Iterator[NDArray[Any]]:
    """The parameters of `model` for `save_model`; `read_layer(i)` is called before those of layer i are read."""
    for index, layer in enumerate(model.parameter_layers):
        read_layer(index)
        yield from layer.parameters.values()


def save_model(path: Path, model: Model, saved: SavedModel, pieces: Iterable[NDArray[Any]] | None = None) -> None:
    """Write parameters and buffers, all of them float32; the file appears whole or not at all.

    Args:
        path: of the file.
        model: its layers need not be bound.
        saved: what is said about it.
        pieces: its parameters in the order of layout and tensors, cut in any way; one is read before the next is
            asked for, so that the model need not be in memory all at once. By default those that are bound.

    Raises:
        WriteError: the file cannot be written. Where there is no room for it, none of `pieces` has been taken.
    """
    buffers = {f"{BUFFER_PREFIX}{name}": values for name, values in model.buffers().items()}
    shapes = {f"{layer.name}/{spec.name}": spec.shape for layer in model.parameter_layers for spec in layer.tensors}
    shapes |= {name: values.shape for name, values in buffers.items()}
    header = header_of(
        {name: TensorSlot(shape) for name, shape in shapes.items()}, {METADATA_KEY: saved.to_metadata()}
    )
    with replaced(path) as partial:
        make_durably(partial.parent)
        with partial.open("wb") as file:
            reserve(file.fileno(), len(header) + _BYTES * sum(map(math.prod, shapes.values())))
            file.write(header)
            for values in bound_pieces(model) if pieces is None else pieces:
                write_values(file, values)
            for values in buffers.values():
                write_values(file, values)
