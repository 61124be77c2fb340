"""The machine of docs/methods.md sections 2 and 3: the paper's framework on the Sunway TaihuLight.

Its start-ups are those with which the figure of fully connected layers comes out (`one_fit`): the middle of all pairs
whose most rounds to what is printed. A start-up is all that bytes do not take: of a blob on its way through servers,
of a transfer from each to each, of all hops of an allreduce together. No ratio depends on the rate, which turns bytes
into seconds.
"""

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

BYTES_PER_SECOND: Final = 4.46e9
_START_UP_BYTES: Final = 1.726e6
_EXPONENT: Final = 0.775
_FP32_BYTES: Final = 4


def start_up_seconds(workers: int) -> float:
    """Seconds of one blob through servers, one transfer from each to each, or one allreduce, however short."""
    return float(_START_UP_BYTES / BYTES_PER_SECOND * (workers - 1) ** _EXPONENT)


def hop_seconds(workers: int) -> float:
    """The part of an allreduce's start-up that one hop around the ring has."""
    return start_up_seconds(workers) / (2 * (workers - 1))


def communicating(workers: int, exchange: Mapping[str, object], servers: int = 0) -> Job:
    """A job of which nothing but its exchange matters; without a number it has as many servers as workers."""
    cluster = {"workers": workers, "servers": servers or workers}
    return load_job(None, {"cluster": cluster, "exchange": exchange})


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
