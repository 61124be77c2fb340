"""Models from safetensors files: checked before memory is taken, and nothing that the file names is executed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from taihu.core.base.errors import ConfigError, ModelError
from taihu.core.checkpoint.places import Place, RemotePath
from taihu.core.checkpoint.store import newest_in
from taihu.core.model.names import MODEL_NAMES
from taihu.core.process.memory.limit import memory_limit_bytes
from taihu.worker.engine import Conv2d, Model, build_from_definition, build_model
from taihu.worker.engine.base.layer import row_blocks
from taihu.worker.engine.base.loss import make_loss
from taihu.worker.saved.exporting import export_model
from taihu.worker.saved.metadata import SavedModel, parse_metadata
from taihu.worker.saved.writing import BUFFER_PREFIX, METADATA_KEY

_VALUE_BYTES: Final = 4
_NOT_OURS: Final = "not written by `taihu train --save`"


@dataclass(frozen=True)
class ModelFile:
    """An open file: what it says, and its tensors, which are read one at a time.

    Attributes:
        path: of the file.
        saved: what it says about the model.
        shapes: of the tensors by name, "layer/tensor"; running statistics are "buffers/layer/buffer".
    """

    path: Place
    saved: SavedModel
    shapes: Mapping[str, tuple[int, ...]]
    handle: Any
    may_skip: bool = True

    @property
    def name(self) -> str:
        """The file, by the setting that names it."""
        return f"model.init_from {self.path}"

    def read(self, name: str) -> NDArray[np.float32]:
        """One tensor, float32."""
        tensor: NDArray[np.float32] = self.handle.get_tensor(name)
        return tensor

    def read_into(self, target: NDArray[Any], name: str, columns: slice = slice(None)) -> None:
        """Write `columns` of the last axis of a tensor into `target`, few rows at a time."""
        shape = self.shapes[name]
        if len(shape) < 2:
            target[...] = self.read(name)[..., columns]
            return
        stored = self.handle.get_slice(name)
        for rows in row_blocks(shape):
            target[rows] = stored[rows][..., columns]

    def buffers(self) -> dict[str, NDArray[np.float32]]:
        """The running statistics by name within the model, "layer/buffer"."""
        names = [name for name in self.shapes if name.startswith(BUFFER_PREFIX)]
        return {name.removeprefix(BUFFER_PREFIX): self.read(name) for name in names}


@dataclass(frozen=True)
class StoredModel:
    """A model with its parameters in place; `parameters` is the arena that it is bound to."""

    model: Model
    parameters: NDArray[np.float32]
    saved: SavedModel

    def batch(self, wished: int) -> int:
        """The samples in a batch: at most `wished`, and so few that their activations have room."""
        return max(1, min(wished, _room() // max(1, self.model.activations)))


@contextmanager
def open_model(path: Place) -> Iterator[ModelFile]:
    """Open a saved model, or that of a checkpoint in a folder, during the block; its tensors are mapped, not read.

    Raises:
        CheckpointError: there is none in the folder, or it is damaged.
        ModelError: the file is missing, damaged, or none of taihu's.
    """
    if isinstance(path, RemotePath) or path.is_dir():
        with TemporaryDirectory(prefix="taihu-") as folder:
            exported = Path(folder) / f"{path.name}.safetensors"
            export_model(newest_in(path), exported)
            with open_model(exported) as model:
                yield replace(model, path=path)
        return
    try:
        with safe_open(path, framework="np") as file:
            names = list(file.keys())
            slices = {name: file.get_slice(name) for name in names}
            metadata = file.metadata() or {}
            if METADATA_KEY not in metadata:
                raise ModelError(f"{path}: {_NOT_OURS}; its metadata lacks the model")
            foreign = [name for name, each in slices.items() if each.get_dtype() != "F32"]
            if foreign:
                raise ModelError(f"{path}: {_NOT_OURS}; tensor {foreign[0]!r} is not float32")
            shapes = {name: tuple(each.get_shape()) for name, each in slices.items()}
            yield ModelFile(path, _said_by(path, metadata[METADATA_KEY]), shapes, file)
    except FileNotFoundError:
        raise ModelError(f"{path}: not found; give the file that `taihu train --save` wrote") from None
    except (OSError, SafetensorError) as error:
        raise ModelError(f"{path}: not a readable safetensors file: {error}") from None


def load_model(path: Place, own: str | None = None) -> StoredModel:
    """Build the model of a file again, with its parameters and buffers in place.

    Args:
        path: what `taihu train --save` wrote.
        own: a name of the zoo or `path/to/file.py:function` that builds the model, which is executed. By default it
            is built from the file's definitions, and no code is executed.

    Raises:
        ModelError: the file cannot be read, it has no definitions and `own` is not given, or its tensors do not fit.
    """
    with open_model(path) as file:
        model = _build(file, own)
        _compare(file, model)
        arena = np.zeros(model.layout.elements, dtype=np.float32)
        model.bind(arena, np.zeros_like(arena))
        for name, target in model.parameters_by_name().items():
            file.read_into(target, name)
        model.load_buffers(file.buffers())
        return StoredModel(model, arena, file.saved)


def _said_by(path: Path, text: str) -> SavedModel:
    try:
        return parse_metadata(text)
    except ModelError as error:
        raise ModelError(f"{path}: {error}") from None


def _build(file: ModelFile, own: str | None) -> Model:
    saved = file.saved
    model = _network(file, own)
    try:
        model.use_loss(make_loss(saved.loss, saved.targets, saved.classes or saved.outputs))
    except (ConfigError, ModelError) as error:
        raise ModelError(f"{file.path}: its metadata is damaged: {error}") from None
    return model


def _network(file: ModelFile, own: str | None) -> Model:
    saved = file.saved
    if own is not None:
        return build_model(own, saved.input_shape, saved.outputs)
    model = _told_network(file)
    if (elements := max(model.activations, _largest_padded(model))) > _room():
        raise ModelError(
            f"{file.path}: its layers have {elements:.3g} activations for one sample, at most {_room():.3g} are half "
            "of the memory here; load it on a machine with more"
        )
    return model


def _room() -> int:
    """Activations that may be held at once, in values: half of the memory that this process may take."""
    return memory_limit_bytes() // 2 // _VALUE_BYTES


def _told_network(file: ModelFile) -> Model:
    saved = file.saved
    if saved.definition is None:
        if saved.model in MODEL_NAMES:
            return build_model(saved.model, saved.input_shape, saved.outputs)
        raise ModelError(
            f"{file.path}: its layers were made by {saved.model}, which is not in the file and is not executed "
            "unasked; give --model path/to/file.py:function if you have that code and trust it"
        )
    try:
        return Model(build_from_definition(saved.definition), saved.input_shape, saved.outputs)
    except ModelError as error:
        raise ModelError(f"{file.path}: {error}") from None


def _largest_padded(model: Model) -> int:
    """The largest input of a convolution with its border, in values for a sample."""
    return max((layer.padded_elements for layer in model.leaves if isinstance(layer, Conv2d)), default=0)


def _compare(file: ModelFile, model: Model) -> None:
    """Check that the file has the model's tensors, before memory is taken for them.

    Raises:
        ModelError: a tensor is missing, has another shape, or is not the model's.
    """
    path, shapes = file.path, dict(file.shapes)
    for layer in model.layout.layers:
        for tensor in layer.tensors:
            name = f"{layer.name}/{tensor.name}"
            found = shapes.pop(name, None)
            if found != tensor.shape:
                seen = "nothing" if found is None else found
                raise ModelError(
                    f"{path}: tensor {name}: expected shape {tensor.shape}, seen {seen}; the model was built by "
                    f"{file.saved.model}: give the same one"
                )
    if strange := [name for name in shapes if not name.startswith(BUFFER_PREFIX)]:
        raise ModelError(f"{path}: tensor {strange[0]!r} is not in the model, which was built by {file.saved.model}")
