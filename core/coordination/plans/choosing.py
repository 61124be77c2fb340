"""The compression of a run that chooses it: by what a few steps have measured. Pure.

The steps of a trial tell what links, processors and selections cost. From that a step of every way is predicted, as
it is for plans; ways that may be the best are tried, too. A way that sends less takes more steps to the same loss:
these are part of its price. Behind the trials the run begins anew, and is the run of a job that names the choice.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Final

import numpy as np

from taihu.core.base.errors import ConfigError
from taihu.core.coordination.plans.planning import frame_elements_of, planned_compression
from taihu.core.job import Job
from taihu.core.job.reading import revised
from taihu.core.planner.decide import decide
from taihu.core.planner.profile import Profile, rice_bits_per_index
from taihu.core.settings import CompressionSettings
from taihu.core.traits.methods import DLGS, NONE, QUANTIZED
from taihu.kernels.packing.few_bits import FEW_BITS

LEARNS: Final = MappingProxyType({1.0: 1.01, 0.05: 1.05, 0.01: 1.05, 0.001: 2.0})
"""Steps to a loss as multiples of those that the whole gradient takes, by the share of it that is sent at a time.

Each is above the mean of what was measured with three workers, by `python -m benchmarks loss_per_byte` and
`torch_time_to_loss`: 0.01 of the transformer, Cifar10-quick, ResNet-20 and VGG-16, 0.05 of the transformer and
ResNet-20, 1.0 of the transformer alone. 0.001 is a guess.
"""

_LEAST_DENSITY: Final = 0.01
_ALIKE: Final = 0.03
_NEAR: Final = 1.6
_SHOWN: Final = ("method", "density", "value_type")
# Of a worker in a step: few enough for slow links, and enough to tell their rate from their latency.
_TRIAL_BYTES: Final = 1 << 18
_DECISIVE: Final = 2
_TRIAL_STEPS: Final = 10
"""Steps to a report: few, as a choice compares steps that differ by more than they do among themselves."""


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
        measured: seconds of a step of those that were tried, by their labels.
        predicted: those of the others.
        because: the reason where nothing was compared.
    """

    way: Way
    measured: Mapping[str, float] = field(default_factory=dict)
    predicted: Mapping[str, float] = field(default_factory=dict)
    because: str = ""

    @property
    def reason(self) -> str:
        """The reason of the choice, in one line."""
        if self.because:
            return self.because
        measured, predicted = map(_in_words, (self.measured, self.predicted))
        return f"a step took {measured}; predicted were {predicted or 'no others'}"


class Choosing:
    """The choice of a run, made once; for the member that hosts the coordinator.

    Trials follow each other: of the way that sends as much as the first may, and then of those whose predicted price
    is near the best one's, the cheapest first. What they measure decides.

    Attributes:
        choice: None before it is made.
        costs: that the last trial has measured, from which the plan of the next one follows; None before the first.
        tried: the way of the steps that are measured; None where none goes with the job's other settings.
        is_over: whether another generation is to begin, with another trial or by the choice.
    """

    def __init__(self, job: Job) -> None:
        self._job = job
        self._ways = tuple(ways(job))
        self._known = tuple(way for way in self._ways if way.job.plans_by_measuring)
        self._measured: dict[str, float] = {}
        self._predicted: dict[str, float] = {}
        self._reports = 0
        self._decisive = _DECISIVE
        self.choice: Choice | None = None
        self.costs: Profile | None = None
        # Before the model is known, the one that sends the least.
        self.tried = self._known[-1] if len(self._known) > 1 else None
        self.is_over = False

    def begin(self) -> Job:
        """The job of the trial that begins now."""
        self._reports, self.is_over = 0, False
        self._decisive = _DECISIVE if self.costs is None else 1
        return trial(self._job if self.tried is None else self.tried.job)

    @property
    def words(self) -> str:
        """The reason why a generation of the run is over."""
        if self.choice is not None:
            return f"compression is chosen: {self.choice.way.label}: {self.choice.reason}"
        return "" if self.tried is None else f"compression is to be chosen, next by steps of {self.tried.label}"

    def look(self, elements: int, *, one_host: bool) -> None:
        """Take in what is known before the first step: there may be nothing to choose, or more may be sent.

        Args:
            elements: of the model.
            one_host: whether only this machine's processes take part.
        """
        whole, former = self._ways[0], self.tried
        if one_host and whole.job.shares_memory:
            self._choose(Choice(whole, because="all members share this machine's memory"))
        elif former is None:
            self._choose(Choice(whole, because="no compression goes with the other settings"))
        elif not self._measured:
            small = (way for way in self._known if _bytes_up(way.job, elements) <= _TRIAL_BYTES)
            self.tried = next(small, former)
            self.is_over = self.tried is not former

    def measured(self, profile: Profile, seconds: float) -> None:
        """Take in the costs that steps of `tried` have had; the second report of the first trial counts.

        Its first is of a message for each layer, which takes the processors longer than any plan does.

        Args:
            profile: of the costs.
            seconds: of a step.
        """
        self._reports += 1
        if self.choice is not None or self.tried is None or self._reports != self._decisive:
            return
        self.costs = profile
        self._predicted = {way.label: _predicted(way.job, profile) for way in self._ways}
        self._measured[self.tried.label] = seconds or self._predicted[self.tried.label]
        following = self._next()
        if following is not None:
            self.tried, self.is_over = following, True
            return
        others = {label: each for label, each in self._predicted.items() if label not in self._measured}
        best = _best([way for way in self._ways if way.label in self._measured], self._measured)
        self._choose(Choice(best, dict(self._measured), others))

    def _next(self) -> Way | None:
        """The way to be tried next; None where no other one may be better than those that were."""
        price = min(way.steps * self._measured[way.label] for way in self._ways if way.label in self._measured)
        others = [way for way in self._known if way.label not in self._measured]
        first = min(others, key=lambda way: way.steps * self._predicted[way.label], default=None)
        return first if first is not None and first.steps * self._predicted[first.label] <= _NEAR * price else None

    def _choose(self, choice: Choice) -> None:
        self.choice, self.is_over = choice, True


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
    # What lies between costs trials, and is never much better than both.
    for name in ("fp32", *few[-1:]):
        yield from _way(job, {"method": DLGS.key, "density": least}, name)


def trial(job: Job) -> Job:
    """The job of steps that are measured for a choice: as many as it takes at most, of which nothing stays."""
    measured = min(_TRIAL_STEPS, job.exchange.calibration_steps)
    tried = revised(job, "train", steps=_DECISIVE * measured + 1, evaluate=False)
    tried = revised(tried, "exchange", plan="auto", calibration_steps=measured)
    tried = revised(tried, "run", history=None)
    return revised(tried, "checkpoint", dir=None, resume=None)


def _best(among: Sequence[Way], seconds: Mapping[str, float]) -> Way:
    """The way with the least time to a loss; of those that are alike, the first."""
    best = among[0]
    for way in among[1:]:
        if way.steps * seconds[way.label] < (1.0 - _ALIKE) * best.steps * seconds[best.label]:
            best = way
    return best


def _in_words(seconds: Mapping[str, float]) -> str:
    return ", ".join(f"{label} {1e3 * each:.1f} ms" for label, each in seconds.items())


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
