"""Steps by each plan as they were measured last: one that turns out slower than another is taken back. Pure."""

from __future__ import annotations

from typing import Final

from taihu.core.planner.groups import Group

Groups = tuple[Group, ...]

# Windows of some steps differ by less from noise alone, see docs/adr/0007.
_SLACK: Final = 0.1
# Windows after which a plan may be tried again: what it took then may have been another load's fault.
_LASTS: Final = 3


class Windows:
    """The seconds of a step in the windows of steps that workers report of, by the groups of that time."""

    def __init__(self) -> None:
        self._count = 0
        self._seconds: dict[Groups, tuple[int, float]] = {}

    def note(self, groups: Groups, seconds: float) -> None:
        """A window has ended, in which a step by `groups` took so long; 0 where no ordinary step was in it."""
        self._count += 1
        if seconds:
            self._seconds[groups] = self._count, seconds

    def best(self, wanted: Groups) -> Groups:
        """The groups to go on by: `wanted`, but for others that took less by more than a tenth, not long ago."""
        known = {groups: each for groups, (at, each) in self._seconds.items() if self._count - at < _LASTS}
        if wanted not in known:
            return wanted
        least = min(known, key=known.__getitem__)
        return least if known[least] < (1.0 - _SLACK) * known[wanted] else wanted
