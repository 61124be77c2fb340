"""The time that a worker computes: what forward and backward take for every layer, and passes over a gradient.

Layers are numbered in backward order (0 is the output side), as in `taihu.layout`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from random import Random

from taihu.planner.profile import Profile
from taihu.simulation.machines import Machines

__all__ = ["Compute", "Pace", "of_measured", "of_modelled"]


@dataclass(frozen=True)
class Compute:
    """Seconds of every layer; `source` says where they are from."""

    source: str
    forward: tuple[float, ...]
    backward: tuple[float, ...]

    @property
    def seconds(self) -> float:
        """Forward and backward of a step."""
        return math.fsum(self.forward) + math.fsum(self.backward)


def of_measured(profile: Profile) -> Compute:
    """The times that a run measured: of forward the sum, of which each layer gets its share of backward."""
    backward = tuple(layer.backward_seconds for layer in profile.layers)
    return Compute("profile", _shared_out(profile.forward_seconds, backward), backward)


def of_modelled(source: str, forward_seconds: float, backward: tuple[float, ...]) -> Compute:
    """The times that a model of a processor says."""
    return Compute(source, _shared_out(forward_seconds, backward), backward)


def _shared_out(seconds: float, weights: tuple[float, ...]) -> tuple[float, ...]:
    whole = math.fsum(weights)
    if not whole:
        return (seconds / len(weights),) * len(weights)
    return tuple(seconds * weight / whole for weight in weights)


class Pace:
    """The pace of worker `rank` of `workers`, which differs from step to step; the same for one `seed`."""

    def __init__(self, machines: Machines, rank: int, workers: int, seed: int) -> None:
        self._jitter = machines.jitter
        self._rank = rank
        self._seed = seed
        is_straggler = rank >= workers - machines.stragglers
        self._slowdown = machines.straggler_slowdown if is_straggler else 1.0

    def of(self, step: int) -> float:
        """The factor of one step."""
        if not self._jitter:
            return self._slowdown
        chance = Random(f"pace {self._seed} {self._rank} {step}")  # noqa: S311 - no secret
        return self._slowdown * chance.lognormvariate(0.0, self._jitter)
