"""Signals that a thread has not heard, because it had just begun to wait.

Python notes a signal, and handles it when the main thread comes to its next instruction. A system call that waits is
broken off by it. One that begins within the same moment, when the thread has looked already, is not, and a lock may
be waited for as long as a run takes. So the main thread is woken a moment later, whether or not it has handled it.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from typing import Final

from taihu.core.system.clocks import sleep
from taihu.core.system.signals import SIGURG, pthread_kill, set_handler, set_wakeup_fd
from taihu.core.system.threads import main_thread, spawn

_MOMENT_S: Final = 0.1
_MANY: Final = 4096
# Of no use to anybody here, and ignored by default: no socket has urgent data.
_WAKES: Final = SIGURG


def wake_for_signals(numbers: Collection[int]) -> None:
    """From now on wake the main thread, which calls this, behind each of these signals; those of forks do no harm."""
    read, write = os.pipe()
    os.set_blocking(write, False)
    set_handler(_WAKES, lambda *_: None)
    set_wakeup_fd(write, warn_on_full_buffer=False)
    main = main_thread().ident
    assert main is not None  # noqa: S101 - it runs

    def wake() -> None:
        while came := os.read(read, _MANY):
            if not set(came).isdisjoint(numbers):
                sleep(_MOMENT_S)
                pthread_kill(main, _WAKES)

    spawn("signals", wake)
