"""Signs that a worker gets on, and what it waits for: told with its heartbeats."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from taihu.core.base.measure import late_after
from taihu.core.coordination.membership.members import Progress
from taihu.core.wire.base.clock import Clock

if TYPE_CHECKING:
    from taihu.worker.exchange.session import Session

_RECENT_STEPS: Final = 50


class Activity:
    """The doings of a worker; the thread that trains notes them, and any other may ask for them.

    It is busy with its first step until that has ended.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._session: Session | None = None
        self._moves = 1
        self._busy_with = "its first step"
        self._ended_s = clock.now()
        self._seconds: list[float] = []

    def takes_part(self, session: Session) -> None:
        """Bytes that come and go are moves, too, and its waits are this worker's."""
        self._session = session

    def moved(self) -> None:
        """It has got on: a layer, a batch, a piece."""
        self._moves += 1

    @contextmanager
    def busy(self, what: str) -> Iterator[None]:
        """During the block it does what may take long."""
        former, self._busy_with = self._busy_with, what
        try:
            yield
        finally:
            self._busy_with = former
            self._ended_s = self._clock.now()
            self._moves += 1

    def stepped(self) -> None:
        """A step and its exchange have ended."""
        now = self._clock.now()
        self._seconds = [*self._seconds[1 - _RECENT_STEPS :], now - self._ended_s]
        self._ended_s = now
        self._busy_with = ""
        self._moves += 1

    def told(self, progress: Progress) -> Progress:
        """`progress` with what this worker does now."""
        session, moved_bytes, waits_for = self._session, 0, ""
        if session is not None:
            totals = session.exchange.totals()
            moved_bytes = totals.sent_bytes + totals.received_bytes
            waits_for = session.awaited
        return replace(
            progress,
            moves=self._moves + moved_bytes,
            waits_for=waits_for,
            busy_with=self._busy_with,
            in_step_seconds=self._clock.now() - self._ended_s,
            slow_after_seconds=late_after(self._seconds),
        )
