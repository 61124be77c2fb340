"""A thread of the exchange's own: what is computed beside training and the network, in the order in which it came."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue

from taihu.errors import RunError, TaihuError

__all__ = ["OwnThread"]


class OwnThread:
    """Carries tasks out one after the other, from `start` to `close`; `fail` is called with what goes wrong.

    Behind a task that failed nothing is carried out.
    """

    def __init__(self, fail: Callable[[BaseException], None]) -> None:
        self._fail = fail
        self._tasks: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="exchange", daemon=True)

    def start(self) -> None:
        """Begin with what is put."""
        self._thread.start()

    def put(self, task: Callable[[], None]) -> None:
        """Carry out `task` behind what was put before; called by any thread."""
        self._tasks.put(task)

    def drain(self) -> None:
        """Return when everything that was put before has been carried out, or failed."""
        if self._thread.is_alive():
            done = threading.Event()
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
            self._fail(RunError(f"internal error of the exchange: {error!r}"))
            raise
