"""Figures of docs/methods.md section 2: servers beside a ring, and the ring beside MPI_Allreduce."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from taihu.core.model.layout import LayerSpec, Layout, TensorSpec
from taihu.core.planner.model_shapes import layer_table
from taihu.simulation.figures.figure import Figure, Panel, Row, Series
from taihu.simulation.figures.one_fit import constants_that_fit, servers_over_ring_by_formula
from taihu.simulation.figures.papers_machine import (
    BYTES_PER_SECOND,
    communicating,
    exchange_seconds,
    hop_seconds,
    start_up_seconds,
    whole_chunks_seconds,
)
from taihu.simulation.halving_doubling import halving_doubling_seconds
from taihu.simulation.machines import Machines, Network
from taihu.simulation.placement import Placement

_FP32_BYTES: Final = 4
_SUPERNODE: Final = 256
_OVERSUBSCRIPTION: Final = 4.0
_NODES: Final = (2, 4, 8, 16, 32, 64, 128, 256, 512)
_PRINTED: Final[Mapping[tuple[str, int], float]] = MappingProxyType(
    {("alexnet", 256): 10.0, ("googlenet", 32): 77.0, ("resnet50", 32): 98.0}
)
_MODELS: Final = ("alexnet", "googlenet", "resnet50")
# The paper says of few nodes that there is little difference.
_FEW: Final = (4, 8, 16)
_LITTLE: Final = 2.0
_SHOWN: Final = (*_FEW, 32, 256, 512)
# docs/methods.md section 2 gives additions of 1 and 2 GB/s for the two ends; this is in between.
_MPI_ADDS: Final = 1e9
_SIZES: Final = (25_000, 250_000, 2_500_000, 25_000_000)
_CHUNKS: Final = "1,022 hops have more start-ups than 18 exchanges"
_MPI_ADDS_DRAWN: Final = (0.25e9, 0.5e9, 0.75e9, 1e9, 1.5e9, 2e9, 4e9, 8e9)
_PRINTED_ALLREDUCE: Final = (2.3, 4.1)
_PRINTED_LINK: Final = 14e9
_PRINTED_ALPHA_S: Final = 1e-6
_WIDE: Final = 0.2
_FIT: Final = "start-ups of the other figure: the largest that fit it give {:.0f}"
_BLOBS: Final = "two start-ups a blob, which the fit gives few nodes, too"


def servers_and_ring() -> Figure:
    """Communication through as many servers as workers, blob by blob, over that around the ring."""
    curves = {(model, nodes): servers_over_ring(model, nodes) for model in _MODELS for nodes in _NODES}
    series = [Series(model, _NODES, [curves[model, nodes] for nodes in _NODES]) for model in _MODELS]
    points = Series("printed", [nodes for _, nodes in _PRINTED], list(_PRINTED.values()), "points")
    return Figure(
        "time of communication through servers, one message a blob and no two under way, over that around a ring",
        "a start-up as long as 1.726 MB (P - 1)^0.775 of a port for each blob and way, and for all hops of the ring "
        "together: those of the figure of fully connected layers, nothing from this one",
        [_row(model, nodes, curves[model, nodes]) for model in _MODELS for nodes in _SHOWN],
        (Panel("through servers / around a ring", "nodes", "ratio", (*series, points), "xy"),),
        beside={
            "whole chunks": "over a ring whose chunks are not cut",
            "one server": "through one server, on rank 0, that broadcasts and gathers each blob",
            "printed link": "as many servers, by 14 GB/s a port, as printed of the machine, and 1 us a message",
            "least": "by the formulas, of all start-ups with which the other figure's 72 sides come out",
            "most": "the most of these",
        },
    )


def _row(model: str, workers: int, ours: float) -> Row:
    layout = _blobs(model)
    through, network = _through_servers(layout, workers, workers), _ring(workers)
    whole = through / whole_chunks_seconds(workers, layout.elements, network)
    one = _through_servers(layout, workers, 1) / _around_ring(layout, workers, network)
    least, most = servers_over_ring_by_formula(
        len(layout.layers), _FP32_BYTES * layout.elements, workers, constants_that_fit(rounded=False)
    )
    beside = {
        "whole chunks": whole,
        "one server": one,
        "printed link": _by_printed_link(layout, workers),
        "least": least,
        "most": most,
    }
    case, printed = f"{model}, {workers} nodes", _PRINTED.get((model, workers))
    if printed is not None:
        term = _FIT.format(most) if abs(ours / printed - 1.0) > _WIDE else ""
        return Row(case, (printed,), ours, term, beside, basis="predicted")
    if workers in _FEW:
        agrees = ours <= _LITTLE
        term = "" if agrees else _BLOBS
        return Row(case, (), ours, term, beside, basis="in words", words="little difference", agrees=agrees)
    return Row(case, (), ours, "", beside, basis="not printed")


def servers_over_ring(model: str, workers: int) -> float:
    """Seconds of a step's communication through as many servers as workers, over those around a ring."""
    blobs = _blobs(model)
    return _through_servers(blobs, workers, workers) / _around_ring(blobs, workers, _ring(workers))


