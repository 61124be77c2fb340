"""A part of a checkpoint: what one process holds at the end of a step, as named arrays and facts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

__all__ = ["NOTHING", "PARAMETERS", "Elements", "Part", "State", "named"]

PARAMETERS: Final = "parameters"
"""The name of the parameters among arrays of elements."""


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


def named(parameters: NDArray[np.float32], optimizer: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """Parameters and optimizer state by the names that they have in a checkpoint."""
    return {PARAMETERS: parameters, **{f"optimizer.{name}": array for name, array in optimizer.items()}}


@dataclass(frozen=True, eq=False)
class State:
    """The state of a process between two steps; a `copy` lasts beyond the next one.

    Attributes:
        shared: what the run has once, divided over its processes: `parameters`, `optimizer.NAME`, and the `residual`
            of a compressed way down.
        own: arrays of this process alone, by name: what it has held back, its thresholds, running moments.
        facts: numbers and texts beside them, as JSON holds them.
    """

    shared: Elements = NOTHING
    own: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to be written."""
        return not self.shared.arrays and not self.own

    @property
    def size_bytes(self) -> int:
        """Bytes of all arrays."""
        return sum(array.nbytes for array in (*self.shared.arrays.values(), *self.own.values()))

    def copy(self) -> State:
        """The same values in memory of its own."""
        shared = Elements(self.shared.bounds, {name: array.copy() for name, array in self.shared.arrays.items()})
        return State(shared, {name: array.copy() for name, array in self.own.items()}, dict(self.facts))


@dataclass(frozen=True, eq=False)
class Part:
    """The state of one process at the end of `step`; `member` is its name, as `server 0`."""

    member: str
    step: int
    state: State
