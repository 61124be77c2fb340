"""Planned, compressed, overlapped exchange of gradients for PyTorch's own training loops, see docs/torch.md.

Three lines are enough::

    import taihu.torch
    sampler = DistributedSampler(data, taihu.torch.world_size(), taihu.torch.rank())
    optimizer = taihu.torch.DistributedOptimizer(optimizer, model)
"""

from __future__ import annotations

import os

# gRPC reads it when it is imported. Else it writes a line to stderr for each fork, such as those of DataLoader, which
# do not call it.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")


import atexit
import sys
from collections.abc import Iterable, Mapping, Sized
from pathlib import Path
from types import TracebackType
from typing import Literal

import torch

from taihu.core.base.errors import ConfigError, RunError
from taihu.core.base.words import blamed, one_line
from taihu.core.coordination.client.client import LOSSES
from taihu.core.process.ending import EXIT_BEGINS_AGAIN, is_due_to_others_than, known_exit_code, log_of_script, tell
from taihu.core.process.exit_codes import note_exit_codes
from taihu.core.system.threads import before_threads_end
from taihu.core.wire.base.log import configure_script_logs
from taihu.torch.backend import register
from taihu.torch.hook import ExchangeState, exchange_hook
from taihu.torch.kept.elastic_sampler import ElasticSampler as _ElasticSampler
from taihu.torch.optimizer import DistributedOptimizer as _DistributedOptimizer
from taihu.torch.place import find_place
from taihu.torch.sharded_linear import AT_LEAST, Choice
from taihu.torch.sharded_linear import shard_linear as _shard_linear
from taihu.torch.training_state import Stateful, TrainingState
from taihu.torch.world import World

__all__ = [
    "DistributedOptimizer",
    "ElasticSampler",
    "ExchangeState",
    "broadcast_parameters",
    "clip_grad_norm_",
    "exchange_hook",
    "init",
    "log",
    "rank",
    "shard_linear",
    "shutdown",
    "state",
    "world_size",
]


register()


class _Present:
    """The world that this process takes part in: the one thing that a script's lines share without passing it on."""

    def __init__(self) -> None:
        self.world: World | None = None

    def get(self) -> World:
        if self.world is None:
            init()
        assert self.world is not None  # noqa: S101
        return self.world

    def leave(self, error: BaseException | None = None) -> None:
        if self.world is not None:
            self.world.leave(error, known_exit_code())


_present = _Present()


def init(job: str | Path | Mapping[str, object] | None = None, **settings: Mapping[str, object]) -> None:
    """Find this process's place among the workers; the first of the other functions does so, too.

    Args:
        job: a job file, or its tables; by default the file that `TAIHU_JOB` names, as `taihu run` sets it.
        settings: tables of it that come first: `compression={"method": "dlgs", "density": 0.01}`.

    Raises:
        ConfigError: a setting is wrong, or the launcher has not said which rank this is.
        RunError: it has been found already, and not left by `shutdown`.
    """
    former = _present.world
    if former is not None and not former.has_left:
        raise RunError("taihu.torch is initialized already: call init before everything else, or behind shutdown()")
    place = find_place(job, settings)
    if former is not None and place.job.servers:
        raise ConfigError("init() behind shutdown(): servers have ended with the run; start the script without them")
    configure_script_logs(log_of_script(os.environ), role="worker", rank=place.rank)
    note_exit_codes()
    _present.world = World(place, is_first=former is None)
    _tell_of_errors(_present.world)
    # What the atexit module is told comes too late: the threads that answer other workers have ended then.
    before_threads_end(_present.leave)
    atexit.register(_end_with_failure, _present.world)


def rank() -> int:
    """This worker's number, from 0."""
    return _present.get().rank


def world_size() -> int:
    """The number of workers."""
    return _present.get().size


