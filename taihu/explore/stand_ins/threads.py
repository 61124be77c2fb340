"""Stand-ins for threads and timers."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterable, Mapping
from typing import Any, cast

from taihu.explore.scheduler import RUNNING
from taihu.explore.stand_ins.locks import Event
from taihu.explore.tasks import Task

__all__ = [
    "Thread",
    "Timer",
    "active_count",
    "before_threads_end",
    "current_thread",
    "end_threads",
    "main_thread",
    "make_thread",
    "spawn",
    "wait_longer_for_turns",
]


class Thread:
    """`threading.Thread`: a task of the process in which it is started."""

    def __init__(
        self,
        group: None = None,
        target: Callable[..., object] | None = None,
        name: str | None = None,
        args: Iterable[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        *,
        daemon: bool | None = None,
    ) -> None:
        self._target = target
        self._args = tuple(args)
        self._kwargs = dict(kwargs or {})
        self.name = name or "thread"
        self.daemon = RUNNING().current.is_daemon if daemon is None else daemon
        self._task: Task | None = None

    @classmethod
    def of(cls, task: Task) -> Thread:
        """The thread that a task is."""
        if task.thread is None:
            thread = cls(name=task.name, daemon=task.is_daemon)
            thread._task = task
            task.thread = thread
        return cast(Thread, task.thread)

    def run(self) -> None:
        """As `threading.Thread.run`."""
        if self._target is not None:
            self._target(*self._args, **self._kwargs)

    def start(self) -> None:
        """As `threading.Thread.start`."""
        if self._task is not None:
            raise RuntimeError("threads can only be started once")
        scheduler = RUNNING()
        self._task = scheduler.add(self.run, self.name)
        self._task.thread = self
        self._task.is_daemon = self.daemon
        scheduler.point("thread")

    def is_alive(self) -> bool:
        """As `threading.Thread.is_alive`."""
        RUNNING().point("thread")
        return self._task is not None and not self._task.has_ended

    def join(self, timeout: float | None = None) -> None:
        """As `threading.Thread.join`."""
        scheduler, task = RUNNING(), self._task
        if task is None:
            raise RuntimeError("cannot join thread before it is started")
        if task is scheduler.current:
            raise RuntimeError("cannot join current thread")
        scheduler.point("thread")
        until_s = scheduler.deadline(timeout)
        while not task.has_ended:
            if until_s is not None and scheduler.now >= until_s:
                return
            task.joiners.append(scheduler.current)
            scheduler.block(f"the end of {self.name}", until_s)

    @property
    def ident(self) -> int | None:
        """As `threading.Thread.ident`."""
        return None if self._task is None else self._task.number

    native_id = ident


class Timer(Thread):
    """`threading.Timer`."""

    def __init__(
        self,
        interval: float,
        function: Callable[..., object],
        args: Iterable[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(target=function, name="timer", args=args or (), kwargs=kwargs)
        self.interval = interval
        self.finished = Event()

    def run(self) -> None:
        """As `threading.Timer.run`."""
        if not self.finished.wait(self.interval):
            super().run()
        self.finished.set()

    def cancel(self) -> None:
        """As `threading.Timer.cancel`."""
        self.finished.set()


def current_thread() -> Thread:
    """The thread that the running task is."""
    return Thread.of(RUNNING().current)


def main_thread() -> Thread:
    """The first thread of the running task's process."""
    scheduler = RUNNING()
    return Thread.of(scheduler.main_task(scheduler.current.process) or scheduler.current)


def active_count() -> int:
    """The number of threads of the running task's process."""
    scheduler = RUNNING()
    return len(scheduler.living(scheduler.current.process))


def make_thread(name: str, do: Callable[..., object], *args: Any) -> Thread:
    """A daemon thread that calls `do(*args)` when somebody starts it."""
    return Thread(target=do, args=args, name=name, daemon=True)


def spawn(name: str, do: Callable[..., object], *args: Any) -> Thread:
    """Start a daemon thread that calls `do(*args)`."""
    thread = make_thread(name, do, *args)
    thread.start()
    return thread


def before_threads_end(do: Callable[[], object]) -> None:
    """No simulated process ends as Python does."""
    raise OSError(errno.ENOSYS, f"not simulated: {do}")


def end_threads() -> None:
    """No simulated process ends as Python does."""
    raise OSError(errno.ENOSYS, "not simulated")


def wait_longer_for_turns(seconds: float) -> None:
    """Do nothing: the order of tasks is drawn."""
    del seconds
