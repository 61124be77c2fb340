"""`taihu dev bench sw26010`."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from typing import Annotated, Literal

import typer
from rich.console import Console
from rich.table import Table

from taihu.core.base.errors import ConfigError
from taihu.core.model.model_defaults import usual_input
from taihu.core.process.options import JsonOption
from taihu.core.process.results import check_writable, write_json
from taihu.kernels.sw26010.errors import BlockingError
from taihu.kernels.sw26010.grids import KERNELS, PUBLISHED_SWDNN, Row, rows_of
from taihu.kernels.sw26010.ledger import Ledger
from taihu.local.display.display import human_bytes
from taihu.worker.bench.engine import step_flops
from taihu.worker.engine.models.loading import build_model
from taihu.worker.sw26010.times import layer_times

_COLUMNS = ("kernel", "configuration", "GFLOP/s", "of peak", "ms", "DMA", "limited by")


def sw26010(
    kernel: Annotated[
        Literal["all", "dgemm", "sgemm", "conv", "other"],
        typer.Option(metavar="all|dgemm|sgemm|conv|other", help="Products, convolutions, or passes over memory."),
    ] = "all",
    grid: Annotated[
        Literal["small", "swdnn", "paper"],
        typer.Option(
            metavar="small|swdnn|paper",
            help="Convolutions: a few, the 172 that swDNN's log measured, or a sweep as in its paper.",
        ),
    ] = "small",
    loop: Annotated[
        Literal["streamed", "needed", "row", "log"] | None,
        typer.Option(
            metavar="streamed|needed|row|log",
            help="Convolutions: what of the filters stays in LDM. log is the loop of the program that was measured, "
            "and the default for swdnn; streamed is that for the others.",
        ),
    ] = None,
    model: Annotated[
        str | None, typer.Option(metavar="M", help="Instead: the layers of a model in a training step.")
    ] = None,
    batch: Annotated[int, typer.Option(min=1, help="With --model: images of a step.")] = 32,
    core_groups: Annotated[
        int, typer.Option(min=1, max=4, metavar="1-4", help="With --model: that share the batch.")
    ] = 4,
    json_file: JsonOption = None,
) -> None:
    """Model kernels on the SW26010 processor of the Sunway TaihuLight: nothing is timed here.

    The times follow from the machine's constants and the kernels' blocking, see docs/sw26010.md. Products run on one
    core group, all others on four.

    \b
    Examples:
      taihu dev bench sw26010
      taihu dev bench sw26010 --kernel conv --grid swdnn --json sw26010.json
      taihu dev bench sw26010 --kernel conv --grid swdnn --loop streamed
      taihu dev bench sw26010 --model resnet20 --batch 128
    """  # noqa: D301
    check_writable(json_file)
    if model is not None:
        rows = list(_model_rows(model, batch, core_groups))
    else:
        kernels = KERNELS if kernel == "all" else (kernel,)
        rows = [row for name in kernels for row in rows_of(name, grid, loop)]
    _tell(rows)
    if model is not None:
        typer.echo(shares_of(model))
    elif kernel in ("all", "conv"):
        _summarize(rows, grid)
    if json_file is not None:
        write_json(json_file, {"rows": [row.to_json() for row in rows]})


def _model_rows(name: str, batch: int, core_groups: int) -> Iterator[Row]:
    shape, classes = usual_input(name)
    try:
        times = layer_times(build_model(name, shape, classes), shape, batch, core_groups)
    except BlockingError as error:
        raise ConfigError(f"--model {name}: {error}") from None
    total = Ledger(core_groups=core_groups)
    for layer in times:
        for direction, ledger in (("forward", layer.cost.forward), ("backward", layer.cost.backward)):
            total = total.then(ledger)
            yield Row(layer.kind, f"{layer.name} {direction}", ledger)
    yield Row(name, f"forward and backward, batch {batch}", total)


def shares_of(name: str) -> str:
    """The shares of convolutions and fully connected layers in a model's products and in its parameters, as text."""
    model = build_model(name, *usual_input(name))
    products = sum(step_flops(layer, 1) for layer in model.leaves)
    told = []
    for kind, called in (("conv", "convolutions"), ("fc", "fully connected layers")):
        layers = [layer for layer in model.parameter_layers if layer.kind == kind]
        elements = sum(tensor.elements for layer in layers for tensor in layer.tensors)
        flops = sum(step_flops(layer, 1) for layer in layers)
        told.append(f"{called} {flops / products:.1%} of its products, {elements / model.layout.elements:.1%}")
    return f"{name}: {told[0]} of its parameters; {told[1]}"


def _cells(row: Row) -> tuple[str, ...]:
    ledger = row.ledger
    if ledger is None:
        return (row.kernel, row.configuration, "-", "-", "-", "-", f"refused: {row.refused}")
    return (
        row.kernel,
        row.configuration,
        f"{ledger.gflops:.1f}",
        f"{ledger.efficiency:.1%}",
        f"{ledger.seconds * 1e3:.3f}",
        human_bytes(ledger.dma_bytes),
        ledger.limited_by,
    )


def _tell(rows: Sequence[Row]) -> None:
    console = Console()
    if not console.is_terminal:
        for row in rows:
            typer.echo("  ".join(_cells(row)))
        return
    table = Table(*_COLUMNS)
    for row in rows:
        table.add_row(*_cells(row))
    console.print(table)


def _summarize(rows: Sequence[Row], grid: str) -> None:
    speeds = [row.ledger.gflops for row in rows if row.kernel == "conv" and row.ledger is not None]
    functions: tuple[Callable[[Sequence[float]], float], ...] = (min, statistics.median, max)
    least, median, most = (function(speeds) for function in functions)
    typer.echo(f"{len(speeds)} convolutions: median {median:.0f} GFLOP/s, {least:.0f} to {most:.0f}")
    if grid == "swdnn":
        low, middle, high = PUBLISHED_SWDNN
        deviation = median / middle - 1
        typer.echo(
            f"published: median {middle:.0f} GFLOP/s, {low:.0f} to {high:.0f}; the median differs by {deviation:+.1%}"
        )
