"""Carriers of tasks: greenlets, or OS threads that hand a baton. One task runs at a time, on both."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final, Protocol

from taihu.core.base.errors import ConfigError
from taihu.explore.tasks import Ended, Task

_JOIN_S: Final = 10.0


class Carrier(Protocol):
    """The one that takes the processor from one task to another. The scheduler's `run` is at home."""

    def prepare(self, task: Task, life: Callable[[], Task | None]) -> None:
        """Make what carries `task`. Its `life` returns who goes on after its end; None: those at home."""
        ...

    def begin(self, task: Task) -> None:
        """From home, let `task` go on; returns when somebody goes home."""
        ...

    def switch(self, task: Task, to: Task) -> None:
        """Let `to` go on in place of `task`, the running one; returns when `task` is to go on."""
        ...

    def go_home(self, task: Task) -> None:
        """Let `begin` return; returns when `task` is to go on."""
        ...

    def end(self, task: Task) -> None:
        """From home, raise `Ended` in a task where it waits, and let it come to its end."""
        ...


class Greenlets:
    """Tasks as greenlets of one thread: half a million switches a second."""

    def __init__(self) -> None:
        try:
            import greenlet  # noqa: PLC0415 - an extra; threads carry tasks without it
        except ImportError:
            raise ConfigError(
                "greenlet is not installed: pip install 'taihu[explore]', or explore with --carrier threads"
            ) from None
        self._greenlet = greenlet.greenlet
        self._home = greenlet.getcurrent()

    def prepare(self, task: Task, life: Callable[[], Task | None]) -> None:
        """Make what carries `task`."""

        def carried(*_: object) -> None:  # of one that ends into it, the value
            after = life()
            # One that ends hands on as a parent: a switch out of it would keep it, and its stack, for ever.
            task.carrier.parent = self._home if after is None else after.carrier

        task.carrier = self._greenlet(carried, self._home)

    def begin(self, task: Task) -> None:
        """From home, let `task` go on."""
        task.carrier.switch()

    def switch(self, task: Task, to: Task) -> None:
        """Let `to` go on."""
        to.carrier.switch()

    def go_home(self, task: Task) -> None:
        """Let `begin` return."""
        self._home.switch()

    def end(self, task: Task) -> None:
        """Raise `Ended` in it."""
        if task.carrier:  # it has begun
            task.carrier.throw(Ended)


class _Baton:
    """An OS thread that runs only while it holds the baton."""

    def __init__(self, task: Task, life: Callable[[], Task | None], home: threading.Lock) -> None:
        self.held = threading.Lock()
        self.held.acquire()
        self._home = home
        self._life = life
        self.thread = threading.Thread(target=self._run, name=str(task), daemon=True)
        self.thread.start()

    def _run(self) -> None:
        self.held.acquire()
        after = self._life()
        (self._home if after is None else after.carrier.held).release()


class Batons:
    """Tasks as OS threads: slower by far, and able to switch between any two lines (`line_switches`)."""

    def __init__(self) -> None:
        self._home = threading.Lock()
        self._home.acquire()

    def prepare(self, task: Task, life: Callable[[], Task | None]) -> None:
        """Make what carries `task`."""
        task.carrier = _Baton(task, life, self._home)

    def begin(self, task: Task) -> None:
        """From home, let `task` go on."""
        task.carrier.held.release()
        self._home.acquire()

    def switch(self, task: Task, to: Task) -> None:
        """Let `to` go on."""
        to.carrier.held.release()
        task.carrier.held.acquire()

    def go_home(self, task: Task) -> None:
        """Let `begin` return."""
        self._home.release()
        task.carrier.held.acquire()

    def end(self, task: Task) -> None:
        """Let the task go on: the scheduler is over, so that it ends by itself."""
        self.begin(task)
        task.carrier.thread.join(_JOIN_S)


CARRIERS: Final[dict[str, Callable[[], Carrier]]] = {"greenlets": Greenlets, "threads": Batons}
"""Carriers by their names."""
