"""Training on from a saved model: its parameters in place of random ones."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from functools import partial

from taihu.core.base.errors import ModelError
from taihu.core.checkpoint.keepers import resumed_from
from taihu.core.job import Job
from taihu.worker.engine import Model, ParameterLayer
from taihu.worker.saved.reading import open_model
from taihu.worker.saved.sources import CheckpointSource, TensorSource
from taihu.worker.saved.writing import BUFFER_PREFIX


@contextmanager
def beginning_of(job: Job, rank: int) -> Iterator[TensorSource | None]:
    """The source of the first parameters, open during the block, on the workers that need it; None on others.

    That is the file of `model.init_from`, or the checkpoint of `checkpoint.resume`. Worker 0 brings the parameters;
    those of layers that are spread over the workers every worker brings itself.

    Raises:
        ModelError, CheckpointError: it is missing or damaged.
    """
    path, checkpoint = job.model.init_from, resumed_from(job)
    if rank and job.exchange.fc == "data":
        yield None
    elif checkpoint is not None:
        yield CheckpointSource(checkpoint)
    elif path is None:
        yield None
    else:
        with open_model(path) as file:
            yield file


def begin_from(file: TensorSource, model: Model, skip: Collection[str]) -> None:
    """Have the layers of `model` but those named in `skip` begin with the values, and running moments, of `file`.

    They are read layer by layer when a layer is initialized.

    Raises:
        ModelError: a layer is not in the file, or has another shape there; or `skip` names none of the model's.
    """
    names = [layer.name for layer in model.parameter_layers]
    if unknown := [name for name in skip if name not in names]:
        raise ModelError(f"model.init_skip: the model has no layer {unknown[0]}; it has {', '.join(reversed(names))}")
    layers = [layer for layer in model.parameter_layers if layer.name not in skip]
    for layer in layers:
        _check(file, layer)
    if not file.may_skip:
        _check_all_taken(file, model)
    for layer in layers:
        layer.initial = partial(_fill, file)


def _check_all_taken(file: TensorSource, model: Model) -> None:
    """A run that goes on has all that was there."""
    known = {f"{layer.name}/{tensor.name}" for layer in model.parameter_layers for tensor in layer.tensors}
    if strange := [name for name in file.shapes if name not in known and not name.startswith(BUFFER_PREFIX)]:
        raise ModelError(f"{file.name}: {strange[0]} is not in the model; train the model that it holds")


def _fill(file: TensorSource, layer: ParameterLayer, columns: slice) -> None:
    for name, values in layer.parameters.items():
        file.read_into(values, f"{layer.name}/{name}", columns)
    for name, values in layer.buffers().items():
        values[...] = file.read(f"{BUFFER_PREFIX}{layer.name}/{name}")


def _check(file: TensorSource, layer: ParameterLayer) -> None:
    remedy = "train the model that it holds"
    if file.may_skip:
        remedy = f"begin it anew with model.init_skip = ['{layer.name}'], or train the model that the file holds"
    expected = {f"{layer.name}/{tensor.name}": tensor.shape for tensor in layer.tensors}
    for name, shape in expected.items():
        found = file.shapes.get(name)
        if found != shape:
            there = "is not in the file" if found is None else f"has the shape {found} there"
            raise ModelError(f"{file.name}: {name} of shape {shape} {there}; {remedy}")
    missing = [name for name in layer.buffers() if f"{BUFFER_PREFIX}{layer.name}/{name}" not in file.shapes]
    if missing:
        raise ModelError(f"{file.name}: {layer.name}/{missing[0]} is not in the file; {remedy}")
