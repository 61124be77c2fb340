"""The last step of a run that was asked to stop, agreed between all workers. Pure; no threads or clocks.

Worker 0 stands between two steps when it fixes the last one: it has pushed all of step `s` and nothing of `s + 1`.
Every other worker that has begun step `s + 2` waits in its forward for the sum of `s + 1`, so none is past the end of
`s + 2`. That becomes the last step, and worker 0 pushes nothing before all workers are known to have learnt it: when
any of them comes to the end of `s + 2`, it knows that this was the last step.
"""

from __future__ import annotations

from collections.abc import Callable

# Steps that another worker may be ahead of worker 0, one of them complete and one begun.
_AHEAD = 2


class PendingStop:
    """A stop for good that a run was asked for, and has not made yet: it outlives the generations of its members.

    Attributes:
        reason: of the first who asked; "" for none.
    """

    def __init__(self) -> None:
        self.reason = ""

    def ask(self, reason: str) -> None:
        """The run is to stop."""
        self.reason = self.reason or reason


class StopAgreement:
    """The coordinator's side: `reason` says who asked and is empty before, `last_step` is None until it is fixed.

    `goes_on` says that the run goes on behind that step, with another process in the place of the one that asked.
    """

    def __init__(self, workers: int) -> None:
        self.reason = ""
        self.goes_on = False
        self.last_step: int | None = None
        self._unaware = set(range(1, workers))

    def ask(self, reason: str, *, goes_on: bool = False) -> None:
        """The run is to stop, for good or to go on without who asked; the first reason stays."""
        if not self.reason:
            self.reason, self.goes_on = reason, goes_on

    def fix(self, step: int) -> int:
        """Worker 0 stands between `step` and the next one, which it does not begin before `agreed`; the last step."""
        if self.last_step is None:
            self.last_step = step + _AHEAD
        return self.last_step

    def learnt(self, rank: int, last_step: int) -> None:
        """Worker `rank` knows that `last_step` is the last one."""
        if last_step == self.last_step:
            self._unaware.discard(rank)

    @property
    def agreed(self) -> bool:
        """Whether worker 0 may go on: all others know the last step."""
        return self.last_step is not None and not self._unaware


class StopNotice:
    """A member's side: `reason`, `last_step` and `goes_on` as the coordinator told, `wish` is why it wants a stop.

    `leaves` says that this member wants to leave a run that goes on, no more. `on_wish` is called with a wish.
    """

    def __init__(self) -> None:
        self.wish = ""
        self.leaves = False
        self.reason = ""
        self.goes_on = False
        self.last_step: int | None = None
        self.on_wish: Callable[[], None] = lambda: None

    @property
    def expected(self) -> bool:
        """Whether the run is about to stop."""
        return bool(self.wish or self.reason)

    def ask(self, why: str, *, leaves: bool = False) -> None:
        """Note that this member wants the run to stop, or to go on without it."""
        self.wish, self.leaves = why, leaves
        self.on_wish()

    def heard(self, reason: str, last_step: int | None, *, goes_on: bool = False) -> None:
        """The coordinator has told this."""
        self.reason = reason
        self.goes_on = goes_on
        if last_step is not None:
            self.last_step = last_step

    def must_fix(self, step: int, total: int) -> bool:
        """Whether worker 0, between `step` and the next one of `total`, has to fix the last one.

        Before the first step there is nothing to save, and a run that ends soon just ends.
        """
        return bool(self.reason) and self.last_step is None and 0 < step < total - _AHEAD

    def last_of(self, total: int) -> int:
        """The last step of a run of `total` steps, as far as this member knows."""
        return total if self.last_step is None else min(total, self.last_step)
