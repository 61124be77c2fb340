"""A worker on the virtual clock: the training loop of `taihu.worker.training`, around the daemons' `StepProtocol`.

The loop reads, computes, and pushes a group when its last gradient is there, as `Trainer` and `StepDriver` do layer
by layer: between the layers of one group nothing is waited for, so that they are computed at once here, but for
segments of layers whose forward is run again. Actions are carried out as `worker.exchange.shell` does, whose threads
are work queues here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import Literal, Protocol

from taihu.core.coordination.plans.plan import Plan
from taihu.core.optimization import LossScale
from taihu.core.planner.groups import group_bounds
from taihu.core.trace import Tracer
from taihu.core.wire.frames.headers import At
from taihu.simulation.compute import Compute, Pace
from taihu.simulation.events import EventQueue
from taihu.simulation.fc import TailSteps
from taihu.simulation.network import Host
from taihu.worker.exchange.step_actions import Action, Agree, Apply, Ask, Done, Push, Widen
from taihu.worker.exchange.step_parameters import Reading
from taihu.worker.exchange.step_protocol import StepProtocol
from taihu.worker.exchange.step_rules import Rules
from taihu.worker.exchange.times import GroupTimes
from taihu.worker.training.calibration import Measuring
from taihu.worker.training.step_driver import GroupCountdown
from taihu.worker.training.step_record import StepRecord

__all__ = ["Passes", "SimulatedRoute", "SimulatedWorker"]

_SHORTEST_TRACED_WAIT_S = 20e-6

Wanted = float | Callable[[], bool]


class SimulatedRoute(Protocol):
    """The way of groups and parameters; it tells the worker of what comes."""

    def parts(self, group: int) -> int:
        """The number of parts of a group that are told of, for each push and fetch."""

    def begin(self, at: At) -> None:
        """Begin a step: what is sent from now on belongs to `at`."""

    def send(self, group: int) -> float:
        """Send the group's gradients, or what was selected of them; returns the bytes that are known to go up."""

    def apply(self, at: At) -> None:
        """Update by the sums of all groups; the worker's `applied` follows."""

    def fetch(self, group: int, step: int) -> None:
        """Fetch the group's parameters as they are after `step`."""

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


