"""The generations of a run that are over, as the member that hosts its coordinator knows them: a pure object."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Self

from taihu.core.coordination.control.looking import Change

_MOST: Final = 20


@dataclass(frozen=True)
class Past:
    """The ends of generations.

    Attributes:
        generations: the number of those that have begun, the present one among them.
        changes: the ends of the last twenty, the oldest first.
        reason: of the last end, behind which nobody has begun yet; "" where all have.
    """

    generations: int = 0
    changes: tuple[Change, ...] = ()
    reason: str = ""

    def ended(self, reason: str) -> Self:
        """A generation has ended."""
        return type(self)(self.generations, self.changes, reason)

    def began(self, step: int) -> Self:
        """The next one begins behind `step`."""
        new = (Change(self.reason, step),) if self.generations else ()
        return type(self)(self.generations + 1, (*self.changes, *new)[-_MOST:])

    @property
    def follows(self) -> str:
        """The reason for which the generation before the present one ended; "" where there was none."""
        return self.changes[-1].reason if self.changes else ""
