"""Meetings of workers that stand at several steps: behind a step that all make, and at the end. Pure."""

from __future__ import annotations


class Meetings:
    """All meetings of a run of so many workers, which come to the same ones in the same order, until they end.

    Attributes:
        ended: workers that have come to the end.
    """

    def __init__(self, workers: int) -> None:
        self._workers = workers
        self._waiting: set[int] = set()
        # Meetings between steps that are over; and those where not all came, because others had ended.
        self._over = 0
        self._missed: set[int] = set()
        self.ended: set[int] = set()

    def come(self, rank: int) -> int:
        """A worker stands between two steps; returns the number of the meeting."""
        number = self._over
        self._waiting.add(rank)
        self._look()
        return number

    def end(self, rank: int) -> None:
        """A worker has made its last step."""
        self.ended.add(rank)
        self._look()

    def is_over(self, number: int) -> bool:
        """Whether nobody waits any more in a meeting between steps."""
        return number < self._over

    def all_came(self, number: int) -> bool:
        """Whether all workers came to a meeting that is over."""
        return number not in self._missed

    @property
    def all_ended(self) -> bool:
        """Whether all workers have made their last step."""
        return len(self.ended) == self._workers

    def _look(self) -> None:
        if self._waiting and len(self._waiting | self.ended) == self._workers:
            if self.ended:
                self._missed.add(self._over)
            self._over += 1
            self._waiting.clear()
