"""Times at which the groups of a step were sent and answered, and what that took."""

from __future__ import annotations

import math
from dataclasses import dataclass

__all__ = ["GroupTimes"]


@dataclass
class GroupTimes:
    """One group of one step; instants in seconds of this worker's clock.

    Attributes:
        elements: values in the group.
        ready_s: its gradients were complete.
        compress_s: seconds that selecting and packing took; 0 without compression.
        selected: values that were sent.
        refreshed: whether thresholds of most of its elements were made anew.
        submitted_s: its last frame was handed to the stream.
        first_completed_s, completed_s: the servers had its first frame, and the last one, from every worker;
            uncertain by the time that the fastest answer took.
        answered_s: its last answer was written into the parameters.
        bytes_up, bytes_down: of all its frames, headers included.
        fetch_bytes_up, fetch_bytes_down: of its parameters, where they are fetched when they are needed.
    """

    elements: int
    ready_s: float = 0.0
    compress_s: float = 0.0
    selected: int = 0
    refreshed: bool = False
    submitted_s: float = 0.0
    first_completed_s: float = math.inf
    completed_s: float = 0.0
    answered_s: float = 0.0
    bytes_up: int = 0
    bytes_down: int = 0
    fetch_bytes_up: int = 0
    fetch_bytes_down: int = 0
