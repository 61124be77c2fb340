"""The memory that a worker trains in."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from taihu.wire.shared_memory import SharedBuffer, allocate_values
from worker.pages import Pages

__all__ = ["Arenas", "allocate_arenas"]


@dataclass(frozen=True)
class Arenas:
    """The worker's flat fp32 arrays of `layout.elements` values each; `shared` is the memory of the gradients.

    It is None where no other process can share it. `gradient_pages` and `parameter_pages` are there where the memory
    of a group can be given back while others are used.
    """

    parameters: NDArray[np.float32]
    gradients: NDArray[np.float32]
    shared: SharedBuffer | None = None
    gradient_pages: Pages | None = None
    parameter_pages: Pages | None = None


def allocate_arenas(elements: int, *, shared: bool, zero: int = 0) -> Arenas:
    """Arenas of zeros for stage `zero` of ZeRO.

    With `shared`, other processes of this machine can map the gradients, if it has the memory; not from stage 2 on.
    """
    if zero < 2:
        gradients, buffer = allocate_values(elements, shared=shared)
        return Arenas(np.zeros(elements, dtype=np.float32), gradients, buffer)
    gradient_pages = Pages(elements)
    if zero == 2:
        parameters = np.zeros(elements, dtype=np.float32)
        return Arenas(parameters, gradient_pages.values, gradient_pages=gradient_pages)
    parameter_pages = Pages(elements)
    return Arenas(
        parameter_pages.values, gradient_pages.values, gradient_pages=gradient_pages, parameter_pages=parameter_pages
    )
