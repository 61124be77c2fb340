"""An exchange driven layer by layer: when a group is pushed, and what a layer waits for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from taihu.core.base.errors import RunError
from taihu.core.coordination.plans.plan import Plan
from taihu.core.model.layout import Layout
from taihu.core.planner.groups import Group, group_of_layer
from taihu.worker.exchange.executor import Executor
from taihu.worker.exchange.ground import NOTHING, Waits

if TYPE_CHECKING:
    # Of threads and arenas, which the simulator does not need.
    from taihu.worker.exchange.shell import Exchange

Timed = Callable[[Waits, int], Waits]
"""The same waits, for the sake of a group, with their time measured."""


def _untimed(waits: Waits, group: int) -> Waits:
    return waits


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


class LayerProgram:
    """Says to an exchange by groups what a model says by layers; it knows of no images, and measures nothing.

    Layers are those of the plan's layout. A step is `read` for every layer before its forward; `begin`; for every
    layer `prepare` before its backward and `ready` after it, or `group_ready` for all of a group; `end_backward`. A
    group is pushed when all tensors of its layers are ready, in whatever order they come, the same on all workers.

    The waits that are returned are carried out at once: a worker blocks in each (`StepDriver`), the simulator goes on
    when its clock has come there.

    Args:
        steps: has adopted a plan; `adopt` follows each other one.
        timed: measures waits that may take their time.
    """

    def __init__(self, steps: Executor, timed: Timed = _untimed) -> None:
        self._steps = steps
        self._timed = timed
        self._one_by_one = False
        self._step = 0
        self._left_out: set[int] = set()
        self.adopt(steps.plan)

    def adopt(self, plan: Plan) -> None:
        """Go on by another plan; `finish` came before."""
        self._countdown = GroupCountdown(plan.layout, plan.groups)

    def group_of(self, layer: int) -> int:
        """The group that a layer belongs to."""
        return self._countdown.group_of[layer]

    def read(self, layer: int) -> Waits:
        """Until a forward may read the parameters of a layer."""
        group = self._countdown.group_of[layer]
        return self._timed(self._steps.wait(group), group)

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

        `rates` and `layer_rates` as `Executor.begin` takes them.
        """
        rules = self._steps.rules
        self._step = step
        # What is updated together is never exchanged group by group.
        self._one_by_one = one_by_one and not (rules.holds or rules.clips)
        self._steps.begin(step, attempt, rates, layer_rates)
        self._countdown.begin()
        self._left_out.clear()

    def prepare(self, layer: int) -> Waits:
        """Until backward may read the parameters of a layer and write its gradients."""
        group = self._countdown.group_of[layer]
        return self._timed(self._steps.prepare(group), group)

    def make_room(self, layer: int) -> Waits:
        """Until the gradients of a layer, which are complete elsewhere, may be written; see `prepare`."""
        group = self._countdown.group_of[layer]
        return self._timed(self._steps.make_room(group), group)

    def recall(self, layer: int) -> Waits:
        """Until the backward of the step that has begun may read the parameters of a layer."""
        group = self._countdown.group_of[layer]
        return self._timed(self._steps.recall(group), group)

    def recall_alone(self, layer: int) -> Waits:
        """Until a backward that belongs to no step may read the parameters of a layer."""
        group = self._countdown.group_of[layer]
        return self._timed(self._steps.recall_alone(group), group)

    def read_again(self, layer: int) -> Waits:
        """Until a forward that is computed again may read the parameters of a layer."""
        # The groups of a segment are read in forward order, and then again.
        group = self._countdown.group_of[layer]
        return self._timed(self._steps.recall(group, ahead=False), group)

    def ready(self, layer: int) -> Waits:
        """The gradients of all tensors of a layer are complete."""
        return self._count_down(layer, None)

    def tensor_ready(self, layer: int) -> Waits:
        """The gradient of one more tensor of a layer is complete."""
        return self._count_down(layer, 1)

    def group_ready(self, group: int) -> Waits:
        """The gradients of all tensors of all layers of a group are complete; says in one call what `ready` says."""
        self._countdown.end(group)
        return self._push(group)

    def leave_out(self, group: int) -> None:
        """Nothing of the group is exchanged in this step, on no worker; none of its layers is `ready` in it."""
        self._countdown.end(group)
        self._left_out.add(group)
        self._steps.leave_out(group)

    def end_backward(self) -> Waits:
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
        if self._one_by_one and not self._steps.rules.drops_gradients:
            for group in range(len(missing)):
                if group not in self._left_out:
                    yield from self._exchange_alone(group)

    def complete(self, group: int) -> Waits:
        """Until a group of the step that has begun, which was pushed, has been summed."""
        return self._timed(self._steps.complete(group), group)

    def finish(self, *, timed: bool = False) -> Waits:
        """Until every group has been summed and updated by all, which is measured where it is `timed`."""
        waits = (wait for group in range(len(self._countdown.missing)) for wait in self._steps.complete(group))
        return self._timed(waits, 0) if timed else waits

    def abort(self) -> None:
        """Give the present step up, as all workers do; `begin` with a higher attempt follows."""
        self._steps.abort(self._step)

    def _count_down(self, layer: int, tensors: int | None) -> Waits:
        try:
            group = self._countdown.ready(layer, tensors)
        except RunError as error:
            raise RunError(f"step {self._step}: {error}") from None
        return NOTHING if group is None else self._push(group)

    def _push(self, group: int) -> Waits:
        rules = self._steps.rules
        if rules.holds:
            # The last push of a step may wait for all workers to agree whether to skip it.
            return self._timed(self._pushed(group), group)
        if not self._one_by_one:
            return self._steps.push(group)
        return self._exchange_alone(group) if rules.drops_gradients else NOTHING

    def _pushed(self, group: int) -> Waits:
        yield from self._steps.push(group)

    def _exchange_alone(self, group: int) -> Waits:
        yield from self._steps.push(group)
        yield from self._timed(self._steps.complete(group), group)


class StepDriver:
    """A `LayerProgram` whose calls return when there is nothing left to wait for; one thread makes all of them.

    Args:
        exchange: has started.
        timed: measures waits that may take their time.
    """

    def __init__(self, exchange: Exchange, timed: Timed = _untimed) -> None:
        program = self._program = LayerProgram(exchange.steps, timed)
        self._exchange, carry_out = exchange, exchange.carry_out

        def blocking(waits: Callable[[int], Waits]) -> Callable[[int], None]:
            return lambda number: carry_out(waits(number))

        self.group_of = program.group_of
        self.begin, self.leave_out, self.abort = program.begin, program.leave_out, program.abort
        self.read, self.read_again = blocking(program.read), blocking(program.read_again)
        self.recall, self.recall_alone = blocking(program.recall), blocking(program.recall_alone)
        self.prepare, self.make_room = blocking(program.prepare), blocking(program.make_room)
        self.ready, self.tensor_ready = blocking(program.ready), blocking(program.tensor_ready)
        self.group_ready, self.complete = blocking(program.group_ready), blocking(program.complete)

    def end_backward(self) -> None:
        """All gradients are complete; see `LayerProgram.end_backward`."""
        self._exchange.carry_out(self._program.end_backward())

    def finish(self, *, timed: bool = False) -> None:
        """Return when every group has been summed and updated by all; see `LayerProgram.finish`."""
        self._exchange.carry_out(self._program.finish(timed=timed))

    def adopt(self, plan: Plan) -> None:
        """Go on by another plan; `finish` came before."""
        if plan is not self._exchange.plan:
            self._exchange.adopt(plan)
        self._program.adopt(plan)
