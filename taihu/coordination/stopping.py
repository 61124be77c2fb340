"""The last step of a run that was asked to stop, agreed between all workers. Pure; no threads or clocks.

Worker 0 stands between two steps when it fixes the last one: it has pushed all of step `s` and nothing of `s + 1`.
Every other worker that has begun step `s + 2` waits in its forward for the sum of `s + 1`, so none is past the end of
`s + 2`. That becomes the last step, and worker 0 pushes nothing before all workers are known to have learnt it: when
any of them comes to the end of `s + 2`, it knows that this was the last step.
"""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["StopAgreement", "StopNotice"]

# Steps that another worker may be ahead of worker 0, one of them complete and one begun.
_AHEAD = 2


class StopAgreement:
    """The coordinator's side: `reason` says who asked and is empty before, `last_step` is None until it is fixed."""

    def __init__(self, workers: int) -> None:
        self.reason = ""
        self.last_step: int | None = None
        self._unaware = set(range(1, workers))

    def ask(self, reason: str) -> None:
        """The run is to stop; the first reason stays."""
        self.reason = self.reason or reason

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
    """A member's side: `reason` and `last_step` as the coordinator told, `wish` is why this member wants a stop.

    `on_wish` is called when there is one.
    """

    def __init__(self) -> None:
        self.wish = ""
        self.reason = ""
        self.last_step: int | None = None
        self.on_wish: Callable[[], None] = lambda: None

    @property
    def expected(self) -> bool:
        """Whether the run is about to stop."""
        return bool(self.wish or self.reason)

    def ask(self, why: str) -> None:
        """Note that this member wants the run to stop."""
        self.wish = why
        self.on_wish()

    def heard(self, reason: str, last_step: int | None) -> None:
        """The coordinator has told this."""
        self.reason = reason
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
