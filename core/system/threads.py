"""Threads, and that by which they wait for each other."""

from __future__ import annotations

import atexit
import sys
import threading
from collections.abc import Callable
from threading import (
    BoundedSemaphore,
    Condition,
    Event,
    Lock,
    RLock,
    Semaphore,
    Thread,
    Timer,
    active_count,
    current_thread,
    main_thread,
)
from typing import Any

__all__ = [
    "BoundedSemaphore",
    "Condition",
    "Event",
    "Lock",
    "RLock",
    "Semaphore",
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

end_threads: Callable[[], None] = threading._shutdown  # type: ignore[attr-defined]  # Python's own end calls it
"""Runs what `before_threads_end` was told, and waits for all threads but daemons."""

before_threads_end: Callable[[Callable[[], object]], object] = getattr(threading, "_register_atexit", atexit.register)
"""Has a function called when the main thread has ended, while all others still run; `atexit` comes behind them."""


def make_thread(name: str, do: Callable[..., object], *args: Any) -> Thread:
    """A daemon thread that calls `do(*args)` when somebody starts it."""
    return Thread(target=do, args=args, name=name, daemon=True)


def spawn(name: str, do: Callable[..., object], *args: Any) -> Thread:
    """Start a daemon thread that calls `do(*args)`.

    Raises:
        RuntimeError: the system gives no more threads.
    """
    thread = make_thread(name, do, *args)
    thread.start()
    return thread


def wait_longer_for_turns(seconds: float) -> None:
    """From now on threads wait so long for Python's lock before they have its holder give it up; never less than now.

    Each that waits wakes as often as that: of many threads all but one do so in vain.
    """
    sys.setswitchinterval(max(sys.getswitchinterval(), seconds))