class SimulatedWorker:
    """Trains steps, of which `records` tell; `route`, and `tail` if there is one, are set before `start`.

    `on_step` is called when a step has ended, some of whose groups are still under way. Instants of records, and of
    the groups' times in them, are those that a real worker notes.

    Args:
        queue: the clock.
        host: where it runs; of all workers that are alike.
        rules: of the steps, with those of the route.
        compute: of a usual step.
        pace: of this worker.
        scale: of the loss, where gradients are held back.
        measuring: the steps that are measured; None if none is.
        tracer: gets the entries that a real worker's gets.

    Attributes:
        is_over: whether it takes in nothing any more: its process is gone, or goes on as another object.
    """

    plan: Plan
    route: SimulatedRoute
    tail: TailSteps | None = None

    def __init__(
        self,
        *,
        queue: EventQueue,
        host: Host,
        rules: Rules,
        compute: Compute,
        pace: Pace,
        scale: LossScale | None = None,
        measuring: Measuring | None = None,
        tracer: Tracer | None = None,
    ) -> None:
        self.queue = queue
        self.host = host
        self.tracer = tracer or Tracer.off()
        self.records: list[StepRecord] = []
        self.on_step: Callable[[], None] = lambda: None
        self.is_over = False
        self.protocol = StepProtocol(rules, scale)
        self._open_groups = 0
        self._rules = rules
        self._compute = compute
        self._pace = pace
        self._measuring = measuring
        self._run_again = dict(compute.run_again)
        self._own = host.thread()
        self._awaited: Callable[[], bool] | None = None
        self._is_agreeing = False
        self._loop: Iterator[Wanted] = iter(())
        self._asked: dict[int, tuple[int, float]] = {}
        self._times: list[GroupTimes] = []

    def adopt(self, plan: Plan, passes: Passes) -> None:
        """Go on by a plan, with passes over its groups; a route for it follows, and `start`."""
        self.plan, self._passes, self._is_new_plan = plan, passes, True
        self._countdown = GroupCountdown(plan.layout, plan.groups)
        self._stretches = tuple(self._cut())
        self._sizes = [stop - start for start, stop in group_bounds(plan.layout, plan.groups)]

    def take_over(self, before: SimulatedWorker) -> None:
        """Go on with the protocol and the records of one that gives up what is under way, and is over."""
        before.is_over = True
        self.records, self.protocol = before.records, before.protocol
        if self.protocol.at.step:
            self.protocol.abort(self.protocol.at.step)

    @property
    def unfinished_step(self) -> int:
        """The first step of which not all groups have been updated."""
        return self.protocol.at.step + (not self._open_groups)

    def start(self, first: int, last: int, attempt: int = 0) -> None:
        """Begin to train steps `first` to `last`, the first one in a higher `attempt` if it is replayed."""
        if self._is_new_plan:
            self._adopt()
            if attempt and self.protocol.at.step < first - 1:
                # A process that is new begins where the others are.
                self._do(self.protocol.begin(first - 1))
                self.protocol.abort(first - 1)
                self._adopt()
        self._loop = self._train(first, last, attempt)
        self.queue.at(self.queue.now, self._go_on)

    def _adopt(self) -> None:
        self._is_new_plan = False
        parts = [self.route.parts(group) for group in range(len(self._sizes))]
        self._do(self.protocol.adopt(self.plan.version, self._sizes, parts))

    def updated(
        self,
        group: int,
        at: At,
        *,
        sent_bytes: float = 0.0,
        received_bytes: float = 0.0,
        completed_s: float | None = None,
    ) -> None:
        """One part of a pushed group has been summed and updated; the rest as `worker.exchange.route.Updated`."""
        if self.is_over:
            return
        self._times[group].updated(round(sent_bytes), round(received_bytes), completed_s)
        self._hand_on(self.protocol.updated(group, at))

    def arrived(self, group: int, attempt: int) -> None:
        """One part of a group's parameters has come."""
        if self.is_over:
            return
        self._hand_on(self.protocol.parameters.arrived(group, attempt))
        if self.protocol.parameters.may_read(group):
            self._trace_fetch(group)

    def applied(self, at: At) -> None:
        """All groups have been updated together."""
        if not self.is_over:
            self._hand_on(self.protocol.applied(at))

    def later(self, seconds: float, task: Callable[[], None], *, waits: bool = False) -> None:
        """Carry `task` out on the exchange's own thread, when that has done `seconds` of work for it."""
        self._own.do(seconds, self._carry_out, task, waits=waits)

    def _carry_out(self, task: Callable[[], None]) -> None:
        if not self.is_over:
            task()

    def seconds(self, step: int, way: Literal["forward", "backward"], first: int, last: int) -> float:
        """The usual seconds of layers `first` to `last` in a step; every one takes as long here."""
        of = self._compute.forward if way == "forward" else self._compute.backward
        return math.fsum(of[first : last + 1])

    def _train(self, first_step: int, last_step: int, attempt: int) -> Iterator[Wanted]:
        groups = self.plan.groups
        for step in range(first_step, last_step + 1):
            record = self._record(step)
            pace = self._pace.of(step)
            is_replayed = attempt > 0 and step == first_step
            if is_replayed:
                # What was given up is begun anew before its forward may fetch anything.
                self._begin(step, record, attempt)
            for number, group in reversed(list(enumerate(groups))):
                if not is_replayed or self._rules.fetches:
                    yield from self._read(number)
                # The batches before the last one go before its forward ends.
                others = self._compute.before_last_seconds if number == 0 else 0.0
                yield (self.seconds(step, "forward", group.first_layer, group.last_layer) + others) * pace
            record.forward_end_s = self.queue.now
            record.waited_in_forward_s = record.waited_s
            if not is_replayed:
                self._begin(step, record, attempt)
            if self.tail is not None:
                yield from self._through_tail(self.tail, pace)
            for number, first, last in self._stretches:
                yield from self._forward_again(step, first, pace)
                yield from self._prepare(number)
                yield self.seconds(step, "backward", first, last) * pace
                self._note_ready(record, first, last, pace)
                for layer in range(first, last + 1):
                    complete = self._countdown.ready(layer)
                    if complete is not None:
                        yield from self._complete(complete, record)
            record.backward_end_s = self.queue.now
            if record.serial and not self._rules.drops_gradients:
                for number in range(len(groups)):
                    yield from self._exchange_alone(number)
            self._end(record)
        for number in range(len(groups)):
            yield from self._wait(partial(self.protocol.is_complete, number), number)

    def _record(self, step: int) -> StepRecord:
        measuring = self._measuring
        # What is updated together is never exchanged group by group.
        serial = measuring is not None and measuring.is_serial(step) and not (self._rules.holds or self._rules.clips)
        steady = measuring is None or measuring.is_steady(step)
        self.records.append(StepRecord(step, serial, steady, self.queue.now))
        return self.records[-1]

    def _complete(self, group: int, record: StepRecord) -> Iterator[Wanted]:
        """The gradients of a group are complete: it is pushed, or waits for the end of backward to be, by itself."""
        if not record.serial:
            yield from self._push(group)
        elif self._rules.drops_gradients:
            yield from self._exchange_alone(group)

    def _exchange_alone(self, group: int) -> Iterator[Wanted]:
        yield from self._push(group)
        yield from self._wait(partial(self.protocol.is_complete, group), group)

    def _begin(self, step: int, record: StepRecord, attempt: int) -> None:
        self._do(self.protocol.begin(step, attempt))
        self._open_groups = len(self._sizes)
        self._times = [GroupTimes(elements) for elements in self._sizes]
        record.times = self._times
        self.route.begin(self.protocol.at)
        self._countdown.begin()

    def _push(self, group: int) -> Iterator[Wanted]:
        self._times[group].ready_s = self.queue.now
        self._do(self.protocol.ready(group))
        yield from self._wait(lambda: not self._is_agreeing, group)

    def _note_ready(self, record: StepRecord, first: int, last: int, pace: float) -> None:
        """The gradients of layers that were computed one after another, the last of which is complete now."""
        ready_s = self.queue.now - record.waited_in_backward_s
        backward = self._compute.backward[first : last + 1]
        later = [0.0, *accumulate(reversed(backward[1:]))]
        record.ready_s += [ready_s - pace * seconds for seconds in reversed(later)]

    def _cut(self) -> Iterator[tuple[int, int, int]]:
        """Every group in backward order, its first and last layer; cut where a segment that is run again begins."""
        for number, group in enumerate(self.plan.groups):
            layers = range(group.first_layer, group.last_layer + 1)
            starts = [layer for layer in layers if layer == group.first_layer or layer in self._run_again]
            stops = [*starts[1:], group.last_layer + 1]
            yield from ((number, start, stop - 1) for start, stop in zip(starts, stops, strict=True))

    def _forward_again(self, step: int, first: int, pace: float) -> Iterator[Wanted]:
        """The forward of the segment that begins with layer `first`, if one does, group by group."""
        last = self._run_again.get(first)
        if last is None:
            return
        for number, group in reversed(list(enumerate(self.plan.groups))):
            start, end = max(first, group.first_layer), min(last, group.last_layer)
            if start <= end:
                if self._rules.fetches:
                    yield from self._turn(self.protocol.parameters.backward_reading(number, ahead=False))
                yield self.seconds(step, "forward", start, end) * pace

    def _through_tail(self, tail: TailSteps, pace: float) -> Iterator[Wanted]:
        for wanted in tail.step(pace):
            if isinstance(wanted, float):
                yield wanted
            else:
                yield from self._wait(wanted)

    def _end(self, record: StepRecord) -> None:
        record.end_s = self.queue.now
        self.tracer.add("compute", "forward", record.start_s, record.forward_end_s, step=record.step)
        self.tracer.add("compute", "backward", record.forward_end_s, record.backward_end_s, step=record.step)
        self.on_step()

    def _read(self, group: int) -> Iterator[Wanted]:
        if not self._rules.fetches:
            yield from self._wait(partial(self.protocol.is_complete, group), group)
            return
        yield from self._turn(self.protocol.parameters.forward_reading(group))

    def _prepare(self, group: int) -> Iterator[Wanted]:
        if self._rules.drops_gradients:
            yield from self._wait(partial(self.protocol.may_write, group), group)
            self.protocol.write(group)
        if self._rules.fetches:
            yield from self._turn(self.protocol.parameters.backward_reading(group))

    def _turn(self, reading: Reading) -> Iterator[Wanted]:
        parameters = self.protocol.parameters
        yield from self._wait(partial(parameters.may_turn, reading), reading.group)
        self._do(parameters.turn(reading))
        yield from self._wait(partial(parameters.may_read, reading.group), reading.group)

    def _wait(self, is_there: Callable[[], bool], group: int | None = None) -> Iterator[Wanted]:
        if is_there():
            return
        start = self.queue.now
        yield is_there
        record, stop = self.records[-1], self.queue.now
        if not record.end_s:
            record.waited_s += stop - start
            if record.forward_end_s and not record.backward_end_s:
                record.waited_in_backward_s += stop - start
        if stop - start > _SHORTEST_TRACED_WAIT_S:
            self.tracer.add("compute", "wait", start, stop, step=record.step, group=group)

    def _go_on(self) -> None:
        if self.is_over:
            return
        wanted = next(self._loop, None)
        if isinstance(wanted, float):
            self.host.compute(wanted, self._go_on)
        else:
            self._awaited = wanted

    def changed(self) -> None:
        """Look again whether what is awaited is there."""
        if not self.is_over and self._awaited is not None and self._awaited():
            self._awaited = None
            self.queue.at(self.queue.now, self._go_on)

    def _do(self, actions: Sequence[Action]) -> None:
        """Carry out what the training loop caused."""
        for action in actions:
            match action:
                case Push(group):
                    self._send(group)
                case Agree():
                    self._is_agreeing = True
                    self.route.agree(self._agreed)
                case Apply(at):
                    self.later(0.0, partial(self.route.apply, at))
                case Ask() | Widen():
                    self._bring(action)
                case Done(group, skipped):
                    self._open_groups -= 1
                    self._times[group].done(self.queue.now, skipped=skipped)
                case _:
                    pass

    def _hand_on(self, actions: Sequence[Action]) -> None:
        """Carry out what the network caused: what touches values is for the exchange's own thread."""
        for action in actions:
            match action:
                case Ask() | Widen():
                    self.later(0.0, partial(self._bring, action))
                case Apply(at):
                    self.later(0.0, partial(self.route.apply, at))
                case Done(group, skipped):
                    self._open_groups -= 1
                    self._times[group].done(self.queue.now, skipped=skipped)
                case _:
                    pass
        self.changed()

    def _bring(self, action: Ask | Widen) -> None:
        if isinstance(action, Ask):
            self._asked[action.group] = action.step + 1, self.queue.now
            self.route.fetch(action.group, action.step)
        else:
            self.later(self._passes.widen[action.group], partial(self._widened, action.group))

    def _widened(self, group: int) -> None:
        self._hand_on(self.protocol.parameters.widened(group))
        self._trace_fetch(group)

    def _trace_fetch(self, group: int) -> None:
        if group in self._asked:
            step, asked_s = self._asked.pop(group)
            self.tracer.add("fetch", "fetch", asked_s, self.queue.now, step=step, group=group)

    def _agreed(self) -> None:
        if self.is_over:
            return
        self._is_agreeing = False
        self._do(self.protocol.agreed(skipped=False))
        self.changed()

    def _send(self, group: int) -> None:
        times = self._times[group]
        seconds, times.refreshed = self._passes.selecting(group, self.protocol.at.step)
        if not seconds:
            times.submitted(self.queue.now)
            times.sent(round(self.route.send(group)))
            return
        # Measured by a run, on the processors that it had.
        self.later(seconds, partial(self._compressed, group, self.protocol.at.step, times, seconds), waits=True)

    def _compressed(self, group: int, step: int, times: GroupTimes, seconds: float) -> None:
        start, now = self.queue.now - seconds, self.queue.now
        self.tracer.add("compress", "compress", start, now, step=step, group=group)
        times.packed(start, now)
        times.sent(round(self.route.send(group)))
