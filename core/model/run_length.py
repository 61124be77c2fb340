"""The length of a run, as its workers know it once they have their data."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class RunLength:
    """`samples` are there to train on; all workers together take `steps_per_epoch` steps for a pass over them."""

    samples: int
    steps_per_epoch: int
    total_steps: int
