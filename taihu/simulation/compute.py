"""The time that a worker computes: what forward and backward take for every layer, and passes over a gradient.

Layers are numbered in backward order (0 is the output side), as in `taihu.core.model.layout`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from taihu.core.planner.profile import Profile
from taihu.core.system.chance import Random
from taihu.simulation.machines import Machines

Segments = tuple[tuple[int, int], ...]
"""The first and the last layer of segments whose forward backward runs again, in backward order."""


@dataclass(frozen=True)
class Compute:
    """Seconds of every layer.

    Attributes:
        source: where they are from.
        forward: of each layer, once.
        backward: of each layer, without what is run again.
        run_again: the segments whose forward is run again, before the backward of the first layer of each.
        local_steps: batches of a step, each of which goes forward and backward once.
    """

    source: str
    forward: tuple[float, ...]
    backward: tuple[float, ...]
    run_again: Segments = ()
    local_steps: int = 1

    @property
    def seconds(self) -> float:
        """Forward and backward of a step, with what is run again."""
        return self.local_steps * self._batch_seconds

    @property
    def before_last_seconds(self) -> float:
        """All batches of a step but the last one, whose gradients go while they come."""
        return (self.local_steps - 1) * self._batch_seconds

    @property
    def _batch_seconds(self) -> float:
        again = math.fsum(math.fsum(self.forward[first : last + 1]) for first, last in self.run_again)
        return math.fsum(self.forward) + math.fsum(self.backward) + again


def of_measured(profile: Profile, run_again: Segments = ()) -> Compute:
    """The times that a run measured: of forward the sum, of which each layer gets its share of backward.

    Where the run computed the forward of some segments again, that is in the backward of the first layer of each;
    the compute here is without it. Of several local steps a run measured the last backward, and all else as forward.
    """
    backward = [layer.backward_seconds for layer in profile.layers]
    others = (profile.local_steps - 1) * math.fsum(backward)
    forward = max(0.0, profile.forward_seconds - others) / profile.local_steps
    ratio = _forward_over_backward(forward, backward, run_again)
    for first, last in run_again:
        own = math.fsum(backward[first : last + 1]) / (1.0 + ratio)
        backward[first] = max(0.0, backward[first] - ratio * own)
    return Compute("profile", _shared_out(forward, tuple(backward)), tuple(backward))


def of_modelled(source: str, forward_seconds: float, backward: tuple[float, ...]) -> Compute:
    """The times that a model of a processor says."""
    return Compute(source, _shared_out(forward_seconds, backward), backward)


def _forward_over_backward(forward: float, measured: Sequence[float], run_again: Segments) -> float:
    """Seconds of forward for one of backward, in all layers alike, of which `measured` holds some forwards again.

    Backward alone takes b with `b = again / (1 + forward / b) + rest`.
    """
    again = math.fsum(math.fsum(measured[first : last + 1]) for first, last in run_again)
    rest = math.fsum(measured) - again
    half = (again + rest - forward) / 2.0
    alone = half + math.sqrt(half * half + rest * forward)
    return forward / alone if alone else 0.0


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
        chance = Random(f"pace {self._seed} {self._rank} {step}")
        return self._slowdown * chance.lognormvariate(0.0, self._jitter)
