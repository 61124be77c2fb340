"""Staleness of what enters the parameters where a step does not wait for all workers: counted, exported, told."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any, Final, Protocol

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString
from typing_extensions import override

from taihu.core.system.threads import Lock

BOUNDS: Final = (0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 128, 256)
"""Upper bounds of the buckets of both histograms."""


class Contribution(Protocol):
    """A contribution as it is counted."""

    @property
    def staleness(self) -> int:
        """Steps before its own of which something was missing in the parameters that it was computed from."""

    @property
    def missed(self) -> int:
        """Updates that its frame has seen since."""


class StalenessCounts(Collector):
    """Plain numbers of a server's contributions so far, under `lock`; they become samples when somebody reads.

    Attributes:
        steps: the number of contributions that lacked at most each of `BOUNDS` steps, and more than the one before;
            then more.
        missed: the same by updates that the frame had seen since what they were computed from.
        most: the most steps that one lacked.
        step_sum, missed_sum: of all of them.
        dropped: contributions that came too late.
    """

    def __init__(self, labels: Mapping[str, str]) -> None:
        self._labels = labels
        self.lock = Lock()
        self.steps = [0] * (len(BOUNDS) + 1)
        self.missed = [0] * (len(BOUNDS) + 1)
        self.most = self.step_sum = self.missed_sum = self.dropped = 0

    def add(self, entries: Iterable[Contribution]) -> None:
        """Contributions have entered."""
        with self.lock:
            for each in entries:
                self.steps[bisect_left(BOUNDS, each.staleness)] += 1
                self.missed[bisect_left(BOUNDS, each.missed)] += 1
                self.most = max(self.most, each.staleness)
                self.step_sum += each.staleness
                self.missed_sum += each.missed

    def drop(self) -> None:
        """A contribution came too late."""
        with self.lock:
            self.dropped += 1

    def results(self) -> dict[str, Any]:
        """All of it for `--json`: buckets by their upper bounds, in words, and sums."""
        names = [*map(str, BOUNDS), "more"]
        with self.lock:
            return {
                "steps": {name: count for name, count in zip(names, self.steps, strict=True) if count},
                "updates": {name: count for name, count in zip(names, self.missed, strict=True) if count},
                "entered": sum(self.steps),
                "dropped": self.dropped,
                "most_steps": self.most,
                "sum_of_steps": self.step_sum,
                "sum_of_updates": self.missed_sum,
            }

    @override
    def collect(self) -> Iterator[Metric]:
        names, values = tuple(self._labels), tuple(self._labels.values())
        with self.lock:
            by_steps, by_updates = list(accumulate(self.steps)), list(accumulate(self.missed))
            sums, dropped = (self.step_sum, self.missed_sum), self.dropped
        bounds = [*map(floatToGoString, (*BOUNDS, math.inf))]
        for name, text, counts, total in (
            ("taihu_staleness_steps", "Steps that the parameters of a gradient lacked.", by_steps, sums[0]),
            ("taihu_staleness_updates", "Updates of a frame between a gradient and its own.", by_updates, sums[1]),
        ):
            family = HistogramMetricFamily(name, text, labels=names)
            family.add_metric(values, list(zip(bounds, counts, strict=True)), total)
            yield family
        counter = CounterMetricFamily(
            "taihu_dropped_frames", "Frames that came too late for their step.", labels=names
        )
        counter.add_metric(values, dropped)
        yield counter


def together(parts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The `results` of several servers as those of all, with the mean of steps and updates."""
    whole: dict[str, Any] = {"steps": {}, "updates": {}}
    for part in parts:
        for name in ("steps", "updates"):
            for bound, count in part[name].items():
                whole[name][bound] = whole[name].get(bound, 0) + count
    for name in ("entered", "dropped", "sum_of_steps", "sum_of_updates"):
        whole[name] = sum(part[name] for part in parts)
    entered = max(1, whole["entered"])
    return {
        **whole,
        "most_steps": max(part["most_steps"] for part in parts),
        "mean_steps": whole["sum_of_steps"] / entered,
        "mean_updates": whole["sum_of_updates"] / entered,
    }
