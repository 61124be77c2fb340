"""Faults done to this process: signals, and connections that are cut."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import Final

from taihu.chaos.faults import Fault, FaultKind

__all__ = ["SIGNALS", "cut_connections", "do_here", "go_on_after"]

SIGNALS: Final = MappingProxyType(
    {FaultKind.KILL: signal.SIGKILL, FaultKind.STOP: signal.SIGSTOP, FaultKind.TERMINATE: signal.SIGTERM}
)
"""The signals that faults are."""

# It holds the process by a descriptor: a number may be another one's by then. It ends with the process.
_GO_ON: Final = """\
import select, signal, sys
held = int(sys.argv[1])
if not select.select([held], [], [], float(sys.argv[2]))[0]:
    signal.pidfd_send_signal(held, signal.SIGCONT)
"""


def do_here(fault: Fault) -> None:
    """Do to this process what a fault asks for; returns where it lives on."""
    if fault.kind is FaultKind.DROP:
        cut_connections()
        return
    if fault.kind is FaultKind.STOP:
        go_on_after(os.getpid(), fault.seconds)
    os.kill(os.getpid(), SIGNALS[fault.kind])


def go_on_after(pid: int, seconds: float) -> None:
    """Have another process send SIGCONT to `pid` after so long, which ends earlier where that one does."""
    held = os.pidfd_open(pid)
    try:
        helper = subprocess.Popen(  # noqa: S603
            [sys.executable, "-S", "-E", "-c", _GO_ON, str(held), str(seconds)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=(held,),
            start_new_session=True,
        )
        threading.Thread(target=helper.wait, name="go on", daemon=True).start()
    finally:
        os.close(held)


def cut_connections() -> int:
    """Shut down every TCP connection of this process, as a network that breaks; returns how many there were."""
    cut = 0
    for number in [int(each.name) for each in Path("/proc/self/fd").iterdir()]:
        with suppress(OSError):  # closed since, or no socket
            copy = socket.socket(fileno=os.dup(number))
            with copy:
                is_inet = copy.family in (socket.AF_INET, socket.AF_INET6)
                if is_inet and not copy.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                    copy.shutdown(socket.SHUT_RDWR)
                    cut += 1
    return cut
