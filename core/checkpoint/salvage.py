"""A checkpoint of what all members held in memory when one of them was lost: no step is made again.

It is written before the next generation begins: by the member that hosts the coordinator, where all that have
something to keep were on its host, else by each for itself, see `taihu.core.checkpoint.gathering`. A file in the
folder of checkpoints names the memory: who removes the folder begins anew.
"""

from __future__ import annotations

import secrets
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from operator import attrgetter
from pathlib import Path
from typing import Final

import structlog

from taihu.core.base.errors import CheckpointError, TaihuError, WriteError
from taihu.core.base.whole_file import make_durably, write_text
from taihu.core.base.words import one_line
from taihu.core.checkpoint.files import PartFile, write_part
from taihu.core.checkpoint.gathering import WrittenPart
from taihu.core.checkpoint.held_steps import Label, labels_of, read_held, read_run
from taihu.core.checkpoint.keepers import checkpoint_folder, keepers, recovers
from taihu.core.checkpoint.manifest import Manifest
from taihu.core.checkpoint.part import Part
from taihu.core.checkpoint.places import remove_folder
from taihu.core.checkpoint.store import CheckpointStore
from taihu.core.job import Job
from taihu.core.process.mapped_files import SHARED_MEMORY, is_own
from taihu.core.wire.base.clock import WallClock

__all__ = [
    "OwnSteps",
    "are_all_here",
    "commit",
    "discard_memory",
    "have_memory",
    "holds_steps",
    "leave_memory",
    "memory_of",
    "newest_held",
    "prepare_memory",
    "salvage",
    "tell_lost",
]

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
    if not holds_steps(job) or not isinstance(folder, Path):
        return None
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
    is_known = _named_memory(job) is not None
    try:
        if not is_known:
            make_durably(folder)
            write_text(folder / _NAMED_IN, secrets.token_hex(_TOKEN_BYTES))
    except (OSError, WriteError) as error:
        structlog.get_logger().info("no step is held in memory", reason=str(error))
    have_memory(job)
    return is_known


def have_memory(job: Job) -> Path | None:
    """The folder on this host where members hold steps, which is made if the coordinator's host has named it."""
    memory = _named_memory(job)
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
    leave_memory(memory_of(job))
    if holds_steps(job) and isinstance(folder, Path):
        with suppress(OSError):  # another run in this folder takes the name that it finds
            (folder / _NAMED_IN).unlink(missing_ok=True)


def leave_memory(memory: Path | None) -> None:
    """The run has ended, and its name may be gone: nobody on this host goes on from its memory."""
    if memory is not None and _is_own(memory):
        remove_folder(memory)


def newest_held(job: Job) -> int:
    """The newest step that all members hold now; 0 for none."""
    memory = memory_of(job)
    labels = [] if memory is None else _held_by_all(memory, keepers(job))
    return labels[0].step if labels else 0


def are_all_here(job: Job) -> bool:
    """Whether the memory of this host has a step that all members held: nobody else has to be asked."""
    memory = memory_of(job)
    return memory is not None and bool(_held_by_all(memory, keepers(job)))


def salvage(job: Job) -> int | None:
    """Write the newest step that all members held here as a checkpoint, where no other one is as new; its step.

    What cannot be read or written is told, and the run goes on from an older one.
    """
    memory, folder, members = memory_of(job), checkpoint_folder(job), keepers(job)
    if memory is None or folder is None:
        return None
    store = CheckpointStore(folder)
    for label in _held_by_all(memory, members):
        try:
            run = read_run(memory, members[0], label)
            if _is_newest(store, label.step, run) and run.settings == dict(job.shared_settings):
                commit(job, run, label.step, _write(store, memory, members, label))
                return label.step
        except (OSError, TaihuError) as error:
            tell_lost(label.step, error)
    return None


def commit(job: Job, run: Manifest, step: int, files: Mapping[str, PartFile]) -> None:
    """Have parts that are written count as the checkpoint of `step`, by members; older ones go.

    Raises:
        OSError: its manifest cannot be written.
        CheckpointError: the folder cannot be read, or there is none.
    """
    if (folder := checkpoint_folder(job)) is None:
        raise CheckpointError("the run has no checkpoint.dir")
    store = CheckpointStore(folder)
    store.commit(run.model_copy(update={"step": step, "files": Manifest.entries(files)}))
    store.prune(job.checkpoint.keep, step)
    structlog.get_logger().info("held steps are a checkpoint", step=step)


def _is_newest(store: CheckpointStore, step: int, run: Manifest) -> bool:
    """Whether a step has others behind it, and no checkpoint of such a one is as new.

    A checkpoint of the last step leaves nothing to go on with: a process lost behind it has it made again.
    """
    newest = max((each for each in store.steps() if each < run.total_steps), default=0)
    return newest < step < run.total_steps


def tell_lost(step: int, error: Exception) -> None:
    """Log why a held step becomes no checkpoint: an older one is gone on from."""
    structlog.get_logger().warning("held steps are lost", step=step, reason=one_line(str(error)))


class OwnSteps:
    """The steps that a member's place on this host holds, or held when its last process ended."""

    def __init__(self, job: Job, member: str) -> None:
        self._job = job
        self.member = member

    def labels(self) -> frozenset[Label]:
        """Those that the run could go on from, as no checkpoint is as new; none where nothing can be read."""
        memory, folder = memory_of(self._job), checkpoint_folder(self._job)
        if memory is None or folder is None:
            return frozenset()
        store, found = CheckpointStore(folder), set()
        for label in labels_of(memory, self.member):
            with suppress(CheckpointError):
                if _is_newest(store, label.step, read_run(memory, self.member, label)):
                    found.add(label)
        return frozenset(found)

    def write(self, label: Label) -> WrittenPart:
        """Write a step of them as this member's part of a checkpoint.

        Raises:
            CheckpointError: the step is not held any more.
            OSError: it cannot be written.
        """
        memory, folder = memory_of(self._job), checkpoint_folder(self._job)
        if memory is None or folder is None:
            raise CheckpointError(f"{self.member} holds no steps")
        run = read_run(memory, self.member, label)
        store = CheckpointStore(folder)
        return WrittenPart(label, _write(store, memory, (self.member,), label)[self.member], run.to_json())


def _held_by_all(memory: Path, members: Sequence[str]) -> list[Label]:
    """The newest first."""
    labels = frozenset.intersection(*(labels_of(memory, member) for member in members))
    return sorted(labels, key=attrgetter("step"), reverse=True)


def _write(store: CheckpointStore, memory: Path, members: Sequence[str], label: Label) -> dict[str, PartFile]:
    """Write the parts of a step that members hold, one after the other."""
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
