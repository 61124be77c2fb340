"""Configurations that the model is asked about: those of published measurements, and sweeps."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import Final, Literal

from taihu.kernels.nn.window import Window
from taihu.kernels.sw26010 import passes
from taihu.kernels.sw26010.convolution import FilterPlace, plan_convolution
from taihu.kernels.sw26010.errors import BlockingError
from taihu.kernels.sw26010.layer_costs import batch_norm_cost, pooling_cost
from taihu.kernels.sw26010.ledger import Ledger
from taihu.kernels.sw26010.machine import CORE_GROUPS
from taihu.kernels.sw26010.product import plan_product
from taihu.kernels.sw26010.streams import plan_stream
from taihu.kernels.sw26010.threshold import selection_cost

# [F] GFLOP/s of swDNN, fp64, 4 core groups, 172 configurations: least, median, most.
PUBLISHED_SWDNN: Final = (708.0, 1285.0, 1498.0)

Loop = Literal["streamed", "needed", "row", "log"]

_CHANNELS_MEASURED: Final = range(128, 385, 32)
_CHANNELS: Final = range(64, 385, 32)


@dataclass(frozen=True)
class ConvolutionShape:
    """A convolution without padding, of stride 1, with square results of `side` pixels."""

    batch: int
    inputs: int
    outputs: int
    side: int
    size: int

    def __str__(self) -> str:
        return f"B={self.batch} Ni={self.inputs} No={self.outputs} out={self.side}x{self.side} K={self.size}"

    def cost(
        self, filters: FilterPlace = "streamed", *, pipelined: bool = True, columns: int | None = None
    ) -> Ledger:
        """fp64 on the whole chip; tiles are as wide as LDM allows, or `columns`.

        Raises:
            BlockingError: swDNN's blocking cannot run it.
        """
        plan = plan_convolution(
            self.batch,
            self.inputs,
            self.outputs,
            self.side,
            self.side,
            self.size,
            filters=filters,
            core_groups=CORE_GROUPS,
            pipelined=pipelined,
        )
        return plan.cost() if columns is None else replace(plan, columns=columns).cost()

    def run(self, loop: Loop) -> Ledger:
        """The same by the name of the loop: a place of filters, or `log`, the loop of swDNN's measured program.

        That program keeps the K taps of a row in tiles of its own width, and waits for its operands.

        Raises:
            BlockingError: the blocking cannot run it.
        """
        if loop == "log":
            return self.cost("row", pipelined=False, columns=self.columns_of_log)
        return self.cost(loop)

    @property
    def columns_of_log(self) -> int:
        """Columns of the tiles of swDNN's measured program, which keeps K taps and leaves 9 KB of LDM alone [F]."""
        words = 64 * 55 * 1024 // 8 - 2 * self.inputs * self.batch - 2 * self.size * self.inputs * self.outputs
        return words // (self.outputs * self.batch) - (self.size - 1)


PUBLISHED_LOG: Final = tuple(
    (ConvolutionShape(batch, inputs, outputs, side, 3), gflops)
    for batch, side, inputs, outputs, gflops in (
        (128, 16, 128, 128, 1329.0),
        (128, 16, 128, 160, 1293.0),
        (128, 16, 128, 192, 1305.0),
        (128, 16, 128, 224, 1245.0),
        (128, 16, 128, 256, 1134.0),
        (128, 16, 128, 288, 1034.0),
        (128, 16, 128, 320, 940.0),
        (128, 16, 128, 352, 726.0),
        (128, 16, 160, 128, 1342.0),
        (128, 16, 160, 160, 1356.0),
        (128, 16, 160, 192, 1287.0),
        (128, 16, 160, 224, 1227.0),
        (128, 24, 128, 128, 1324.0),
        (128, 24, 128, 160, 1322.0),
        (128, 24, 128, 192, 1291.0),
        (128, 24, 128, 224, 1228.0),
        (256, 40, 256, 128, 1132.0),
    )
)
"""[F] Single configurations of swDNN's log, and the GFLOP/s measured."""