def DistributedOptimizer(  # noqa: N802 - the name that such scripts know
    optimizer: torch.optim.Optimizer,
    model: torch.nn.Module | None = None,
    *,
    update: Literal["workers", "servers"] = "workers",
) -> _DistributedOptimizer:
    """`optimizer` with gradients that are the means of all workers, who begin with worker 0's parameters.

    With `update` servers it is the servers that update by the mean gradients, as an SGD, Adam or AdamW of torch.optim
    says, and its state is divided over them.

    Raises:
        ConfigError: the model is not the one that the optimizer was made for, or servers cannot update by that.
        TaihuError: the other workers cannot be reached, or train something else.
    """
    return _DistributedOptimizer(optimizer, model, _present.get(), update=update)


def broadcast_parameters(parameters: torch.nn.Module | Mapping[str, torch.Tensor] | Iterable[torch.Tensor]) -> None:
    """Have worker 0's values in all workers' parameters and buffers; `DistributedOptimizer` does so at its beginning.

    Args:
        parameters: a module, a `state_dict()`, or tensors; the same on all workers.
    """
    if isinstance(parameters, torch.nn.Module):
        tensors = [*parameters.parameters(), *parameters.buffers()]
    else:
        values = parameters.values() if isinstance(parameters, Mapping) else parameters
        tensors = [each for each in values if isinstance(each, torch.Tensor)]
    world = _present.get()
    if not world.attempt.is_given_up:
        with world.attempt.losing():
            world.bring(tensors)


def shard_linear(
    module: torch.nn.Module, choice: Choice = "shard", *, batch: int | None = None, at_least: int = AT_LEAST
) -> tuple[str, ...]:
    """Spread torch.nn.Linear layers by outputs over the workers, in place; before the optimizer is made.

    Each worker has its outputs' weights, their gradients and their optimizer state, and nobody else has. Values are
    worker 0's. All workers call the layers together, for evaluation and `state_dict()`, too, which has whole layers.

    Args:
        module: a torch.nn.Linear, or a model.
        choice: `shard` for all layers, `auto` for those for which the measured links say that it is faster.
        batch: with `auto`, the rows that reach such a layer in a step of one worker.
        at_least: weights of a layer that is spread with its model.

    Returns:
        The names of the layers that are spread; none where this worker is alone.

    Raises:
        ConfigError: the layer has fewer outputs than there are workers, is not on the CPU, or is not there.
        RunError: there is a DistributedOptimizer already.
        TaihuError: the other workers cannot be reached.
    """
    return _shard_linear(_present.get(), module, choice, batch=batch, at_least=at_least)


def clip_grad_norm_(parameters: torch.Tensor | Iterable[torch.Tensor], max_norm: float) -> torch.Tensor:
    """Clip gradients by their 2-norm, as PyTorch's own does; of spread layers the columns of all workers count.

    Returns:
        The norm before, the same on all workers.
    """
    clipped = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
    spread = _present.get().spreads
    if spread is None:
        return torch.nn.utils.clip_grad_norm_(clipped, max_norm)
    norm = spread.total_norm(clipped)
    torch.nn.utils.clip_grads_with_norm_(clipped, max_norm, norm)
    return norm


def ElasticSampler(  # noqa: N802 - a sampler as PyTorch's are named
    data: Sized | int,
    *,
    batch: int | None = None,
    batch_of_worker: int | None = None,
    shuffle: bool = True,
    seed: int = 0,
    drop_last: bool = False,
) -> _ElasticSampler:
    """The `batch_sampler` of a loader whose batches are divided over the workers, however many there are.

    Step after step all workers have the same samples together::

        sampler = taihu.torch.ElasticSampler(data, batch=96)
        loader = DataLoader(data, batch_sampler=sampler)
        for epoch in state.epochs(10):
            sampler.set_epoch(epoch)
            for images, labels in state.batches(loader):

    Args:
        data: the samples, or their number.
        batch: samples in a step of all workers together; where they do not come out even, gradients count by shares.
        batch_of_worker: samples in a step of each worker, in place of `batch`: more workers have more of them, see
            `TrainingState.adapt_rates`.
        shuffle: whether the order is drawn anew for each epoch, by `seed` and the epoch.
        seed: of the orders.
        drop_last: whether samples behind the last whole batch are left out; the first ones fill it otherwise.

    Raises:
        ConfigError: some worker would have no sample in a batch.
    """
    world = _present.get()
    return _ElasticSampler(
        data,
        world.rank,
        world.size,
        batch=batch,
        batch_of_worker=batch_of_worker,
        shuffle=shuffle,
        seed=seed,
        drop_last=drop_last,
    )


