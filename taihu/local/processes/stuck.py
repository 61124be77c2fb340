"""Processes that live and take no part any more: pure, time comes in as an argument."""

from __future__ import annotations

from collections.abc import Collection


class LastingNames:
    """Finds names that were there at every look for so long.

    Args:
        after_s: seconds.
    """

    def __init__(self, after_s: float) -> None:
        self.after_s = after_s
        self._since_s: dict[str, float] = {}

    def look(self, now: float, names: Collection[str]) -> list[str]:
        """Those of `names`, all that are there at `now` in seconds, that last; each begins anew then."""
        self._since_s = {name: self._since_s.get(name, now) for name in names}
        lasting = [name for name, since in self._since_s.items() if now - since > self.after_s]
        for name in lasting:
            del self._since_s[name]
        return lasting


class StuckMembers:
    """Finds members that a run which recovers does not get back, because their processes are stopped or stuck.

    Args:
        host: the member that hosts the coordinator.
        after_s: seconds after which one that has been awaited all the time is given up.
    """

    def __init__(self, host: str, after_s: float) -> None:
        self._host = host
        self._has_begun = False
        self._awaited = LastingNames(after_s)

    def begin(self) -> None:
        """The run has begun, whatever the coordinator said until now."""
        self._has_begun = True

    def look(self, now: float, missing: Collection[str] | None) -> list[str]:
        """The members to be given up now; each has as much time again then.

        Args:
            now: seconds.
            missing: members that have not joined; None where the coordinator does not answer.
        """
        self._has_begun = self._has_begun or (missing is not None and not missing)
        if not self._has_begun:
            return []
        return self._awaited.look(now, [self._host] if missing is None else missing)


class LateMembers:
    """Tells when processes that still live are late: one of the run has ended well so long ago.

    Args:
        after_s: seconds that they have.
    """

    def __init__(self, after_s: float) -> None:
        self._after_s = after_s
        self._since_s: float | None = None

    def look(self, now: float, *, ended: bool) -> bool:
        """Whether they are late now; `ended` says whether one has ended well."""
        if not ended:
            return False
        if self._since_s is None:
            self._since_s = now
        return now - self._since_s >= self._after_s
