"""Calibration: from what workers measured of their steps to the costs that the planner computes with.

Measurements have outliers, so medians stand for means and lines are fitted by weighted Theil-Sen: the slope is the
median of the slopes between all pairs of samples, each weighted by the difference of their sizes. Costs are never
negative. Layers are numbered in backward order (0 is the output side), as in `taihu.core.model.layout`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from taihu.core.base.errors import FrameError
from taihu.core.planner.groups import Group
from taihu.core.planner.measurement import GroupMeasurement, StepMeasurement
from taihu.core.planner.profile import Compression, LayerCost, LinearCost, LinkCost, Profile

Array = NDArray[np.float64]
Reports = Sequence[Sequence[StepMeasurement]]
Step = tuple[StepMeasurement, ...]

TOP_K_PER_SCAN: Final = 4.0
"""An exact selection takes about so many times what a reused threshold does, from 10,000 to 10 million elements."""

# Sizes of which the largest is at most so much of itself above the smallest say nothing about the cost of a byte.
_ALIKE: Final = 0.1

# Answers that are mere headers say nothing about the cost of a byte either.
_TELLING_BYTES: Final = 0.01

_TELLING_SHARE: Final = 0.25

# A line through fewer sizes than these says little about the start-up of a transfer.
_TELLING_SIZES: Final = 6


@dataclass(frozen=True)
class Transfers:
    """Exchanges of one group at a time; six arrays of shape (n,), fp64.

    `up_seconds` may hold any constant that `down_seconds` holds with the opposite sign: the difference of two clocks.
    Both hold `overlap_seconds`, in which a group of several `frames` goes up and down at once.
    """

    up_bytes: Array
    down_bytes: Array
    up_seconds: Array
    down_seconds: Array
    overlap_seconds: Array
    frames: Array


def calibrate(
    names: Sequence[str],
    elements: Sequence[int],
    reports: Reports,
    *,
    servers: int,
    frame_elements: int | None = None,
    previous: Profile | None = None,
) -> Profile:
    """The costs of a job from the reports of its workers.

    The costs of compute and compression are taken from the steps that ran as always, as far as there are any; those
    of the link from steps that exchanged one group at a time (`serial`). One kind of compression without a sample
    costs what the other kind does, times or divided by `TOP_K_PER_SCAN`. A cost without any sample is 0.

    Args:
        names: of the layers, in backward order.
        elements: of the layers.
        reports: for each worker its measured steps, all by the same plan.
        servers: number of servers.
        frame_elements: that a frame covered, or None if groups went whole.
        previous: what was calibrated before. When the groups have few sizes, its link is kept and only scaled to the
            times that were measured.

    Raises:
        FrameError: there is no step that every worker measured.
    """
    serial = _common_steps(reports, serial=True)
    usual = _common_steps(reports, serial=False) or serial
    if not usual:
        raise FrameError("calibration: workers measured no step in common; all must report after the same steps")
    forward, backward_L = _compute_seconds(usual)
    scan, top_k = _compression_costs(usual)
    layers = zip(names, elements, backward_L.tolist(), strict=True)
    transfers = _transfers(serial, servers * (frame_elements or 0))
    return Profile(
        layers=tuple(LayerCost(name, count, seconds) for name, count, seconds in layers),
        forward_seconds=forward,
        scan=scan,
        top_k=top_k,
        link=_link(transfers, len(usual[0][0].groups), previous, in_ring=not servers),
        workers=len(reports),
        servers=servers,
    )


def with_measured_bytes(
    profile: Profile, compression: Compression, groups: Sequence[Group], reports: Reports
) -> Profile:
    """The profile with the ratios of the bytes that `groups` took to those that are expected of them.

    And with the share of selections, by elements, that were exact.
    """
    if not compression.method.selects:
        return profile
    expected = replace(profile, sparse_up_ratio=1.0, sparse_down_ratio=1.0)
    first, last = (
        np.array([getattr(group, bound) for group in groups], dtype=np.int64)
        for bound in ("first_layer", "last_layer")
    )
    sizes = compression.sizes(expected, first, last)
    steps = [step for report in reports for step in report]
    up = np.median([sum(group.bytes_up for group in step.groups) for step in steps])
    down = np.median([sum(group.bytes_down for group in step.groups) for step in steps])
    return replace(
        profile,
        sparse_up_ratio=_ratio(up, compression.up_bytes(expected, sizes)),
        sparse_down_ratio=1.0
        if compression.downlink == "dense"
        else _ratio(down, compression.down_bytes(expected, sizes)),
        refresh_ratio=_refresh_ratio(steps) if compression.method.reuses else 0.0,
    )


def _refresh_ratio(steps: Sequence[StepMeasurement]) -> float:
    groups = [group for step in steps for group in step.groups]
    elements = sum(group.elements for group in groups)
    return sum(group.elements for group in groups if group.refreshed) / elements if elements else 0.0


def _ratio(measured: np.floating, expected: Array) -> float:
    total = float(expected.sum())
    return float(measured) / total if measured and total else 1.0


def fit_linear(elements: Array, seconds: Array) -> LinearCost:
    """The line through samples of a pass over so many elements; shapes (n,), n > 0.

    Samples of one size only, or a line that is negative at 0, give a cost in proportion to the elements.
    """
    slope = _slope(elements, seconds)
    if slope is not None:
        base = float(np.median(seconds - slope * elements))
        if base >= 0.0:
            return LinearCost(base, slope)
    return LinearCost(0.0, max(0.0, float(np.median(seconds / np.maximum(elements, 1.0)))))


def fit_link(transfers: Transfers, *, in_ring: bool = False) -> LinkCost:
    """Bytes per second of both directions, and what an exchange takes beside.

    A direction whose samples all have one size, or next to no bytes beside the other, is taken to be as fast as that.
    If neither tells, everything is put down to bytes: `alpha_seconds` is 0. Without samples all costs are 0.

    In a ring bytes come while as many go: all of the time is put down to those that go.
    """
    if not len(transfers.up_bytes):
        return LinkCost(0.0, 0.0, 0.0)
    round_trips = transfers.up_seconds + transfers.down_seconds
    if in_ring:
        nothing = np.zeros(len(round_trips))
        one_way = replace(transfers, up_seconds=round_trips, down_bytes=nothing, down_seconds=nothing)
        return replace(fit_link(one_way), down_seconds_per_byte=0.0)
    least = _TELLING_BYTES * max(np.max(transfers.up_bytes), np.max(transfers.down_bytes))
    up = _slope(transfers.up_bytes, transfers.up_seconds, least)
    down = _slope(transfers.down_bytes, transfers.down_seconds, least)
    if not up and not down:
        both_ways = np.maximum(transfers.up_bytes + transfers.down_bytes, 1.0)
        up, down = max(0.0, float(np.median(round_trips / both_ways))), None
    per_byte = [slope for slope in (up, down) if slope is not None]
    # The intercepts are taken together: the difference of the clocks falls out.
    rest = round_trips - per_byte[0] * transfers.up_bytes - per_byte[-1] * transfers.down_bytes
    whole = transfers.overlap_seconds <= 0.0
    alpha = np.median(rest[whole]) if whole.any() else np.median(rest - transfers.overlap_seconds)
    return LinkCost(max(0.0, float(alpha)), per_byte[0], per_byte[-1])


def _link(transfers: Transfers, groups: int, previous: Profile | None, *, in_ring: bool) -> LinkCost:
    # Several steps of the same few groups differ by what was selected, not by enough to tell more.
    if previous is None or min(groups, len(np.unique(transfers.up_bytes))) >= _TELLING_SIZES:
        return fit_link(transfers, in_ring=in_ring)
    link = previous.link
    up = link.up_seconds_per_byte * transfers.up_bytes
    down = link.down_seconds_per_byte * transfers.down_bytes
    # The way up waits for the way down once the window is full of frames: only both together tell how long they took.
    expected = link.alpha_seconds + np.maximum(up, down) + np.minimum(up, down) / transfers.frames
    measured = transfers.up_seconds + transfers.down_seconds - transfers.overlap_seconds
    if not len(measured) or not expected.min() > 0.0:
        return fit_link(transfers, in_ring=in_ring)
    factor = max(0.0, float(np.median(measured / expected)))
    return LinkCost(
        link.alpha_seconds * factor, link.up_seconds_per_byte * factor, link.down_seconds_per_byte * factor
    )


def _common_steps(reports: Reports, *, serial: bool) -> list[Step]:
    """The steps of one kind that every worker measured, each for all workers."""
    workers = [{measured.step: measured for measured in report if measured.serial == serial} for report in reports]
    steps = sorted(set.intersection(*map(set, workers)))
    return [tuple(worker[step] for worker in workers) for step in steps]


def _compute_seconds(steps: Sequence[Step]) -> tuple[float, Array]:
    """Forward, and backward of each layer: between the instants at which the slowest worker has it ready."""
    ready_TL1 = [
        np.max([np.cumsum([one.forward_seconds, *one.backward_seconds]) for one in workers], axis=0)
        for workers in steps
    ]
    ready_L1 = np.median(ready_TL1, axis=0)
    return float(ready_L1[0]), np.maximum(0.0, np.diff(ready_L1))


def _compression_costs(steps: Sequence[Step]) -> tuple[LinearCost, LinearCost]:
    """Costs of a reused threshold and of an exact selection."""
    groups = [group for workers in steps for one in workers for group in one.groups]
    # Small layers, where a fixed cost is nearly all, say nothing of large ones.
    telling = _TELLING_SHARE * max((group.elements for group in groups), default=0)
    kinds = [[group for group in groups if group.refreshed == kind] for kind in (False, True)]
    reused, exact = (_fit(kind if any(group.elements >= telling for group in kind) else []) for kind in kinds)
    scan = reused or _scaled(exact, 1.0 / TOP_K_PER_SCAN)
    return scan, exact or _scaled(reused, TOP_K_PER_SCAN)


def _fit(groups: Sequence[GroupMeasurement]) -> LinearCost | None:
    if not groups:
        return None
    elements, seconds = np.array([(float(g.elements), g.compress_seconds) for g in groups]).T
    return fit_linear(elements, seconds)


def _scaled(cost: LinearCost | None, factor: float) -> LinearCost:
    if cost is None:
        return LinearCost(0.0, 0.0)
    return LinearCost(cost.base_seconds * factor, cost.seconds_per_element * factor)


def _transfers(steps: Sequence[Step], together: int) -> Transfers:
    """One sample for each group: from the last worker's submission until the last worker has the answer.

    Frames to all servers cover `together` elements, 0 if groups went whole.
    """
    columns = ("bytes_up", "bytes_down", "up_seconds", "down_seconds", "overlap_seconds", "elements")
    samples = [
        [[float(getattr(one.groups[g], column)) for one in workers] for column in columns]
        for workers in steps
        for g in range(len(workers[0].groups))
        if workers[0].groups[g].bytes_up
    ]
    if not samples:
        return Transfers(*np.empty((6, 0)))
    up_bytes, down_bytes, up, down, overlap, elements = np.moveaxis(np.array(samples), 1, 0)
    # A server serves its workers one after the other, so the fastest answer of each tells how far its clock is ahead.
    # Only by one clock can the way up of the last worker, who does not wait for others, be told from the longer ones.
    ahead = np.min(down, axis=0)
    last = np.argmin(up + ahead, axis=1)
    rows = np.arange(len(last))
    return Transfers(
        up_bytes[rows, last],
        np.max(down_bytes, axis=1),
        (up + ahead)[rows, last],
        np.max(down - ahead, axis=1),
        overlap[rows, last],
        np.maximum(1.0, np.ceil(elements[rows, last] / together)) if together else np.ones(len(last)),
    )


def _slope(sizes: Array, seconds: Array, least: float = 0.0) -> float | None:
    """Seconds per unit of size, not negative, or None if the sizes are too much alike, or too small, to tell."""
    if np.max(sizes) - np.min(sizes) <= _ALIKE * np.max(sizes) or np.max(sizes) < least:
        return None
    left, right = np.triu_indices(len(sizes), 1)
    apart = sizes[right] - sizes[left]
    left, right, apart = left[apart != 0], right[apart != 0], apart[apart != 0]
    slopes = (seconds[right] - seconds[left]) / apart
    order = np.argsort(slopes)
    weights = np.cumsum(np.abs(apart[order]))
    median = order[np.searchsorted(weights, weights[-1] / 2.0)]
    return max(0.0, float(slopes[median]))
