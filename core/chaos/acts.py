"""Faults done to this process: signals, connections that are cut, time that passes; and signals to another one."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import Final

from taihu.core.chaos.faults import Fault, FaultKind
from taihu.core.system.clocks import sleep
from taihu.core.system.processes import DEVNULL, Popen
from taihu.core.system.signals import SIGKILL, SIGSTOP, SIGTERM, pidfd_send_signal
from taihu.core.system.sockets import AF_INET, AF_INET6, SHUT_RDWR, SO_ACCEPTCONN, SOL_SOCKET, Socket
from taihu.core.system.threads import spawn

SIGNALS: Final = MappingProxyType({FaultKind.KILL: SIGKILL, FaultKind.STOP: SIGSTOP, FaultKind.TERMINATE: SIGTERM})
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
    if fault.kind is FaultKind.DELAY:
        sleep(fault.lasts_s)
        return
    held = os.pidfd_open(os.getpid())
    try:
        send_signal(held, fault)
    finally:
        os.close(held)


def send_signal(held: int, fault: Fault) -> None:
    """Send the signal of a fault to the process that the descriptor `held` stands for.

    Raises:
        ProcessLookupError: it has ended.
    """
    if fault.kind is FaultKind.STOP:
        go_on_after(held, fault.lasts_s)
    pidfd_send_signal(held, SIGNALS[fault.kind])


def go_on_after(held: int, seconds: float) -> None:
    """Have a process send SIGCONT after so long to that of the descriptor `held`; it ends earlier with that one."""
    helper = Popen(
        [sys.executable, "-S", "-E", "-c", _GO_ON, str(held), str(seconds)],
        stdin=DEVNULL,
        stdout=DEVNULL,
        stderr=DEVNULL,
        pass_fds=(held,),
        start_new_session=True,
    )
    spawn("go on", helper.wait)


def cut_connections() -> int:
    """Shut down every TCP connection of this process, as a network that breaks; returns how many there were."""
    cut = 0
    for number in [int(each.name) for each in Path("/proc/self/fd").iterdir()]:
        with suppress(OSError):  # closed since, or no socket
            copy = Socket(fileno=os.dup(number))
            with copy:
                is_inet = copy.family in (AF_INET, AF_INET6)
                if is_inet and not copy.getsockopt(SOL_SOCKET, SO_ACCEPTCONN):
                    copy.shutdown(SHUT_RDWR)
                    cut += 1
    return cut