@dataclass(frozen=True)
class Row:
    """One kernel in one configuration; a refused one has a reason in place of a ledger."""

    kernel: str
    configuration: str
    ledger: Ledger | None
    refused: str = ""

    def to_json(self) -> dict[str, str | float | None]:
        """For `--json`."""
        keys = ("modelled_gflops", "efficiency", "limited_by", "seconds", "dma_bytes", "broadcasts")
        values: tuple[str | float | None, ...] = (None,) * len(keys)
        if (ledger := self.ledger) is not None:
            values = (ledger.gflops, ledger.efficiency, ledger.limited_by)
            values += (ledger.seconds, ledger.dma_bytes, ledger.broadcasts)
        row: dict[str, str | float | None] = {"kernel": self.kernel, "configuration": self.configuration}
        return {**row, **dict(zip(keys, values, strict=True)), "refused": self.refused or None}


def swdnn_grid() -> tuple[ConvolutionShape, ...]:
    """The 172 configurations that swDNN's public log measured, in its order.

    3 x 3 filters, batches of 128 and 256, results of 16, 24, 32 and 40 pixels, 128 to 384 channels, where its test
    program found room.
    """
    shapes = (
        ConvolutionShape(batch, inputs, outputs, side, 3)
        for side in (16, 24, 32, 40)
        for batch in (128, 256)
        for inputs in _CHANNELS_MEASURED
        for outputs in _CHANNELS_MEASURED
    )
    return tuple(shape for shape in shapes if shape.columns_of_log > 0)


def paper_grid() -> tuple[ConvolutionShape, ...]:
    """The sweep of swDNN's paper: batch 128, results of 64 x 64, pairs of 64 to 384 channels; filters of 3 to 21."""
    pairs = [ConvolutionShape(128, i, o, 64, 3) for i in _CHANNELS for o in _CHANNELS]
    filters = [
        ConvolutionShape(128, n, n, 64, size) for size in range(5, 22, 2) for n in (64, 128, 192, 256, 320, 384)
    ]
    return (*pairs, *filters)


def _small_grid() -> tuple[ConvolutionShape, ...]:
    return tuple(ConvolutionShape(128, n, n, 32, 3) for n in (48, 64, 128, 256, 384, 512))


GRIDS: Final = MappingProxyType({"small": _small_grid, "swdnn": swdnn_grid, "paper": paper_grid})


def _row(kernel: str, configuration: str, cost: Callable[[], Ledger]) -> Row:
    try:
        return Row(kernel, configuration, cost())
    except BlockingError as error:
        return Row(kernel, configuration, None, str(error))


def _gemm(name: str, itemsize: int) -> Iterator[Row]:
    for size in (64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384):
        yield _row(name, f"{size}x{size}x{size}", plan_product(size, size, size, itemsize=itemsize).cost)


_IMAGES: Final = tuple((32, side, side, channels) for side, channels in ((32, 16), (32, 64), (16, 128), (8, 256)))
_ELEMENTS: Final = (10_000, 1_000_000, 25_557_032)


def _elementwise() -> Iterator[Row]:
    groups = CORE_GROUPS
    for images in _IMAGES:
        name = "x".join(map(str, images))
        rows = images[0] * images[1] * images[2]
        half = (images[1] // 2, images[2] // 2)
        pooled = pooling_cost(images, half, Window(2, 2, 0), maximum=True, core_groups=groups)
        yield Row("max pooling", f"{name} 2x2", pooled.forward)
        yield Row("batch norm", f"{name} forward", batch_norm_cost(rows, images[3], core_groups=groups).forward)
        yield Row("batch norm", f"{name} backward", batch_norm_cost(rows, images[3], core_groups=groups).backward)
    for elements in _ELEMENTS:
        for label, task in (("sgd with momentum", passes.SGD_MOMENTUM), ("ring addition", passes.ADD)):
            yield Row(label, f"{elements}", plan_stream(task, elements, core_groups=groups).cost())
        yield Row("top-k threshold", f"{elements} 1%", selection_cost(elements, elements // 100, groups))


KERNELS: Final = ("dgemm", "sgemm", "conv", "other")


def rows_of(kernel: str, grid: str, loop: Loop | None = None) -> Iterator[Row]:
    """The rows of one of `KERNELS`; of `conv`, over one of `GRIDS`.

    Without a loop, `swdnn` is run by that of the program that was measured, all others are streamed.
    """
    if kernel == "conv":
        for shape in GRIDS[grid]():
            yield _row("conv", str(shape), partial(shape.run, loop or ("log" if grid == "swdnn" else "streamed")))
    elif kernel == "other":
        yield from _elementwise()
    else:
        yield from _gemm(kernel, 8 if kernel == "dgemm" else 4)
