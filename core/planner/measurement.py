"""Measurements of steps, as workers report them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class GroupMeasurement:
    """One group of a measured step.

    `up_seconds` ends when the servers had all of the group from every worker; `down_seconds` begins when they had the
    first of its frames; `overlap_seconds` is what both share, 0 for a group of one frame. By how much the clocks
    differ is uncertain, so up may hold what down lacks. They mean something in serial steps only, where no other
    group is under way.
    """

    elements: int
    compress_seconds: float
    refreshed: bool
    bytes_up: int
    bytes_down: int
    up_seconds: float
    down_seconds: float
    overlap_seconds: float = 0.0


@dataclass(frozen=True)
class StepMeasurement:
    """One measured step of one worker; `backward_seconds` for each layer in backward order.

    `exchange_seconds` is from the first gradient that was ready to the last answer, `path` what values took, as the
    exchange says it. `seconds` is all of the step, waits included; 0 where that is not known.
    """

    step: int
    serial: bool
    forward_seconds: float
    backward_seconds: tuple[float, ...]
    groups: tuple[GroupMeasurement, ...]
    exchange_seconds: float = 0.0
    path: str = ""
    seconds: float = 0.0
