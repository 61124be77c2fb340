"""Tasks that wait for the same thing."""

from __future__ import annotations

from collections.abc import Callable

from taihu.explore.scheduler import RUNNING
from taihu.explore.tasks import Task

__all__ = ["Waiting"]


class Waiting:
    """The tasks that wait for one thing, in the order in which they came.

    Args:
        label: what they wait for, in stories.
    """

    __slots__ = ("_label", "_tasks")

    def __init__(self, label: str) -> None:
        self._label = label
        self._tasks: list[Task] = []

    def __len__(self) -> int:
        return len(self._tasks)

    def wait(self, until_s: float | None = None) -> bool:
        """Wait for a wake; whether it came before the virtual time `until_s`."""
        scheduler = RUNNING()
        me = scheduler.current
        self._tasks.append(me)
        was_woken = False
        try:
            was_woken = scheduler.block(self._label, until_s)
        finally:  # the handler of a signal may raise
            if not was_woken and me in self._tasks:
                self._tasks.remove(me)
        return was_woken

    def wait_until(self, holds: Callable[[], bool], timeout_s: float | None = None) -> bool:
        """Wait until `holds`; whether it does, within `timeout_s`."""
        scheduler = RUNNING()
        until_s = scheduler.deadline(timeout_s)
        while not holds():
            if until_s is not None and scheduler.now >= until_s:
                return False
            self.wait(until_s)
        return True

    def wake(self, most: int | None = None) -> None:
        """End the waits of the first `most`, or of all."""
        if not self._tasks:
            return
        most = len(self._tasks) if most is None else most
        woken, self._tasks = self._tasks[:most], self._tasks[most:]
        scheduler = RUNNING()
        for task in woken:
            scheduler.wake(task)
