"""The end of a process whose supervisor has ended, whatever the process does at that moment.

The supervisor holds the other end of stdin. It may have been killed, so that nobody else ends what it has started.
Closed stdin alone is not relied on: a fork of the supervisor that a user's code made may hold that end, too. Nor is
one signal: its exception may be swallowed by a finalizer or a callback, and what is closed then may wait for a peer
that has died as well.
"""

from __future__ import annotations

import faulthandler
import os
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from taihu.core.system.clocks import sleep
from taihu.core.system.polls import POLLIN, poll
from taihu.core.system.signals import ITIMER_REAL, SIGKILL, setitimer
from taihu.core.system.threads import spawn

END_GRACE_S: Final = 5.0
"""The time that a process has to close what it has opened, seconds; a supervisor that lives waits longer."""

_STDIN, _STDERR = 0, 2


def end_with_supervisor(pid: int, end: Callable[[], object], grace_s: float = END_GRACE_S) -> None:
    """Call `end`, in a thread of its own, when process `pid` has ended, which started this one, or closes its stdin.

    A process that is there `grace_s` later is ended, and says so on stderr with the stacks of its threads.
    """
    stdin = os.dup(_STDIN)  # a script may close its own, and have another file in that place

    def wait() -> None:
        _wait_for_end(pid, stdin)
        # No thread runs any more while the interpreter is taken apart: the system's own clock ends that.
        setitimer(ITIMER_REAL, 2 * grace_s)
        end()
        sleep(grace_s)
        _end_hard(grace_s)

    spawn("supervisor", wait)


def kill_self() -> None:
    """End this process at once."""
    os.kill(os.getpid(), SIGKILL)


def _wait_for_end(pid: int, stdin: int) -> None:
    """Return when the process has ended, or stdin is closed, which is all that older systems tell."""
    watched = poll()
    watched.register(stdin, POLLIN)
    try:
        watched.register(os.pidfd_open(pid), POLLIN)
    except ProcessLookupError:
        return
    except (OSError, AttributeError):
        pass
    while all(number == stdin and os.read(stdin, 4096) for number, _ in watched.poll()):
        pass


def _end_hard(grace_s: float) -> None:
    with suppress(OSError, ValueError):  # it may be closed
        faulthandler.dump_traceback(_STDERR, all_threads=True)
        os.write(_STDERR, f"error: its supervisor has ended, and this process not within {grace_s:g} s\n".encode())
    os._exit(1)
