"""The layers of a backward, told to an exchange in the order of its layout."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from taihu.core.job import Job
from taihu.core.planner.groups import Group
from taihu.core.wire.base.clock import Clock
from taihu.torch.gradients.coded import CodedGradients, Codes
from taihu.torch.gradients.gradients import GradientArena
from taihu.torch.steps.reports import Reports
from taihu.torch.steps.turns import Brought, Turns
from taihu.worker.exchange.session import Session
from taihu.worker.exchange.shell import Exchange
from taihu.worker.training.calibration import Schedule
from taihu.worker.training.plan_follower import PlanFollower
from taihu.worker.training.step_driver import StepDriver, Timed
from taihu.worker.training.step_record import StepRecord


class Helping(Protocol):
    """Sums in memory that workers share, which a thread of their own carries out, or the one that waits for them."""

    def hold_next(self) -> None:
        """Have the sum that is started next wait for `help`."""
        ...

    def help(self) -> None:
        """Carry it out, or have the other thread do so if there is something before it."""
        ...


@dataclass(frozen=True)
class _GroupPart:
    """The part of the layout that a step exchanges, and the groups that are left out of it; all ascending."""

    layers: list[int]
    groups: list[int]
    left_out: list[int]


class _Groups:
    """The groups of a plan, by their numbers; their layers come in order, so that the last one completes each.

    Args:
        groups: of the plan.
        owners: of each layer the number of the optimizer.
    """

    def __init__(self, groups: Sequence[Group], owners: Sequence[int]) -> None:
        self.firsts = [group.first_layer for group in groups]
        self.sizes = [group.last_layer - group.first_layer + 1 for group in groups]
        self.by_last_layer = {group.last_layer: number for number, group in enumerate(groups)}
        self.of_layer = [number for number, size in enumerate(self.sizes) for _ in range(size)]
        self._owners = owners
        self._parts: dict[Brought, _GroupPart] = {}

    def part_of(self, brought: Brought) -> _GroupPart:
        """The groups that have a layer of one of these optimizers."""
        part = self._parts.get(brought)
        if part is None:
            groups = {group for group, owner in zip(self.of_layer, self._owners, strict=True) if owner in brought}
            part = self._parts[brought] = _GroupPart(
                [layer for layer, group in enumerate(self.of_layer) if group in groups],
                sorted(groups),
                sorted(set(self.of_layer) - groups),
            )
        return part


@dataclass
class _Step:
    """A step, until the next one begins.

    Attributes:
        part: that it exchanges; until backward is over, the one that is expected.
        order: of the layers that are pushed.
        next: the number of those that have been pushed.
        is_ready: of each layer, whether its gradient is complete.
        ready_s: of each layer, when it was, where that is measured.
        missing: of each group, the number of layers that are not ready.
        is_measured: whether times of layers are.
        looks_at_each: whether layers are looked at one by one, and not a group at a time.
        may_help: whether this thread carries out the last group.
        is_open: whether backward goes on.
    """

    part: _GroupPart
    order: list[int]
    is_ready: list[bool]
    ready_s: list[float]
    missing: list[int]
    is_measured: bool
    looks_at_each: bool
    may_help: bool
    next: int = 0
    is_open: bool = True


class LayerSteps:
    """Pushes groups in the plan's order, whatever order gradients come in: all workers push alike.

    Where a script has several optimizers, groups without a gradient of those that a step is about are left out of it.
    What is expected of them is pushed as it comes, the others at the end of backward: this order is everybody's, too.

    A step is `begin`; `ready` for each gradient; `end`, `finish` and `close`. One thread calls all of these.

    Args:
        job: of the run.
        gradients: of the parameters, in the layout's order.
        session: that the exchange belongs to.
        reports: are told of steps and plans.
        measuring: says when workers report.
        codes: in which gradients go, where they do not go themselves.
        helping: carries out the last group of a step in this thread, where nothing else is under way.
        owners: of each parameter the number of the optimizer; late layers behind them have that of their source.
        turns: of the optimizers.
        timed: measures waits.
        waits: called with whether this worker waits for others from now on.
    """

    def __init__(
        self,
        job: Job,
        gradients: GradientArena | CodedGradients,
        session: Session,
        reports: Reports,
        measuring: Schedule,
        *,
        codes: Codes | None,
        helping: Helping,
        owners: Sequence[int],
        turns: Turns,
        timed: Timed,
        waits: Callable[[bool], None],
        clock: Clock,
    ) -> None:
        self.gradients = gradients
        self.exchange: Exchange = session.exchange
        self._helping = helping
        self._codes = codes
        self._sources = () if codes is None else codes.sources
        self._owners = owners = [*owners, *(owners[source] for source in self._sources)]
        self._turns = turns
        self._reports = reports
        self._measuring = measuring
        self._waits = waits
        self._clock = clock
        self._copies = job.stage.divides_gradients
        # Who waits in backward for room, or for a sum, must not be waited for by who has no such gradient.
        self._expects = not job.stage.divides_gradients or job.stage.divides_parameters or len(set(owners)) == 1
        self._driver = StepDriver(session.exchange, timed)
        self._follower = PlanFollower(measuring, session.client, job.exchange.timeout_s)
        self._groups = _Groups(session.exchange.plan.groups, owners)
        # Before the first one there is one that is over.
        self._step = self._new_step(serial=True)
        self._step.is_open = False

    def group_of(self, layer: int) -> int:
        """The group that a layer belongs to."""
        return self._driver.group_of(layer)

    def read(self, layer: int) -> None:
        """Return when the updated parameters of a layer are here."""
        self._driver.read(layer)

    def fetch(self, layer: int, *, again: bool) -> None:
        """Return when the parameters of a layer's group are here, to stay until `free` or until they are pushed.

        Args:
            layer: one whose group is not pushed in a step that has begun and not ended.
            again: whether it is a backward that reads them.
        """
        if not again:
            self._driver.read(layer)
        elif self._step.is_open:
            self._driver.recall(layer)
        else:
            self._driver.recall_alone(layer)
        self.exchange.steps.hold(self.group_of(layer))

    def free(self, group: int) -> None:
        """The parameters of a group need not stay."""
        self.exchange.steps.free(group)

    def is_sent(self, layer: int) -> bool:
        """Whether the gradients of the layer's group have been pushed in a backward that has not ended."""
        step = self._step
        return step.is_open and self.exchange.plan.groups[self.group_of(layer)].last_layer < step.next

    def begin(
        self, record: StepRecord, rates: Sequence[float] | None, layer_rates: NDArray[np.float64] | None = None
    ) -> None:
        """A step begins; nothing of the one before is under way. Rates are as `Executor.begin` takes them."""
        self._step = self._new_step(serial=record.serial)
        if self._codes is not None and layer_rates is not None:
            self._codes.coder.follow_rates(layer_rates)
        self._driver.begin(record.step, one_by_one=record.serial, rates=rates, layer_rates=layer_rates)

    def _new_step(self, *, serial: bool) -> _Step:
        expected = self._turns.expected if self._expects else frozenset[int]()
        count, part = len(self._owners), self._groups.part_of(expected)
        is_measured = self._measuring.is_measured(self._turns.counted + 1)
        return _Step(
            part=part,
            order=part.layers,
            is_ready=[False] * count,
            ready_s=[0.0] * count,
            missing=self._groups.sizes.copy(),
            is_measured=is_measured,
            looks_at_each=is_measured or self._copies or self.gradients.is_copied_by_devices,
            may_help=not serial and self.exchange.compression is None,
        )

    def ready(self, layer: int, record: StepRecord) -> None:
        """The gradient of a layer is complete, and what is complete by that is pushed."""
        step = self._step
        step.is_ready[layer] = True
        if step.looks_at_each:
            self.take(layer)
        group = self._groups.of_layer[layer]
        step.missing[group] -= 1
        if not step.missing[group] or step.looks_at_each:
            self.push(record)

    def take(self, layer: int) -> None:
        """The gradient of a layer is complete, and is pushed later."""
        self._step.is_ready[layer] = True
        if not self._copies:
            self.gradients.take(layer)

    def push(self, record: StepRecord, *, waits: bool = False) -> None:
        """Tell the driver of layers in their order, as far as their gradients are there, or with `waits` of all.

        A device may still compute what this thread has been told of: it is ready when it has arrived.
        """
        step, groups = self._step, self._groups
        order, is_ready = step.order, step.is_ready
        while step.next < len(order) and is_ready[layer := order[step.next]]:
            if step.looks_at_each and not self._looked_at(layer, record, waits=waits):
                return
            step.next += 1
            if (group := groups.by_last_layer.get(layer)) is not None:
                if not self._copies:
                    self.gradients.gather(groups.firsts[group], layer)
                if step.next == len(order) and step.may_help:
                    # Nothing is computed any more: this thread would wait for the one that sums it.
                    self._helping.hold_next()
                self._driver.group_ready(group)

    def _looked_at(self, layer: int, record: StepRecord, *, waits: bool) -> bool:
        """Whether the gradient of a layer may be sent, by itself or with its group; how soon is measured."""
        if self._copies:
            self._driver.make_room(layer)
            self.gradients.take(layer)
            self.gradients.gather(layer, layer)
        if not self.gradients.is_there(layer):
            if not waits:
                return False
            self.gradients.wait(layer)
        if self._step.is_measured:
            self._step.ready_s[layer] = self._clock.now() - record.waited_in_backward_s
        return True

    def end(self, record: StepRecord, brought: Brought) -> None:
        """Backward is over, and has brought gradients of these optimizers.

        What has not come of them took no part in this forward, here at least, and counts as zeros.
        """
        self._turns.agreed(brought)
        step = self._step
        step.part = part = self._groups.part_of(brought)
        for layer in part.layers:
            if not step.is_ready[layer] and not self._is_late(layer):
                self.take(layer)
        for group in part.left_out:
            self._driver.leave_out(group)
        if step.order is not part.layers:
            # All that was pushed is part of it.
            wanted, expected = set(part.layers), set(step.order)
            step.order = [layer for layer in step.order if layer in wanted]
            step.order += [layer for layer in part.layers if layer not in expected]
        self.push(record, waits=True)
        self._push_late(record)
        record.backward_end_s = self._clock.now()
        self._driver.end_backward()
        step.is_open = False

    def _is_late(self, layer: int) -> bool:
        return layer >= len(self._owners) - len(self._sources)

    def _push_late(self, record: StepRecord) -> None:
        """Push layers that follow from what comes back of others, in the order that all workers push in."""
        step = self._step
        while step.next < len(step.order):
            assert self._codes is not None  # noqa: S101 - all others have been pushed
            late = step.order[step.next] - (len(self._owners) - len(self._sources))
            self._driver.complete(self._groups.of_layer[self._sources[late]])
            self._codes.follow(late)
            step.is_ready[step.order[step.next]] = True
            self.push(record, waits=True)

    def finish(self) -> None:
        """Return when every group has been summed, and updated where servers do so."""
        self._helping.help()
        self._driver.finish(timed=True)

    def give(self, is_brought: Callable[[int], bool]) -> None:
        """Have what came back in the gradients of the parameters that the step was about, or that was brought."""
        self.gradients.give(self._step.part.layers, is_brought)

    def close(self, record: StepRecord) -> None:
        """Note a step that has ended, and go on by another plan where the workers have agreed on one."""
        record.waited_s += record.waited_in_backward_s
        times = self.exchange.group_times()
        record.times, record.path = [times[group] for group in self._step.part.groups], self.exchange.path
        if self._turns.counts and self._step.is_measured:
            # The plan's order is the layout's: a layer counts when those before it are there, too.
            record.ready_s = list(accumulate(self._step.ready_s, max, initial=record.forward_end_s))[1:]
            self._follower.observe(record, self._turns.counted)
        self._reports.stepped(record)
        self._reports.travels(record.path)
        if self._turns.counts and self._measuring.reports_after(self._turns.counted):
            self._waits(True)
            plan = self._follower.report(record.step)
            self._waits(False)
            self._driver.adopt(plan)
            self._groups = _Groups(plan.groups, self._owners)
            self._reports.planned(plan)
