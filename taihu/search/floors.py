"""The least time that a step of a job can take, from its bytes and its compute alone: what needs no simulation. Pure.

A step takes no less than its compute and the exchange of the last layer, which nothing hides: backward comes to it
last, and forward reads it first. Nor does it take less than the busiest port needs for its bytes, or the thread that
selects for its passes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from taihu.core.coordination.plans.planning import planned_compression
from taihu.core.job import Job
from taihu.core.model.layout import Layout
from taihu.core.planner.partition import SPARSE_FRAME_ELEMENTS
from taihu.core.planner.profile import Profile, rice_bits_per_index
from taihu.core.wire.frames.headers import ValueType
from taihu.simulation.compute import Pace
from taihu.simulation.placement import Placement

# Instants are rounded, and selections to whole values.
_ROUNDED: Final = 1.0 - 1e-9
_WHOLE_VALUES: Final = 0.97
# A mean of few steps that differ may leave out some of what ports carry in the long run.
_OF_FEW_STEPS: Final = 0.9


@dataclass(frozen=True)
class Floor:
    """Seconds that nothing can shorten: of compute and what follows it, of the busiest port, of selecting."""

    compute: float
    transfers: float
    selection: float

    @property
    def seconds(self) -> float:
        """No step is shorter."""
        return max(self.compute, self.transfers, self.selection) * _ROUNDED

    @property
    def largest(self) -> str:
        """The name of the one that is the longest."""
        terms = {"compute": self.compute, "transfers": self.transfers, "selection": self.selection}
        return max(terms, key=terms.__getitem__)


def floor_of(job: Job, layout: Layout, costs: Profile, compute_seconds: float, placement: Placement) -> Floor:
    """The floor of a step of `job`.

    Args:
        job: as it would run.
        layout: of what it exchanges.
        costs: of its links and of selecting.
        compute_seconds: of the slowest worker.
        placement: where it would run.
    """
    port_seconds = _busiest_port(job, layout.elements, costs, placement) / placement.network.bytes_per_second
    if _is_uneven(placement):
        port_seconds *= _OF_FEW_STEPS
    return Floor(
        compute=compute_seconds + _uncovered(job, layout.layers[-1].elements, costs, placement),
        transfers=port_seconds,
        selection=_selection_seconds(job, layout, costs),
    )


def slowest_pace(placement: Placement, workers: int, steps: int) -> float:
    """The mean pace, in all steps but the first, of the worker whose compute takes the longest."""
    machines = placement.machines
    if not machines.jitter:
        return machines.straggler_slowdown if machines.stragglers and machines.straggler_slowdown > 1.0 else 1.0
    paces = (Pace(machines, rank, workers, placement.seed) for rank in range(workers))
    return max(sum(pace.of(step) for step in range(2, steps + 1)) / (steps - 1) for pace in paces)


def _uncovered(job: Job, elements: int, costs: Profile, placement: Placement) -> float:
    """Seconds of the exchange of the last layer, of so many elements.

    A worker that is slower than others finds the parts of these where they belong: nothing is said of it. Who sends
    while a first answer is on its way, as a server's host does that is a worker's too, has start-ups and bytes at the
    same time. A half-duplex port counts as if both directions were its own: the worker that is answered last computes
    while others push already.
    """
    network, workers = placement.network, job.world.workers
    if _is_uneven(placement) or (workers == 1 and (placement.servers_beside or not job.servers)):
        return 0.0
    hops = 2 if job.servers else 1 if job.compression.method.selects else 2 * (workers - 1)
    one_way = replace(placement, network=replace(network, full_duplex=True))
    start_ups = hops * network.alpha_seconds
    port_seconds = _busiest_port(job, elements, costs, one_way) / network.bytes_per_second
    if job.servers and placement.servers_beside:
        return max(start_ups, port_seconds)
    return start_ups + port_seconds


def _is_uneven(placement: Placement) -> bool:
    """Whether workers differ."""
    return placement.is_random or placement.machines.stragglers > 0


def _busiest_port(job: Job, elements: int, costs: Profile, placement: Placement) -> float:
    """Bytes of the exchange of so many elements at the port with the most, of the direction with more."""
    workers, servers = job.world.workers, job.servers
    up, down = _bytes_each_way(job, elements, costs)
    if not servers:
        around = 2.0 * (workers - 1) / workers * up
        out, into = around, around
    else:
        shared = workers / servers
        if placement.servers_beside:
            own, others = (servers - 1) / servers, (workers - 1) / servers
            out, into = own * up + others * down, own * down + others * up
            if servers < workers:
                out, into = max(out, up), max(into, down)
        else:
            out, into = max(up, shared * down), max(down, shared * up)
    return max(out, into) if placement.network.full_duplex or _is_uneven(placement) else out + into


def _bytes_each_way(job: Job, elements: int, costs: Profile) -> tuple[float, float]:
    """The least bytes that a worker pushes and gets back, of so many elements."""
    settings = job.compression
    dense = float(elements * costs.dense_value_bytes)
    if not settings.method.selects:
        return dense, dense
    density = settings.share
    index_bytes = (float(rice_bits_per_index(np.asarray(density))) if density <= 0.5 else 1.0) / 8.0
    if settings.method.sends_all:
        index_bytes = 0.0
    up, down = (
        _WHOLE_VALUES * density * elements * (ValueType.named(name).bytes_each + index_bytes)
        for name in (settings.value_type, settings.downlink_value_type)
    )
    if not job.servers:
        return up, up
    # A server that selects anew sends no more than a worker.
    down = min(up, down) if job.downlink == "doublesqueeze" else down
    down = dense if job.downlink == "dense" else down * min(1.0, costs.sparse_down_ratio)
    return up * costs.sparse_up_ratio, down


def _selection_seconds(job: Job, layout: Layout, costs: Profile) -> float:
    if not job.compression.method.selects:
        return 0.0
    compression = planned_compression(job, SPARSE_FRAME_ELEMENTS)
    whole = compression.sizes(costs, np.array([0]), np.array([len(layout.layers) - 1]))
    return float(compression.seconds(costs, whole).item())
