"""Processes of a run that `taihu train` or `run` started on this machine, found by the logs that they write now."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_LOG = re.compile(r"(server|worker)-(\d+)\.log")


def processes_of(logs: Path) -> dict[str, int]:
    """The pids of living daemons by member: those whose stderr is a log in that folder.

    No file tells a pid, which could be another process's by now.
    """
    logs = logs.resolve()
    found: dict[str, int] = {}
    # Processes that a member has started write to the same log: they have come later.
    for pid in sorted(int(folder.name) for folder in Path("/proc").glob("[0-9]*")):
        member = _member_of(pid, logs)
        if member is not None:
            found.setdefault(member, pid)
    return dict(sorted(found.items()))


@contextmanager
def held(member: str, logs: Path) -> Iterator[int]:
    """A descriptor of the member's process during the block, which never is another one's.

    Raises:
        ProcessLookupError: there is no such process now.
    """
    pid = processes_of(logs).get(member)
    if pid is None:
        raise ProcessLookupError(f"{member} does not run")
    descriptor = os.pidfd_open(pid)
    try:
        # The number may have become another one's between the two.
        if _member_of(pid, logs.resolve()) != member:
            raise ProcessLookupError(f"{member} does not run")
        yield descriptor
    finally:
        os.close(descriptor)


def _member_of(pid: int, logs: Path) -> str | None:
    with suppress(OSError):  # ended since, or another user's
        log = Path(f"/proc/{pid}/fd/2").readlink()
        name = _LOG.fullmatch(log.name)
        if name is not None and log.parent == logs and _is_running(pid):
            return f"{name[1]} {name[2]}"
    return None


def _is_running(pid: int) -> bool:
    """Whether it is a daemon or a script's worker, and not one that has ended and waits to be seen."""
    words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    return b"--rank" in words or b"taihu.torch.script" in words
