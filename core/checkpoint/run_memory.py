"""The memory of a run's host in which members hold their last steps, by the name that all its hosts know.

A file in the folder of checkpoints names it: who removes that folder begins anew.
"""

from __future__ import annotations

import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

import structlog

from taihu.core.base.errors import WriteError
from taihu.core.base.whole_file import make_durably, write_text
from taihu.core.checkpoint.keepers import checkpoint_folder, recovers
from taihu.core.checkpoint.places import remove_folder
from taihu.core.job import Job
from taihu.core.process.memory.mapped_files import SHARED_MEMORY, is_own
from taihu.core.system.chance import random_hex
from taihu.core.wire.base.clock import WallClock

_NAMED_IN: Final = "memory"
_PREFIX: Final = "taihu-run-"
_TOKEN_BYTES: Final = 16
_LEFT_AFTER_S: Final = 3600.0


def holds_steps(job: Job) -> bool:
    """Whether members of the job hold their last steps in memory."""
    return job.may_hold_steps and recovers(job) and isinstance(checkpoint_folder(job), Path)


def memory_of(job: Job) -> Path | None:
    """The folder in memory of a job's run; None where it has none on this host, or holds no steps."""
    memory = _named_memory(job)
    return memory if memory is not None and _is_own(memory) else None


def _named_memory(job: Job) -> Path | None:
    folder = checkpoint_folder(job)
    return named_memory(folder) if holds_steps(job) and isinstance(folder, Path) else None


def named_memory(folder: Path) -> Path | None:
    """The folder in memory that a folder of checkpoints names, which need not be there; None where it names none."""
    try:
        token = (folder / _NAMED_IN).read_text()
    except OSError:
        return None
    return SHARED_MEMORY / f"{_PREFIX}{token}" if token.isalnum() else None


def prepare_memory(job: Job) -> bool:
    """Have a folder in memory for a job's run, the same in all its generations, where it holds steps.

    The member that hosts the coordinator calls.

    Returns:
        Whether an earlier generation, of this process or another one, may have left something in memory.
    """
    folder = checkpoint_folder(job)
    if not holds_steps(job) or not isinstance(folder, Path):
        return False
    is_known = name_memory(folder)
    have_memory(job)
    return is_known


def name_memory(folder: Path) -> bool:
    """Have a folder of checkpoints name memory; whether it has named some before."""
    is_known = named_memory(folder) is not None
    try:
        if not is_known:
            make_durably(folder)
            write_text(folder / _NAMED_IN, random_hex(_TOKEN_BYTES))
    except (OSError, WriteError) as error:
        structlog.get_logger().info("no step is held in memory", reason=str(error))
    return is_known


def have_memory(job: Job) -> Path | None:
    """The folder on this host where members hold steps, which is made if the coordinator's host has named it."""
    return have_named(_named_memory(job))


def have_named(memory: Path | None) -> Path | None:
    """The folder in memory, which is made where there is none."""
    try:
        if memory is not None and not memory.exists():
            for left in _left_behind():
                remove_folder(left)
            memory.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        structlog.get_logger().info("no step is held in memory", reason=str(error))
    return memory


def discard_memory(job: Job) -> None:
    """The run has ended: nobody goes on from its memory."""
    folder = checkpoint_folder(job)
    if holds_steps(job) and isinstance(folder, Path):
        discard_named(folder)


def discard_named(folder: Path) -> None:
    """Remove the memory that a folder of checkpoints names; it names none any more."""
    leave_memory(named_memory(folder))
    with suppress(OSError):  # another run in this folder takes the name that it finds
        (folder / _NAMED_IN).unlink(missing_ok=True)


def leave_memory(memory: Path | None) -> None:
    """The run has ended, and its name may be gone: nobody on this host goes on from its memory."""
    if memory is not None and _is_own(memory):
        remove_folder(memory)


def _left_behind() -> Iterator[Path]:
    """Folders of this user that nobody has touched for long: those who held steps there were killed."""
    for path in SHARED_MEMORY.glob(f"{_PREFIX}*"):
        with suppress(FileNotFoundError):
            if _is_own(path) and WallClock().now() - path.lstat().st_mtime > _LEFT_AFTER_S:
                yield path


def _is_own(path: Path) -> bool:
    return is_own(path, stat.S_ISDIR)
