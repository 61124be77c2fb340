"""Figures of docs/methods.md section 2: servers beside a ring, and the ring beside MPI_Allreduce."""

from __future__ import annotations

from typing import Final

from taihu.allreduce.ring.schedule import segment_elements
from taihu.core.model.layout import LayerSpec, Layout, TensorSpec
from taihu.core.planner.groups import Group
from taihu.core.planner.model_shapes import layer_table
from taihu.simulation.figures.figure import Figure, Panel, Row, Series
from taihu.simulation.figures.papers_machine import (
    BYTES_PER_SECOND,
    RING_ALPHA_S,
    communicating,
    exchange_seconds,
    start_up_seconds,
    whole_chunks_seconds,
)
from taihu.simulation.halving_doubling import halving_doubling_seconds
from taihu.simulation.machines import Machines, Network
from taihu.simulation.placement import Placement

__all__ = ["ring_and_mpi", "servers_and_ring", "servers_over_ring"]

_FP32_BYTES: Final = 4
_SUPERNODE: Final = 256
_OVERSUBSCRIPTION: Final = 4.0
_NODES: Final = (2, 4, 8, 16, 32, 64, 128, 256, 512)
_CASES: Final = (("alexnet", 256, 10.0), ("googlenet", 32, 77.0), ("resnet50", 32, 98.0))
# docs/methods.md section 2 gives additions of 0.5 to 2 GB/s; this is the middle, as their product is its square.
_MPI_ADDS: Final = 1e9
_MPI_ADDS_DRAWN: Final = (0.25e9, 0.5e9, 0.75e9, 1e9, 1.5e9, 2e9, 4e9, 8e9)
_PRINTED_ALLREDUCE: Final = (2.3, 4.1)
_RING: Final = Network("ring", RING_ALPHA_S, BYTES_PER_SECOND)


def servers_and_ring() -> Figure:
    """Communication through as many servers as workers, blob by blob, over that around the ring."""
    curves = {model: [servers_over_ring(model, nodes) for nodes in _NODES] for model, _, _ in _CASES}
    rows = [_row(*case, dict(zip(_NODES, curves[case[0]], strict=True))[case[1]]) for case in _CASES]
    series = [Series(model, _NODES, ratios) for model, ratios in curves.items()]
    points = Series("printed", [nodes for _, nodes, _ in _CASES], [paper for _, _, paper in _CASES], "points")
    return Figure(
        "time of communication through servers, one message a blob and no two under way, over that around a ring",
        "start-ups of the servers' messages, 0.36 ms (P - 1)^0.84 for each blob and way, and 4.46 GB/s a port are "
        "those with which all 72 cells of the figure of fully connected layers come out; 50 us for a hop of the ring",
        rows,
        (Panel("through servers / around a ring", "nodes", "ratio", (*series, points), "xy"),),
        beside="over a ring whose chunks are not cut",
    )


def _row(model: str, workers: int, paper: float, ours: float) -> Row:
    layout = _blobs(model)
    segment = segment_elements(layout, Group(0, len(layout.layers) - 1), workers, _FP32_BYTES)
    is_cut = layout.elements / workers > segment
    term = "our ring sends a chunk in segments, which hide the start-ups of its hops" if is_cut else ""
    through = _through_servers(layout, workers)
    whole = through / whole_chunks_seconds(workers, layout.elements, _RING)
    return Row(f"{model}, {workers} nodes", (paper,), ours, term, beside=whole)


def servers_over_ring(model: str, workers: int) -> float:
    """Seconds of a step's communication through as many servers as workers, over those around a ring."""
    blobs = _blobs(model)
    ring = communicating(workers, {"kind": "ring", "plan": "single"})
    return _through_servers(blobs, workers) / exchange_seconds(ring, blobs, Placement(_RING, Machines()))


def _through_servers(blobs: Layout, workers: int) -> float:
    start_up_s = start_up_seconds(workers)
    # A port is busy with each of the P - 1 messages of a blob; together they are the start-up.
    of_servers = Network("caffe", 0.0, BYTES_PER_SECOND, message_seconds=start_up_s / (workers - 1))
    waiting = {"kind": "server", "plan": "per-layer", "window_frames": 1, "frame_bytes": 4 << 20}
    beside = Placement(of_servers, Machines(), servers_beside=True)
    return exchange_seconds(communicating(workers, waiting), blobs, beside)


def _blobs(model: str) -> Layout:
    """Caffe's blobs: the tensors of a layer table, and three more of every batch norm."""
    layers = []
    for layer in layer_table(model).layers:
        layers += [LayerSpec(f"{layer.name}.{tensor.name}", (tensor,)) for tensor in layer.tensors]
        if layer.name.endswith("_bn"):
            shapes = (*(tensor.shape for tensor in layer.tensors), (1,))
            layers += [
                LayerSpec(f"{layer.name}.moment{i}", (TensorSpec("m", shape),)) for i, shape in enumerate(shapes)
            ]
    return Layout(tuple(layers))


def ring_and_mpi() -> Figure:
    """The ring beside MPI_Allreduce on two supernodes."""
    nodes, layout = 512, Layout((LayerSpec("all", (TensorSpec("values", (60_970_000,)),)),))
    network = Network(
        "two supernodes",
        RING_ALPHA_S,
        BYTES_PER_SECOND,
        supernode=_SUPERNODE,
        oversubscription=_OVERSUBSCRIPTION,
    )
    job = communicating(nodes, {"kind": "ring", "plan": "single"})
    ring = exchange_seconds(job, layout, Placement(network, Machines()))

    def ratio(adds_bytes_per_second: float) -> float:
        machines = Machines(add_bytes_per_second=adds_bytes_per_second)
        return halving_doubling_seconds(nodes, _FP32_BYTES * layout.elements, network, machines) / ring

    drawn = Series("ours", [rate / 1e9 for rate in _MPI_ADDS_DRAWN], [ratio(rate) for rate in _MPI_ADDS_DRAWN])
    printed = Series("printed", (), _PRINTED_ALLREDUCE, "range")
    used = Series("used", [_MPI_ADDS / 1e9], [ratio(_MPI_ADDS)], "points")
    case = f"MPI_Allreduce over ring, additions of MPI at {_MPI_ADDS / 1e9:g} GB/s"
    return Figure(
        "60.97 M parameters on 512 nodes in 2 supernodes: MPI_Allreduce by halving and doubling over the ring",
        "4.46 GB/s and 50 us as in ps-vs-ring; links between supernodes are 4 times slower; MPI adds on one core, at "
        "1 GB/s, the middle of 0.5 to 2 (the paper states no rate), the ring on the mesh, whose additions are hidden",
        [Row(case, _PRINTED_ALLREDUCE, ratio(_MPI_ADDS))],
        (Panel("MPI_Allreduce / ring", "GB/s that MPI adds", "ratio", (drawn, used, printed), "x"),),
    )
