"""The search for the best way to run a job: which candidates are simulated, and in which order they rank. Pure.

Whoever drives it simulates what `Search.next` names and says what was found, until nothing is left to look at.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from taihu.search.floors import Floor
from taihu.search.ways import Candidate
from taihu.simulation.job import Simulated

ALIKE: Final = 0.02
"""Steps that differ by no more of their time are as fast: predictions cannot tell them apart."""


@dataclass(frozen=True)
class Found:
    """A candidate that was simulated."""

    candidate: Candidate
    step: Simulated


@dataclass(frozen=True)
class Passed:
    """A candidate that was not worth it: it cannot be among the best, as its floor says."""

    candidate: Candidate
    floor: Floor


def ranked(found: Sequence[Found]) -> list[Found]:
    """All that was found, the best first: those as fast as the fastest by preference, then the others by time."""
    least = min((each.step.seconds for each in found), default=0.0)

    def place(each: Found) -> tuple[float, ...]:
        seconds, preference = each.step.seconds, each.candidate.preference
        if seconds <= least * (1.0 + ALIKE):
            return (0.0, *preference, seconds)
        return (1.0, seconds, *preference)

    return sorted(found, key=place)


class Search:
    """The search among candidates with their floors, which ranks the `best` of them as if all were simulated.

    Floors are looked at from the lowest on. A candidate is passed by where its floor is above as many steps as are
    wanted, or where so many that are to be preferred to it are as fast as anything that is left can be. In the end
    those come back that what was found since has made matter.
    """

    def __init__(self, candidates: Sequence[tuple[Candidate, Floor]], best: int) -> None:
        self._waiting = sorted(candidates, key=lambda each: (each[1].seconds, each[0].preference), reverse=True)
        self._best = best
        self._seconds: list[float] = []
        self.found: list[Found] = []
        self.passed: list[Passed] = []

    @property
    def left(self) -> int:
        """The number of those that have not been looked at."""
        return len(self._waiting)

    def next(self) -> Candidate | None:
        """The candidate to simulate, of which `add` is told or which is left out; None when the search is over."""
        while self._waiting:
            candidate, floor = self._waiting.pop()
            if not self._is_spared(candidate, floor.seconds):
                return candidate
            self.passed.append(Passed(candidate, floor))
        return self._taken_back()

    def add(self, candidate: Candidate, step: Simulated) -> None:
        """The step of a candidate has been simulated."""
        self.found.append(Found(candidate, step))
        insort(self._seconds, step.seconds)

    def _taken_back(self) -> Candidate | None:
        """One that was passed by and may change the ranking after all."""
        slowest = self._slowest_alike()
        for number, passed in enumerate(self.passed):
            floor = passed.floor.seconds
            if slowest > floor * (1.0 + ALIKE) or not self._is_spared(passed.candidate, floor):
                return self.passed.pop(number).candidate
        return None

    def _slowest_alike(self) -> float:
        """The longest step of the best ones that are as fast as the fastest: a faster one might show they are not."""
        enough = self._seconds[0] * (1.0 + ALIKE) if self._seconds else 0.0
        best = (each.step.seconds for each in ranked(self.found)[: self._best])
        return max((seconds for seconds in best if seconds <= enough), default=0.0)

    def _is_spared(self, candidate: Candidate, floor_seconds: float) -> bool:
        return self._is_beaten(floor_seconds) or self._is_behind(candidate, floor_seconds)

    def _is_beaten(self, floor_seconds: float) -> bool:
        seconds = self._seconds
        if len(seconds) < self._best:
            return False
        return floor_seconds > max(seconds[self._best - 1], seconds[0] * (1.0 + ALIKE))

    def _is_behind(self, candidate: Candidate, floor_seconds: float) -> bool:
        """Whether enough that are preferred to it are sure to rank as the fastest do: no floor left is lower."""
        if len(self._seconds) < self._best:
            return False
        enough = min(floor_seconds, self._seconds[0]) * (1.0 + ALIKE)
        preferred = (
            each.step.seconds <= enough and each.candidate.preference < candidate.preference for each in self.found
        )
        return sum(preferred) >= self._best
