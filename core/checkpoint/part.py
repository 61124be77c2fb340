"""A part of a checkpoint: what one process holds at the end of a step, as named arrays and facts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from taihu.core.checkpoint.blocks import Block, column_block, tensor_name
from taihu.core.model.layout import LayerSpec

PARAMETERS: Final = "parameters"
"""The name of the parameters among arrays of elements."""

RESIDUAL: Final = "residual"
"""The name of what has been held back, by a worker or of a compressed way down."""


@dataclass(frozen=True, eq=False)
class Elements:
    """Arrays with a value for each element of some ranges of a layout.

    Attributes:
        bounds: shape (k, 2), int64: the ranges, in the order in which their values lie.
        arrays: by name, each of shape (n,), n being the size of all ranges together.
    """

    bounds: NDArray[np.int64]
    arrays: Mapping[str, NDArray[Any]]

    @property
    def count(self) -> int:
        """Number of elements."""
        return int(np.diff(self.bounds).sum())


NOTHING: Final = Elements(np.zeros((0, 2), dtype=np.int64), {})
"""No elements."""


@dataclass(frozen=True)
class SpreadLayer:
    """A layer that is spread over the workers, and the columns of one of them.

    Attributes:
        layer: the whole one.
        position: of the layer among all of the model, in backward order.
        columns: of the last axis of each of its tensors.
    """

    layer: LayerSpec
    position: int
    columns: range


@dataclass(frozen=True, eq=False)
class Columns:
    """Columns of spread layers, which nobody else has.

    Attributes:
        layers: the values lie layer by layer, tensor by tensor, row by row.
        arrays: by name, each of shape (n,), n being the number of all these values.
    """

    layers: tuple[SpreadLayer, ...]
    arrays: Mapping[str, NDArray[Any]]

    def blocks(self) -> Iterator[Block]:
        """The places of the values in the arrays."""
        return column_blocks(self.layers)


NO_COLUMNS: Final = Columns((), {})
"""No columns: no layer is spread."""


def column_blocks(layers: Iterable[SpreadLayer]) -> Iterator[Block]:
    """The places of the columns of spread layers, see `Columns`."""
    place = 0
    for spread in layers:
        for tensor in spread.layer.tensors:
            block = column_block(tensor_name(spread.layer.name, tensor.name), tensor.shape, spread.columns, place)
            place = block.stop
            yield block


def optimizer_name(name: str) -> str:
    """The name of an array of optimizer state among arrays of elements."""
    return f"optimizer.{name}"


def named(parameters: NDArray[np.float32], optimizer: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """Parameters and optimizer state by the names that they have in a checkpoint."""
    return {PARAMETERS: parameters, **{optimizer_name(name): array for name, array in optimizer.items()}}


@dataclass(frozen=True, eq=False)
class State:
    """The state of a process between two steps; a `copy` lasts beyond the next one.

    Attributes:
        shared: what the run has once, divided over its processes: `parameters`, `optimizer.NAME`, and the `residual`
            of a compressed way down.
        own: arrays of this process alone, by name: what it has held back, its thresholds, running moments.
        facts: numbers and texts beside them, as JSON holds them.
        columns: of layers that are spread over the workers, with the same arrays as `shared`.
    """

    shared: Elements = NOTHING
    own: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)
    columns: Columns = NO_COLUMNS

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to be written."""
        return not self.shared.arrays and not self.own and not self.columns.arrays

    @property
    def size_bytes(self) -> int:
        """Bytes of all arrays."""
        kinds = self.shared.arrays, self.own, self.columns.arrays
        return sum(array.nbytes for arrays in kinds for array in arrays.values())

    def copy(self) -> State:
        """The same values in memory of its own."""
        return State(
            Elements(self.shared.bounds, _copies(self.shared.arrays)),
            _copies(self.own),
            dict(self.facts),
            Columns(self.columns.layers, _copies(self.columns.arrays)),
        )


@dataclass(frozen=True, eq=False)
class Part:
    """The state of one process at the end of `step`; `member` is its name, as `server 0`."""

    member: str
    step: int
    state: State


def _copies(arrays: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    return {name: array.copy() for name, array in arrays.items()}
