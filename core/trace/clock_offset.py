"""The lead of a remote monotonic clock over the local one, from requests and their answers."""

from __future__ import annotations

import math
from typing import NamedTuple


class _Sample(NamedTuple):
    received_s: float
    round_trip_s: float
    offset_s: float


class ClockOffset:
    """The estimate of the sample with the least round trip among those of the last `window_s` seconds.

    The remote clock was read at some instant between sending and receiving, so `offset_s` of a sample, taken at the
    midpoint, is wrong by at most half the round trip, however unequal the two ways are. A short round trip therefore
    beats any average over samples that waited in queues. The window bounds what drift adds to `error_s`: at most
    `window_s` times the difference of the clocks' rates (300 s at 1 ppm: 0.3 ms).

    Threads: one thread adds; any may read, and sees one whole estimate per property or method.
    """

    def __init__(self, window_s: float = 300.0) -> None:
        self._window_s = window_s
        self._samples: tuple[_Sample, ...] = ()
        self._best = _Sample(-math.inf, math.inf, 0.0)

    def add(self, sent_s: float, server_s: float, received_s: float) -> None:
        """Take in one request, in any order; those that the window has passed are forgotten.

        Args:
            sent_s: local seconds before the request was sent.
            server_s: remote seconds while it was answered.
            received_s: local seconds after the answer had come.

        Raises:
            ValueError: a time is not finite, or the answer came before the request. Nothing was changed.
        """
        round_trip_s = received_s - sent_s
        if not (math.isfinite(round_trip_s) and math.isfinite(server_s) and round_trip_s >= 0):
            raise ValueError(
                f"clock sample sent {sent_s}, server {server_s}, received {received_s}: expected finite seconds "
                "with sent <= received, both by the local monotonic clock"
            )
        self._keep(_Sample(received_s, round_trip_s, server_s - (sent_s + received_s) / 2))

    @property
    def offset_s(self) -> float:
        """Remote minus local seconds; 0 before the first sample."""
        return self._best.offset_s

    @property
    def error_s(self) -> float:
        """Bound of `offset_s`'s error at the time of its sample; infinite before the first sample."""
        return self._best.round_trip_s / 2

    def to_remote(self, local_s: float) -> float:
        """The remote clock's reading at local time `local_s`."""
        return local_s + self._best.offset_s

    def to_local(self, remote_s: float) -> float:
        """The local clock's reading at remote time `remote_s`."""
        return remote_s - self._best.offset_s

    def _keep(self, new: _Sample) -> None:
        # A sample that is both older and slower than another can never be the best again: only the others are kept,
        # which are few, so a search through all of them is cheap.
        if any(_supersedes(sample, new) for sample in self._samples):
            return
        samples = [*(sample for sample in self._samples if not _supersedes(new, sample)), new]
        oldest_s = max(sample.received_s for sample in samples) - self._window_s
        self._samples = tuple(sample for sample in samples if sample.received_s >= oldest_s)
        self._best = min(self._samples, key=lambda sample: sample.round_trip_s)


def _supersedes(sample: _Sample, other: _Sample) -> bool:
    return sample.received_s >= other.received_s and sample.round_trip_s <= other.round_trip_s
