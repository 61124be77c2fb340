"""The order of a group's operations: one thread runs them as they were issued."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue

from taihu.torch.group.work import GroupWork

__all__ = ["Order"]

Item = tuple[GroupWork, Callable[[], None]]


class Order:
    """Runs operations one after the other in a thread of its own, which starts with the first.

    Args:
        name: the thread's.
        explain: makes the error that an operation's handle raises of what it raised.
    """

    def __init__(self, name: str, explain: Callable[[str, BaseException], BaseException]) -> None:
        self._name = name
        self._explain = explain
        self._queue: SimpleQueue[Item | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def issue(self, work: GroupWork, run: Callable[[], None]) -> GroupWork:
        """Queue an operation; `work` is told of its end. Returns `work`."""
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                self._thread.start()
            self._queue.put((work, run))
        return work

    def close(self, limit_s: float) -> None:
        """End when everything queued has been run; returns then, or after `limit_s`."""
        self._queue.put(None)
        if self._thread is not None:
            self._thread.join(limit_s)

    def _run(self) -> None:
        while (item := self._queue.get()) is not None:
            work, run = item
            try:
                run()
            except BaseException as error:
                work.finish(self._explain(work.what, error))
            else:
                work.finish()
            # Tensors live no longer than their operation.
            del item, work, run
