"""All figures by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

from taihu.simulation.figures.exchanges import ring_and_mpi, servers_and_ring
from taihu.simulation.figures.figure import Figure
from taihu.simulation.figures.fully_connected import fully_connected
from taihu.simulation.figures.passes import one_weird_trick
from taihu.simulation.figures.processor import convolutions, products
from taihu.simulation.figures.sparse import sparse_methods
from taihu.simulation.figures.zero import zero_memory

FIGURES: Final[Mapping[str, Callable[[], Figure]]] = MappingProxyType(
    {
        "ps-vs-ring": servers_and_ring,
        "ring-vs-mpi": ring_and_mpi,
        "fc": fully_connected,
        "dlgs": sparse_methods,
        "zero-memory": zero_memory,
        "weird-trick": one_weird_trick,
        "swdnn": convolutions,
        "dgemm": products,
    }
)
"""The figures by name."""
