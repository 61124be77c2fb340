"""Figures of the papers beside what the simulator says; their claims and constants are in docs/methods.md."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Final

from allreduce.ring.schedule import segment_elements
from taihu.job import Job, load_job
from taihu.layout import LayerSpec, Layout, TensorSpec
from taihu.planner.groups import Group
from taihu.planner.model_shapes import layer_table
from taihu.planner.zero_tables import memory_per_device
from taihu.simulation.compute import Compute
from taihu.simulation.fc import Stage, seconds_alone
from taihu.simulation.halving_doubling import halving_doubling_seconds
from taihu.simulation.job import simulate_job
from taihu.simulation.machines import Machines, Network
from taihu.simulation.placement import Placement

__all__ = ["FIGURES", "Figure", "Row"]

# docs/methods.md section 2: bytes of a port of the paper's machine in its framework.
_CAFFE_BYTES_PER_SECOND: Final = 4.46e9
_RING_ALPHA_S: Final = 50e-6
_SUPERNODE: Final = 256
_FP32_BYTES: Final = 4
_OVERSUBSCRIPTION: Final = 4.0


@dataclass(frozen=True)
class Row:
    """One number: the paper's, or the two that it lies between, and ours; `term` explains a deviation."""

    case: str
    paper: tuple[float, ...]
    ours: float
    term: str = ""

    @property
    def deviation(self) -> float:
        """The share by which ours is above the paper's number, or outside of its two."""
        nearest = min(max(self.ours, self.paper[0]), self.paper[-1])
        return self.ours / nearest - 1.0 if nearest else 0.0

    def to_json(self) -> dict[str, Any]:
        """The row of the results."""
        paper = self.paper[0] if len(self.paper) == 1 else list(self.paper)
        return {"case": self.case, "paper": paper, "ours": self.ours, "deviation": self.deviation, "term": self.term}


@dataclass(frozen=True)
class Figure:
    """A figure: what it shows, where its constants are from, and its rows."""

    title: str
    constants: str
    rows: Sequence[Row]


def servers_and_ring() -> Figure:
    """Communication through as many servers as workers, blob by blob, over that around the ring."""
    cases = (("alexnet", 256, 10.0), ("googlenet", 32, 77.0), ("resnet50", 32, 98.0))
    return Figure(
        "time of communication through servers, one message a blob and no two under way, over that around a ring",
        "start-ups of the servers' messages, 0.36 ms (P - 1)^0.84 for each blob and way, are those with which all 72 "
        "cells of the figure of fully connected layers come out; 4.46 GB/s a port; 50 us for a hop of the ring",
        [_servers_and_ring(*case) for case in cases],
    )


def _servers_and_ring(model: str, workers: int, paper: float) -> Row:
    blobs = _blobs(model)
    start_up_s = 0.36e-3 * (workers - 1) ** 0.84
    # A port is busy with each of the P - 1 messages of a blob; together they are the start-up.
    of_servers = Network("caffe", 0.0, _CAFFE_BYTES_PER_SECOND, message_seconds=start_up_s / (workers - 1))
    of_ring = Network("ring", _RING_ALPHA_S, _CAFFE_BYTES_PER_SECOND)
    waiting = {"kind": "server", "plan": "per-layer", "window_frames": 1, "frame_bytes": 4 << 20}
    through = _exchange_seconds(_job(workers, waiting), blobs, Placement(of_servers, Machines(), servers_beside=True))
    around = _exchange_seconds(
        _job(workers, {"kind": "ring", "plan": "single"}), blobs, Placement(of_ring, Machines())
    )
    chunk = blobs.elements / workers
    is_cut = chunk > segment_elements(blobs, Group(0, len(blobs.layers) - 1), workers, _FP32_BYTES)
    term = "our ring sends a chunk in segments, which hide the start-ups of its hops" if is_cut else ""
    return Row(f"{model}, {workers} nodes", (paper,), through / around, term)


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


def _job(workers: int, exchange: Mapping[str, object]) -> Job:
    return load_job(None, {"cluster": {"workers": workers, "servers": workers}, "exchange": exchange})


def _exchange_seconds(job: Job, layout: Layout, placement: Placement) -> float:
    """Seconds of a step in which nothing is computed."""
    nothing = (0.0,) * len(layout.layers)
    return simulate_job(job, layout, Compute("none", nothing, nothing), placement).seconds


