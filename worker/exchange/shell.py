"""The exchange of gradients for parameters: a step protocol decides, a route carries, and this does as they say."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from taihu.core.base.errors import ExchangeError, StaleError, TaihuError
from taihu.core.checkpoint.held_back import held_back_by
from taihu.core.checkpoint.held_steps import HeldSteps
from taihu.core.checkpoint.part import NOTHING, PARAMETERS, State
from taihu.core.checkpoint.reading import Checkpoint
from taihu.core.compression import CompressionState, GroupCompressor, Outcome
from taihu.core.compression.scheduled_rates import ScheduledRates
from taihu.core.coordination.plans.plan import Plan
from taihu.core.history.recording import Recorder
from taihu.core.job import Job
from taihu.core.optimization import LossScale
from taihu.core.process.background import TaskThread
from taihu.core.process.programs.preparation import give_back_freed_memory
from taihu.core.system.threads import Condition
from taihu.core.trace import Tracer
from taihu.core.wire.base.clock import Clock, SystemClock
from taihu.core.wire.frames.headers import At
from taihu.kernels.half_sums import warm_up
from taihu.worker.exchange.base.recording import Recording
from taihu.worker.exchange.base.route import Arrived, ExchangeTotals, Route, RouteEvents, Updated
from taihu.worker.exchange.step_actions import (
    Action,
    Agree,
    Apply,
    Ask,
    Cancel,
    Done,
    Drop,
    DropAll,
    Push,
    Release,
    Widen,
)
from taihu.worker.exchange.step_parameters import Reading
from taihu.worker.exchange.step_protocol import StepProtocol
from taihu.worker.exchange.step_rules import Rules
from taihu.worker.exchange.times import GroupTimes
from taihu.worker.memory.arenas import Arenas
from taihu.worker.memory.group_memory import GroupMemory

__all__ = ["Exchange"]


class Exchange:
    """Turns the gradient arena of this worker into the updated parameter arena, group by group.

    Ordering: groups may be pushed in any order, each once per step; all workers use the same order, because a bounded
    number of frames is under way and each is answered when it has come from everybody. Ownership: from `push` until
    `wait` returns, the group's range of both arenas belongs to the exchange. Completion: when `wait` returns, the
    group's parameters are those of the step just pushed. Memory: where groups do not have some all the time (ZeRO
    stages 2 and 3), `prepare` comes before backward, and what `wait` or `prepare` promise of one group ends with the
    next call for another, unless it is held (`hold`).

    Threads: one thread, which trains, calls all of these but `fail`. What it causes it does itself; sums are taken
    in, and parameters updated, by the threads of the route that receive; what comes of their news and touches values
    (widening, fetching around a ring) and compression belong to a thread of the exchange's own. Threads that send
    do none of it. `start`, `complete`, `wait`, `recall`, `prepare`, `agree`, `abort` and `close` wait for others, and
    so does the `push` that completes a step of fp16 in a ring; nothing else does.

    Args:
        job: the same for all workers.
        plan: the first one.
        arenas: those of the job.
        rules: of its steps, but for those that are the route's.
        make_route: makes the route, which tells what happens to what it is given.
        compressor: of this worker's gradients, by the first plan.
        scheduled: the learning rates that what is held back follows, where `begin` is not told of any.
        on_compressed: called with what became of the units of each group that was compressed.
        on_failure: called with the error that ends the exchange, by the thread that saw it, before others see that.
        recording: is told of what is pushed and read.
        clock: of `group_times`.
        tracer: gets an entry for each fetch and each compressed group.
    """

    def __init__(
        self,
        *,
        job: Job,
        plan: Plan,
        arenas: Arenas,
        rules: Rules,
        make_route: Callable[[RouteEvents], Route],
        compressor: GroupCompressor | None = None,
        scheduled: ScheduledRates | None = None,
        on_compressed: Callable[[Outcome], None] | None = None,
        on_failure: Callable[[TaihuError], None] = lambda _: None,
        recording: Recording | None = None,
        clock: Clock | None = None,
        tracer: Tracer | None = None,
    ) -> None:
        self._arenas = arenas
        self._timeout_s = job.exchange.timeout_s
        self._clock = clock or SystemClock()
        self._tracer = tracer or Tracer.off()
        self._on_compressed = on_compressed
        self._on_failure = on_failure
        self._recording = recording or Recording(Recorder.off(), arenas)
        # The one lock: of the protocol, the times and the failure, and of memory that is given back.
        self._changed = Condition()
        self._failure: TaihuError | None = None
        # The group that the training thread waits for; -1 for none.
        self._awaited = -1
        # Groups of the step that have not ended, and whether it is being held.
        self._behind: Callable[[int], None] | None = None
        self._left = 0
        self._tells = False
        self._own = TaskThread("exchange", self.fail)
        self._compressor = compressor
        self._scheduled = scheduled
        # Of the step that has begun.
        self._layer_rates: NDArray[np.float64] | None = None
        events = RouteEvents(self._updated, self._arrived, self._applied, self._later, self.fail)
        route = self._route = make_route(events)
        self._rules = replace(rules, agrees=route.agrees, asks_early=route.asks_early)
        scale = LossScale(job.train.loss_scale, job.train.loss_scale_growth_steps) if self._rules.holds else None
        self._protocol = StepProtocol(self._rules, scale)
        self.plan = plan
        self._memory = GroupMemory(arenas, plan, shares_sums=route.shares_sums)
        self._times = [GroupTimes(elements) for elements in self._memory.sizes]
        # The step that reads a group which was asked for, and when it was.
        self._asked = [(0, 0.0)] * len(plan.groups)
        self._follow_plan()
        route.path.listen()

    @property
    def path(self) -> str:
        """The way of values: `same-host`, `tcp` or `grpc`, or several of them; `none` of a worker alone."""
        return self._route.path.name

    @property
    def loss_scale(self) -> float:
        """The factor of the loss in the step that has begun; 1 unless gradients travel as fp16."""
        return self._protocol.loss_scale

    @property
    def skipped_steps(self) -> int:
        """The number of steps that changed nothing, because their gradients did not fit into fp16."""
        return self._protocol.skipped_steps

    @property
    def residual(self) -> NDArray[np.float32]:
        """The values that compression has held back here, shape (elements,); nothing may be under way."""
        assert self._compressor is not None  # noqa: S101
        return self._compressor.state.residual

    @property
    def compression(self) -> CompressionState | None:
        """The state of compression on this worker, live; None where nothing is compressed."""
        return None if self._compressor is None else self._compressor.state

    def start(self) -> None:
        """Bring worker 0's parameters to all; comes before the first step.

        Raises:
            ConfigError: no memory is shared, although `exchange.transport` says so.
            ModelError: this worker's model differs from the servers'.
            PeerUnreachableError: a peer does not answer.
            TaihuError: what `fail` was told meanwhile.
        """
        if (kind := self._arenas.value_type.half_kind) is not None:
            # It may have to be compiled, while heartbeats tell that this worker lives.
            warm_up(kind)
        try:
            self._route.start()
        except TaihuError as error:
            raise self._failure or error from None
        if self._rules.fetches:
            self._memory.drop_all()
        self._own.start()
        give_back_freed_memory()

    def adopt(self, plan: Plan) -> None:
        """Go on by another plan; every group has been waited for, and all workers do so before the same step.

        Raises:
            ExchangeError: something is under way.
        """
        self._own.drain()
        if self._compressor is not None:
            self._compressor.adopt(plan.groups)
        self._route.adopt(plan)
        self.plan = plan
        self._memory = GroupMemory(self._arenas, plan, shares_sums=self._route.shares_sums)
        self._times = [GroupTimes(elements) for elements in self._memory.sizes]
        self._asked = [(0, 0.0)] * len(plan.groups)
        self._follow_plan()

    def begin(
        self,
        step: int,
        attempt: int = 0,
        rates: Sequence[float] | None = None,
        layer_rates: NDArray[np.float64] | None = None,
    ) -> None:
        """Start step `step` (from 1); every group of the step before has been waited for.

        `rates` are those of a script's optimizer that servers carry out, one for each parameter group, the same on
        all workers; one that has nothing to say gives `()`. `layer_rates`, shape (layers,), are those by which a
        script's optimizer updates each layer, where what is held back of it follows them; -1 where that is not known.

        A step that was aborted begins again with a higher `attempt`; attempts never fall, so that a lower one stands
        for the present one.

        Raises:
            ExchangeError: the step before has not ended, or this one began already.
            RunError: gradients do not fit into fp16, however small the loss is made.
        """
        self.settle()
        with self._changed:
            actions = self._protocol.begin(step, attempt)
            self._left = len(self.plan.groups)
            self._times = [GroupTimes(elements) for elements in self._memory.sizes]
        self._do(actions)
        self._route.begin(self._protocol.at)
        self._layer_rates = self._scheduled.of(step) if layer_rates is None and self._scheduled else layer_rates
        if rates is not None:
            self._route.tell(rates)

    def push(self, group: int) -> None:
        """Send the group's gradients; returns at once, unless workers have to agree whether to skip the step."""
        fits = not self._memory.narrows or self._memory.narrow(group)
        self._times[group].ready_s = self._clock.now()
        self._do(self._told(partial(self._protocol.ready, group, fits=fits)))

    def leave_out(self, group: int) -> None:
        """Exchange nothing of the group in this step, as all workers do: its gradients stay as they are here.

        Raises:
            ExchangeError: it was pushed, or groups of a step go together.
        """
        self._do(self._told(partial(self._protocol.leave_out, group)))

    def complete(self, group: int) -> None:
        """Return when the group that was pushed has been summed and updated by all.

        Raises:
            ExchangeError, MemberLostError, RunError: the step cannot be completed; the message says why.
        """
        self._wait_until(lambda: self._protocol.is_complete(group), group)

    def wait(self, group: int) -> None:
        """Return when the group's updated parameters are in the arena; groups are read in forward order.

        Raises:
            ExchangeError, MemberLostError, RunError: as `complete`.
        """
        if self._rules.fetches:
            self._read(self._protocol.parameters.forward_reading(group))
        else:
            self.complete(group)
        if self._recording.enabled:
            self._recording.read(group, self._protocol.at.step)

    def recall(self, group: int, *, ahead: bool = True) -> None:
        """Return when the group's parameters, which are complete, are in the arena.

        With `ahead` groups are recalled in backward order, so that it is known which come next.
        """
        if self._rules.fetches:
            self._read(self._protocol.parameters.backward_reading(group, ahead=ahead))

    def recall_alone(self, group: int) -> None:
        """As `recall`, in a backward that belongs to no step: what there is room for stays, nothing comes ahead."""
        if self._rules.fetches:
            self._read(self._protocol.parameters.lone_reading(group))

    def hold(self, group: int) -> None:
        """Keep the group's parameters, which are in the arena, until `free`, `push` or `adopt`."""
        self._told(partial(self._protocol.parameters.hold, group))

    def free(self, group: int) -> None:
        """Have the group's parameters stay no longer than others do; it need not be held."""
        self._told(partial(self._protocol.parameters.free, group))

    def prepare(self, group: int) -> None:
        """Return when backward may read the group's parameters and write its gradients."""
        if self._rules.drops_gradients:
            self._write_when(partial(self._protocol.may_write, group), group)
        self.recall(group)

    def make_room(self, group: int) -> None:
        """Return when the group's gradients may be written, and pushed unless others are read before.

        What is on its way of its parameters comes first: behind the push it would pass for what the push brings.
        """
        if self._rules.drops_gradients:
            may_write, is_quiet = self._protocol.may_write, self._protocol.parameters.is_quiet
            self._write_when(lambda: may_write(group) and is_quiet(group), group)

    def _write_when(self, is_free: Callable[[], bool], group: int) -> None:
        self._wait_until(is_free, group)
        self._told(partial(self._protocol.write, group))

    def agree(self, flags: NDArray[np.float64]) -> None:
        """Replace `flags`, shape (n,), by those of worker 0, where all workers have to read parameters together."""
        self._route.agree(flags)

    def keep(self, step: int, *, until_durable: bool = False) -> None:
        """Have those that update for the workers keep what they hold after `step`; see `Route.keep`."""
        self._route.keep(step, until_durable=until_durable)

    def state(self, *, is_first: bool) -> State:
        """All that the run needs of this worker to go on from here; every group has ended.

        Live arrays, which the next step changes. What all workers have alike, the first one keeps.
        """
        held = self._route.held()
        own = {} if self._compressor is None else self._compressor.state.arrays()
        is_here = is_first or not held.replicated
        return State(held.elements if is_here else NOTHING, own, self._protocol.facts() if is_first else {})

    def behind_compression(self, take: Callable[[Mapping[str, NDArray[Any]]], None]) -> None:
        """Call `take` with the live state of compression behind all groups that were pushed; empty without one.

        The thread that compresses does so, before it goes on with the next step.
        """
        if (compressor := self._compressor) is None:
            take({})
        else:
            self._own.put(lambda: take(compressor.state.arrays()))

    def hold_steps(self, held: HeldSteps, make_state: Callable[[], State], *, is_first: bool) -> None:
        """Have `held` take what each step leads to here, from the next one on; `make_state` tells all that it holds.

        What this worker alone updates is held before others get it. What all workers have alike is held when all
        groups have ended, by worker 0, and so is what compression holds back; the exchange's own thread does that
        while the training thread goes on, and `begin` and `settle` wait for it.
        """
        if not self._route.hold(held, make_state):
            self._behind = partial(self._hold, held, make_state, is_first)

    def _hold(self, held: HeldSteps, make_state: Callable[[], State], is_first: bool, step: int) -> None:
        held.begin(step, make_state)
        held.put(step, self.state(is_first=is_first))
        held.end(step)

    def settle(self) -> None:
        """Return when the step behind which this is called is held, see `hold_steps`.

        Raises:
            TaihuError: the exchange has failed meanwhile.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._failure or not self._tells)
            if self._tells and self._failure is not None:
                raise self._failure

    def resume(self, checkpoint: Checkpoint, rank: int) -> None:
        """Go on from a checkpoint, whose parameters `start` has brought; before the first step.

        Raises:
            CheckpointError: it does not have what this exchange needs.
        """
        elements = self._route.held().elements
        for name, array in elements.arrays.items():
            if name != PARAMETERS:
                checkpoint.read_shared(name, self.plan.layout, elements.bounds, array)
        if self._compressor is not None:
            held_back = held_back_by(checkpoint, rank, self.plan.world.workers, self.plan.layout)
            self._compressor.state.resume(held_back)
        with self._changed:
            self._protocol.resume(checkpoint.step, checkpoint.facts_of("worker 0"))

    def abort(self, step: int) -> None:
        """Give up the present attempt at `step`, as all workers do; nothing of it touches the arenas any more.

        What it brought into the parameters stays. `begin` with a higher attempt follows.

        Raises:
            ExchangeError: another step is under way.
        """
        self._do(self._told(partial(self._protocol.abort, step)))

    def fail(self, error: BaseException) -> None:
        """Make every present and later `wait` raise `error`; may be called by any thread."""
        with self._changed:
            is_first = self._failure is None
            if is_first:
                self._failure = error if isinstance(error, TaihuError) else ExchangeError(str(error) or repr(error))
                self._protocol.lost("one of its members")
            self._changed.notify_all()
        if is_first and self._failure is not None:
            self._on_failure(self._failure)
        self._route.path.fail(error)

    @property
    def awaited(self) -> str:
        """The cause of the training thread's wait, in words; "" where it does not wait."""
        with self._changed:
            return "" if self._awaited < 0 else self._protocol.awaited(self._awaited)

    def totals(self) -> ExchangeTotals:
        """Bytes so far."""
        return self._route.path.totals()

    def group_times(self) -> Sequence[GroupTimes]:
        """Times at which each group of the present step was sent and answered."""
        return self._times

    def close(self) -> None:
        """End the exchange in good order; nothing may be under way."""
        self._own.close()
        self._route.path.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if value is not None:
            self.fail(value)
        self.close()

    def _follow_plan(self) -> None:
        """Have the protocol decide by the present plan, and carry out what follows."""
        parts = [self._route.parts(group) for group in range(len(self.plan.groups))]
        actions = self._told(partial(self._protocol.adopt, self.plan.version, self._memory.sizes, parts))
        self._recording.adopt(self.plan)
        self._do(actions)

    def _read(self, reading: Reading) -> None:
        self._wait_until(lambda: self._protocol.parameters.may_turn(reading), reading.group)
        self._do(self._told(partial(self._protocol.parameters.turn, reading)))
        self._wait_until(lambda: self._protocol.parameters.may_read(reading.group), reading.group)

    def _wait_until(self, predicate: Callable[[], bool], group: int) -> None:
        with self._changed:
            self._awaited = group
            self._changed.wait_for(lambda: self._failure or predicate(), self._timeout_s)
            self._awaited = -1
            if self._failure is not None:
                raise self._failure
            if not predicate():
                raise ExchangeError(
                    f"{self._protocol.awaited(group)} did not come within {self._timeout_s:g} s; another worker is "
                    "slow or stuck, see `taihu status`, or raise exchange.timeout_s"
                )

    def _told(self, tell: Callable[[], Sequence[Action]]) -> Sequence[Action]:
        """Give the protocol an input; returns what is to be done."""
        with self._changed:
            actions = tell()
            self._changed.notify_all()
        return actions

    def _do(self, actions: Sequence[Action]) -> None:
        """Carry out what this thread caused."""
        for action in actions:
            match action:
                case Push(group, skipped):
                    self._push(group, skipped=skipped)
                case Ask(group, step):
                    self._asked[group] = step + 1, self._clock.now()
                    self._route.fetch(group, step)
                case Widen(group):
                    self._widen(group)
                case Agree(overflowed):
                    skipped = self._route.agree_on_skipping(overflowed=overflowed)
                    if skipped and self._recording.enabled:
                        self._recording.skipped(self._protocol.at)
                    self._do(self._told(partial(self._protocol.agreed, skipped=skipped)))
                case Cancel(at):
                    self._own.drain()
                    self._route.path.cancel(at)
                case _:
                    self._keep_book(action)

    def _hand_on(self, actions: Sequence[Action]) -> None:
        """Carry out what the network caused; called with the lock held.

        Memory is given back before anybody can see that it may be used again; what touches values is for the own
        thread.
        """
        for action in actions:
            if isinstance(action, (Ask, Widen)):
                self._own.put(partial(self._do, (action,)))
            else:
                self._keep_book(action)

    def _keep_book(self, action: Action) -> None:
        match action:
            case Apply(at):
                self._later(at, partial(self._route.apply, at, self.loss_scale))
            case Drop(group):
                self._memory.drop(group)
            case DropAll():
                self._memory.drop_all()
            case Release(group):
                self._memory.release(group)
            case Done(group, skipped):
                self._times[group].done(self._clock.now(), skipped=skipped)
                self._left -= 1
                if not self._left and self._behind is not None:
                    self._tells = True
                    self._own.put(partial(self._tell_behind, self._behind, self._protocol.at.step))

    def _tell_behind(self, take: Callable[[int], None], step: int) -> None:
        take(step)
        with self._changed:
            self._tells = False
            self._changed.notify_all()

    def _push(self, group: int, *, skipped: bool) -> None:
        times = self._times[group]
        if self._compressor is not None:
            self._own.put(
                partial(self._compress, self._compressor, group, self._protocol.at, times, self._layer_rates)
            )
            return
        if self._recording.enabled:
            self._recording.pushed(group, self._protocol.at)
        times.submitted(self._clock.now())
        times.sent(self._route.send(group, loss_scale=self.loss_scale, skipped=skipped))

    def _compress(
        self,
        compressor: GroupCompressor,
        group: int,
        at: At,
        times: GroupTimes,
        rates: NDArray[np.float64] | None,
    ) -> None:
        start = self._clock.now()
        if self._recording.enabled:
            selection = self._recording.compress(compressor, group, at, rates)
        else:
            selection = compressor.compress(group, at.step, rates=rates)
        times.compressed(selection)
        # All that others send may be here before this thread goes on: the step has ended then.
        times.packed(start, self._clock.now())
        times.sent(self._route.send_selected(group, selection, compressor))
        times.packed(start, self._clock.now())
        if self._tracer.enabled:
            self._tracer.add("compress", "compress", start, times.submitted_s, step=at.step, group=group)
        if self._on_compressed is not None:
            self._on_compressed(selection.outcome)

    def _widen(self, group: int) -> None:
        self._memory.widen(group)
        self._told(partial(self._protocol.parameters.widened, group))
        self._trace_fetch(group)

    def _trace_fetch(self, group: int) -> None:
        (step, asked_s), self._asked[group] = self._asked[group], (0, 0.0)
        if step and self._tracer.enabled:
            self._tracer.add("fetch", "fetch", asked_s, self._clock.now(), step=step, group=group)

    def _updated(self, part: Updated) -> None:
        with suppress(StaleError), self._changed:
            actions = self._protocol.updated(part.group, part.at, skipped=part.skipped)
            self._times[part.group].updated(part.sent_bytes, part.received_bytes, part.completed_s)
            if actions:
                self._hand_on(actions)
                self._changed.notify_all()

    def _applied(self, at: At) -> None:
        with suppress(StaleError), self._changed:
            self._hand_on(self._protocol.applied(at))
            self._changed.notify_all()

    def _later(self, at: At, task: Callable[[], None]) -> None:
        self._own.put(partial(self._if_current, at, task))

    def _if_current(self, at: At, task: Callable[[], None]) -> None:
        with self._changed:
            is_current = self._protocol.is_current(at)
        if is_current:
            task()

    def _arrived(self, part: Arrived) -> None:
        with suppress(StaleError), self._changed:
            actions = self._protocol.parameters.arrived(part.group, part.attempt)
            self._times[part.group].fetched(part.sent_bytes, part.received_bytes)
            self._hand_on(actions)
            if self._protocol.parameters.may_read(part.group):
                self._trace_fetch(part.group)
                self._changed.notify_all()
