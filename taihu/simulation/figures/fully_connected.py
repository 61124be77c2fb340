"""The figure of docs/methods.md section 3: fully connected layers data-parallel, and spread by columns."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Final

from taihu.core.job import load_job
from taihu.core.model.layout import LayerSpec, Layout, TensorSpec
from taihu.simulation.events import EventQueue
from taihu.simulation.fc import Stage, seconds_alone
from taihu.simulation.figures.figure import Figure, Panel, Row, Series
from taihu.simulation.figures.one_fit import BATCHES, LAYERS, WORKERS, FcLayer
from taihu.simulation.figures.papers_machine import (
    BYTES_PER_SECOND,
    communicating,
    exchange_seconds,
    hop_seconds,
    start_up_seconds,
    whole_chunks_seconds,
)
from taihu.simulation.machines import Machines, Network
from taihu.simulation.network import Fabric
from taihu.simulation.placement import Placement

_FP32_BYTES: Final = 4
_FIGURES: Final = (14, 15, 16)
# Table 1 of the paper: exchanges of a step by columns, and of a data-parallel layer.
_PRINTED_TRANSFERS: Final = 7


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
    cells = {(layer.name, *at): _cell(layer, *at) for layer in LAYERS for at in product(WORKERS, BATCHES)}
    return Figure(
        "time of a data-parallel layer's communication over that of one spread by columns, M examples a worker",
        "start-ups of an allreduce, and of a transfer from each to each, as long as 1.726 MB (P - 1)^0.775 of a "
        "port: fitted to the sides of these cells and the most of FC1 and FC2, and to nothing else",
        [*cells.values(), *_sums(cells), *_transfers()],
        tuple(_panel(layer, number, cells) for layer, number in zip(LAYERS, _FIGURES, strict=True)),
        beside={"ours": "by our transfers: four that move what is needed, and a ring whose chunks are cut"},
    )


def _cell(layer: FcLayer, workers: int, batch: int) -> Row:
    layout = Layout((LayerSpec(layer.name, (TensorSpec("weight", (layer.inputs + 1, layer.outputs)),)),))
    # The hops of one allreduce have one start-up together, and so have the messages of one transfer.
    hops = Network("hops", hop_seconds(workers), BYTES_PER_SECOND)
    transfers = Network("transfers", start_up_seconds(workers), BYTES_PER_SECOND)
    papers = whole_chunks_seconds(workers, layout.elements, hops) / papers_transfers_seconds(
        layer, workers, batch, transfers
    )
    ring = communicating(workers, {"kind": "ring", "plan": "single"})
    around = exchange_seconds(ring, layout, Placement(hops, Machines()))
    stage = Stage(layer.name, layer.inputs, layer.outputs, True, 0.0, 0.0)
    job = load_job(None, {"cluster": {"workers": workers}, "exchange": {"fc": "shard"}, "train": {"batch": batch}})
    own = around / seconds_alone(stage, job, transfers)
    paper = (1.0, layer.most) if layer.gains(workers, batch) else (0.0, 1.0)
    is_other_side = (own > 1.0) != layer.gains(workers, batch)
    term = "three start-ups of seven less, and fewer columns, turn it" if is_other_side else ""
    case = f"{layer.name}, P={workers}, M={batch}"
    return Row(case, paper, papers, term, {"ours": own}, basis="fitted")


def _sums(cells: dict[tuple[str, int, int], Row]) -> Sequence[Row]:
    """The most of a layer, where it is printed, and the number of cells on the paper's side."""
    rows = []
    for layer in LAYERS:
        of_layer = [row for (name, _, _), row in cells.items() if name == layer.name]
        if layer.most < float("inf"):
            most, own = max(row.ours for row in of_layer), max(row.beside["ours"] for row in of_layer)
            rows.append(Row(f"{layer.name}, the most", (layer.most,), most, beside={"ours": own}, basis="fitted"))
    gains = [layer.gains(*at) for layer in LAYERS for at in product(WORKERS, BATCHES)]
    sides = [
        sum((ratio > 1.0) == gain for ratio, gain in zip(ratios, gains, strict=True))
        for ratios in ([row.ours for row in cells.values()], [row.beside["ours"] for row in cells.values()])
    ]
    beside, on_side = {"ours": float(sides[1])}, float(sides[0])
    rows.append(Row("cells on the paper's side", (float(len(gains)),), on_side, beside=beside, basis="fitted"))
    return rows


def _transfers() -> Sequence[Row]:
    """Table 1 of the paper: exchanges of a layer in a step."""
    by_columns = Row(
        "exchanges of a step, by columns", (float(_PRINTED_TRANSFERS),), 7.0, beside={"ours": 4.0}, basis="definition"
    )
    return Row("exchanges of a step, data-parallel", (1.0,), 1.0, basis="definition"), by_columns


def _panel(layer: FcLayer, number: int, cells: dict[tuple[str, int, int], Row]) -> Panel:
    series = []
    for workers in WORKERS:
        rows = [cells[layer.name, workers, batch] for batch in BATCHES]
        series.append(Series(f"P={workers}", BATCHES, [row.ours for row in rows]))
        series.append(Series(f"P={workers}, ours", BATCHES, [row.beside["ours"] for row in rows], "dashes"))
    even = Series("no gain", (), (1.0, 1.0), "range")
    title = f"{layer.name}, {layer.inputs} x {layer.outputs} (the paper's figure {number})"
    return Panel(title, "M, examples a worker", "data-parallel / by columns", (*series, even), "xy")
