"""The costs that a job's workers would measure on simulated machines, and the plan that would be made of them."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Final

from taihu.core.coordination.plans.plan import Plan
from taihu.core.coordination.plans.planning import Planning
from taihu.core.job import Job
from taihu.core.model.layout import Layout
from taihu.core.planner.profile import LayerCost, LinearCost, LinkCost, Profile
from taihu.simulation.compute import Compute
from taihu.simulation.machines import Network

# What a pass over gradients costs that was not measured: an exact selection takes about four scans.
_SCAN: Final = LinearCost(20e-6, 0.5e-9)
_TOP_K: Final = LinearCost(80e-6, 2e-9)


def plan_of(job: Job, layout: Layout, costs: Profile) -> Plan:
    """The plan that the job's coordinator makes of these costs."""
    planning = Planning(job, layout)
    planning.adopt(0, costs, planning.plan.carriage)
    return planning.plan


def costs_of(
    job: Job, layout: Layout, compute: Compute, network: Network, measured: Profile | None = None
) -> Profile:
    """The profile that the job's workers would measure; the costs of selecting are `measured` ones, if there are any.

    An exchange around a ring starts up as often as it has hops, which grow with the workers.
    """
    workers, servers = job.world.workers, job.servers
    per_byte = 1.0 / network.bytes_per_second
    start_up = network.alpha_seconds + network.message_seconds
    shared = max(workers / servers, 1.0) * per_byte if servers else per_byte
    turns = 1 if servers else workers - 1
    layers = zip(layout.layers, compute.backward, strict=True)
    profile = Profile(
        layers=tuple(LayerCost(layer.name, layer.elements, seconds) for layer, seconds in layers),
        forward_seconds=math.fsum(compute.forward) + compute.before_last_seconds,
        scan=_SCAN,
        top_k=_TOP_K,
        link=LinkCost(2.0 * turns * start_up, shared, shared if servers else 0.0),
        workers=workers,
        servers=servers,
        batch=job.train.batch,
        local_steps=compute.local_steps,
        dense_value_bytes=4 if job.train.precision == "fp32" else 2,
    )
    if measured is None:
        return profile
    return replace(
        profile,
        scan=measured.scan,
        top_k=measured.top_k,
        sparse_up_ratio=measured.sparse_up_ratio,
        sparse_down_ratio=measured.sparse_down_ratio,
        refresh_ratio=measured.refresh_ratio,
    )
