"""Opening a worker's part in a generation: its data, tables and histories, and where it goes on from."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial

from taihu.core.checkpoint.keepers import resumed_from
from taihu.core.checkpoint.reading import Checkpoint
from taihu.core.checkpoint.run_memory import memory_of
from taihu.core.coordination.generations import Generation
from taihu.core.coordination.membership.members import MemberId, Role
from taihu.core.coordination.membership.stopping import StopNotice
from taihu.core.history.recording import Recorder, recorded_history
from taihu.core.job import Job
from taihu.core.model.run_length import RunLength
from taihu.core.optimization import in_steps, learning_rate
from taihu.core.wire.serving.metrics import WorkerMetrics
from taihu.worker.data.ahead import LoadAhead
from taihu.worker.data.base.dataset import Dataset
from taihu.worker.data.batches import Batches, BatchSource
from taihu.worker.options import WorkerOptions
from taihu.worker.reporting.held_rows import HeldRows
from taihu.worker.reporting.loggers.opening import open_loggers
from taihu.worker.reporting.run_log import RunLog, open_writers
from taihu.worker.saved.beginning import beginning_of
from taihu.worker.saved.sources import TensorSource


@dataclass(frozen=True)
class Who:
    """A worker in one generation, before anything of it is open.

    Attributes:
        job: the run's, from where this generation goes on.
        options: of the process.
        generation: to join.
        dataset: of the job.
        metrics: of the process.
        stop: is told of a stop of the run.
    """

    job: Job
    options: WorkerOptions
    generation: Generation
    dataset: Dataset
    metrics: WorkerMetrics
    stop: StopNotice

    def length_of(self, batches: BatchSource) -> RunLength:
        """The length of the run, by this worker's data."""
        train, per_epoch = self.job.train, batches.steps_per_epoch
        return RunLength(len(self.dataset.train), per_epoch, train.steps or train.epochs * per_epoch)


@dataclass(frozen=True)
class Opened:
    """A worker that has everything open that it needs before it joins.

    Attributes:
        who: the worker.
        batches: of its data.
        length: of the run, by them.
        begun: the checkpoint that the run goes on from; None for a new one.
        beginning: the parameters to begin with, where they are those of a file.
        recorder: of its history.
        run_log: of its tables and events.
    """

    who: Who
    batches: BatchSource
    length: RunLength
    begun: Checkpoint | None
    beginning: TensorSource | None
    recorder: Recorder
    run_log: RunLog

    @property
    def begun_after(self) -> int:
        """The step that the run goes on from, 0 for a new one."""
        return 0 if self.begun is None else self.begun.step


@contextmanager
def opened(who: Who) -> Iterator[Opened]:
    """Open all of it during the block.

    Raises:
        ConfigError: what the job names cannot be written or read.
        CheckpointError: the job goes on from a checkpoint that cannot be opened.
    """
    job, options = who.job, who.options
    with ExitStack() as stack:
        batches = _batches(who, stack)
        length, begun = who.length_of(batches), resumed_from(job)
        member = MemberId(Role.WORKER, options.rank)
        say, agent = options.notices.say, options.agent
        recording = recorded_history(job, str(member), who.generation.number, say, agent=agent)
        recorder = stack.enter_context(recording)
        beginning = stack.enter_context(beginning_of(job, options.rank))
        after = 0 if begun is None else begun.step
        folder = options.files.folder
        run_log = RunLog(
            open_writers(folder, after, say),
            loggers=open_loggers(job, folder, say),
            steps_per_epoch=batches.steps_per_epoch,
            learning_rate=partial(learning_rate, in_steps(job.optimizer_of_rate, length)),
            wall=options.wall,
            say=say,
            held=HeldRows.open(None if options.rank else memory_of(job)),
        )
        run_log.goes_on(after)
        yield Opened(who, batches, length, begun, beginning, recorder, stack.enter_context(run_log))


def batches_of(job: Job, dataset: Dataset, rank: int) -> Batches:
    """The batches of a worker."""
    return Batches(
        dataset,
        batch=job.train.batch,
        workers=job.world.workers,
        rank=rank,
        seed=job.train.seed,
        augment=job.data.augment,
        in_step=job.exchange.local_steps,
    )


def _batches(who: Who, stack: ExitStack) -> BatchSource:
    batches = batches_of(who.job, who.dataset, who.options.rank)
    return stack.enter_context(LoadAhead(batches)) if who.dataset.load_ahead else batches
