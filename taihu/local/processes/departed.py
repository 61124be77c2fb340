"""Processes that were asked to end before the run knew of them: pure, time comes in as an argument."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

# One look may fall between the end of a process and what the others make of it.
_SURE_S: Final = 1.0


class DepartedMembers:
    """Finds members whose processes were interrupted and that the others wait for: nobody takes their places.

    Args:
        host: the member that hosts the coordinator.
        lost_after_s: the silence of its coordinator after which a run has ended: nobody says who is missing then, and
            who was told of the end ends meanwhile.
    """

    def __init__(self, host: str, lost_after_s: float) -> None:
        self._host = host
        self._lost_after_s = lost_after_s
        self._since_s: dict[str, float] = {}

    def look(self, now: float, interrupted: Collection[str], missing: Collection[str] | None) -> str | None:
        """A member that is waited for in vain, if there is one.

        Args:
            now: seconds.
            interrupted: members whose processes have ended because they were asked to.
            missing: members that have not joined; None where the coordinator does not answer.
        """
        awaited, sure_s = ([self._host], self._lost_after_s) if missing is None else (missing, _SURE_S)
        self._since_s = {name: self._since_s.get(name, now) for name in interrupted if name in awaited}
        return next((name for name, since in self._since_s.items() if now - since >= sure_s), None)
