"""The largest batch that the memory of a job's workers allows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from taihu.core.planner.memory import MemoryJob, fits


class StepBytes(NamedTuple):
    """Bytes of a worker that depend on its batch."""

    activations: int
    data: int


def largest_batch(
    job: MemoryJob,
    of_batch: Callable[[int], StepBytes],
    most: int,
    worker_free: int,
    server_free: int,
    *,
    machine_free: int | None = None,
) -> int:
    """The most samples of a worker in a step with which every process fits, `most` at most; 0 where not one does.

    Args:
        job: whatever its own batch takes.
        of_batch: bytes for so many samples, at least 1; they do not fall.
        most: samples that there are.
        worker_free: see `taihu.core.planner.memory.fits`.
        server_free: likewise.
        machine_free: likewise.
    """

    def has_room(batch: int) -> bool:
        activations, data = of_batch(batch)
        with_batch = replace(job, activation_bytes=activations, data_bytes=data)
        return fits(with_batch, worker_free, server_free, machine_free=machine_free)

    # Doubled first: what many samples take is asked for only where fewer have room.
    fitting, beyond = 0, 1
    while beyond <= most and has_room(beyond):
        fitting, beyond = beyond, 2 * beyond
    beyond = min(beyond, most + 1)
    while beyond - fitting > 1:
        middle = (fitting + beyond) // 2
        fitting, beyond = (middle, beyond) if has_room(middle) else (fitting, middle)
    return fitting
