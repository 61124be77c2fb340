"""Threads that run callbacks, which may wait for whatever they like: there is always another one."""

from __future__ import annotations

from collections.abc import Callable

from taihu.core.system.queues import SimpleQueue
from taihu.core.system.threads import Lock, spawn


class Callers:
    """Threads with a name, as many as there are callbacks at a time; any thread may call."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = Lock()
        self._tasks: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        # Threads that wait for a task, less tasks that wait for a thread.
        self._free = 0
        self._count = 0
        self._is_open = True

    def call(self, task: Callable[[], None]) -> None:
        """Run `task` soon, whatever other tasks do."""
        with self._lock:
            self._tasks.put(task)
            if self._free:
                self._free -= 1
                return
            self._count += 1
        spawn(self._name, self._run)

    def close(self) -> None:
        """End the threads, each when it has run its task."""
        with self._lock:
            self._is_open = False
            free, self._free = self._free, 0
        for _ in range(free):
            self._tasks.put(None)

    def _run(self) -> None:
        while (task := self._tasks.get()) is not None:
            try:
                task()
            finally:
                del task
            with self._lock:
                if not self._is_open:
                    return
                self._free += 1
