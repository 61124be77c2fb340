"""Convolutions on core groups, computed as `taihu.kernels.sw26010.convolution` plans them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from support.sw26010.core_group import CoreGroup
from support.sw26010.tiles import mesh_tile, multiply_tiles
from taihu.kernels.sw26010.convolution import ConvolutionPlan
from taihu.kernels.sw26010.dma import Transfer
from taihu.kernels.sw26010.errors import BlockingError
from taihu.kernels.sw26010.ledger import Ledger


def execute_convolution(
    plan: ConvolutionPlan, images: NDArray[Any], filters: NDArray[Any], results: NDArray[Any]
) -> Ledger:
    """Compute as planned; returns the ledger as it was counted.

    Args:
        plan: the blocking.
        images: (OH + K - 1, OW + K - 1, Ni, B), float32 or float64 as the plan's itemsize says.
        filters: (K, K, No, Ni), of the same type.
        results: (OH, OW, No, B), of the same type; written.

    Raises:
        BlockingError: the arrays are not those of the plan.
    """
    side = plan.size - 1
    expected = [
        (plan.height + side, plan.width + side, plan.inputs, plan.batch),
        (plan.size, plan.size, plan.outputs, plan.inputs),
        (plan.height, plan.width, plan.outputs, plan.batch),
    ]
    for name, array, shape in zip(
        ("images", "filters", "results"), (images, filters, results), expected, strict=True
    ):
        if array.shape != shape or array.itemsize != plan.itemsize or array.dtype.kind != "f":
            raise BlockingError(
                f"{name}: expected {shape} of {plan.itemsize}-byte floats, seen {array.shape} {array.dtype}; make a "
                "plan for these arrays"
            )
    ledgers = []
    for rows in plan.shares():
        group = CoreGroup()
        for row in range(rows.start, rows.stop):
            for left in range(0, plan.width, plan.columns):
                _execute_tile(plan, images[row:], filters, results[row, left : left + plan.columns], left, group)
        ledgers.append(group.ledger)
    return replace(Ledger.together(ledgers, plan.compulsory_bytes), core_groups=plan.core_groups)


def _execute_tile(  # noqa: PLR0917 - three arrays and a place
    plan: ConvolutionPlan,
    images: NDArray[Any],
    filters: NDArray[Any],
    results: NDArray[Any],
    left: int,
    group: CoreGroup,
) -> None:
    """The columns `results` (n, No, B) of one row, which begins with the first row of `images`."""
    columns, ledger = len(results), group.ledger
    sums = [mesh_tile(plan.batch, plan.outputs) for _ in range(columns)]
    ledger.alone(plan.clear_work(columns))
    pixel_tile = mesh_tile(plan.batch, plan.inputs)
    for filter_row in range(plan.size):
        taps: dict[int, NDArray[np.float64]] = {}
        for pixel in range(columns + plan.size - 1):
            arrived: Transfer | None = group.get(images[filter_row, left + pixel].T, pixel_tile, "F")
            for used, passing in plan.steps(pixel, columns):
                transfers = [] if arrived is None else [arrived]
                if plan.filters != "row" or pixel == 0:
                    taps = {tap: mesh_tile(plan.inputs, plan.outputs) for tap in range(passing.start, passing.stop)}
                    transfers += [group.get(filters[filter_row, tap].T, tile, "F") for tap, tile in taps.items()]
                if not ledger.dma_cycles:
                    ledger.begin(transfers[:2])
                for tap, tile in taps.items():
                    if 0 <= pixel - tap < columns:
                        multiply_tiles(pixel_tile, tile, sums[pixel - tap])
                ledger.step(plan.step_work(used, arrived is not None), transfers)
                arrived = None
    for column, tile in enumerate(sums):
        ledger.alone(plan.store_work(), [group.put(tile, results[column].T, "F")])
