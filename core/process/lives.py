"""The life of a process in names of what it leaves: whoever comes later knows which of that nobody needs any more."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

LIFE: Final = r"[0-9]{1,20}-[0-9]{1,20}-[0-9]{1,20}"
"""The form of a life: pid namespace, pid, and start in clock ticks since boot."""

_PREFIX: Final = "taihu-of-"
_FOLDER: Final = re.compile(rf"{_PREFIX}({LIFE})-.*", re.ASCII)


def own_life() -> str:
    """That of this process; OSError where there is no /proc."""
    return f"{_pid_namespace()}-{os.getpid()}-{_start_time(os.getpid())}"


def is_over(life: str) -> bool:
    """Whether a process is gone; those of other containers cannot be looked up, and are not known to be.

    Raises:
        OSError: there is no /proc.
    """
    namespace, pid, start = map(int, life.split("-"))
    return namespace == _pid_namespace() and _start_time(pid) != start


@contextmanager
def passing_folder() -> Iterator[Path]:
    """A folder for temporary files for the block alone.

    One that a process of this user has left, because it was killed, goes with the next.
    """
    with suppress(OSError):
        _remove_leftovers(Path(tempfile.gettempdir()))
    prefix = "taihu-"
    with suppress(OSError):
        prefix = f"{_PREFIX}{own_life()}-"
    with tempfile.TemporaryDirectory(prefix=prefix) as name:
        yield Path(name)


def _remove_leftovers(folder: Path) -> None:
    for path in folder.glob(f"{_PREFIX}*"):
        match = _FOLDER.fullmatch(path.name)
        if match and is_over(match[1]) and path.lstat().st_uid == os.geteuid() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)


def _pid_namespace() -> int:
    return Path("/proc/self/ns/pid").stat().st_ino


def _start_time(pid: int) -> int | None:
    """The start of a process, in clock ticks since boot; None when there is none."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The command's name before it may hold anything, blanks and parentheses too.
    return int(text[text.rindex(")") + 1 :].split()[19])
