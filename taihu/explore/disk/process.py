"""Calls of `os` about the process and its machine: of the simulated ones."""

from __future__ import annotations

import errno
import os
from typing import Final, NoReturn

from taihu.explore.disk.disk import OWN, TEMPORARY, WORK, Disk
from taihu.explore.ending import Endings
from taihu.explore.scheduler import RUNNING
from taihu.explore.tasks import Ended

__all__ = ["environment", "exit_process", "getcwd", "getpid", "kill", "processors", "sysconf"]

_PROCESSORS: Final = 2
_PAGES: Final = 4 << 20


def getcwd() -> str:
    """`os.getcwd`."""
    return WORK


def getpid() -> int:
    """`os.getpid`: that of the simulated process."""
    try:
        return RUNNING().find(Disk).pid()
    except Ended:
        return os.getpid()


def kill(pid: int, number: int) -> None:
    """`os.kill`."""
    disk = RUNNING().find(Disk)
    process = disk.process(pid)
    if process is None:
        raise ProcessLookupError(errno.ESRCH, os.strerror(errno.ESRCH))
    if number:
        disk.scheduler.find(Endings).starter.signal(process, number)
        disk.scheduler.point("kill")


def exit_process(code: int) -> NoReturn:
    """`os._exit`."""
    scheduler = RUNNING()
    scheduler.find(Endings).starter.exit(scheduler.current.process, code)
    scheduler.point("exit")
    raise Ended(code)


def processors(pid: int = 0) -> set[int]:
    """`os.sched_getaffinity`: the same on every machine that explores."""
    return set(range(_PROCESSORS))


def sysconf(name: str | int) -> int:
    """`os.sysconf`, with as much memory on every machine that explores."""
    return _PAGES if name == "SC_PHYS_PAGES" else os.sysconf(name)


def environment() -> dict[str, str]:
    """The environment of a simulated process."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TAIHU_")}
    return kept | {"TMPDIR": TEMPORARY, "XDG_RUNTIME_DIR": f"{OWN}/run"}