def _ring(workers: int) -> Network:
    return Network("ring", hop_seconds(workers), BYTES_PER_SECOND)


def _around_ring(blobs: Layout, workers: int, network: Network) -> float:
    job = communicating(workers, {"kind": "ring", "plan": "single"})
    return exchange_seconds(job, blobs, Placement(network, Machines()))


def _through_servers(blobs: Layout, workers: int, servers: int) -> float:
    # A port is busy with each of the P - 1 messages of a blob; together they are the start-up.
    each_s = start_up_seconds(workers) / (workers - 1)
    return _by_blobs(blobs, workers, servers, Network("caffe", 0.0, BYTES_PER_SECOND, message_seconds=each_s))


def _by_printed_link(blobs: Layout, workers: int) -> float:
    servers = Network("printed", 0.0, _PRINTED_LINK, message_seconds=_PRINTED_ALPHA_S)
    ring = Network("printed", _PRINTED_ALPHA_S, _PRINTED_LINK)
    return _by_blobs(blobs, workers, workers, servers) / _around_ring(blobs, workers, ring)


def _by_blobs(blobs: Layout, workers: int, servers: int, network: Network) -> float:
    waiting = {"kind": "server", "plan": "per-layer", "window_frames": 1, "frame_bytes": 4 << 20}
    job = communicating(workers, waiting, servers=servers)
    return exchange_seconds(job, blobs, Placement(network, Machines(), servers_beside=True))


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
    nodes = 512
    network = Network(
        "two supernodes",
        hop_seconds(nodes),
        BYTES_PER_SECOND,
        supernode=_SUPERNODE,
        oversubscription=_OVERSUBSCRIPTION,
    )
    job = communicating(nodes, {"kind": "ring", "plan": "single"})

    def ratio(elements: int, adds_bytes_per_second: float) -> float:
        layout = Layout((LayerSpec("all", (TensorSpec("values", (elements,)),)),))
        ring = exchange_seconds(job, layout, Placement(network, Machines()))
        machines = Machines(add_bytes_per_second=adds_bytes_per_second)
        return halving_doubling_seconds(nodes, _FP32_BYTES * elements, network, machines) / ring

    all_of = 60_970_000
    drawn = Series(
        "ours", [rate / 1e9 for rate in _MPI_ADDS_DRAWN], [ratio(all_of, rate) for rate in _MPI_ADDS_DRAWN]
    )
    printed = Series("printed", (), _PRINTED_ALLREDUCE, "range")
    used = Series("used", [_MPI_ADDS / 1e9], [ratio(all_of, _MPI_ADDS)], "points")
    sizes = {model: layer_table(model).elements for model in _MODELS}
    by_size = {size: ratio(size, _MPI_ADDS) for size in (*_SIZES, *sizes.values())}
    line = Series("ours", [4e-6 * size for size in sorted(by_size)], [by_size[size] for size in sorted(by_size)])
    even = Series("as fast", (), (1.0, 1.0), "range")
    case = f"60.97 M parameters, additions of MPI at {_MPI_ADDS / 1e9:g} GB/s"
    rows = [Row(case, _PRINTED_ALLREDUCE, ratio(all_of, _MPI_ADDS), basis="bound")]
    rows += [
        Row(f"{model}, {4e-6 * size:.1f} MB", (), by_size[size], _CHUNKS * (by_size[size] < 1.0), basis="not printed")
        for model, size in sizes.items()
    ]
    rows += [
        Row(f"{4e-6 * size:g} MB", (), by_size[size], _CHUNKS * (by_size[size] < 1.0), basis="not printed")
        for size in _SIZES
    ]
    return Figure(
        "an allreduce on 512 nodes in 2 supernodes: MPI_Allreduce by halving and doubling over the ring",
        "start-ups as in ps-vs-ring; links between supernodes are 4 times slower; MPI adds on one core, at 1 GB/s "
        "(the paper states no rate), the ring on the mesh, whose additions are hidden",
        rows,
        (
            Panel("60.97 M parameters", "GB/s that MPI adds", "MPI_Allreduce / ring", (drawn, used, printed), "x"),
            Panel("by size", "MB", "MPI_Allreduce / ring", (line, even), "x"),
        ),
    )
