"""A worker on the virtual clock: the daemons' executor and step program, with seconds in the place of arithmetic.

Between the layers of one group nothing is waited for, so that they are computed at once here, but for segments of
layers whose forward is run again. The threads of a worker are work queues.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import Protocol

from typing_extensions import override

from taihu.core.coordination.plans.plan import Plan
from taihu.core.optimization import LossScale
from taihu.core.trace import Tracer
from taihu.core.wire.frames.headers import At
from taihu.simulation.compute import Compute, Pace
from taihu.simulation.events import EventQueue
from taihu.simulation.fc import TailSteps
from taihu.simulation.network import Host
from taihu.worker.exchange.base.route import Arrived, Carrier, RouteEvents, Updated
from taihu.worker.exchange.executor import Executor
from taihu.worker.exchange.ground import Ground, Values, Wait, Waits
from taihu.worker.exchange.step_protocol import StepProtocol
from taihu.worker.exchange.step_rules import Rules
from taihu.worker.exchange.times import GroupTimes
from taihu.worker.training.calibration import Schedule
from taihu.worker.training.step_program import StepProgram
from taihu.worker.training.step_record import StepRecord

Wanted = float | Wait


class SimulatedRoute(Carrier, Protocol):
    """The way of groups and parameters; it tells the worker of what comes."""

    def agree(self, told: Callable[[], None]) -> None:
        """Agree with all workers on one flag; `told` follows."""


@dataclass(frozen=True)
class Passes:
    """Seconds of what a worker does with groups beside computing.

    Attributes:
        widen: each of them.
        compress: selecting from each of them, in the mean of all steps.
        exactly, again: the same in a step that selects exactly, and in one that uses its thresholds again.
        refresh_every: steps from one exact selection to the next; 0 where all steps take the mean.
    """

    widen: Sequence[float]
    compress: Sequence[float]
    exactly: Sequence[float] = ()
    again: Sequence[float] = ()
    refresh_every: int = 0

    def selecting(self, group: int, step: int) -> tuple[float, bool]:
        """Seconds of selecting from a group in a step, and whether that is exact."""
        if not self.refresh_every:
            return self.compress[group], False
        exact = (step - 1) % self.refresh_every == 0
        return (self.exactly if exact else self.again)[group], exact


class Costs(Values):
    """The seconds of what a worker does with the values of groups; what takes none is not here."""

    def __init__(self, worker: SimulatedWorker, route: SimulatedRoute, passes: Passes) -> None:
        self.narrows, self.selects, self.read, self.pushing, self.ended = False, True, None, None, None
        self._worker, self._route, self._passes = worker, route, passes

    def begin(self, at: At, rates: object, layer_rates: object) -> None:
        """Nobody has rates."""

    def cancel(self, at: At) -> None:
        """Whoever is over takes in nothing."""

    def drop(self, group: int) -> None:
        """Memory is free."""

    def drop_all(self) -> None:
        """Memory is free."""

    def release(self, group: int) -> None:
        """Memory is free."""

    @override
    def narrow(self, group: int) -> bool:
        return True

    @override
    def select(self, group: int, at: At, times: GroupTimes) -> bool:
        seconds, times.refreshed = self._passes.selecting(group, at.step)
        if seconds:
            # Measured by a run, on the processors that it had.
            self._worker.work(seconds, partial(self._compressed, group, at.step, times, seconds), waits=True)
        return seconds > 0.0

    def _compressed(self, group: int, step: int, times: GroupTimes, seconds: float) -> None:
        now = self._worker.queue.now
        self._worker.tracer.add("compress", "compress", now - seconds, now, step=step, group=group)
        times.packed(now - seconds, now)
        times.sent(self._route.send(group, loss_scale=1.0, skipped=False))

    @override
    def agree(self, at: At, told: Callable[[bool], None], *, overflowed: bool) -> None:
        self._route.agree(lambda: None if self._worker.is_over else told(overflowed))

    @override
    def widen(self, group: int, done: Callable[[], None]) -> None:
        self._worker.work(self._passes.widen[group], done)


class SimulatedWorker(Ground):
    """Trains steps, of which `records` tell; `adopt` comes before `start`.

    Instants of records, and of the groups' times in them, are those that a real worker notes.

    Args:
        queue: the clock.
        host: where it runs; of all workers that are alike.
        rules: of the steps.
        compute: of a usual step.
        pace: of this worker.
        scale: of the loss, where gradients are held back.
        measuring: the steps that are measured.
        tracer: gets the entries that a real worker's gets.
        on_step: called when a step has ended, some of whose groups are still under way.
        before: the one that gives up what is under way, and is over: this one goes on with its protocol and records.

    Attributes:
        protocol: decides, by all plans.
        is_over: whether it takes in nothing any more: its process is gone, or goes on as another object.
    """

    def __init__(
        self,
        *,
        queue: EventQueue,
        host: Host,
        rules: Rules,
        compute: Compute,
        pace: Pace,
        scale: LossScale | None,
        measuring: Schedule,
        tracer: Tracer,
        on_step: Callable[[], None],
        before: SimulatedWorker | None = None,
    ) -> None:
        self.queue = queue
        self.host = host
        self.tracer = tracer
        self.records: list[StepRecord] = []
        self.is_over = False
        self.lock: AbstractContextManager[object] = nullcontext()
        protocol: StepProtocol = StepProtocol(rules, scale)
        if before is not None:
            before.is_over = True
            self.records, protocol = before.records, before.protocol
            if protocol.at.step:
                protocol.abort(protocol.at.step)
        self.protocol: StepProtocol = protocol
        self._rules = rules
        self._compute = compute
        self._pace = pace
        self._measuring = measuring
        self._on_step = on_step
        self._run_again = dict(compute.run_again)
        self._own = host.thread()
        self._awaited: Callable[[], bool] | None = None
        self._loop: Iterator[Wanted] = iter(())
        self._tail: TailSteps | None = None

    def now(self) -> float:
        """Seconds of the clock."""
        return self.queue.now

    @property
    def events(self) -> RouteEvents:
        """The events of its route, which is told by nobody else."""
        return RouteEvents(self.updated, self.arrived, self.applied, self._later, self._failed)

    def _later(self, at: At, task: Callable[[], None]) -> None:
        self.steps.later(at, task)

    def _failed(self, error: BaseException) -> None:
        raise error

    def adopt(self, plan: Plan, passes: Passes, route: SimulatedRoute, tail: TailSteps | None) -> None:
        """Go on by a plan, whose groups go by a route and take these passes; `tail` is the end of a spread model."""
        costs = Costs(self, route, passes)
        self.steps = Executor(
            plan, self._rules, self.protocol, self, lambda _: (route, costs), now=self.now, tracer=self.tracer
        )
        self._tail = tail
        self._program = StepProgram(self.steps, self._measuring, self.now, self.tracer)
        self._stretches = tuple(self._cut(plan))

    @property
    def plan(self) -> Plan:
        """The present plan."""
        return self.steps.plan

    @property
    def unfinished_step(self) -> int:
        """The first step of which not all groups have been updated."""
        return self.protocol.at.step + (not self.steps.left)

    def start(self, first: int, last: int, attempt: int = 0) -> None:
        """Begin to train steps `first` to `last`, the first one in a higher `attempt` if it is replayed."""
        if attempt and self.protocol.at.step < first - 1:
            # A process that is new begins where the others are.
            self.steps.begin(first - 1)
            self.steps.abort(first - 1)
            self.steps.adopt(self.plan)
        self._loop = self._train(first, last, attempt)
        self.queue.at(self.queue.now, self._go_on)

    def updated(self, part: Updated) -> None:
        """One part of a pushed group has been summed and updated."""
        if not self.is_over:
            self.steps.updated(part)

    def arrived(self, part: Arrived) -> None:
        """One part of a group's parameters has come."""
        if not self.is_over:
            self.steps.arrived(part)

    def applied(self, at: At) -> None:
        """All groups have been updated together."""
        if not self.is_over:
            self.steps.applied(at)

    def work(self, seconds: float, task: Callable[[], None], *, waits: bool = False) -> None:
        """Carry `task` out on the exchange's own thread, when that has done `seconds` of work for it."""
        self._own.do(seconds, self._carry_out, task, waits=waits)

    def _carry_out(self, task: Callable[[], None]) -> None:
        if not self.is_over:
            task()

    @override
    def settle(self) -> None:
        """Nothing is held."""

    @override
    def later(self, task: Callable[[], None]) -> None:
        self.work(0.0, task)

    @override
    def changed(self) -> None:
        if self._awaited is not None and not self.is_over and self._awaited():
            self._awaited = None
            self.queue.at(self.queue.now, self._go_on)

    def _train(self, first_step: int, last_step: int, attempt: int) -> Iterator[Wanted]:
        program, groups = self._program, self.plan.groups
        forward, backward = self._compute.forward, self._compute.backward
        for step in range(first_step, last_step + 1):
            self.records.append(program.start(step))
            pace = self._pace.of(step)
            is_replayed = attempt > 0 and step == first_step
            if is_replayed:
                # What was given up is begun anew before its forward may fetch anything.
                program.begin(attempt)
            for group in reversed(groups):
                if not is_replayed or self._rules.fetches:
                    yield from program.read(group.last_layer)
                # The batches before the last one go before its forward ends.
                others = 0.0 if group.first_layer else self._compute.before_last_seconds
                yield (math.fsum(forward[group.first_layer : group.last_layer + 1]) + others) * pace
            program.forwarded()
            if not is_replayed:
                program.begin()
            for wanted in self._tail.step(pace) if self._tail is not None else ():
                yield from (wanted,) if isinstance(wanted, float) else program.timed(_until(wanted), None)
            for first, last in self._stretches:
                yield from self._forward_again(first, pace)
                yield from program.prepare(first)
                yield math.fsum(backward[first : last + 1]) * pace
                # The gradients of layers that were computed one after another, the last of which is complete now.
                later = [*accumulate(reversed(backward[first + 1 : last + 1]), initial=0.0)]
                for layer, seconds in zip(range(first, last + 1), reversed(later), strict=True):
                    yield from program.ready(layer, pace * seconds)
            yield from program.end()
            self._on_step()
        yield from program.layers.finish()

    def _cut(self, plan: Plan) -> Iterator[tuple[int, int]]:
        """Every group in backward order, its first and last layer; cut where a segment that is run again begins."""
        for group in plan.groups:
            layers = range(group.first_layer, group.last_layer + 1)
            starts = [layer for layer in layers if layer == group.first_layer or layer in self._run_again]
            stops = [*starts[1:], group.last_layer + 1]
            yield from ((start, stop - 1) for start, stop in zip(starts, stops, strict=True))

    def _forward_again(self, first: int, pace: float) -> Iterator[Wanted]:
        """The forward of the segment that begins with layer `first`, if one does, group by group."""
        last = self._run_again.get(first, -1)
        for group in reversed(self.plan.groups):
            start, end = max(first, group.first_layer), min(last, group.last_layer)
            if start <= end:
                yield from self._program.read_again(start)
                yield math.fsum(self._compute.forward[start : end + 1]) * pace

    def _go_on(self) -> None:
        if self.is_over:
            return
        for wanted in self._loop:
            if isinstance(wanted, float):
                self.host.compute(wanted, self._go_on)
                return
            is_there, _ = wanted
            if not is_there():
                self._awaited = is_there
                return


def _until(is_there: Callable[[], bool]) -> Waits:
    yield is_there, -1
