"""The steps of a job's candidates on given machines: their floors, their simulation, and the terms of their time."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from taihu.core.base.errors import ConfigError
from taihu.core.job import Job
from taihu.core.model.layout import Layout
from taihu.core.planner.fc_mode import FcLayer
from taihu.core.planner.profile import LinearCost, Profile
from taihu.search.floors import Floor, floor_of, slowest_pace
from taihu.search.ways import Candidate
from taihu.simulation.compute import Compute, Segments
from taihu.simulation.costs import costs_of
from taihu.simulation.fc import end_of
from taihu.simulation.job import Simulated, simulate_job
from taihu.simulation.machines import Machines, Network
from taihu.simulation.placement import Placement

TERMS: Final = ("compute", "selection", "transfers", "start-ups", "additions")
"""The terms of a step's time: `Steps.terms` tells how much of it each of them is."""

_EVEN_STEPS: Final = 2
_UNEVEN_STEPS: Final = 8
# Numbers that are nothing beside others, where nothing itself would be divided by.
_FREE: Final = 1e9
_NOTHING: Final = LinearCost(0.0, 0.0)


@dataclass(frozen=True)
class Costs:
    """The compute of a worker.

    Attributes:
        layout: the layers of the model.
        compute: of a step that computes nothing again.
        profile: what a run measured, if one did.
        run_again: the segments whose forward is run again by a setting of `train.recompute`.
    """

    layout: Layout
    compute: Compute
    profile: Profile | None = None
    run_again: Callable[[str], Segments] = lambda _: ()

    def compute_with(self, recompute: str) -> Compute:
        """Compute where activations are computed again, or are not."""
        return replace(self.compute, run_again=self.run_again(recompute))


class Steps:
    """Steps of candidates on the machines of `placement`, whose `servers_beside` each candidate says for itself."""

    def __init__(self, costs: Costs, placement: Placement) -> None:
        self._costs = costs
        self._placement = placement
        self._steps = _UNEVEN_STEPS if placement.is_random else _EVEN_STEPS
        self._paces: dict[int, float] = {}

    def spread(self, job: Job) -> frozenset[str]:
        """The layers that `job` would spread over its workers."""
        try:
            end = end_of(job, self._costs.layout, self._costs.compute, self._placement.network, self._costs.profile)
        except ConfigError:
            return frozenset()
        return frozenset() if end is None else frozenset(stage.name for stage in end.stages if stage.is_spread)

    def floor(self, candidate: Candidate) -> Floor:
        """The floor of its step.

        Raises:
            ConfigError: it cannot be simulated.
        """
        job, layout, profile = candidate.job, self._costs.layout, self._costs.profile
        compute = self._costs.compute_with(job.train.recompute)
        seconds = compute.seconds * self._pace(job.world.workers)
        end = end_of(job, layout, compute, self._placement.network, profile)
        if end is not None:
            layout, compute = end.layout, end.compute
        costs = costs_of(job, layout, compute, self._placement.network, profile)
        return floor_of(job, layout, costs, seconds, replace(self._placement, servers_beside=candidate.way.beside))

    def simulate(self, candidate: Candidate) -> Simulated:
        """Its step.

        Raises:
            ConfigError: it cannot be simulated.
        """
        return self._simulated(candidate, self._placement.network, self._placement.machines, self._costs.profile)

    def terms(self, candidate: Candidate, step: Simulated) -> Mapping[str, float]:
        """Seconds by which its step would be shorter if one of `TERMS` took no time; of compute, what it takes.

        Other groups that are planned then may make it longer: no term is less than nothing.
        """
        network, machines, profile = self._placement.network, self._placement.machines, self._costs.profile
        fast = replace(network, bytes_per_second=network.bytes_per_second * _FREE)
        prompt = replace(
            network,
            alpha_seconds=network.alpha_seconds / _FREE,
            message_seconds=network.message_seconds / _FREE,
            supernode_alpha_seconds=network.supernode_alpha_seconds / _FREE,
        )
        without = {
            "transfers": (fast, machines, profile),
            "start-ups": (prompt, machines, profile),
            "additions": (network, replace(machines, add_bytes_per_second=math.inf), profile),
        }
        if candidate.way.method.selects:
            without["selection"] = (network, machines, self._selecting_for_nothing(candidate.job))
        shorter = {
            name: max(0.0, step.seconds - self._simulated(candidate, *changed).seconds)
            for name, changed in without.items()
        }
        return {name: step.compute_seconds if name == "compute" else shorter.get(name, 0.0) for name in TERMS}

    def _simulated(
        self, candidate: Candidate, network: Network, machines: Machines, profile: Profile | None
    ) -> Simulated:
        placement = replace(self._placement, network=network, machines=machines, servers_beside=candidate.way.beside)
        compute = self._costs.compute_with(candidate.job.train.recompute)
        return simulate_job(candidate.job, self._costs.layout, compute, placement, profile, steps=self._steps)

    def _selecting_for_nothing(self, job: Job) -> Profile:
        layout, measured = self._costs.layout, self._costs.profile
        costs = measured or costs_of(job, layout, self._costs.compute, self._placement.felt_network)
        if measured is None:
            shapes = ((layer.name, layer.tensors[0].shape) for layer in reversed(layout.layers) if layer.tensors)
            matrices = tuple(FcLayer(name, *shape) for name, shape in shapes if len(shape) == 2)
            costs = replace(costs, fc_layers=matrices)
        return replace(costs, scan=_NOTHING, top_k=_NOTHING)

    def _pace(self, workers: int) -> float:
        if workers not in self._paces:
            self._paces[workers] = slowest_pace(self._placement, workers, self._steps)
        return self._paces[workers]
