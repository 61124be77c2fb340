"""The allreduce of a sparse gradient between P workers: predicted seconds of each, and the least of them.

n elements, of which every rank brings k = rho n, selected independently of each other; alpha seconds for a message,
beta seconds for a byte on a rank's full-duplex link. Every round costs alpha and the bytes that one rank sends in it.
An entry of v value bytes takes b(rho, v) = v + rice(rho) / 8 bytes at density rho, where rice(rho) is the bits of an
index (`rice_bits_per_index`). Of m ranks, U(m) = 1 - (1 - rho)^m of the elements are in the union.

=====================  ===============================================================================================
ring (dense, fp32)     2 (P - 1) alpha  +  2 (P - 1) / P  n 4 beta
allgather              (P - 1) (alpha + k b(rho, v) beta)
reduce_scatter         (P - 1) (alpha + k / P b(rho, v) beta)  +  (P - 1) (alpha + U(P) n / P b(U(P), 4) beta)
gtopk                  2 L alpha  +  k (b(rho, v) + (2 L - 1) b(rho, 4)) beta,   L = ceil(log2 P)
=====================  ===============================================================================================

Sums travel as fp32, whatever v is: rounded, they would not be what the other routes agree on. With v = 4 the last
line is the standard 2 L (alpha + k b beta). A single rank sends nothing. Left out are encoding and adding, which
overlap with sending, and frame headers, whose cost alpha holds. Where ranks select the same elements more often than
by chance, unions are smaller, and reduce_scatter is better than predicted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

import numpy as np

from taihu.core.base.errors import ConfigError
from taihu.core.planner.profile import rice_bits_per_index

_SUM_BYTES = 4
_VALUE_BYTES = (4, 2, 1, 0.5, 0.25)


class SparseAlgorithm(Enum):
    """An allreduce between workers."""

    RING = "ring"
    """All elements, around a ring."""
    ALLGATHER = "allgather"
    """Every slice to every rank."""
    REDUCE_SCATTER = "reduce_scatter"
    """Every slice to the owners of its ranges, and their sums to every rank."""
    GTOPK = "gtopk"
    """The k largest entries up and down a tree."""


SPARSE_ROUTES: Final = (SparseAlgorithm.ALLGATHER, SparseAlgorithm.REDUCE_SCATTER, SparseAlgorithm.GTOPK)
"""Those that send selections only."""


@dataclass(frozen=True)
class SparseWorkload:
    """One allreduce and the links that it uses.

    Attributes:
        elements: n, length of the dense array.
        density: rho, share of the elements that a rank brings, in (0, 1].
        ranks: P.
        alpha_seconds: seconds for a message, whatever its size is.
        seconds_per_byte: of a rank's link, in each of both directions at once.
        value_bytes: v, bytes of a value that a rank brings: 4, 2, or 1, 1/2 or 1/4 of few bits.

    Raises:
        ConfigError: a value is none of these.
    """

    elements: int
    density: float
    ranks: int
    alpha_seconds: float
    seconds_per_byte: float
    value_bytes: float = 4

    def __post_init__(self) -> None:
        if self.elements < 0 or self.ranks < 1:
            raise ConfigError(
                f"sparse route for {self.elements} elements on {self.ranks} ranks: expected 0 and 1 at least"
            )
        if not 0 < self.density <= 1:
            raise ConfigError(f"sparse route at density {self.density}: expected a share above 0 and at most 1")
        if not (0 <= self.alpha_seconds < np.inf and 0 <= self.seconds_per_byte < np.inf):
            raise ConfigError(
                f"sparse route at {self.alpha_seconds} s per message and {self.seconds_per_byte} s per byte: "
                "expected finite times, not negative"
            )
        if self.value_bytes not in _VALUE_BYTES:
            expected = ", ".join(map(str, _VALUE_BYTES))
            raise ConfigError(f"sparse route with values of {self.value_bytes} bytes: expected one of {expected}")


def predict(workload: SparseWorkload) -> Mapping[SparseAlgorithm, float]:
    """Seconds of each route; the formulas are those above."""
    return {
        SparseAlgorithm.RING: _ring_seconds(workload),
        SparseAlgorithm.ALLGATHER: _allgather_seconds(workload),
        SparseAlgorithm.REDUCE_SCATTER: _reduce_scatter_seconds(workload),
        SparseAlgorithm.GTOPK: _gtopk_seconds(workload),
    }


def choose(
    workload: SparseWorkload, *, allow_gtopk: bool, among: Sequence[SparseAlgorithm] = tuple(SparseAlgorithm)
) -> SparseAlgorithm:
    """The route of the fewest predicted seconds, the first among equals.

    Args:
        workload: what is exchanged.
        allow_gtopk: whether fewer entries than the union may be the result; the other routes have one result.
        among: what there is to choose from.
    """
    seconds = predict(workload)
    return min(
        (route for route in among if allow_gtopk or route is not SparseAlgorithm.GTOPK), key=seconds.__getitem__
    )


def _ring_seconds(w: SparseWorkload) -> float:
    round_bytes = w.elements / w.ranks * _SUM_BYTES
    return 2 * (w.ranks - 1) * (w.alpha_seconds + round_bytes * w.seconds_per_byte)


def _allgather_seconds(w: SparseWorkload) -> float:
    round_bytes = _slice_bytes(w.elements, w.density, w.value_bytes)
    return (w.ranks - 1) * (w.alpha_seconds + round_bytes * w.seconds_per_byte)


def _reduce_scatter_seconds(w: SparseWorkload) -> float:
    union = 1.0 - (1.0 - w.density) ** w.ranks
    sent_bytes = _slice_bytes(w.elements, w.density, w.value_bytes) + _slice_bytes(w.elements, union, _SUM_BYTES)
    return (w.ranks - 1) * (2 * w.alpha_seconds + sent_bytes / w.ranks * w.seconds_per_byte)


def _gtopk_seconds(w: SparseWorkload) -> float:
    levels = (w.ranks - 1).bit_length()
    if levels == 0:
        return 0.0
    first = _slice_bytes(w.elements, w.density, w.value_bytes)
    later = _slice_bytes(w.elements, w.density, _SUM_BYTES)
    return 2 * levels * w.alpha_seconds + (first + (2 * levels - 1) * later) * w.seconds_per_byte


def _slice_bytes(elements: int, density: float, value_bytes: float) -> float:
    """Bytes of the share `density` of `elements`, values and indices."""
    index_bytes = float(rice_bits_per_index(np.asarray(density))) / 8.0
    return density * elements * (value_bytes + index_bytes)
