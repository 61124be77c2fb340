"""The compression of a run that chooses it: by what a few steps have measured. Pure.

The steps of a trial tell what links, processors and selections cost. From that a step of every way is predicted, as
it is for plans. A way that sends less takes more steps to the same loss: that is part of its price. Behind the trial
the run begins anew, and is the run of a job that names the choice.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Final

import numpy as np

from taihu.core.base.errors import ConfigError
from taihu.core.coordination.planning import frame_elements_of, planned_compression
from taihu.core.job import Job
from taihu.core.job.reading import revised
from taihu.core.planner.decide import decide
from taihu.core.planner.profile import Profile, rice_bits_per_index
from taihu.core.settings import CompressionSettings
from taihu.core.traits.methods import DLGS, NONE, QUANTIZED
from taihu.kernels.few_bits import FEW_BITS

__all__ = ["LEARNS", "Choice", "Choosing", "Way", "choose", "trial", "ways"]

LEARNS: Final = MappingProxyType({1.0: 1.01, 0.05: 1.1, 0.01: 1.2, 0.001: 2.0})
"""Steps to a loss as multiples of those that the whole gradient takes, by the share of it that is sent at a time.

They are of the transformer and of Cifar10-quick in `python -m benchmarks loss_per_byte`; 0.001 is a guess.
"""

_LEAST_DENSITY: Final = 0.01
_ALIKE: Final = 0.03
_SHOWN: Final = ("method", "density", "value_type")
# Of a worker in a step: few enough for slow links, and enough to tell their rate from their latency.
_TRIAL_BYTES: Final = 1 << 18
_DECISIVE: Final = 2


@dataclass(frozen=True)
class Way:
    """A way to send gradients.

    Attributes:
        table: settings of `[compression]`.
        job: that runs so.
    """

    table: Mapping[str, Any]
    job: Job

    @property
    def label(self) -> str:
        """The way in words."""
        return " ".join(str(self.table[key]) for key in _SHOWN if key in self.table)

    @property
    def steps(self) -> float:
        """Steps to a loss, as multiples of those that the whole gradient takes."""
        compression = self.job.compression
        if not compression.method.selects:
            return 1.0
        shares = sorted(LEARNS)
        return float(np.interp(np.log(compression.share), np.log(shares), [LEARNS[share] for share in shares]))


@dataclass(frozen=True)
class Choice:
    """The best way, and what it was compared with.

    Attributes:
        way: the best one.
        seconds: predicted for a step of each, by their labels.
        because: the reason where nothing was compared.
    """

    way: Way
    seconds: Mapping[str, float] = field(default_factory=dict)
    because: str = ""

    def __str__(self) -> str:
        return f"{self.way.label}: {self.reason}"

    @property
    def reason(self) -> str:
        """The reason of the choice, in one line."""
        told = ", ".join(f"{label} {1e3 * seconds:.1f} ms" for label, seconds in self.seconds.items())
        return self.because or f"a step takes {told}"


class Choosing:
    """The choice of a run, made once; for the member that hosts the coordinator.

    Attributes:
        choice: None before it is made.
        tried: the way of the steps that are measured; None where none goes with the job's other settings.
    """

    def __init__(self, job: Job) -> None:
        self._job = job
        self._ways = tuple(ways(job))
        self._known = tuple(way for way in self._ways if way.job.plans_by_measuring)
        self.choice: Choice | None = None
        self._measured = 0
        # Before the model is known, the one that sends the least.
        self.tried = self._known[-1] if len(self._known) > 1 else None

    @property
    def trial(self) -> Job:
        """The job whose steps are measured."""
        return self._job if self.tried is None else trial(self.tried.job)

    @property
    def words(self) -> str:
        """The reason why a generation of the run is over."""
        if self.choice is not None:
            return f"compression is chosen: {self.choice}"
        return "" if self.tried is None else f"compression is to be chosen by steps of {self.tried.label}"

    def look(self, elements: int, *, one_host: bool) -> bool:
        """Whether another generation is to begin, now that the model is known and before anything has been measured.

        There is nothing to choose, or steps are to send more than those that have begun: as much as a trial may.

        Args:
            elements: of the model.
            one_host: whether only this machine's processes take part.
        """
        self._measured = 0
        whole, former = self._ways[0], self.tried
        if one_host and whole.job.shares_memory:
            self.choice = Choice(whole, because="all members share this machine's memory")
        elif former is None:
            self.choice = Choice(whole, because="no compression goes with the other settings")
        else:
            small = (way for way in self._known if _bytes_up(way.job, elements) <= _TRIAL_BYTES)
            self.tried = next(small, former)
        return self.choice is not None or self.tried is not former

    def measured(self, profile: Profile) -> None:
        """Take in the costs that steps of `tried` have had; the second ones decide.

        The first are those of a message for each layer, which takes the processors longer than any plan does.
        """
        self._measured += 1
        if self.choice is None and self._measured == _DECISIVE:
            self.choice = choose(self._ways, profile)


def ways(job: Job) -> Iterator[Way]:
    """The ways that a job which chooses may run, from the one that loses nothing on; the first sends all values.

    `compression.density`, where it is given, is the least of the gradient that is sent, and `value_type` has the
    fewest bits.
    """
    given = job.compression
    yield Way({"method": NONE.key}, revised(job, "compression", method=NONE))
    least = given.density if "density" in given.model_fields_set else _LEAST_DENSITY
    few = _few_bits(given)
    for name in few:
        yield from _way(job, {"method": QUANTIZED.key}, name)
    for name in ("fp32", *few):
        yield from _way(job, {"method": DLGS.key, "density": least}, name)


def trial(job: Job) -> Job:
    """The job of steps that are measured for a choice: as many as it takes, of which nothing stays."""
    steps = _DECISIVE * job.exchange.calibration_steps
    tried = revised(job, "train", steps=steps + 1, evaluate=False)
    tried = revised(revised(tried, "exchange", plan="auto"), "run", history=None)
    return revised(tried, "checkpoint", dir=None, resume=None)


def choose(among: Sequence[Way], profile: Profile) -> Choice:
    """The way with the least time to a loss by these costs; of those that are alike, the first."""
    seconds = {way.label: _predicted(way.job, profile) for way in among}
    best = among[0]
    for way in among[1:]:
        if way.steps * seconds[way.label] < (1.0 - _ALIKE) * best.steps * seconds[best.label]:
            best = way
    return Choice(best, MappingProxyType(seconds))


def _few_bits(given: CompressionSettings) -> list[str]:
    """Types of few bits that may be sent, the widest first."""
    least = 4
    if "value_type" in given.model_fields_set:
        least = FEW_BITS.get(given.value_type, 32)
    return sorted((name for name, bits in FEW_BITS.items() if bits >= least), key=lambda name: -FEW_BITS[name])


def _way(job: Job, table: Mapping[str, Any], value_type: str) -> Iterator[Way]:
    """The way in both directions, or up alone where sums cannot come back; none where the job has no such values."""
    types = {"value_type": value_type, "downlink_value_type": value_type}
    for each in ({**table, **types}, {**table, "value_type": value_type}):
        with suppress(ConfigError):
            yield Way(each, revised(job, "compression", **each))
            return


def _bytes_up(job: Job, elements: int) -> float:
    """About the bytes that a worker sends in a step of a model of so many elements."""
    compression = planned_compression(job, frame_elements_of(job))
    share = job.compression.share
    gap_bits = float(rice_bits_per_index(np.array(share))) if share < 1.0 else 0.0
    return elements * share * (compression.value_bytes + gap_bits / 8.0)


def _predicted(job: Job, profile: Profile) -> float:
    """Seconds of a step by the plan that the job would make."""
    compression = planned_compression(job, frame_elements_of(job))
    if not compression.method.selects:
        profile = replace(profile, dense_value_bytes=4 if job.train.precision == "fp32" else 2)
    return decide(profile, compression, job.exchange.plan).seconds
