"""A signal that another thread was interrupted by is heard by the main thread, whatever that waits for."""

from __future__ import annotations

import subprocess
import sys

# The state that a signal leaves which comes between the main thread's last look and its wait: Python knows of it, and
# no system call was broken off. Here another thread is the one that it interrupts.
PROGRAM = """
import os, signal, threading
from taihu.core.process.entry import InterruptedRunError, Interrupts
interrupts = Interrupts()
interrupts.install()
interrupts.are_heard()
never = threading.Lock()
never.acquire()

def waits():
    own = lambda: signal.pthread_kill(threading.get_ident(), signal.SIGTERM)
    threading.Timer(0.05, own).start()
    try:
        never.acquire()
    except InterruptedRunError:
        return "heard"

guard = threading.Timer(60, os._exit, (9,))
guard.daemon = True
guard.start()
print(waits(), waits())
"""


def test_a_signal_is_heard_that_no_wait_was_broken_off_by() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=120, check=False)
    assert (done.stdout, done.stderr) == ("heard heard\n", "")
