"""The order of a group's operations: one thread runs them as they were issued, whatever their callbacks wait for."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from functools import partial
from typing import Any, Final

from taihu.core.system.queues import Empty, SimpleQueue
from taihu.core.system.threads import Lock, Thread, current_thread, spawn
from taihu.torch.group.operations.callers import Callers
from taihu.torch.group.operations.devices import HERE, Stage
from taihu.torch.group.operations.work import GroupWork

_HELD_S: Final = 2.0
"""An operation waits for callbacks of the one before no longer than this."""

Item = tuple[GroupWork, Callable[[], None]]


class Lane:
    """Operations that run one after the other: those that a script issues, or those that an operation's callbacks do.

    `order` is what runs them. The lane of callbacks ends with them, or as soon as they wait for an operation of
    another lane, which would wait for them.
    """

    def __init__(self, order: Order) -> None:
        self.order = order
        self._lock = Lock()
        self._items: SimpleQueue[Item | None] = SimpleQueue()
        self._is_open = True

    def put(self, item: Item) -> bool:
        """Queue an operation; False where the lane has ended."""
        with self._lock:
            if self._is_open:
                self._items.put(item)
            return self._is_open

    def end(self) -> None:
        """Take no more operations; those that are queued are run."""
        with self._lock:
            if self._is_open:
                self._is_open = False
                self._items.put(None)

    def take(self, limit_s: float | None = None) -> Item | None:
        """The next operation; None when the lane has ended, which it does when there is none for `limit_s`."""
        try:
            return self._items.get(timeout=limit_s)
        except Empty:
            self.end()
            return self._items.get()

    def awaits(self, lane: Lane) -> None:
        """A callback whose lane this is waits for an operation of `lane`."""
        if lane is not self and lane.order is self.order:
            self.end()


_LANE: Final[ContextVar[Lane | None]] = ContextVar("lane", default=None)
"""The lane of the callbacks that this thread runs."""


class Order:
    """Runs operations one after the other in a thread of its own, which starts with the first.

    Callbacks of futures run in other threads, and may wait for operations that they issue. These run before the
    operations that were issued behind the one whose callbacks they are: so all ranks have the same order.

    Args:
        name: the thread's.
        explain: makes the error that an operation's handle raises of what it raised.
        callers: the threads for callbacks.
    """

    def __init__(self, name: str, explain: Callable[[str, BaseException], BaseException], callers: Callers) -> None:
        self._name = name
        self._explain = explain
        self._callers = callers
        self._main = Lane(self)
        self._lock = Lock()
        self._thread: Thread | None = None

    def issue(self, what: str, result: list[Any], run: Callable[[], None], stage: Stage = HERE) -> GroupWork:
        """Queue an operation on `stage` that fills the tensors `result`; returns its handle, told of its end."""
        own = _LANE.get()
        lane = own if own is not None and own.order is self else self._main
        work = GroupWork(what, result, on_wait=partial(_awaits, lane), stage=stage)
        with self._lock:
            if self._thread is None:
                self._thread = spawn(self._name, self._run)
        if not lane.put((work, run)) and not self._main.put((work, run)):
            work.end(self._explain(what, RuntimeError("the group has been destroyed")))
        return work

    def close(self, limit_s: float) -> bool:
        """End when everything queued has been run; returns then, or after `limit_s`, and whether it is so."""
        self._main.end()
        if self._thread is None or self._thread is current_thread():
            return True
        self._thread.join(limit_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while (item := self._main.take()) is not None:
            self._carry_out(*item)
            # Tensors live no longer than their operation.
            del item

    def _carry_out(self, work: GroupWork, run: Callable[[], None]) -> None:
        error = None
        try:
            run()
        except BaseException as raised:
            error = self._explain(work.what, raised)
        del run
        tell = work.end(error)
        del work
        if tell is None:
            return
        lane = Lane(self)
        self._callers.call(partial(_tell, tell, lane))
        while (item := lane.take(_HELD_S)) is not None:
            self._carry_out(*item)
            del item


def _tell(tell: Callable[[], None], lane: Lane) -> None:
    """Run the callbacks of an operation, whose operations belong to `lane`."""
    _LANE.set(lane)
    try:
        tell()
    finally:
        _LANE.set(None)
        lane.end()


def _awaits(lane: Lane) -> None:
    """This thread is about to wait for an operation of `lane`."""
    own = _LANE.get()
    if own is not None:
        own.awaits(lane)
