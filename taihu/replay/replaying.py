"""A run made again from its folder: data, models and updates around the schedule, in one process."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from taihu.core.base.errors import ConfigError
from taihu.core.history.order import Order, read_orders
from taihu.core.job import Job, load_job
from taihu.core.job.run_folder import ORDER, SETTINGS, usual_results
from taihu.core.model.run_length import RunLength
from taihu.core.optimization import OptimizerShard, in_steps
from taihu.core.process.results import read_json
from taihu.kernels.reduce import sum_in_rank_order
from taihu.replay.schedule import Apply, Compute, Ranges, Replay, TakeOver
from taihu.worker.data.base.dataset import Dataset
from taihu.worker.data.load import load_dataset
from taihu.worker.engine import StepHooks
from taihu.worker.opening import batches_of
from taihu.worker.part import threads_of
from taihu.worker.saved.beginning import begin_from, beginning_of
from taihu.worker.training.clipping import LayerClipping
from taihu.worker.training.hashing import parameters_sha256
from taihu.worker.training.objective import model_for
from taihu.worker.training.replica import Uses, WholeReplica
from taihu.worker.training.trainer import context_of

Values = NDArray[np.float32]

_NOBODY: Final = Uses(tests=False, saves=False, test_images=0)


@dataclass(frozen=True)
class Recorded:
    """A run that can be made again.

    Attributes:
        job: its settings.
        orders: of its servers.
        expected: the hash of its parameters, where its results are there.
    """

    job: Job
    orders: tuple[Order, ...]
    expected: str | None

    @cached_property
    def replay(self) -> Replay:
        """The schedule; raises RunError where the orders do not make a whole run."""
        return Replay(self.orders)


def read_recorded(folder: Path) -> Recorded:
    """The run in a folder that `taihu train` has made.

    Raises:
        ConfigError: it is none, or its order was not recorded, or is that of another job.
    """
    settings = folder / SETTINGS
    if not settings.is_file():
        raise ConfigError(f"{folder}: no folder of a run: {SETTINGS} is missing")
    job = load_job(settings)
    asked = job.run.order
    orders = read_orders(folder / (ORDER if asked is None else asked))
    head = orders[0].head
    if head.job != job.digest or len(orders) != job.servers:
        raise ConfigError(f"{folder}: the orders are of another job than {settings}")
    results = usual_results(folder)
    known = read_json(results).get("parameters_sha256") if results is not None and results.is_file() else None
    return Recorded(job, orders, known)


class _Worker:
    """One worker's replica and batches."""

    def __init__(self, job: Job, rank: int, dataset: Dataset, stack: ExitStack) -> None:
        self._job, self._rank = job, rank
        model = model_for(job, dataset)
        model.use_threads(threads_of(job))
        beginning = stack.enter_context(beginning_of(job, rank))
        if beginning is not None:
            begin_from(beginning, model, job.model.init_skip)
        self._replica = WholeReplica(model, job, rank, _NOBODY)
        arenas = self._replica.exchanged.arenas
        self.parameters, self.gradients = arenas.parameters, arenas.gradients
        self.batches = batches_of(job, dataset, rank)
        largest = None if job.local_norm is not None else job.optimizer.clip_norm
        self._clipping: Callable[[int], None] = lambda _: None
        if largest is not None:
            layers = LayerClipping(self._replica.exchanged.layout, arenas.gradients, largest)
            self._clipping = partial(layers.clip, loss_scale=1.0)

    def compute(self, step: int) -> None:
        """Compute the gradient of a step."""
        inputs, targets = self.batches.batch(step)
        hooks = StepHooks(gradient_ready=self._clipping)
        self._replica.train(inputs, targets, context_of(self._job, self._rank, step), hooks)


def replayed(recorded: Recorded, on_step: Callable[[], None] = lambda: None) -> str:
    """Make a run again; returns the hash of its parameters. `on_step` follows each gradient.

    Raises:
        RunError: the orders do not make a whole run.
        TaihuError: data or model are not there any more.
    """
    job, replay = recorded.job, recorded.replay
    with ExitStack() as stack:
        stack.enter_context(threadpool_limits(1))
        dataset = load_dataset(job.data, job.model.name)
        workers = [_Worker(job, rank, dataset, stack) for rank in range(job.world.workers)]
        parameters = workers[0].parameters.copy()
        per_epoch = workers[0].batches.steps_per_epoch
        length = RunLength(len(dataset.train), per_epoch, job.train.steps or job.train.epochs * per_epoch)
        optimizer = OptimizerShard(in_steps(job.server_optimizer, length), parameters)
        for deed in replay.deeds():
            match deed:
                case TakeOver(rank, ranges):
                    for start, stop in ranges:
                        workers[rank].parameters[start:stop] = parameters[start:stop]
                case Compute(rank, step):
                    workers[rank].compute(step)
                    on_step()
                case Apply(ranges, step, ranks):
                    _apply(optimizer, ranges, step, [workers[rank].gradients for rank in ranks])
        return parameters_sha256(parameters)


def _apply(optimizer: OptimizerShard, ranges: Ranges, step: int, gradients: list[Values]) -> None:
    """Update by the mean of gradients, as a server does."""
    for start, stop in ranges:
        total = np.zeros(stop - start, dtype=np.float32)
        sum_in_rank_order([each[start:stop] for each in gradients], total)
        optimizer.update(start, stop, total, step, scale=1.0 / len(gradients))