def state(**objects: Stateful) -> TrainingState:
    """Keep what a script trains with behind its steps, and go on from there when it is started again.

    Three lines of a loop change::

        state = taihu.torch.state(model=model, optimizer=optimizer, scheduler=scheduler)
        for epoch in state.epochs(10):
            for images, labels in state.batches(loader):

    Steps are held in memory of the host, which outlives the process, and written to `checkpoint.dir` now and then:
    `taihu run` starts a script again that was killed, and no completed step is made again. All workers call this
    alike, behind `DistributedOptimizer`; it returns when the objects have the state from which the script goes on.
    Without `checkpoint.dir` nothing is kept.

    Args:
        objects: all that has `state_dict()` and `load_state_dict()` and changes while the script trains, by names of
            your choice. The generators of Python, NumPy and PyTorch and the place in the loops need not be named.

    Raises:
        ConfigError: something is not kept whole, or `checkpoint.dir` has an earlier run and nobody says to go on.
        CheckpointError: what was kept is damaged, or of other objects.
        TaihuError: the other workers cannot be reached.
    """
    world = _present.get()
    return TrainingState(world, world.checkpoint, objects)


def log(**values: torch.Tensor | float) -> None:
    """Give values of the script's own to the loggers of the run, as `taihu run --set run.loggers=mlflow` has them.

    They belong to the last backward that has ended. Those of worker 0 are taken, and nothing happens on others::

        loss.backward()
        optimizer.step()
        taihu.torch.log(loss=loss, accuracy=accuracy)

    Args:
        values: numbers, or tensors of one element each, by the names that loggers show. That of a tensor on a GPU is
            waited for.

    Raises:
        ConfigError: a value is neither.
    """
    world = _present.get()
    if world.rank == 0:
        world.logs({name: _number(name, value) for name, value in values.items()})


def _number(name: str, value: torch.Tensor | float) -> float:
    try:
        return float(value.item() if isinstance(value, torch.Tensor) else value)
    except (TypeError, ValueError, RuntimeError):
        expected = "expected a number or a tensor of one element"
        raise ConfigError(f"log({name}=...): {expected}, got {one_line(repr(value))[:80]}") from None


def shutdown() -> None:
    """Leave the run, when all workers are done; the end of the process does so.

    Raises:
        TaihuError: the run has failed, as where replicas are not alike in the end.
    """
    world = _present.world
    if world is not None and not world.has_left:
        _present.leave()
        if world.failure is not None:
            raise world.failure


def begins_again(error: BaseException) -> bool:
    """Whether this process ends by `error` to be started again, for whoever runs the script."""
    return _present.world is not None and _present.world.begins_again(error)


def _end_with_failure(world: World) -> None:
    """End this process as one that has failed, where that is known only behind its script."""
    if world.failure is not None and world.begins_again(world.failure):
        _end_now(EXIT_BEGINS_AGAIN)
    if world.failure is not None and blamed(str(world.failure)) is None and not known_exit_code():
        _end_now(1)


def _end_now(exit_code: int) -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(exit_code)


def _tell_of_errors(world: World) -> None:
    """Have what ends this script end the other workers, too, with the same message.

    Where they are to blame one line is enough, unless somebody keeps a log.
    """
    former = sys.excepthook

    def told(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        is_due_to_others = is_due_to_others_than(world.rank, error)
        if is_due_to_others and isinstance(error, LOSSES) and world.was_in and " while " not in str(error):
            error.args = (f"{error}, while worker {world.rank} was in {world.was_in}",)
        if is_due_to_others and former is sys.__excepthook__:
            tell(f"error: {one_line(str(error))}", None)
        else:
            former(kind, error, trace)
        world.leave(error)

    sys.excepthook = told
