"""Stand-ins for the locks of `threading`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, TypeVar

from taihu.explore.scheduler import RUNNING
from taihu.explore.stand_ins.waiting import Waiting
from taihu.explore.tasks import Task

__all__ = ["BoundedSemaphore", "Condition", "Event", "Lock", "RLock", "Semaphore"]


T = TypeVar("T")


class Lock:
    """`threading.Lock`."""

    def __init__(self) -> None:
        self._owner: Task | None = None
        self._waiting = Waiting("a lock")

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """As `threading.Lock.acquire`."""
        if timeout != -1:
            if not blocking:
                raise ValueError("can't specify a timeout for a non-blocking call")
            if timeout < 0:
                raise ValueError("timeout value must be a non-negative number")
        scheduler = RUNNING()
        scheduler.point("lock")
        if self._owner is not None:
            if not blocking:
                return False
            if not self._waiting.wait_until(lambda: self._owner is None, None if timeout < 0 else timeout):
                return False
        self._owner = scheduler.current
        return True

    def release(self) -> None:
        """As `threading.Lock.release`; any task may."""
        if self._owner is None:
            raise RuntimeError("release unlocked lock")
        self._owner = None
        if self._waiting:
            self._waiting.wake()

    def locked(self) -> bool:
        """As `threading.Lock.locked`."""
        return self._owner is not None

    def __enter__(self) -> bool:
        # What `acquire` does without options: it is entered more often than all else here.
        scheduler = RUNNING()
        scheduler.point("lock")
        while self._owner is not None:
            self._waiting.wait()
        self._owner = scheduler.current
        return True

    def __exit__(self, *_: object) -> None:
        # Of a run that is over: a task ends within `with`.
        if not RUNNING().is_over:
            self.release()


class RLock:
    """`threading.RLock`."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._owner: Task | None = None
        self._depth = 0

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """As `threading.RLock.acquire`."""
        me = RUNNING().current
        if self._owner is not me:
            if not self._lock.acquire(blocking, timeout):
                return False
            self._owner = me
        self._depth += 1
        return True

    def release(self) -> None:
        """As `threading.RLock.release`."""
        if self._owner is not RUNNING().current:
            raise RuntimeError("cannot release un-acquired lock")
        self._depth -= 1
        if not self._depth:
            self._owner = None
            self._lock.release()

    def is_mine(self) -> bool:
        """Whether the running task holds it."""
        return self._owner is RUNNING().current

    def release_all(self) -> int:
        """Release it however often it was acquired; how often that was."""
        depth, self._depth, self._owner = self._depth, 0, None
        self._lock.release()
        return depth

    def acquire_again(self, depth: int) -> None:
        """Acquire it as often as `release_all` said; no signal comes before that is done."""
        me = RUNNING().current
        me.takes_interruptions = False
        self._lock.acquire()
        me.takes_interruptions = True
        self._owner, self._depth = me, depth
        RUNNING().take_interruptions(me)

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        if not RUNNING().is_over:
            self.release()


class Condition:
    """`threading.Condition`."""

    def __init__(self, lock: Lock | RLock | None = None) -> None:
        self._lock = RLock() if lock is None else lock
        self._waiting = Waiting("a condition")

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """Acquire its lock."""
        return self._lock.acquire(blocking, timeout)

    def release(self) -> None:
        """Release its lock."""
        self._lock.release()

    def wait(self, timeout: float | None = None) -> bool:
        """As `threading.Condition.wait`."""
        self._check("wait on")
        return self._wait(RUNNING().deadline(timeout))

    def _wait(self, until_s: float | None) -> bool:
        depth = 0
        if isinstance(self._lock, RLock):
            depth = self._lock.release_all()
        else:
            self._lock.release()
        try:
            return self._waiting.wait(until_s)
        finally:  # a signal may have come, whose handler raises
            if not RUNNING().is_over:
                if isinstance(self._lock, RLock):
                    self._lock.acquire_again(depth)
                else:
                    self._lock.acquire()

    def wait_for(self, predicate: Callable[[], T], timeout: float | None = None) -> T:
        """As `threading.Condition.wait_for`."""
        scheduler = RUNNING()
        until_s = scheduler.deadline(timeout)
        while not (holds := predicate()):
            if until_s is not None and scheduler.now >= until_s:
                break
            self._check("wait on")
            self._wait(until_s)
        return holds

    def notify(self, n: int = 1) -> None:
        """As `threading.Condition.notify`."""
        self._check("notify on")
        self._waiting.wake(n)

    def notify_all(self) -> None:
        """As `threading.Condition.notify_all`."""
        self._check("notify on")
        self._waiting.wake()

    def _check(self, act: str) -> None:
        """Raise RuntimeError where its lock is not held, by whom it has to be."""
        if not (self._lock.is_mine() if isinstance(self._lock, RLock) else self._lock.locked()):
            raise RuntimeError(f"cannot {act} un-acquired lock")

    def __enter__(self) -> bool:
        return self._lock.__enter__()

    def __exit__(self, *told: object) -> None:
        self._lock.__exit__(*told)


class Event:
    """`threading.Event`."""

    def __init__(self) -> None:
        self._is_set = False
        self._waiting = Waiting("an event")

    def is_set(self) -> bool:
        """As `threading.Event.is_set`."""
        RUNNING().point("event")
        return self._is_set

    def set(self) -> None:
        """As `threading.Event.set`."""
        self._is_set = True
        self._waiting.wake()

    def clear(self) -> None:
        """As `threading.Event.clear`."""
        self._is_set = False

    def wait(self, timeout: float | None = None) -> bool:
        """As `threading.Event.wait`."""
        RUNNING().point("event")
        return self._waiting.wait_until(lambda: self._is_set, timeout)


class Semaphore:
    """`threading.Semaphore`."""

    def __init__(self, value: int = 1) -> None:
        if value < 0:
            raise ValueError("semaphore initial value must be >= 0")
        self._value = value
        self._waiting = Waiting("a semaphore")

    def acquire(self, blocking: bool = True, timeout: float | None = None) -> bool:
        """As `threading.Semaphore.acquire`."""
        if not blocking and timeout is not None:
            raise ValueError("can't specify timeout for non-blocking acquire")
        RUNNING().point("semaphore")
        if not self._waiting.wait_until(lambda: self._value > 0, timeout if blocking else 0.0):
            return False
        self._value -= 1
        return True

    def release(self, n: int = 1) -> None:
        """As `threading.Semaphore.release`."""
        if n < 1:
            raise ValueError("n must be one or more")
        self._value += n
        self._waiting.wake()

    def __enter__(self) -> Literal[True]:
        self.acquire()
        return True

    def __exit__(self, *_: object) -> None:
        if not RUNNING().is_over:
            self.release()


class BoundedSemaphore(Semaphore):
    """`threading.BoundedSemaphore`."""

    def __init__(self, value: int = 1) -> None:
        super().__init__(value)
        self._most = value

    def release(self, n: int = 1) -> None:
        """As `threading.BoundedSemaphore.release`."""
        if self._value + n > self._most:
            raise ValueError("Semaphore released too many times")
        super().release(n)
