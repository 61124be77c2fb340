"""A worker's part in checkpoints: behind the steps that all agree on it keeps what the run needs of it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace

from taihu.core.base.errors import ModelError
from taihu.core.checkpoint.keepers import keepers
from taihu.core.checkpoint.part import Part, State
from taihu.core.checkpoint.writer import PartWriter
from taihu.core.coordination.client import CoordinatorClient
from taihu.core.job import Job
from taihu.worker.exchange.shell import Exchange
from taihu.worker.saved.exporting import description_of
from taihu.worker.saved.metadata import SavedModel
from taihu.worker.saved.writing import BUFFER_PREFIX
from taihu.worker.training.local_steps import LocalSteps
from taihu.worker.training.replica import Replica

__all__ = ["Keeper"]


class Keeper:
    """Keeps this worker's state, and as worker 0 has the servers keep theirs; one thread, which trains, calls it.

    Args:
        job: the same for all.
        client: of the coordinator, which says when.
        exchange: has started.
        replica: has the columns of spread layers, and the running moments, which worker 0 keeps.
        describe: says of the model what builds it again, after so many steps.
        writer: takes the part; None where the job keeps no checkpoints.
        begun_after: the step that the run goes on from, or 0.
        local: this worker's local steps, whose state is its own.
    """

    def __init__(
        self,
        job: Job,
        client: CoordinatorClient,
        exchange: Exchange,
        replica: Replica,
        describe: Callable[[int], SavedModel],
        *,
        writer: PartWriter | None,
        begun_after: int,
        local: LocalSteps | None = None,
    ) -> None:
        self._member = str(client.member)
        self._is_first = client.member.rank == 0
        self._keeps = self._member in keepers(job)
        self._client = client
        self._exchange = exchange
        self._replica = replica
        self._describe = describe
        self._writer = writer
        self._local = local
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
                self._writer.write(step, lambda: Part(self._member, step, self._state(step).copy()))

    def _state(self, step: int) -> State:
        state = replace(self._exchange.state(is_first=self._is_first), columns=self._replica.columns())
        if self._local is not None:
            state = replace(state, own={**state.own, **self._local.arrays()})
        if not self._is_first:
            return state
        moments = {f"{BUFFER_PREFIX}{name}": values for name, values in self._replica.model.buffers().items()}
        return replace(state, own={**state.own, **moments}, facts={**state.facts, **self._described(step)})

    def _described(self, step: int) -> dict[str, str]:
        try:
            return description_of(self._describe(step))
        except ModelError:  # it cannot be saved either; to go on from here it need not
            return {}
