"""Sources of the parameters that a run begins with: a saved model, or a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from taihu.checkpoint.part import PARAMETERS
from taihu.checkpoint.reading import Checkpoint
from worker.saved.writing import BUFFER_PREFIX

__all__ = ["CheckpointSource", "TensorSource"]


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
        layout = checkpoint.manifest.layout
        self._places: dict[str, int] = {}
        self._shapes: dict[str, tuple[int, ...]] = {}
        for layer, offset in zip(layout.layers, layout.offsets, strict=False):
            for tensor in layer.tensors:
                name = f"{layer.name}/{tensor.name}"
                self._places[name], self._shapes[name] = offset, tensor.shape
                offset += tensor.elements  # noqa: PLW2901 - where the next tensor of the layer begins
        state = checkpoint.state_of("worker 0")
        own = {} if state is None else state.own
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
        start = self._places[name]
        bounds = np.array([[start, start + values.size]], dtype=np.int64)
        self._checkpoint.read_shared(PARAMETERS, bounds, values.reshape(-1))
        return values

    def read_into(self, target: NDArray[Any], name: str, columns: slice = slice(None)) -> None:
        """Write `columns` of the last axis of a tensor into `target`."""
        target[...] = self.read(name)[..., columns]
