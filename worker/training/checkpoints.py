"""A worker's part in checkpoints: behind the steps that all agree on it keeps what the run needs of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import replace
from functools import cached_property, partial
from typing import Any

from numpy.typing import NDArray

from taihu.core.base.errors import ModelError
from taihu.core.checkpoint.held_steps import MOST_HELD, HeldSteps
from taihu.core.checkpoint.keepers import keepers
from taihu.core.checkpoint.part import Part, State
from taihu.core.checkpoint.writer import PartWriter
from taihu.core.coordination.client.client import CoordinatorClient
from taihu.core.coordination.coordinator.checkpointing import held_steps_of, manifest_of
from taihu.core.coordination.plans.plan import Plan
from taihu.core.job import Job
from taihu.worker.exchange.base.holding import Holding
from taihu.worker.exchange.shell import Exchange
from taihu.worker.saved.exporting import description_of
from taihu.worker.saved.metadata import SavedModel
from taihu.worker.saved.writing import BUFFER_PREFIX
from taihu.worker.training.copying import Copying
from taihu.worker.training.local_steps import LocalSteps
from taihu.worker.training.replica import Replica


class WorkerState:
    """All that a run needs of a worker to go on beside what its exchange holds.

    Args:
        replica: has the columns of spread layers, and the running moments, which worker 0 keeps.
        describe: says of the model what builds it again.
        local: this worker's local steps, whose state is its own.
        is_first: whether it is worker 0.
    """

    def __init__(
        self, replica: Replica, describe: Callable[[], SavedModel], local: LocalSteps | None, *, is_first: bool
    ) -> None:
        self.is_first = is_first
        self._replica = replica
        self._describe = describe
        self._local = local

    def complete(self, state: State) -> State:
        """The state of the exchange with all else."""
        return replace(
            state,
            own={**state.own, **self.beside_compression()},
            facts={**state.facts, **self._description} if self.is_first else state.facts,
            columns=self._replica.columns(),
        )

    def alone(self) -> State:
        """All else."""
        return State(own=self.beside_compression(), columns=self._replica.columns())

    def beside_compression(self) -> dict[str, NDArray[Any]]:
        """Arrays of this worker alone that its model and its local steps change."""
        arrays = {} if self._local is None else self._local.arrays()
        buffers = self._replica.model.buffers() if self.is_first else {}
        return {**arrays, **{f"{BUFFER_PREFIX}{name}": values for name, values in buffers.items()}}

    @cached_property
    def _description(self) -> dict[str, str]:
        try:
            return description_of(self._describe())
        except ModelError:  # it cannot be saved either; to go on from here it need not
            return {}


def holding_of(job: Job, member: str, generation: int, state: WorkerState, plan: Plan) -> Holding | None:
    """The place where a worker's exchange holds the steps that it ends; None where it does not bring them."""
    if not _updates_here(job, is_first=state.is_first):
        return None
    # Another worker may have begun two steps behind the last one that has led to all here: neither waits longer.
    held = held_steps_of(job, member, generation, plan, steps=MOST_HELD, threads=2)
    return None if held is None else Holding(held, state.complete, state.is_first)


def _updates_here(job: Job, *, is_first: bool) -> bool:
    """Whether the exchange brings what this worker updates for the run; what it changes by itself a `Keeper` does."""
    return job.workers_update and (is_first or job.stage.divides_optimizer or job.takes_back)


class Keeper:
    """Keeps this worker's state, and as worker 0 has the servers keep theirs; one thread, which trains, calls it.

    Args:
        job: the same for all.
        client: of the coordinator, which says when.
        exchange: has started.
        state: all else that this worker holds.
        writer: takes the part; None where the job keeps no checkpoints.
        generation: that this worker takes part in.
        begun_after: the step that the run goes on from, or 0.
        copying: brings what this worker alone has to the coordinator; None where its host is not lost without it.
    """

    def __init__(
        self,
        job: Job,
        client: CoordinatorClient,
        exchange: Exchange,
        state: WorkerState,
        *,
        writer: PartWriter | None,
        generation: int,
        begun_after: int,
        copying: Copying | None = None,
    ) -> None:
        self._copying = copying
        self._member = str(client.member)
        self._is_first = state.is_first
        self._keeps = self._member in keepers(job)
        self._client = client
        self._exchange = exchange
        self._beside = state
        self._writer = writer
        self._job = job
        self._updates_here = _updates_here(job, is_first=state.is_first)
        self._held = exchange.held
        if not self._updates_here:
            self._held = held_steps_of(job, self._member, generation, exchange.plan, steps=MOST_HELD)
        self._next_step = -1 if writer is None else client.decide_checkpoint(begun_after).next_step

    def asks_behind(self, step: int, *, is_last: bool) -> bool:
        """Whether `keep` follows `step`, the same on all workers; every group has to end before it."""
        return self._writer is not None and (step == self._next_step or is_last)

    def keep(self, step: int, *, is_last: bool) -> None:
        """Keep what `step` has led to, if all are to; returns when it is copied, behind the last step stored.

        Raises:
            TaihuError: a server or the coordinator is gone.
        """
        decision = self._client.decide_checkpoint(step, is_last=is_last)
        self._next_step = decision.next_step
        if not decision.keep:
            return
        if self._is_first:
            self._exchange.keep(step, until_durable=is_last)
        if self._keeps and self._writer is not None:
            with self._writer.finished() if is_last else nullcontext():
                self._writer.write(step, lambda: Part(self._member, step, self._state().copy()))

    def adopt(self, plan: Plan) -> None:
        """Go on by another plan, behind a step that has ended."""
        if self._held is not None:
            self._held.adopt(manifest_of(self._job, plan, 0, {}))

    def hold(self, step: int) -> None:
        """Hold what `step`, whose backward has ended, has led to here: whoever goes on behind it finds it."""
        held = self._held
        if held is None:
            return
        held.begin(step, self._state)
        held.put(step, self._beside.alone())
        if self._updates_here:
            held.end(step)
        else:
            self._exchange.behind_compression(partial(self._hold_compression, held, step))
        if self._copying is not None:
            self._copying.hold(step, State(own=self._beside.beside_compression(), facts=self._facts))

    @staticmethod
    def _hold_compression(held: HeldSteps, step: int, arrays: Mapping[str, NDArray[Any]]) -> None:
        held.put_own(step, arrays)
        held.end(step)

    @cached_property
    def _facts(self) -> Mapping[str, Any]:
        return self._state().facts

    def _state(self) -> State:
        return self._beside.complete(self._exchange.state(is_first=self._is_first))
