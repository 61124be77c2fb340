"""Rounds of allreduce between the ranks of a job, without computing anything."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from taihu.allreduce.communicator import Communicator
from taihu.core.base.measure import spread
from taihu.core.planner.carriage import carrier_in, faster_carrier
from taihu.core.planner.measurement import StepMeasurement
from taihu.core.wire.base.clock import Clock, SystemClock
from taihu.core.wire.frames.headers import ValueType
from taihu.core.wire.links.pipe import Carrier

Values = NDArray[np.float32]
Allreduce = Callable[[Values], None]

_CALLS_BYTES = 20e6
# A small call takes as long as a message, a millisecond or two: more of them say nothing more.
_MOST_CALLS = 200
_WARMUP_ROUNDS = 2
_TRIAL_CALLS = 8


@dataclass(frozen=True)
class AllreduceRow:
    """One size: `seconds` of one call by the name of who did it."""

    megabytes: float
    seconds: dict[str, dict[str, float]]


def time_allreduce(
    communicator: Communicator,
    megabytes: Sequence[float],
    contestants: dict[str, Allreduce],
    *,
    rounds: int,
    allocate: Callable[[str, int], Values] = lambda name, elements: np.empty(elements, dtype=np.float32),
    clock: Clock | None = None,
) -> list[AllreduceRow]:
    """Sum fp32 buffers of these sizes (10**6 bytes) with every contestant in turn; all ranks do so together.

    Contestants take turns round by round, so that they meet the same disturbances. A round of a small size makes
    several calls, and its time is their mean. `allocate(name, elements)` gives a contestant its buffer.
    """
    clock = clock or SystemClock()
    rows = []
    for size in megabytes:
        elements = elements_of(size)
        calls = calls_of_a_round(elements)
        buffers = {name: allocate(name, elements) for name in contestants}
        seconds: dict[str, list[float]] = {name: [] for name in contestants}
        for number in range(_WARMUP_ROUNDS + rounds):
            for name, allreduce in contestants.items():
                buffers[name].fill(1.0 / communicator.size)
                communicator.allreduce(np.zeros(1, dtype=np.float32))  # all ranks begin together
                start = clock.now()
                for _ in range(calls):
                    allreduce(buffers[name])
                if number >= _WARMUP_ROUNDS:
                    seconds[name].append((clock.now() - start) / calls)
        rows.append(AllreduceRow(size, {name: spread(values) for name, values in seconds.items()}))
    return rows


def faster_way(communicator: Communicator, values: Values, clock: Clock | None = None) -> Carrier:
    """Sum `values` by gRPC and by connections beside it in turns; the ranks, which all do so, agree on the faster."""
    clock = clock or SystemClock()
    communicator.prepare("tcp")
    seconds = np.zeros(_TRIAL_CALLS)
    for number in range(_TRIAL_CALLS):
        values.fill(1.0 / communicator.size)
        communicator.carry(carrier_in("trial", number))
        communicator.allreduce(np.zeros(1, dtype=np.float32))  # all ranks begin together
        start = clock.now()
        communicator.allreduce(values)
        seconds[number] = clock.now() - start
    communicator.allreduce(seconds, ValueType.FP64)
    cold, numbers = 2, range(_TRIAL_CALLS)
    return faster_carrier([[StepMeasurement(n, False, 0.0, (), (), float(seconds[n])) for n in numbers[cold:]]])


def usual_way(communicator: Communicator) -> Allreduce:
    """The way that the sums of jobs take: a kernel's, where frames take connections and all ranks can have it."""
    path = communicator.path
    # All ranks ask, also one that has no connection: they agree on it.
    ring = None if path in ("same-host", "none") else communicator.open_ring(is_possible=path == "tcp")
    if ring is None:
        return communicator.allreduce

    def by_kernel(values: Values) -> None:
        with communicator.waiting_in(communicator.count_call()) as is_failed:
            ring.allreduce(values, "fp32", is_failed, mean=False)

    return by_kernel


def calls_of_a_round(elements: int) -> int:
    """The number of times that so many fp32 values are summed in a round: by bytes alone, the same for all ranks."""
    return min(_MOST_CALLS, max(1, round(_CALLS_BYTES / (4 * elements))))


def elements_of(megabytes: float) -> int:
    """The number of fp32 values in a buffer of this size, at least one."""
    return max(1, round(megabytes * 1e6 / 4))


def bus_bandwidth(size_bytes: float, ranks: int, seconds: float) -> float:
    """Bytes per second that a ring carries over every link: 2 (P - 1) / P of the buffer in `seconds`."""
    return 2.0 * (ranks - 1) / ranks * size_bytes / seconds


def as_rows(rows: Sequence[AllreduceRow], ranks: int, path: str, own: str) -> list[dict[str, Any]]:
    """The rows as the results show them; other contestants than `own` give `<name>_seconds`."""
    shown = []
    for row in rows:
        seconds = row.seconds[own]
        others = {f"{name}_seconds": times for name, times in row.seconds.items() if name != own}
        bandwidth = bus_bandwidth(row.megabytes * 1e6, ranks, seconds["median"])
        shown.append(
            {
                "megabytes": row.megabytes,
                "ranks": ranks,
                "path": path,
                "seconds": seconds,
                "algorithm_bandwidth_bytes_per_second": row.megabytes * 1e6 / seconds["median"],
                "bus_bandwidth_bytes_per_second": bandwidth,
                **others,
            }
        )
    return shown
