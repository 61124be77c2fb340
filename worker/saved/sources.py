"""Sources of the parameters that a run begins with: a saved model, or a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from taihu.core.checkpoint.blocks import column_block, tensor_name
from taihu.core.checkpoint.part import PARAMETERS
from taihu.core.checkpoint.reading import Checkpoint
from taihu.worker.saved.writing import BUFFER_PREFIX


class TensorSource(Protocol):
    """Tensors by name, "layer/tensor", and running statistics, "buffers/layer/buffer".

    `name` says in messages what it is; `shapes` are those of all tensors.
    """

    @property
    def may_skip(self) -> bool:
        """Whether layers may begin anew in place of these."""

    @property
    def name(self) -> str:
        """The source, by the setting that names it."""

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Shapes by name."""

    def read(self, name: str) -> NDArray[np.float32]:
        """One tensor, float32."""

    def read_into(self, target: NDArray[Any], name: str, columns: slice = slice(None)) -> None:
        """Write `columns` of the last axis of a tensor into `target`."""


class CheckpointSource(TensorSource):
    """The parameters of a checkpoint, whoever kept them, and the running statistics of worker 0."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._checkpoint = checkpoint
        self._shapes = {
            tensor_name(layer.name, tensor.name): tensor.shape
            for layer in checkpoint.layout.layers
            for tensor in layer.tensors
        }
        own = checkpoint.own_of("worker 0")
        self._buffers = {name: values for name, values in own.items() if name.startswith(BUFFER_PREFIX)}
        self._shapes |= {name: values.shape for name, values in self._buffers.items()}

    @property
    def name(self) -> str:
        """The source, by the setting that names it."""
        return f"checkpoint.resume {self._checkpoint.folder}"

    @property
    def may_skip(self) -> bool:
        """No: a run goes on with all of it."""
        return False

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Shapes by name."""
        return self._shapes

    def read(self, name: str) -> NDArray[np.float32]:
        """One tensor, float32."""
        if name in self._buffers:
            return self._buffers[name]
        values = np.empty(self._shapes[name], dtype=np.float32)
        self.read_into(values, name)
        return values

    def read_into(self, target: NDArray[Any], name: str, columns: slice = slice(None)) -> None:
        """Write `columns` of the last axis of a tensor into `target`."""
        shape = self._shapes[name]
        block = column_block(name, shape, range(shape[-1] if shape else 1)[columns])
        if target.flags.c_contiguous and target.dtype == np.float32:
            self._checkpoint.read(PARAMETERS, [block], target.reshape(-1))
            return
        values = np.empty(block.elements, dtype=np.float32)
        self._checkpoint.read(PARAMETERS, [block], values)
        target[...] = values.reshape(target.shape)
