"""Room for callers of which nothing is known yet: so many of them, for so long."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Final

from taihu.core.system.threads import Condition, Thread, spawn
from taihu.core.wire.base.clock import Clock, SystemClock

SILENT_PLACES: Final = 64
"""The most callers of one process that have said nothing yet."""


class Room:
    """`places` for callers that have said nothing yet, each for `within_s`. Any thread may call.

    One more caller takes the place of the one that has waited longest: those who mean to say something do so at once,
    and however many others come, there is room. Where what they say takes a moment to be read, nobody is sent away
    before `at_least_s`, and until then there may be more of them. Its thread, which sends away who waits too long,
    begins with the first caller.
    """

    def __init__(self, places: int, within_s: float, clock: Clock | None = None, *, at_least_s: float = 0.0) -> None:
        self._places = places
        self._within_s = within_s
        self._at_least_s = at_least_s
        self._clock = clock or SystemClock()
        self._changed = Condition()
        # By number, the oldest one first: when it came, and what sends it away.
        self._waiting: dict[int, tuple[float, Callable[[], object]]] = {}
        self._number = 0
        self._thread: Thread | None = None
        self._closed = False

    @contextmanager
    def place(self, send_away: Callable[[], object]) -> Iterator[None]:
        """A place during the block; `send_away` is called, by any thread and once at most, to end it early."""
        number = self._enter(send_away)
        try:
            yield
        finally:
            with self._changed:
                self._waiting.pop(number, None)

    def close(self) -> None:
        """Send all away who wait, and whoever comes later."""
        with self._changed:
            self._closed = True
            waiting = list(self._waiting.values())
            self._waiting.clear()
            self._changed.notify()
        for _, send_away in waiting:
            _call(send_away)

    def __len__(self) -> int:
        return len(self._waiting)

    def _enter(self, send_away: Callable[[], object]) -> int:
        with self._changed:
            self._number += 1
            number = self._number
            leaving = send_away if self._closed else self._take_in(number, send_away)
        if leaving is not None:
            _call(leaving)
        return number

    def _take_in(self, number: int, send_away: Callable[[], object]) -> Callable[[], object] | None:
        """Returns what sends the one away whose place this caller takes, if it does."""
        leaving = None
        self._waiting[number] = (self._clock.now(), send_away)
        if len(self._waiting) > self._places and self._left_s() <= 0.0:
            _, leaving = self._waiting.pop(next(iter(self._waiting)))
        if self._thread is None:
            self._thread = spawn("silence", self._watch)
        if len(self._waiting) in (1, self._places + 1):
            self._changed.notify()
        return leaving

    def _watch(self) -> None:
        while (late := self._next_late()) is not None:
            _call(late)

    def _next_late(self) -> Callable[[], object] | None:
        """Wait for a caller that waits too long; returns what sends it away, or None when the room is closed."""
        with self._changed:
            while not self._closed:
                left_s = self._left_s() if self._waiting else None
                if left_s is not None and left_s <= 0.0:
                    return self._waiting.pop(next(iter(self._waiting)))[1]
                self._changed.wait(left_s)
        return None

    def _left_s(self) -> float:
        """The time that the oldest caller has left; there is one."""
        came_s, _ = next(iter(self._waiting.values()))
        within_s = self._within_s if len(self._waiting) <= self._places else self._at_least_s
        return came_s + within_s - self._clock.now()


def _call(send_away: Callable[[], object]) -> None:
    # Whom it concerns may be gone, or its socket closed.
    with suppress(OSError, ValueError, RuntimeError):
        send_away()
