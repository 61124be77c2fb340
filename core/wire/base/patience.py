"""The deadlines of a process, all of which follow from one number of the job."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Patience:
    """The times that a process waits for others, in seconds.

    Attributes:
        lost_after_s: silence after which a member is given up; also that of an answer which needs no others.
    """

    lost_after_s: float = 15.0

    @property
    def answer_s(self) -> float:
        """The longest wait for a sign of life, of which several fit into `lost_after_s`."""
        return self.lost_after_s / 3.0

    @property
    def farewell_s(self) -> float:
        """The time that another side has to let a connection end in good order."""
        return self.lost_after_s / 5.0

    @property
    def ping_s(self) -> float:
        """The silence after which a connection is asked whether anybody is there, and the wait for an answer."""
        return self.lost_after_s / 2.0

    @property
    def still_after_s(self) -> float:
        """The time after which something that should move stands still: a run, or bytes that are under way."""
        return 4.0 * self.lost_after_s
