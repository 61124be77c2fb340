"""Jobs and machines that the tests of the simulator share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from taihu.core.job import Job, load_job
from taihu.core.model.layout import LayerSpec, Layout, TensorSpec
from taihu.simulation.compute import Compute
from taihu.simulation.job import Simulated, simulate_job
from taihu.simulation.machines import Machines, Network
from taihu.simulation.placement import Placement

ALPHA_S, RATE = 1e-3, 1e8
PLAIN = Network("plain", ALPHA_S, RATE)
AT_ONCE = Machines()


def layout_of(*elements: int) -> Layout:
    """Layers of so many parameters, in backward order."""
    return Layout(tuple(LayerSpec(f"l{i}", (TensorSpec("w", (n,)),)) for i, n in enumerate(elements)))


def job_of(workers: int, servers: int = 1, **sections: Mapping[str, object]) -> Job:
    """A job with one group, frames of 4 MiB, and plain SGD; `sections` over that."""
    given: dict[str, dict[str, object]] = {
        "cluster": {"workers": workers, "servers": max(1, servers)},
        "exchange": {"kind": "server" if servers else "ring", "plan": "single", "frame_bytes": 4 << 20},
    }
    for section, values in sections.items():
        given.setdefault(section, {}).update(values)
    return load_job(None, given)


def seconds_of(layout: Layout, each: float = 0.0) -> Compute:
    """The same seconds of forward, and of backward, for every layer."""
    times = (each,) * len(layout.layers)
    return Compute("test", times, times)


def simulated(
    job: Job,
    elements: Sequence[int],
    network: Network = PLAIN,
    machines: Machines = AT_ONCE,
    *,
    each: float = 0.0,
    steps: int | None = None,
    traced: bool = False,
    seed: int = 0,
    **placed: bool,
) -> Simulated:
    """The step of a job whose layers have so many parameters, and take `each` seconds both ways."""
    layout = layout_of(*elements)
    placement = Placement(network, machines, seed=seed, **placed)
    return simulate_job(job, layout, seconds_of(layout, each), placement, steps=steps, traced=traced)
