"""A checkpoint of what all members held in memory when one of them was lost: no step is made again.

It is written before the next generation begins: by the member that hosts the coordinator, where all that have
something to keep were on its host, else by each for itself, see `taihu.core.checkpoint.gathering`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from operator import attrgetter
from pathlib import Path
from typing import Final

import structlog

from taihu.core.base.errors import CheckpointError, TaihuError
from taihu.core.base.words import one_line
from taihu.core.checkpoint.files import PartFile, write_part
from taihu.core.checkpoint.gathering import WrittenPart
from taihu.core.checkpoint.held_steps import Label, labels_of, read_held, read_run
from taihu.core.checkpoint.keepers import checkpoint_folder, keepers
from taihu.core.checkpoint.manifest import Manifest
from taihu.core.checkpoint.part import Part, State
from taihu.core.checkpoint.run_memory import memory_of
from taihu.core.checkpoint.store import CheckpointStore
from taihu.core.job import Job
from taihu.core.job.sizes import are_of_one_run

_FIRST: Final = "server 0"


def newest_held(job: Job) -> int:
    """The newest step that all members hold now; 0 for none."""
    memory = memory_of(job)
    labels = [] if memory is None else _held_by_all(memory, keepers(job))
    return labels[0].step if labels else 0


def servers_held(job: Job) -> int:
    """The number of servers of the newest step that server 0 holds on this host, or held; 0 where it holds none."""
    memory = memory_of(job)
    if memory is not None and (labels := labels_of(memory, _FIRST)):
        with suppress(CheckpointError):  # it has just been overwritten, or is damaged
            return read_run(memory, _FIRST, max(labels, key=attrgetter("step"))).servers
    return 0


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
            is_ours = run.servers == job.servers and are_of_one_run(run.settings, job.shared_settings)
            if is_ours and _is_newest(store, label.step, run):
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


def write_copy(job: Job, member: str, label: Label, state: State) -> WrittenPart:
    """Write a copy of a member's state, whose own host may be lost, as its part of a checkpoint.

    Raises:
        CheckpointError: the run has no checkpoint.dir.
        OSError: it cannot be written.
    """
    if (folder := checkpoint_folder(job)) is None:
        raise CheckpointError("the run has no checkpoint.dir")
    part = Part(member, label.step, state)
    return WrittenPart(label, write_part(CheckpointStore(folder).folder_of(label.step), part), "")


def _held_by_all(memory: Path, members: Sequence[str]) -> list[Label]:
    """The newest first."""
    labels = frozenset.intersection(*(labels_of(memory, member) for member in members))
    return sorted(labels, key=attrgetter("step"), reverse=True)


def _write(store: CheckpointStore, memory: Path, members: Sequence[str], label: Label) -> dict[str, PartFile]:
    """Write the parts of a step that members hold, one after the other."""
    folder = store.folder_of(label.step)
    return {each: write_part(folder, Part(each, label.step, read_held(memory, each, label))) for each in members}
