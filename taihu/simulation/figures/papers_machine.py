"""The machine of docs/methods.md sections 2 and 3: the paper's framework on the Sunway TaihuLight."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from taihu.core.job import Job, load_job
from taihu.core.model.layout import Layout
from taihu.simulation.compute import Compute
from taihu.simulation.events import EventQueue
from taihu.simulation.job import simulate_job
from taihu.simulation.machines import Network
from taihu.simulation.network import Fabric
from taihu.simulation.placement import Placement

__all__ = [
    "BYTES_PER_SECOND",
    "RING_ALPHA_S",
    "communicating",
    "exchange_seconds",
    "start_up_seconds",
    "whole_chunks_seconds",
]

BYTES_PER_SECOND: Final = 4.46e9
RING_ALPHA_S: Final = 50e-6
_FP32_BYTES: Final = 4


def start_up_seconds(workers: int) -> float:
    """Seconds that a message of a blob takes through servers, or one transfer from each to each, however short."""
    return float(0.36e-3 * (workers - 1) ** 0.84)


def communicating(workers: int, exchange: Mapping[str, object]) -> Job:
    """A job of which nothing but its exchange matters; it has as many servers as workers, unless it is a ring."""
    return load_job(None, {"cluster": {"workers": workers, "servers": workers}, "exchange": exchange})


def exchange_seconds(job: Job, layout: Layout, placement: Placement) -> float:
    """Seconds of a step in which nothing is computed."""
    nothing = (0.0,) * len(layout.layers)
    return simulate_job(job, layout, Compute("none", nothing, nothing), placement).seconds


def whole_chunks_seconds(workers: int, elements: int, network: Network) -> float:
    """Seconds of an allreduce around a ring whose chunks are not cut: each hop waits for all of the one before."""
    queue = EventQueue()
    ranks = Fabric(queue, network, 0)
    host = ranks.host(workers)
    path = ranks.to_neighbour(host, host, workers)
    for _ in range(2 * (workers - 1)):
        path.send(_FP32_BYTES * elements / workers, lambda: None)
        queue.run()
    return queue.now
