"""The memory that a worker trains in."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import structlog
from numpy.typing import NDArray

from allreduce.shared_memory import SharedBuffer, SharedMemoryError

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
    parameters = np.zeros(elements, dtype=np.float32)
    if shared:
        try:
            buffer = SharedBuffer.create(parameters.nbytes)
            return Arenas(parameters, buffer.array(np.float32, elements), buffer)
        except SharedMemoryError as error:
            structlog.get_logger().info("no shared memory", reason=str(error))
    return Arenas(parameters, np.zeros_like(parameters))
