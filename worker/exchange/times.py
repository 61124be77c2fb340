"""Times and bytes of a group in a step, as plans, summaries and traces take them."""

from __future__ import annotations

import math
from dataclasses import dataclass

from taihu.core.compression import Selection


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

    def submitted(self, now_s: float) -> None:
        """All of it goes."""
        self.submitted_s = now_s
        self.selected = self.elements

    def compressed(self, selection: Selection) -> None:
        """Some of it goes."""
        outcome = selection.outcome
        self.refreshed = bool(2 * outcome.elements[outcome.refreshed].sum() > outcome.elements.sum())
        self.selected += len(selection.indices)

    def packed(self, start_s: float, now_s: float) -> None:
        """Its selection, which began at `start_s`, has been handed on."""
        self.submitted_s = now_s
        self.compress_s = now_s - start_s

    def sent(self, count: int) -> None:
        """Some bytes of it went up; whoever takes in answers may count others at the same time."""
        if count:
            self.bytes_up += count

    def updated(self, sent_bytes: int, received_bytes: int, completed_s: float | None) -> None:
        """One part has been summed, at `completed_s` if that is another instant than now, and updated."""
        if sent_bytes:
            self.bytes_up += sent_bytes
        self.bytes_down += received_bytes
        if completed_s is not None:
            self.first_completed_s = min(self.first_completed_s, completed_s)
            self.completed_s = max(self.completed_s, completed_s)

    def done(self, now_s: float, *, skipped: bool) -> None:
        """All parts have been updated, or none of a step that is `skipped` before anything was sent."""
        self.answered_s = now_s
        if skipped:
            self.submitted(now_s)
        if not self.completed_s:
            self.first_completed_s = self.completed_s = now_s

    def fetched(self, sent_bytes: int, received_bytes: int) -> None:
        """One part of its parameters has come."""
        self.fetch_bytes_up += sent_bytes
        self.fetch_bytes_down += received_bytes
