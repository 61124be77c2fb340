"""The figure of docs/methods.md section 3: fully connected layers data-parallel, and spread by columns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Final

from taihu.core.job import load_job
from taihu.core.model.layout import LayerSpec, Layout, TensorSpec
from taihu.simulation.events import EventQueue
from taihu.simulation.fc import Stage, seconds_alone
from taihu.simulation.figures.figure import Figure, Panel, Row, Series
from taihu.simulation.figures.papers_machine import (
    BYTES_PER_SECOND,
    communicating,
    exchange_seconds,
    start_up_seconds,
    whole_chunks_seconds,
)
from taihu.simulation.machines import Machines, Network
from taihu.simulation.network import Fabric
from taihu.simulation.placement import Placement

__all__ = ["LAYERS", "FcLayer", "fully_connected", "papers_transfers_seconds"]

_WORKERS: Final = (2, 4, 8)
_BATCHES: Final = (1, 2, 4, 8, 16, 32, 64, 128)
_FP32_BYTES: Final = 4
_FIGURES: Final = (14, 15, 16)


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


def papers_transfers_seconds(layer: FcLayer, workers: int, batch: int, network: Network) -> float:
    """Seconds of the seven transfers of the paper's scheme, each of which waits for the one before.

    Every worker sends each other one the rows of its own examples: all inputs of the layer, of forward and again of
    backward; all columns of its results, and of their gradients; the sums of the inputs' gradients, and what they
    came to. The seventh is a start-up alone.
    """
    values = (layer.inputs, layer.outputs, layer.outputs, layer.inputs, layer.inputs, layer.inputs, 0)
    queue = EventQueue()
    fabric = Fabric(queue, network, 0)
    host = fabric.host(workers)
    path = fabric.to_all(host, host)
    for each in values:
        path.send(_FP32_BYTES * batch * each, lambda: None)
        queue.run()
    return queue.now


def fully_connected() -> Figure:
    """The gradient of a fully connected layer around a ring, over its activations where it is spread."""
    cells = {(layer.name, *at): _cell(layer, *at) for layer in LAYERS for at in product(_WORKERS, _BATCHES)}
    return Figure(
        "time of a data-parallel layer's communication over that of one spread by columns, M examples a worker",
        "0.36 ms (P - 1)^0.84 for the start-ups of an allreduce, and of a transfer from each to each, and 4.46 GB/s "
        "a port: one fit of the sides of these cells and the ratios of ps-vs-ring (docs/methods.md sections 2, 3)",
        [*cells.values(), *_sums(cells)],
        tuple(_panel(layer, number, cells) for layer, number in zip(LAYERS, _FIGURES, strict=True)),
        beside="the same by our transfers: four that move what is needed, and a ring whose chunks are cut",
    )


def _cell(layer: FcLayer, workers: int, batch: int) -> Row:
    start_up_s = start_up_seconds(workers)
    layout = Layout((LayerSpec(layer.name, (TensorSpec("weight", (layer.inputs + 1, layer.outputs)),)),))
    # The hops of one allreduce have one start-up together, and so have the messages of one transfer.
    hops = Network("hops", start_up_s / (2 * (workers - 1)), BYTES_PER_SECOND)
    transfers = Network("transfers", start_up_s, BYTES_PER_SECOND)
    papers = whole_chunks_seconds(workers, layout.elements, hops) / papers_transfers_seconds(
        layer, workers, batch, transfers
    )
    ring = communicating(workers, {"kind": "ring", "plan": "single"})
    around = exchange_seconds(ring, layout, Placement(hops, Machines()))
    stage = Stage(layer.name, layer.inputs, layer.outputs, True, 0.0, 0.0)
    job = load_job(None, {"cluster": {"workers": workers}, "exchange": {"fc": "shard"}, "train": {"batch": batch}})
    own = around / seconds_alone(stage, job, transfers)
    paper = (1.0, layer.most) if layer.gains(workers, batch) else (0.0, 1.0)
    row = Row(f"{layer.name}, P={workers}, M={batch}", paper, papers, beside=own)
    is_other_side = (own > 1.0) != layer.gains(workers, batch)
    term = "three start-ups of seven less, and fewer columns, turn it" if is_other_side else ""
    return Row(row.case, row.paper, row.ours, term, row.beside)


def _sums(cells: dict[tuple[str, int, int], Row]) -> Sequence[Row]:
    """The most of a layer, where it is printed, and the number of cells on the paper's side."""
    rows = []
    for layer in LAYERS:
        of_layer = [row for (name, _, _), row in cells.items() if name == layer.name]
        if layer.most < float("inf"):
            most, own = max(row.ours for row in of_layer), max(row.beside or 0.0 for row in of_layer)
            rows.append(Row(f"{layer.name}, the most", (layer.most,), most, beside=own))
    gains = [layer.gains(*at) for layer in LAYERS for at in product(_WORKERS, _BATCHES)]
    sides = [
        sum((ratio > 1.0) == gain for ratio, gain in zip(ratios, gains, strict=True))
        for ratios in ([row.ours for row in cells.values()], [row.beside or 0.0 for row in cells.values()])
    ]
    rows.append(Row("cells on the paper's side", (float(len(gains)),), float(sides[0]), beside=float(sides[1])))
    return rows


def _panel(layer: FcLayer, number: int, cells: dict[tuple[str, int, int], Row]) -> Panel:
    series = []
    for workers in _WORKERS:
        rows = [cells[layer.name, workers, batch] for batch in _BATCHES]
        series.append(Series(f"P={workers}", _BATCHES, [row.ours for row in rows]))
        series.append(Series(f"P={workers}, ours", _BATCHES, [row.beside or 0.0 for row in rows], "dashes"))
    even = Series("no gain", (), (1.0, 1.0), "range")
    title = f"{layer.name}, {layer.inputs} x {layer.outputs} (the paper's figure {number})"
    return Panel(title, "M, examples a worker", "data-parallel / by columns", (*series, even), "xy")
