"""Times of a merged trace: how long a track was busy, and how long two were at once."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Any

from taihu.core.trace.parts import NS_PER_S, NS_PER_US


def busy_seconds(trace: Mapping[str, Any], process: str, track: str) -> float:
    """Seconds in which at least one event of the track went on; tracks are named as in `overlap_seconds`."""
    return _covered(_intervals(trace, process, track)) / NS_PER_S


def overlap_seconds(trace: Mapping[str, Any], process: str, track_a: str, track_b: str) -> float:
    """Seconds in which events of both tracks of a process went on at the same time.

    Args:
        trace: what `merge_parts` returned or wrote.
        process: for example "worker 0".
        track_a: a track, or a pattern such as "push server *" that stands for all tracks it matches.
        track_b: another one. What a trace does not hold takes 0 seconds.
    """
    a, b = _intervals(trace, process, track_a), _intervals(trace, process, track_b)
    return (_covered(a) + _covered(b) - _covered(a + b)) / NS_PER_S


def _intervals(trace: Mapping[str, Any], process: str, track: str) -> list[tuple[int, int]]:
    """Start and stop of the events of a track, in nanoseconds."""
    pids = {entry["pid"] for entry in trace["otherData"]["processes"] if entry["process"] == process}
    found = []
    for record in trace["traceEvents"]:
        if record["ph"] == "X" and record["pid"] in pids and fnmatchcase(record["cat"], track):
            start = round(record["ts"] * NS_PER_US)
            found.append((start, start + round(record["dur"] * NS_PER_US)))
    return found


def _covered(intervals: Iterable[tuple[int, int]]) -> int:
    """Length of the union."""
    covered = 0
    reached = -math.inf
    for start, stop in sorted(intervals):
        if stop > reached:
            covered += int(stop - max(start, reached))
            reached = stop
    return covered
