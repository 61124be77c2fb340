"""Work in a thread beside: during a block, and task by task."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from taihu.core.base.errors import RunError, TaihuError
from taihu.core.system.queues import SimpleQueue
from taihu.core.system.threads import Event, Thread, make_thread, spawn


@contextmanager
def in_background(work: Callable[[Event], None], name: str) -> Iterator[Thread]:
    """Run `work(over)` in a daemon thread during the block; `over` is set at its end, and the thread waited for."""
    over = Event()
    thread = spawn(name, work, over)
    try:
        yield thread
    finally:
        over.set()
        thread.join()


class TaskThread:
    """Carries tasks out one after the other, from `start` to `close`; `fail` is called with what goes wrong.

    Behind a task that failed nothing is carried out. `name` is that of the thread, and of whom messages speak.
    """

    def __init__(self, name: str, fail: Callable[[BaseException], None]) -> None:
        self._name = name
        self._fail = fail
        self._tasks: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._thread = make_thread(name, self._run)
        self.put: Callable[[Callable[[], None]], None] = self._tasks.put
        """Carry out a task behind what was put before; called by any thread."""

    def start(self) -> None:
        """Begin with what is put."""
        self._thread.start()

    def drain(self) -> None:
        """Return when everything that was put before has been carried out, or failed."""
        if self._thread.is_alive():
            done = Event()
            self._tasks.put(done.set)
            while self._thread.is_alive() and not done.wait(0.1):
                pass

    def close(self) -> None:
        """End when everything has been carried out."""
        if self._thread.is_alive():
            self._tasks.put(None)
            self._thread.join()

    def _run(self) -> None:
        try:
            while (task := self._tasks.get()) is not None:
                task()
        except TaihuError as error:
            self._fail(error)
        except BaseException as error:
            self._fail(RunError(f"internal error of the {self._name}: {error!r}"))
            raise
