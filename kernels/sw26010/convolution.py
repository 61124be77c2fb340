"""Convolution blocked on batch and channels, as swDNN blocks it: a product for each pixel and tap, no column matrix.

Arrays lie as swDNN lays them: images (H, W, Ni, B), filters (K, K, No, Ni), results (OH, OW, No, B), the batch
contiguous; stride 1, no padding. A core group computes some rows of the result. It keeps `columns` pixels of one row,
(B, No) each, in LDM; for each of the K rows of filters it gets one input pixel (B, Ni) after another and multiplies
it with the K taps (Ni, No) of the row. What of the filters stays in LDM is the choice:

- `streamed`: one tap, double buffered. Every pixel has all K taps of the row pass by, in one fixed order, also those
  that lead to no column of this tile at its ends. This is swDNN's batch-size-aware loop.
- `needed`: the same without those taps.
- `row`: the K taps of a row of filters, double buffered: they are read once in a tile and row.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from taihu.kernels.sw26010.core_group import CoreGroup
from taihu.kernels.sw26010.dma import Transfer
from taihu.kernels.sw26010.errors import BlockingError, LdmOverflowError
from taihu.kernels.sw26010.ldm import Ldm
from taihu.kernels.sw26010.ledger import Ledger, Work
from taihu.kernels.sw26010.machine import CPES, LDM_USABLE_BYTES
from taihu.kernels.sw26010.mesh import (
    convert_work,
    fill_work,
    mesh_tile,
    multiply_tiles,
    part,
    product_work,
    tile_bytes,
    tile_transfer,
)
from taihu.kernels.sw26010.product import check_machine, cuts

FilterPlace = Literal["streamed", "needed", "row"]

_BATCH: Final = 128  # [F] swDNN: 4 vectors of 4 values in each of the 8 rows of CPEs.
_CHANNELS: Final = 32  # [F] 4 in each of the 8 columns of CPEs.
_FEWEST_CHANNELS: Final = 64  # [F]


@dataclass(frozen=True)
class ConvolutionPlan:
    """A legal blocking of one convolution.

    Attributes:
        batch, inputs, outputs: B, Ni, No.
        height, width: of the result.
        size: K, of a filter.
        columns: of the result that a tile holds.
        filters: what stays in LDM, see the module.
        itemsize: bytes of an element in main memory, 4 or 8.
        core_groups: among which the rows of the result are divided.
        pipelined: see `taihu.kernels.sw26010.mesh.product_work`.

    Raises:
        BlockingError: batch, channels or the image cannot be blocked so.
        LdmOverflowError: not even one column fits into LDM, or fewer than `columns`.
    """

    batch: int
    inputs: int
    outputs: int
    height: int
    width: int
    size: int
    columns: int
    filters: FilterPlace = "streamed"
    itemsize: int = 8
    core_groups: int = 1
    pipelined: bool = True

    def __post_init__(self) -> None:
        _check(self)
        taps = self.size if self.filters == "row" else 1
        ldm, remedy = Ldm(), "use fewer columns, channels or a smaller batch, or an explicit column matrix (im2col)"
        ldm.allocate("input pixel, double buffered", 2 * tile_bytes(self.batch, self.inputs), remedy)
        ldm.allocate("filter taps, double buffered", 2 * taps * tile_bytes(self.inputs, self.outputs), remedy)
        ldm.allocate(f"{self.columns} columns", self.columns * tile_bytes(self.batch, self.outputs), remedy)

    def shares(self) -> Iterator[slice]:
        """Rows of the result for each core group."""
        share = -(-self.height // self.core_groups)
        for first in range(0, self.height, share):
            yield slice(first, min(first + share, self.height))

    def cost(self) -> Ledger:
        """The ledger of the convolution, without computing it."""
        shares = [rows.stop - rows.start for rows in self.shares()]
        costs = {rows: self._cost_of_rows(rows) for rows in set(shares)}
        together = Ledger.together([costs[rows] for rows in shares], self.compulsory_bytes)
        return replace(together, core_groups=self.core_groups)

    @property
    def compulsory_bytes(self) -> int:
        """Every element of images, filters and results once."""
        side = self.size - 1
        images = self.batch * self.inputs * (self.height + side) * (self.width + side)
        results = self.batch * self.outputs * self.height * self.width
        return (images + results + self.size**2 * self.inputs * self.outputs) * self.itemsize

    def _cost_of_rows(self, rows: int) -> Ledger:
        """One core group that computes so many rows of the result."""
        ledger = Ledger()
        ledger.begin([self._pixel, *self._taps(1)])
        for columns, count in cuts(self.width, self.columns):
            self._cost_of_tile(columns, count * rows, ledger)
        return ledger

    def _cost_of_tile(self, columns: int, times: int, ledger: Ledger) -> None:
        """Some columns of one row of the result, `times` times."""
        alike: Counter[tuple[int, bool, bool, int]] = Counter()
        for pixel in range(columns + self.size - 1):
            for used, taps in self.steps(pixel, columns):
                first = taps.start == 0 or (self.filters == "needed" and taps.start == max(0, pixel - columns + 1))
                alike[used, first, pixel == 0, taps.stop - taps.start] += 1
        ledger.alone(self.clear_work(columns), times=times)
        for (used, first, begins, passing), count in alike.items():
            transfers = self._transfers(passing, first=first, begins=begins)
            ledger.step(self.step_work(used, first), transfers, times=count * self.size * times)
        ledger.alone(self.store_work(), [self._result], times=columns * times)

    def steps(self, pixel: int, columns: int) -> Iterator[tuple[int, slice]]:
        """The steps for an input pixel: how many taps are used, and which ones pass by.

        Args:
            pixel: its place in the tile: pixel p meets column c at tap p - c.
            columns: of the tile.
        """
        first, last = max(0, pixel - columns + 1), min(self.size - 1, pixel)
        if self.filters == "row":
            yield last - first + 1, slice(0, self.size)
            return
        taps = range(first, last + 1) if self.filters == "needed" else range(self.size)
        for tap in taps:
            yield int(first <= tap <= last), slice(tap, tap + 1)

    def _transfers(self, taps: int, *, first: bool, begins: bool) -> list[Transfer]:
        """The tiles of a step with `taps` taps, the `first` of a pixel, whose pixel `begins` a row of the tile."""
        if self.filters == "row":
            return [self._pixel, *self._taps(self.size)] if begins else [self._pixel]
        return [self._pixel, *self._taps(1)] if first else self._taps(taps)

    def _taps(self, count: int) -> list[Transfer]:
        return [tile_transfer(self.inputs, self.outputs, self.itemsize, "F")] * count

    @property
    def _pixel(self) -> Transfer:
        return tile_transfer(self.batch, self.inputs, self.itemsize, "F")

    @property
    def _result(self) -> Transfer:
        return tile_transfer(self.batch, self.outputs, self.itemsize, "F")

    def step_work(self, used: int, first: bool) -> Work:
        """Products with `used` taps, after widening them, and the pixel if it is new."""
        one = product_work(self.batch, self.outputs, self.inputs, pipelined=self.pipelined)
        if self.itemsize == 4:
            one += convert_work(part(self.inputs) * part(self.outputs))
        work = Work(*(used * value for value in (one.cycles, one.arithmetic_cycles, one.flops, one.broadcasts)))
        return work + convert_work(part(self.batch) * part(self.inputs)) if self.itemsize == 4 and first else work

    def clear_work(self, columns: int) -> Work:
        """Zeros in a tile of results."""
        return fill_work(columns * part(self.batch) * part(self.outputs))

    def store_work(self) -> Work:
        """Narrow one pixel of results."""
        return convert_work(part(self.batch) * part(self.outputs)) if self.itemsize == 4 else Work(0)


def _check(plan: ConvolutionPlan) -> None:
    check_machine(plan.itemsize, plan.core_groups)
    if plan.filters not in get_args(FilterPlace):
        raise BlockingError(f"filters={plan.filters}: expected one of {', '.join(get_args(FilterPlace))}")
    remedy = "pad it, or use an explicit column matrix (im2col)"
    if plan.batch < 1 or plan.batch % _BATCH:
        raise BlockingError(f"batch {plan.batch}: expected a multiple of {_BATCH} for register blocks; {remedy}")
    for name, channels in (("input", plan.inputs), ("output", plan.outputs)):
        if channels < _FEWEST_CHANNELS or channels % _CHANNELS:
            raise BlockingError(
                f"{channels} {name} channels: expected at least {_FEWEST_CHANNELS} and a multiple of {_CHANNELS}; "
                f"{remedy}"
            )
    if min(plan.height, plan.width, plan.size, plan.columns) < 1:
        raise BlockingError(
            f"convolution: expected a result, filters and tiles of at least 1 pixel, seen {plan.height} x "
            f"{plan.width}, {plan.size}, {plan.columns}; give images at least as large as the filters"
        )


def most_columns(batch: int, inputs: int, outputs: int, taps: int = 1) -> int:
    """Columns of the result that LDM has room for beside pixels and taps: swDNN's rule; below 1 if there is none."""
    words = CPES * LDM_USABLE_BYTES // 8 - 2 * inputs * batch - 2 * taps * inputs * outputs
    return words // (outputs * batch)


def plan_convolution(  # noqa: PLR0917 - the shape of a layer
    batch: int,
    inputs: int,
    outputs: int,
    height: int,
    width: int,
    size: int,
    *,
    filters: FilterPlace = "streamed",
    itemsize: int = 8,
    core_groups: int = 1,
    pipelined: bool = True,
) -> ConvolutionPlan:
    """The plan whose tiles are as wide as LDM allows; the arguments are the attributes of `ConvolutionPlan`.

    Raises:
        BlockingError: batch or channels cannot be blocked so.
        LdmOverflowError: no column of results fits beside the operands.
    """
    columns = most_columns(batch, inputs, outputs, size if filters == "row" else 1)
    wanted = min(max(columns, 1), width)
    try:
        return ConvolutionPlan(
            batch, inputs, outputs, height, width, size, wanted, filters, itemsize, core_groups, pipelined
        )
    except LdmOverflowError as error:
        raise LdmOverflowError(f"convolution of {inputs} to {outputs} channels, batch {batch}: {error}") from None


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