def ring_and_mpi() -> Figure:
    """The ring beside MPI_Allreduce on two supernodes."""
    nodes, layout = 512, Layout((LayerSpec("all", (TensorSpec("values", (60_970_000,)),)),))
    network = Network(
        "two supernodes",
        _RING_ALPHA_S,
        _CAFFE_BYTES_PER_SECOND,
        supernode=_SUPERNODE,
        oversubscription=_OVERSUBSCRIPTION,
    )
    job = _job(nodes, {"kind": "ring", "plan": "single"})
    ring = _exchange_seconds(job, layout, Placement(network, Machines()))
    size_bytes = 4 * layout.elements
    rows = [
        Row(
            f"MPI_Allreduce over ring, additions of MPI at {rate / 1e9:g} GB/s",
            (2.3, 4.1),
            halving_doubling_seconds(nodes, size_bytes, network, Machines(add_bytes_per_second=rate)) / ring,
            "" if rate == _MPI_ADDS[1] else "an end of what additions may reach",
        )
        for rate in _MPI_ADDS
    ]
    return Figure(
        "60.97 M parameters on 512 nodes in 2 supernodes: MPI_Allreduce by halving and doubling over the ring",
        "4.46 GB/s and 50 us as in ps-vs-ring; links between supernodes are 4 times slower; MPI adds on one core, at "
        "0.5 to 2 GB/s, the ring on the mesh, whose additions are hidden",
        rows,
    )


_MPI_ADDS: Final = (0.5e9, 1e9, 2e9)


def fully_connected() -> Figure:
    """The gradient of a fully connected layer around a ring, over its activations where it is spread."""
    rows = [
        _fully_connected(layer, workers, batch)
        for layer in _FC
        for workers in (2, 4, 8)
        for batch in (1, 2, 4, 8, 16, 32, 64, 128)
    ]
    return Figure(
        "time of a data-parallel layer's communication over that of one spread by columns, M examples a worker",
        "start-ups of 0.36 ms (P - 1)^0.84 for an allreduce, and for a transfer from each to each, are those of the "
        "figure ps-vs-ring; 4.46 GB/s a port",
        rows,
    )


@dataclass(frozen=True)
class _FcLayer:
    """A layer of VGG-16 as the figure has it: K inputs, N outputs, the most that spreading gains, and where."""

    name: str
    inputs: int
    outputs: int
    most: float
    gains: Callable[[int, int], bool]


_FC: Final = (
    _FcLayer("FC1", 25088, 4096, 33.0, lambda workers, batch: True),
    _FcLayer("FC2", 4096, 4096, 6.0, lambda workers, batch: (workers, batch) != (8, 128)),
    _FcLayer(
        "FC3", 4096, 1000, 33.0, lambda workers, batch: (workers == 2 and batch <= 64) or (workers, batch) == (4, 1)
    ),
)


def _fully_connected(layer: _FcLayer, workers: int, batch: int) -> Row:
    start_up_s = 0.36e-3 * (workers - 1) ** 0.84
    layout = Layout((LayerSpec(layer.name, (TensorSpec("weight", (layer.inputs + 1, layer.outputs)),)),))
    # The hops of one allreduce have one start-up together, and so have the messages of one transfer.
    hops = Network("hops", start_up_s / (2 * (workers - 1)), _CAFFE_BYTES_PER_SECOND)
    around = _exchange_seconds(_job(workers, {"kind": "ring", "plan": "single"}), layout, Placement(hops, Machines()))
    stage = Stage(layer.name, layer.inputs, layer.outputs, True, 0.0, 0.0)
    job = load_job(None, {"cluster": {"workers": workers}, "exchange": {"fc": "shard"}, "train": {"batch": batch}})
    spread = seconds_alone(stage, job, Network("transfers", start_up_s, _CAFFE_BYTES_PER_SECOND))
    gains = layer.gains(workers, batch)
    row = Row(f"{layer.name}, P={workers}, M={batch}", (1.0, layer.most) if gains else (0.0, 1.0), around / spread)
    term = "our transfers are four and move what is needed; the paper's are seven, with all columns"
    return replace(row, term=term) if row.deviation else row


def zero_memory() -> Figure:
    """Table 1 of the ZeRO paper."""
    title, *ours = memory_per_device()
    rows = [
        Row(f"{devices} devices, {column}", (paper,), float(own))
        for (devices, *owns), papers in zip(ours, _ZERO_GB, strict=True)
        for column, paper, own in zip(title[1:], papers, owns, strict=True)
    ]
    return Figure("GB of model states on each device, mixed precision and Adam", "12 bytes of optimizer state", rows)


_ZERO_GB: Final = (
    (120, 120, 120, 2048, 2048, 2048, 16000, 16000, 16000),
    (52.5, 41.3, 30, 896, 704, 512, 7000, 5500, 4000),
    (35.6, 21.6, 7.5, 608, 368, 128, 4750, 2875, 1000),
    (31.4, 16.6, 1.88, 536, 284, 32, 4187, 2218, 250),
    (30.4, 15.4, 0.47, 518, 263, 8, 4046, 2054, 62.5),
    (30.1, 15.1, 0.12, 513, 257, 2, 4011, 2013, 15.6),
)

FIGURES: Final[Mapping[str, Callable[[], Figure]]] = MappingProxyType(
    {"ps-vs-ring": servers_and_ring, "ring-vs-mpi": ring_and_mpi, "fc": fully_connected, "zero-memory": zero_memory}
)
"""The figures by name."""
