"""The memory that a worker trains in."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from taihu.wire.shared_memory import SharedBuffer, allocate_values

__all__ = ["Arenas", "allocate_arenas"]


@dataclass(frozen=True)
class Arenas:
    """The worker's flat fp32 arrays of `layout.elements` values each; `shared` is the memory of the gradients.

    It is None where no other process can share it.
    """

    parameters: NDArray[np.float32]
    gradients: NDArray[np.float32]
    shared: SharedBuffer | None = None


def allocate_arenas(elements: int, *, shared: bool) -> Arenas:
    """Arenas of zeros; with `shared`, other processes of this machine can map the gradients, if it has the memory."""
    gradients, buffer = allocate_values(elements, shared=shared)
    return Arenas(np.zeros(elements, dtype=np.float32), gradients, buffer)
