"""An exchange driven layer by layer: when a group is pushed, and what a layer waits for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from taihu.core.base.errors import RunError
from taihu.core.coordination.plans.plan import Plan
from taihu.core.job import Job
from taihu.core.model.layout import Layout
from taihu.core.planner.groups import Group, group_of_layer

if TYPE_CHECKING:
    # It brings gRPC, which who counts tensors alone does not need.
    from taihu.worker.exchange.shell import Exchange

__all__ = ["GroupCountdown", "StepDriver", "Wait"]

Wait = Callable[[int], None]


class GroupCountdown:
    """The tensors of each group whose gradients a step has not brought yet; `begin` comes before every step.

    Layers are told of in any order. `missing[group]` counts down to 0.
    """

    def __init__(self, layout: Layout, groups: Sequence[Group]) -> None:
        self.group_of = group_of_layer(tuple(groups))
        self._tensors = [len(layer.tensors) for layer in layout.layers]
        self.missing = [0] * len(groups)

    def begin(self) -> None:
        """Every tensor is missing again."""
        self.missing = [0] * len(self.missing)
        for group, tensors in zip(self.group_of, self._tensors, strict=True):
            self.missing[group] += tensors

    def ready(self, layer: int, tensors: int | None = None) -> int | None:
        """Count tensors of a layer that are there, by default all of it; returns the group that this completes.

        Raises:
            RunError: the layer has brought more gradients than it has tensors.
        """
        group = self.group_of[layer]
        count = self._tensors[layer] if tensors is None else tensors
        if self.missing[group] < count:
            raise RunError(f"layer {layer} has brought more gradients than it has tensors")
        self.missing[group] -= count
        return None if self.missing[group] else group

    def end(self, group: int) -> None:
        """Nothing of a group is missing any more: all of it is there, or none of it comes."""
        self.missing[group] = 0


class StepDriver:
    """Says to an exchange by groups what a model says by layers; it knows of no images, and measures nothing.

    Layers are those of the plan's layout. A step is `read` for every layer before its forward; `begin`; for every
    layer `prepare` before its backward and `ready` after it, or `group_ready` for all of a group; `end_backward`. A
    group is pushed when all tensors of its layers are ready, in whatever order they come, the same on all workers.
    One thread calls all of these.

    Args:
        job: says whether gradients are held back, or have no memory beyond their exchange.
        exchange: has started.
        timed: carries out `wait(group)`, which may take its time; to measure it.
    """

    def __init__(
        self, job: Job, exchange: Exchange, timed: Callable[[Wait, int], None] = lambda wait, group: wait(group)
    ) -> None:
        self._holds, self._together = job.holds_gradients, job.updates_together
        self._keeps_gradients = not job.stage.divides_gradients
        self._exchange = exchange
        self._timed = timed
        self._one_by_one = False
        self._step = 0
        self._left_out: set[int] = set()
        self._countdown = GroupCountdown(exchange.plan.layout, exchange.plan.groups)

    def adopt(self, plan: Plan) -> None:
        """Go on by another plan; `finish` came before."""
        if plan is not self._exchange.plan:
            self._exchange.adopt(plan)
        self._countdown = GroupCountdown(plan.layout, plan.groups)

    def group_of(self, layer: int) -> int:
        """The group that a layer belongs to."""
        return self._countdown.group_of[layer]

    def read(self, layer: int) -> None:
        """Return when a forward may read the parameters of a layer."""
        self._timed(self._exchange.wait, self._countdown.group_of[layer])

    def begin(
        self,
        step: int,
        *,
        attempt: int = 0,
        one_by_one: bool = False,
        rates: Sequence[float] | None = None,
        layer_rates: NDArray[np.float64] | None = None,
    ) -> None:
        """All parameters of `step` have been read; its groups may be exchanged `one_by_one`, to measure them.

        `rates` and `layer_rates` as `Exchange.begin` takes them.
        """
        self._step = step
        self._one_by_one = one_by_one and not self._together
        self._exchange.begin(step, attempt, rates, layer_rates)
        self._countdown.begin()
        self._left_out.clear()

    def prepare(self, layer: int) -> None:
        """Return when backward may read the parameters of a layer and write its gradients."""
        self._timed(self._exchange.prepare, self._countdown.group_of[layer])

    def make_room(self, layer: int) -> None:
        """Return when the gradients of a layer, which are complete elsewhere, may be written; see `prepare`."""
        self._timed(self._exchange.make_room, self._countdown.group_of[layer])

    def recall(self, layer: int) -> None:
        """Return when the backward of the step that has begun may read the parameters of a layer."""
        self._timed(self._exchange.recall, self._countdown.group_of[layer])

    def recall_alone(self, layer: int) -> None:
        """Return when a backward that belongs to no step may read the parameters of a layer."""
        self._timed(self._exchange.recall_alone, self._countdown.group_of[layer])

    def read_again(self, layer: int) -> None:
        """Return when a forward that is computed again may read the parameters of a layer."""
        # The groups of a segment are read in forward order, and then again.
        self._timed(self._read_again, self._countdown.group_of[layer])

    def ready(self, layer: int) -> None:
        """The gradients of all tensors of a layer are complete."""
        self._count_down(layer, None)

    def tensor_ready(self, layer: int) -> None:
        """The gradient of one more tensor of a layer is complete."""
        self._count_down(layer, 1)

    def group_ready(self, group: int) -> None:
        """The gradients of all tensors of all layers of a group are complete; says in one call what `ready` says."""
        self._countdown.end(group)
        self._push(group)

    def leave_out(self, group: int) -> None:
        """Nothing of the group is exchanged in this step, on no worker; none of its layers is `ready` in it."""
        self._countdown.end(group)
        self._left_out.add(group)
        self._exchange.leave_out(group)

    def end_backward(self) -> None:
        """All gradients are complete; what was left to be exchanged one by one is exchanged.

        Raises:
            RunError: some are missing.
        """
        missing = self._countdown.missing
        if any(missing):
            group = next(group for group, count in enumerate(missing) if count)
            raise RunError(
                f"step {self._step}: backward ended while {missing[group]} tensors of group {group} have no gradients"
            )
        if self._one_by_one and self._keeps_gradients:
            for group in range(len(missing)):
                if group not in self._left_out:
                    self._exchange_alone(group)

    def complete(self, group: int) -> None:
        """Return when a group of the step that has begun, which was pushed, has been summed."""
        self._timed(self._exchange.complete, group)

    def finish(self) -> None:
        """Return when every group has been summed and updated by all."""
        for group in range(len(self._countdown.missing)):
            self._exchange.complete(group)

    def abort(self) -> None:
        """Give the present step up, as all workers do; `begin` with a higher attempt follows."""
        self._exchange.abort(self._step)

    def _count_down(self, layer: int, tensors: int | None) -> None:
        try:
            group = self._countdown.ready(layer, tensors)
        except RunError as error:
            raise RunError(f"step {self._step}: {error}") from None
        if group is not None:
            self._push(group)

    def _push(self, group: int) -> None:
        if self._holds:
            # The last push of a step may wait for all workers to agree whether to skip it.
            self._timed(self._exchange.push, group)
        elif not self._one_by_one:
            self._exchange.push(group)
        elif not self._keeps_gradients:
            self._exchange_alone(group)

    def _exchange_alone(self, group: int) -> None:
        self._exchange.push(group)
        self._timed(self._exchange.complete, group)

    def _read_again(self, group: int) -> None:
        self._exchange.recall(group, ahead=False)
