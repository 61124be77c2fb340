"""A checkpoint of what all members held in memory when one of them was lost: no step is made again.

It is written by the member that hosts the coordinator, before the next generation begins, where all that have
something to keep were on its host. A file in the folder of checkpoints names the memory: who removes the folder
begins anew.
"""

from __future__ import annotations

import secrets
import stat
from collections.abc import Iterator, Sequence
from contextlib import suppress
from operator import attrgetter
from pathlib import Path
from typing import Final

import structlog

from taihu.core.base.errors import TaihuError, WriteError
from taihu.core.base.whole_file import make_durably, write_text
from taihu.core.base.words import one_line
from taihu.core.checkpoint.files import PartFile, write_part
from taihu.core.checkpoint.held_steps import Label, labels_of, read_held, read_run
from taihu.core.checkpoint.keepers import checkpoint_folder, keepers, recovers
from taihu.core.checkpoint.manifest import Manifest
from taihu.core.checkpoint.part import Part
from taihu.core.checkpoint.places import remove_folder
from taihu.core.checkpoint.store import CheckpointStore
from taihu.core.job import Job
from taihu.core.process.mapped_files import SHARED_MEMORY, is_own
from taihu.core.wire.base.clock import WallClock

__all__ = ["discard_memory", "holds_steps", "memory_of", "newest_held", "prepare_memory", "salvage"]

_NAMED_IN: Final = "memory"
_PREFIX: Final = "taihu-run-"
_TOKEN_BYTES: Final = 16
_LEFT_AFTER_S: Final = 3600.0


def holds_steps(job: Job) -> bool:
    """Whether members of the job hold their last steps in memory."""
    return job.may_hold_steps and recovers(job) and isinstance(checkpoint_folder(job), Path)


def memory_of(job: Job) -> Path | None:
    """The folder in memory of a job's run; None where it has none here, or holds no steps.

    Only the host of the coordinator has one: a checkpoint is made of what lies there.
    """
    memory = _named_memory(job)
    return memory if memory is not None and _is_own(memory) else None


def _named_memory(job: Job) -> Path | None:
    folder = checkpoint_folder(job)
    if not holds_steps(job) or not isinstance(folder, Path):
        return None
    try:
        token = (folder / _NAMED_IN).read_text()
    except OSError:
        return None
    return SHARED_MEMORY / f"{_PREFIX}{token}" if token.isalnum() else None


def prepare_memory(job: Job) -> None:
    """Have a folder in memory for a job's run, the same in all its generations, where it holds steps.

    The member that hosts the coordinator calls.
    """
    folder = checkpoint_folder(job)
    if not holds_steps(job) or not isinstance(folder, Path):
        return
    try:
        if _named_memory(job) is None:
            make_durably(folder)
            write_text(folder / _NAMED_IN, secrets.token_hex(_TOKEN_BYTES))
            for left in _left_behind():
                remove_folder(left)
        if (memory := _named_memory(job)) is not None:
            memory.mkdir(mode=0o700, exist_ok=True)
    except (OSError, WriteError) as error:
        structlog.get_logger().info("no step is held in memory", reason=str(error))


def discard_memory(job: Job) -> None:
    """The run has ended: nobody goes on from its memory."""
    folder, memory = checkpoint_folder(job), _named_memory(job)
    if memory is not None and isinstance(folder, Path):
        if _is_own(memory):
            remove_folder(memory)
        with suppress(OSError):  # another run in this folder takes the name that it finds
            (folder / _NAMED_IN).unlink(missing_ok=True)


def newest_held(job: Job) -> int:
    """The newest step that all members hold now; 0 for none."""
    memory = memory_of(job)
    labels = [] if memory is None else _held_by_all(memory, keepers(job))
    return labels[0].step if labels else 0


def salvage(job: Job) -> int | None:
    """Write the newest step that all members held as a checkpoint, where no other one is as new; its step.

    What cannot be read or written is told, and the run goes on from an older one.
    """
    memory, folder, members = memory_of(job), checkpoint_folder(job), keepers(job)
    if memory is None or folder is None:
        return None
    store = CheckpointStore(folder)
    for label in _held_by_all(memory, members):
        try:
            run = read_run(memory, members[0], label)
            # A checkpoint of the last step leaves nothing to go on with: a process lost behind it has it made again.
            newest = max((step for step in store.steps() if step < run.total_steps), default=0)
            if newest < label.step < run.total_steps and run.settings == dict(job.shared_settings):
                files = _write(store, memory, members, label)
                store.commit(run.model_copy(update={"step": label.step, "files": Manifest.entries(files)}))
                store.prune(job.checkpoint.keep, label.step)
                structlog.get_logger().info("held steps are a checkpoint", step=label.step)
                return label.step
        except (OSError, TaihuError) as error:
            structlog.get_logger().warning("held steps are lost", step=label.step, reason=one_line(str(error)))
    return None


def _held_by_all(memory: Path, members: Sequence[str]) -> list[Label]:
    """The newest first."""
    labels = frozenset.intersection(*(labels_of(memory, member) for member in members))
    return sorted(labels, key=attrgetter("step"), reverse=True)


def _write(store: CheckpointStore, memory: Path, members: Sequence[str], label: Label) -> dict[str, PartFile]:
    """Write the parts of a step that all members hold, one after the other."""
    folder = store.folder_of(label.step)
    return {each: write_part(folder, Part(each, label.step, read_held(memory, each, label))) for each in members}


def _left_behind() -> Iterator[Path]:
    """Folders of this user that nobody has touched for long: those who held steps there were killed."""
    for path in SHARED_MEMORY.glob(f"{_PREFIX}*"):
        with suppress(FileNotFoundError):
            if _is_own(path) and WallClock().now() - path.lstat().st_mtime > _LEFT_AFTER_S:
                yield path


def _is_own(path: Path) -> bool:
    return is_own(path, stat.S_ISDIR)
