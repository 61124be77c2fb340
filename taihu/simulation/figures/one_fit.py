"""The constants of the paper's machine (docs/methods.md sections 2 and 3), which one figure gives.

The figure of fully connected layers has 72 cells on one side or the other of 1, and says how much columns gain at
most. A start-up a (P - 1)^e and a rate B give it by the formulas of section 3, which know a B alone: all start-ups
are in bytes of a port here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Final

import numpy as np
from numpy.typing import NDArray

WORKERS: Final = (2, 4, 8)
BATCHES: Final = (1, 2, 4, 8, 16, 32, 64, 128)
_FP32_BYTES: Final = 4
_TRANSFERS: Final = 7
_EXPONENTS: Final = np.arange(0.6, 1.2001, 0.002)
_START_UPS: Final = np.geomspace(1.1e6, 2.0e6, 600)

Values = NDArray[np.float64]


@dataclass(frozen=True)
class FcLayer:
    """A layer of VGG-16 as the figure has it: K inputs, N outputs, the most that spreading gains, and where it does.

    The most of FC3 is not printed.
    """

    name: str
    inputs: int
    outputs: int
    gains: Callable[[int, int], bool]
    most: float = float("inf")


LAYERS: Final = (
    FcLayer("FC1", 25088, 4096, lambda workers, batch: True, 33.0),
    FcLayer("FC2", 4096, 4096, lambda workers, batch: (workers, batch) != (8, 128), 6.0),
    FcLayer("FC3", 4096, 1000, lambda workers, batch: (workers == 2 and batch <= 64) or (workers, batch) == (4, 1)),
)


def constants_that_fit(*, rounded: bool) -> Values:
    """The pairs (e, a B in bytes) with which all cells are on their sides, shape (n, 2).

    Args:
        rounded: whether the most of FC1 and FC2 have to round to what is printed, too.
    """
    exponents, start_ups = (each.ravel() for each in np.meshgrid(_EXPONENTS, _START_UPS, indexing="ij"))
    fits = np.ones(len(exponents), dtype=bool)
    for layer in LAYERS:
        most = np.zeros(len(exponents))
        for workers, batch in product(WORKERS, BATCHES):
            ratio = _data_over_columns(layer, workers, batch, start_ups * (workers - 1) ** exponents)
            fits &= (ratio > 1.0) == layer.gains(workers, batch)
            most = np.maximum(most, ratio)
        if rounded and np.isfinite(layer.most):
            fits &= np.rint(most) == layer.most
    return np.stack([exponents[fits], start_ups[fits]], axis=1)


def _data_over_columns(layer: FcLayer, workers: int, batch: int, start_up: Values) -> Values:
    data = 2 * (workers - 1) / workers * (layer.inputs + 1) * layer.outputs * _FP32_BYTES
    columns = (workers - 1) * batch * (4 * layer.inputs + 2 * layer.outputs) * _FP32_BYTES
    return (start_up + data) / (_TRANSFERS * start_up + columns)


def servers_over_ring_by_formula(blobs: int, size_bytes: float, workers: int, constants: Values) -> Sequence[float]:
    """The least and the most that section 2 says of servers over a ring, by pairs of `constants`."""
    start_up = constants[:, 1] * (workers - 1) ** constants[:, 0]
    volume = 2 * (workers - 1) / workers * size_bytes
    ratios = (2 * blobs * start_up + 2 * volume) / (start_up + volume)
    return float(ratios.min()), float(ratios.max())
