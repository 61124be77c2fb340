"""Passes over rows of values: batch normalisation, biases, rectifiers, SGD, sums of a ring.

CPEs take pieces of whole rows in turn, contiguous in main memory. Passes over elements have rows of one element.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from taihu.kernels.sw26010.dma import Transfer
from taihu.kernels.sw26010.errors import BlockingError
from taihu.kernels.sw26010.ldm import Ldm
from taihu.kernels.sw26010.ledger import Ledger
from taihu.kernels.sw26010.machine import CPES, FMA_LANES
from taihu.kernels.sw26010.product import check_machine, cuts
from taihu.kernels.sw26010.waves import Unit, add_waves, reduction_work, vector_work, wave


@dataclass(frozen=True)
class Pass:
    """A pass over elements, and its work on each.

    Attributes:
        name: for messages.
        reads: arrays that are read.
        writes: arrays that are written.
        arithmetic: instructions of pipeline 0 for each vector.
        flops: useful ones for each element.
        scattered: further loads and stores for each element, as of a histogram.
        columns: fp64 values that are kept in LDM for each column, such as scale and shift.
        sums: those of them that are summed over all CPEs at the end.
    """

    name: str
    reads: int
    writes: int
    arithmetic: int
    flops: int
    scattered: int = 0
    columns: int = 0
    sums: int = 0


@dataclass(frozen=True)
class StreamPlan:
    """Pieces of `piece` rows for one CPE.

    Attributes:
        task: the pass.
        rows: in all.
        width: elements of a row.
        piece: rows of a unit.
        itemsize: bytes of an element, 4 or 8.
        core_groups: among which the rows are divided.
        strided: these are some columns of longer rows: every row is a block of its own.

    Raises:
        BlockingError: an extent is below 1, or the machine has no such elements or core groups.
        LdmOverflowError: a piece does not fit into LDM.
    """

    task: Pass
    rows: int
    width: int
    piece: int
    itemsize: int = 4
    core_groups: int = 1
    strided: bool = False

    def __post_init__(self) -> None:
        check_machine(self.itemsize, self.core_groups)
        if min(self.rows, self.width, self.piece) < 1:
            raise BlockingError(
                f"{self.task.name}: expected at least one row, column and row of a piece, seen {self.rows}, "
                f"{self.width}, {self.piece}; give an array that is not empty"
            )
        ldm = Ldm()
        arrays = self.task.reads + self.task.writes
        remedy = "split the rows"
        ldm.allocate(f"{self.task.name}: values of columns", 8 * self.task.columns * self.width, remedy)
        piece_bytes = 2 * arrays * self.piece * self.width * self.itemsize
        ldm.allocate(f"{self.task.name}: {self.piece} rows, double buffered", piece_bytes, remedy)

    def shares(self) -> list[slice]:
        """Rows of each core group."""
        share = -(-self.rows // self.core_groups)
        return [slice(first, min(first + share, self.rows)) for first in range(0, self.rows, share)]

    def unit(self, rows: int) -> Unit:
        """A piece of `rows` rows."""
        task, elements = self.task, rows * self.width
        memory = task.reads + task.writes + task.scattered * FMA_LANES
        blocks = rows if self.strided else 1
        transfer = Transfer(((elements * self.itemsize // blocks, blocks),))
        work = vector_work(elements, task.arithmetic, memory, task.flops)
        return Unit(work, (transfer,) * (task.reads + task.writes))

    def cost(self) -> Ledger:
        """The ledger of the pass, without making it."""
        ledgers = []
        for share in self.shares():
            ledger = Ledger()
            pieces = cuts(share.stop - share.start, self.piece)
            add_waves(ledger, [(self.unit(rows), count) for rows, count in pieces])
            self.finish(ledger)
            ledgers.append(ledger)
        return self.together(ledgers)

    def finish(self, ledger: Ledger) -> None:
        """Sum what is summed over the CPEs, and over the core groups through main memory."""
        if not self.task.sums:
            return
        values = self.task.sums * self.width
        ledger.alone(reduction_work(values))
        if self.core_groups > 1:
            ledger.alone(transfers=[Transfer(((8 * values, 1 + self.core_groups),))])

    def together(self, ledgers: Sequence[Ledger]) -> Ledger:
        """The ledger of all core groups."""
        arrays = self.task.reads + self.task.writes
        ledger = Ledger.together(ledgers, arrays * self.rows * self.width * self.itemsize)
        ledger.core_groups = self.core_groups
        return ledger


def plan_stream(
    task: Pass, rows: int, width: int = 1, *, itemsize: int = 4, core_groups: int = 1, strided: bool = False
) -> StreamPlan:
    """The longest pieces that fit into LDM and leave no CPE without one.

    Raises:
        BlockingError: an extent is below 1, or the machine has no such elements or core groups.
        LdmOverflowError: not even one row fits.
    """
    check_machine(itemsize, core_groups)
    room = Ldm().capacity_bytes - 8 * task.columns * width - 64
    fits = room // (2 * (task.reads + task.writes) * max(1, width) * itemsize)
    shared = -(-rows // (CPES * core_groups))
    vector = FMA_LANES if width == 1 else 1
    piece = max(1, min(fits, -(-shared // vector) * vector))
    return StreamPlan(task, rows, width, piece, itemsize, core_groups, strided)


def plan_slabs(
    task: Pass, rows: int, width: int, *, itemsize: int = 4, core_groups: int = 1
) -> list[tuple[slice, StreamPlan]]:
    """Plans for all columns of rows that may be too long for LDM: (columns, plan) of each slab.

    Raises:
        BlockingError: an extent is below 1, or the machine has no such elements or core groups.
    """
    check_machine(itemsize, core_groups)
    each = 8 * task.columns + 2 * (task.reads + task.writes) * itemsize
    count = max(1, -(-width * each // (Ldm().capacity_bytes - 64)))
    slab = max(1, -(-width // count))
    return [
        (
            slice(first, min(first + slab, width)),
            plan_stream(
                task,
                rows,
                min(slab, width - first),
                itemsize=itemsize,
                core_groups=core_groups,
                strided=slab < width,
            ),
        )
        for first in range(0, max(width, 1), slab)
    ]


_Kernel = Callable[..., Any]
_LEAST: Final = 1


def execute_stream(
    plan: StreamPlan, inputs: Sequence[NDArray[Any]], outputs: Sequence[NDArray[Any]], compute: _Kernel
) -> Ledger:
    """Make the pass; returns the ledger as it was counted.

    Args:
        plan: the pieces.
        inputs: `reads` arrays (rows, width).
        outputs: `writes` arrays (rows, width), which may be among the inputs.
        compute: called with copies of a wave's rows of the inputs and buffers for those of the outputs.
    """
    ledgers = []
    for share in plan.shares():
        ledger = Ledger()
        first = share.start
        while first < share.stop:
            cpes = min(CPES, max((share.stop - first) // plan.piece, _LEAST))
            rows = min(plan.piece, share.stop - first)
            part = slice(first, first + cpes * rows)
            local = [np.ascontiguousarray(array[part]).copy() for array in inputs]
            results = [np.empty(array[part].shape, array.dtype) for array in outputs]
            compute(*local, *results)
            for array, result in zip(outputs, results, strict=True):
                array[part] = result
            wave(ledger, plan.unit(rows), cpes)
            first = part.stop
        plan.finish(ledger)
        ledgers.append(ledger)
    return plan.together(ledgers)
