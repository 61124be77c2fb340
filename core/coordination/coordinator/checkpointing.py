"""The coordinator's side of checkpoints: it tells workers when, and commits what all members have stored."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress

import structlog

from taihu.core.base.errors import CheckpointError
from taihu.core.checkpoint.files import PartFile
from taihu.core.checkpoint.held_steps import HeldSteps
from taihu.core.checkpoint.keepers import checkpoint_folder, keepers, resumed_from
from taihu.core.checkpoint.manifest import Manifest
from taihu.core.checkpoint.places import Place
from taihu.core.checkpoint.run_memory import memory_of
from taihu.core.checkpoint.store import CheckpointStore
from taihu.core.coordination.control.asks import Decision
from taihu.core.coordination.coordinator.checkpoints import CheckpointBook
from taihu.core.coordination.plans.plan import Plan
from taihu.core.job import Job
from taihu.core.system.threads import Condition
from taihu.core.wire.base.clock import Clock


class Checkpointing:
    """The checkpoints of one run; any thread may call."""

    def __init__(self, job: Job, folder: Place, clock: Clock) -> None:
        settings, begun = job.checkpoint, resumed_from(job)
        self._job = job
        self._clock = clock
        self._store = CheckpointStore(folder)
        self._log = structlog.get_logger()
        self._changed = Condition()
        self.problem = ""
        """The reason why the newest checkpoint is not complete; "" if it is, or may be yet."""
        # The last step that was to be kept, and those that are being committed.
        self._decided = 0
        self._committing: set[int] = set()
        begun_after = 0 if begun is None else begun.step
        # The run has gone back to an older one, for these have no steps left: it comes to them again.
        self._there = self._store.whole(job.shared_settings, newer_than=begun_after)
        self._book = CheckpointBook(
            keepers(job),
            every_s=settings.every_seconds,
            every_steps=settings.every_steps,
            begun_after=begun_after,
        )

    @classmethod
    def of(cls, job: Job, clock: Clock) -> Checkpointing | None:
        """That of the job; None where it keeps none."""
        folder = checkpoint_folder(job)
        return None if folder is None else cls(job, folder, clock)

    def decide(self, step: int, *, is_last: bool) -> Decision:
        """The decision for `step`, see `CheckpointBook.decide`; what counts already is not written over."""
        with self._changed:
            decision = self._book.decide(step, self._clock.now(), is_last=is_last)
            if step in self._there:
                self._book.left_out(step)
                return decision._replace(keep=False)
            if decision.keep and self._decided != step:
                # What nobody adds to any more takes the room of others.
                before = self._book.give_up(min([self._decided, *self._committing]))
                with suppress(OSError):  # there is room still, or what is written next says that there is none
                    self._store.withdraw(step)
                    self._store.discard(before)
                self._decided = step
            return decision

    def left_out(self, member: str, step: int, why: str) -> None:
        """A member's part cannot be had: the checkpoint of `step` will not be complete."""
        self.problem = f"the checkpoint of step {step:,} is left out: {member}: {why}"
        with self._changed:
            self._book.left_out(step)

    def stored(self, member: str, step: int, file: PartFile, plan: Plan) -> None:
        """A member's part is durable; the last one's makes the checkpoint count, and removes older ones.

        A member that says so again, since it was not answered, is answered when that is done.

        Raises:
            StaleError: the member has nothing to keep.
        """
        with self._changed:
            files = self._book.stored(member, step, file)
            if files is None:
                self._changed.wait_for(lambda: step not in self._committing)
                return
            self._committing.add(step)
        try:
            self._store.commit(manifest_of(self._job, plan, step, files))
            self._store.prune(self._job.checkpoint.keep, step)
        except (OSError, CheckpointError) as error:
            self.left_out("the coordinator", step, str(error))
            self._log.warning("checkpoint left out", step=step, reason=str(error))
        else:
            self.problem = ""
            size = sum(each.size_bytes for each in files.values())
            self._log.info("checkpoint", step=step, bytes=size, folder=str(self._store.folder_of(step)))
        finally:
            with self._changed:
                self._committing.discard(step)
                self._changed.notify_all()


def manifest_of(job: Job, plan: Plan, step: int, files: Mapping[str, PartFile]) -> Manifest:
    """The manifest of a checkpoint of a run that goes by `plan`."""
    return Manifest(
        job=job.name,
        settings=job.shared_settings,
        step=step,
        total_steps=plan.length.total_steps if plan.length is not None else step,
        servers=plan.world.servers,
        workers=plan.world.workers,
        layers=Manifest.layers_of(plan.layout),
        groups=[(group.first_layer, group.last_layer) for group in plan.groups],
        files=Manifest.entries(files),
    )


def held_steps_of(
    job: Job, member: str, generation: int, plan: Plan, *, steps: int = 2, threads: int = 1
) -> HeldSteps | None:
    """The memory for the last `steps` of a member of a run that goes by `plan`; None where it holds none."""
    memory = memory_of(job)
    if memory is None or member not in keepers(job):
        return None
    return HeldSteps(memory, member, generation, manifest_of(job, plan, 0, {}), steps=steps, threads=threads)
