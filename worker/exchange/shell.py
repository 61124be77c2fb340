"""The exchange of gradients for parameters on a worker: an executor acts, a route carries, threads wait."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from taihu.core.base.errors import ExchangeError, TaihuError
from taihu.core.chaos.points import Chaos, Point
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
from taihu.core.planner.groups import group_bounds
from taihu.core.process.background import TaskThread
from taihu.core.process.programs.preparation import give_back_freed_memory
from taihu.core.system.threads import Condition
from taihu.core.trace import Tracer
from taihu.core.wire.base.clock import Clock, SystemClock
from taihu.core.wire.frames.headers import At
from taihu.kernels.base.half import LARGEST
from taihu.kernels.half_sums import warm_up
from taihu.worker.exchange.base.recording import Recording
from taihu.worker.exchange.base.route import ExchangeTotals, Route, RouteEvents
from taihu.worker.exchange.executor import Executor, Waits
from taihu.worker.exchange.step_protocol import StepProtocol
from taihu.worker.exchange.step_rules import Rules
from taihu.worker.exchange.times import GroupTimes
from taihu.worker.memory.arenas import Arenas


class Threads:
    """The ground of a worker's exchange: its lock and its own thread; `fail` is called with what goes wrong in that.

    The lock is that of the protocol, of the times and the failure, and of memory that is given back.

    Attributes:
        failure: the error that has ended the exchange.
    """

    def __init__(self, fail: Callable[[BaseException], None]) -> None:
        self.failure: TaihuError | None = None
        self.own = TaskThread("exchange", fail)
        self._changed = Condition()
        self.lock: AbstractContextManager[object] = self._changed
        self.changed, self.later = self._changed.notify_all, self.own.put
        self._is_settled = True

    def settle(self) -> None:
        """Return when what is `behind` a step has been done, or raise the failure."""
        with self._changed:
            self._changed.wait_for(lambda: self.failure or self._is_settled)
            if self.failure is not None and not self._is_settled:
                raise self.failure

    def behind(self, task: Callable[[], None]) -> None:
        """Carry `task` out on the own thread, until which `settle` waits; called under the lock."""
        self._is_settled = False
        self.own.put(partial(self._behind, task))

    def _behind(self, task: Callable[[], None]) -> None:
        task()
        with self._changed:
            self._is_settled = True
            self._changed.notify_all()

    def until(self, is_there: Callable[[], bool], timeout_s: float | None) -> bool:
        """Return when `is_there()`, or in time, which is false then; called under the lock.

        Raises:
            TaihuError: the exchange has failed.
        """
        came = bool(self._changed.wait_for(lambda: self.failure or is_there(), timeout_s))
        if self.failure is not None:
            raise self.failure
        return came


class ArenaValues:
    """The values of groups in a worker's arenas; nothing is decided here, and `adopt` comes first.

    One thread at a time touches the same group. See `Exchange` for the arguments; `ended` follows each step.
    """

    def __init__(  # noqa: PLR0917 - one of each
        self,
        arenas: Arenas,
        route: Route,
        threads: Threads,
        recording: Recording,
        compressor: GroupCompressor | None,
        scheduled: ScheduledRates | None,
        on_compressed: Callable[[Outcome], None] | None,
        clock: Clock,
        tracer: Tracer,
        chaos: Chaos | None,
        ended: Callable[[int], None],
    ) -> None:
        self._arenas, self._route, self._threads, self._recording = arenas, route, threads, recording
        self._compressor, self._scheduled, self._on_compressed = compressor, scheduled, on_compressed
        self._clock, self._tracer, self._chaos, self.ended = clock, tracer, chaos, ended
        self.narrows, self.selects = arenas.half is not None, compressor is not None
        self.read: Callable[[int, int], None] | None = recording.read if recording.enabled else None
        watched = recording.enabled or chaos is not None
        self.pushing: Callable[[int, At], None] | None = self._pushing if watched else None
        self._bounds: Sequence[tuple[int, int]] = ()
        # Values that are added up in 16 bits must be so much smaller than what they can hold.
        self._largest = LARGEST[arenas.half.kind] / route.shares_sums if arenas.half is not None else 0.0
        # Of the step that has begun.
        self._at = At(0, 0)
        self._layer_rates: NDArray[np.float64] | None = None

    def adopt(self, plan: Plan) -> None:
        """Go on by another plan."""
        self._bounds = group_bounds(plan.layout, plan.groups)
        self._recording.adopt(plan)

    def begin(self, at: At, rates: Sequence[float] | None, layer_rates: NDArray[np.float64] | None) -> None:
        """A step has begun."""
        self._at = at
        self._layer_rates = self._scheduled.of(at.step) if layer_rates is None and self._scheduled else layer_rates
        if rates is not None:
            self._route.tell(rates)

    def narrow(self, group: int) -> bool:
        """Make gradients what is sent."""
        half, pages = self._arenas.half, self._arenas.gradient_pages
        if half is None or pages is None:
            return True
        start, stop = self._bounds[group]
        fits = half.narrow(start, self._arenas.gradients[start:stop], self._largest)
        pages.release(start, stop)
        return fits

    def select(self, group: int, at: At, times: GroupTimes) -> bool:
        """Have the group compressed on the own thread."""
        if (compressor := self._compressor) is None:
            return False
        self._threads.later(partial(self._compress, compressor, group, at, times, self._layer_rates))
        return True

    def _pushing(self, group: int, at: At) -> None:
        if self._chaos is not None:
            self._chaos.passes(Point.PUSH, at.step)
        if self._recording.enabled:
            self._recording.pushed(group, at)

    def _compress(
        self, compressor: GroupCompressor, group: int, at: At, times: GroupTimes, rates: NDArray[np.float64] | None
    ) -> None:
        start = self._clock.now()
        if self._recording.enabled:
            selection = self._recording.compress(compressor, group, at, rates)
        else:
            selection = compressor.compress(group, at.step, rates=rates)
        times.compressed(selection)
        # All that others send may be here before this thread goes on: the step has ended then.
        times.packed(start, self._clock.now())
        if self._chaos is not None:
            self._chaos.passes(Point.PUSH, at.step)
        times.sent(self._route.send_selected(group, selection, compressor))
        times.packed(start, self._clock.now())
        if self._tracer.enabled:
            self._tracer.add("compress", "compress", start, times.submitted_s, step=at.step, group=group)
        if self._on_compressed is not None:
            self._on_compressed(selection.outcome)

    def agree(self, told: Callable[[bool], None], *, overflowed: bool) -> None:
        """Agree with all workers."""
        skipped = self._route.agree_on_skipping(overflowed=overflowed)
        if skipped and self._recording.enabled:
            self._recording.skipped(self._at)
        told(skipped)

    def cancel(self, at: At) -> None:
        """Drain the own thread, and the way."""
        self._threads.own.drain()
        self._route.path.cancel(at)

    def widen(self, group: int, done: Callable[[], None]) -> None:
        """Widen what has come."""
        if self._arenas.half is not None:
            start, stop = self._bounds[group]
            self._arenas.half.widen(start, self._arenas.parameters[start:stop])
        done()

    def drop(self, group: int) -> None:
        """Give parameters back."""
        if self._arenas.parameter_pages is not None:
            self._arenas.parameter_pages.release(*self._bounds[group])

    def drop_all(self) -> None:
        """Give all parameters back."""
        if self._arenas.parameter_pages is not None and self._bounds:
            self._arenas.parameter_pages.release(0, self._bounds[-1][1])

    def release(self, group: int) -> None:
        """Give gradients back."""
        start, stop = self._bounds[group]
        if self._arenas.half is not None:
            self._arenas.half.release_gradients(start, stop)
        elif self._arenas.gradient_pages is not None:
            self._arenas.gradient_pages.release(start, stop)


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
        chaos: is asked for faults as the exchange starts, and before each push.
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
        chaos: Chaos | None = None,
    ) -> None:
        self._arenas = arenas
        self._chaos = chaos
        self._timeout_s = job.exchange.timeout_s
        self._on_failure = on_failure
        self._compressor = compressor
        # The group that the training thread waits for; -1 for none.
        self._awaited = -1
        # Told of each step that has ended.
        self._behind: Callable[[int], None] | None = None
        clock, tracer = clock or SystemClock(), tracer or Tracer.off()
        self._threads = threads = Threads(self.fail)
        scale = LossScale(job.train.loss_scale, job.train.loss_scale_growth_steps) if rules.holds else None
        self._rules, self._protocol = rules, StepProtocol(rules, scale)
        self.steps = steps = Executor(rules, self._protocol, threads, clock.now, tracer)
        """The inputs of the training loop, of which what waits is for `carry_out`."""

        route = self._route = make_route(
            RouteEvents(steps.updated, steps.arrived, steps.applied, steps.later, self.fail)
        )
        recording = recording or Recording(Recorder.off(), arenas)
        self._values = ArenaValues(
            arenas,
            route,
            threads,
            recording,
            compressor,
            scheduled,
            on_compressed,
            clock,
            tracer,
            chaos,
            self._step_ended,
        )
        self._values.adopt(plan)
        steps.adopt(plan, route, self._values)
        route.path.listen()

    @property
    def plan(self) -> Plan:
        """The present plan."""
        return self.steps.plan

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
            if self._chaos is not None:
                self._chaos.passes(Point.INITIALIZE)
            self._route.start()
        except TaihuError as error:
            raise self._threads.failure or error from None
        if self._rules.fetches:
            self._values.drop_all()
        self._threads.own.start()
        give_back_freed_memory()

    def adopt(self, plan: Plan) -> None:
        """Go on by another plan; every group has been waited for, and all workers do so before the same step.

        Raises:
            ExchangeError: something is under way.
        """
        self._threads.own.drain()
        if self._compressor is not None:
            self._compressor.adopt(plan.groups)
        self._route.adopt(plan)
        self._values.adopt(plan)
        self.steps.adopt(plan, self._route, self._values)

    def begin(
        self,
        step: int,
        attempt: int = 0,
        rates: Sequence[float] | None = None,
        layer_rates: NDArray[np.float64] | None = None,
    ) -> None:
        """Start a step; see `Executor.begin`."""
        self.steps.begin(step, attempt, rates, layer_rates)

    def carry_out(self, waits: Waits) -> None:
        """Return when nothing is left to wait for.

        Raises:
            ExchangeError, MemberLostError, RunError: the step cannot be completed; the message says why.
        """
        threads = self._threads
        try:
            for is_there, group in waits:
                with threads.lock:
                    if threads.failure is not None or not is_there():
                        self._block(is_there, group)
        except BaseException:
            # What is measured, or told, ends now.
            waits.close()
            raise

    def _block(self, is_there: Callable[[], bool], group: int) -> None:
        """Return when a wait is over; called under the lock."""
        self._awaited = group
        try:
            came = self._threads.until(is_there, self._timeout_s)
        finally:
            self._awaited = -1
        if not came:
            raise ExchangeError(
                f"{self._protocol.awaited(group)} did not come within {self._timeout_s:g} s; another worker is "
                "slow or stuck, see `taihu status`, or raise exchange.timeout_s"
            )

    def push(self, group: int) -> None:
        """Send the group's gradients; returns at once, unless workers have to agree whether to skip the step."""
        self.carry_out(self.steps.push(group))

    def complete(self, group: int) -> None:
        """Return when the group that was pushed has been summed and updated by all; raises as `carry_out`."""
        self.carry_out(self.steps.complete(group))

    def wait(self, group: int) -> None:
        """Return when the group's updated parameters are in the arena; groups are read in forward order."""
        self.carry_out(self.steps.wait(group))

    def recall(self, group: int, *, ahead: bool = True) -> None:
        """Return when the group's parameters, which are complete, are in the arena; see `Executor.recall`."""
        self.carry_out(self.steps.recall(group, ahead=ahead))

    def prepare(self, group: int) -> None:
        """Return when backward may read the group's parameters and write its gradients."""
        self.carry_out(self.steps.prepare(group))

    def agree(self, flags: NDArray[np.float64]) -> None:
        """Replace `flags`, shape (n,), by those of worker 0, where all workers have to read parameters together."""
        self._route.agree(flags)

    def meet(self, *, at_end: bool = False, fetches: bool = True) -> bool:
        """Wait for workers that stand at other steps, and take the parameters that all have from here on.

        Every group has ended. All workers do this behind the same steps, or at the end of the run. Without `fetches`
        they only wait.

        Returns:
            False where others have come to the end of the run instead, so that nothing is known of them here.

        Raises:
            TaihuError: one was lost.
        """
        try:
            return self._route.meet(at_end=at_end, fetches=fetches)
        except TaihuError as error:
            raise self._threads.failure or error from None

    @property
    def ended_without(self) -> int:
        """The last step that is known to have ended without this worker, which need not make it."""
        return self._route.ended_without

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
            self._threads.later(lambda: take(compressor.state.arrays()))

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
        self._threads.settle()

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
        with self._threads.lock:
            self._protocol.resume(checkpoint.step, checkpoint.facts_of("worker 0"))

    def abort(self, step: int) -> None:
        """Give up the present attempt at `step`, as all workers do; nothing of it touches the arenas any more.

        What it brought into the parameters stays. `begin` with a higher attempt follows.

        Raises:
            ExchangeError: another step is under way.
        """
        self.steps.abort(step)

    def fail(self, error: BaseException) -> None:
        """Make every present and later `wait` raise `error`; may be called by any thread."""
        threads = self._threads
        with threads.lock:
            is_first = threads.failure is None
            if is_first:
                threads.failure = error if isinstance(error, TaihuError) else ExchangeError(str(error) or repr(error))
                self._protocol.lost("one of its members")
            threads.changed()
        if is_first and threads.failure is not None:
            self._on_failure(threads.failure)
        self._route.path.fail(error)

    @property
    def awaited(self) -> str:
        """The cause of the training thread's wait, in words; "" where it does not wait."""
        with self._threads.lock:
            return "" if self._awaited < 0 else self._protocol.awaited(self._awaited)

    def totals(self) -> ExchangeTotals:
        """Bytes so far."""
        return self._route.path.totals()

    def group_times(self) -> Sequence[GroupTimes]:
        """Times at which each group of the present step was sent and answered."""
        return self.steps.times

    def close(self) -> None:
        """End the exchange in good order; nothing may be under way."""
        self._threads.own.close()
        self._route.path.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if value is not None:
            self.fail(value)
        self.close()

    def _step_ended(self, step: int) -> None:
        if self._behind is not None:
            self._threads.behind(partial(self._behind, step))
