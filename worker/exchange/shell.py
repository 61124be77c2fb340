"""The exchange of gradients for parameters on a worker: an executor acts, a route carries, threads wait."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from taihu.core.base.errors import TaihuError
from taihu.core.chaos.points import Chaos, Point
from taihu.core.checkpoint.held_back import held_back_by
from taihu.core.checkpoint.part import NOTHING, PARAMETERS, State
from taihu.core.checkpoint.reading import Checkpoint
from taihu.core.compression import CompressionState, GroupCompressor, Outcome
from taihu.core.compression.scheduled_rates import ScheduledRates
from taihu.core.coordination.plans.plan import Plan
from taihu.core.history.recording import Recorder
from taihu.core.job import Job
from taihu.core.optimization import LossScale
from taihu.core.process.programs.preparation import give_back_freed_memory
from taihu.core.trace import Tracer
from taihu.core.wire.base.clock import Clock, SystemClock
from taihu.kernels.half_sums import warm_up
from taihu.worker.exchange.base.holding import Holding
from taihu.worker.exchange.base.recording import Recording
from taihu.worker.exchange.base.route import ExchangeTotals, Route, RouteEvents
from taihu.worker.exchange.executor import Executor
from taihu.worker.exchange.step_protocol import StepProtocol
from taihu.worker.exchange.step_rules import Rules
from taihu.worker.exchange.threads import Threads
from taihu.worker.exchange.times import GroupTimes
from taihu.worker.exchange.values import ArenaValues
from taihu.worker.memory.arenas import Arenas


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
        holding: takes what each step leads to here. What this worker alone updates is held before others get it. What
            all workers have alike is held when all groups have ended, by worker 0, and so is what compression holds
            back; the exchange's own thread does that while the training thread goes on, and `begin` and `settle`
            wait for it.

    Attributes:
        held: where its steps are held; None where they are not.
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
        holding: Holding | None = None,
    ) -> None:
        self._arenas = arenas
        self._chaos = chaos
        self._on_failure = on_failure
        self._compressor = compressor
        clock, tracer = clock or SystemClock(), tracer or Tracer.off()
        scale = LossScale(job.train.loss_scale, job.train.loss_scale_growth_steps) if rules.holds else None
        protocol = self._protocol = StepProtocol(rules, scale)
        self._rules = rules
        threads = self._threads = Threads(protocol, job.exchange.timeout_s, self.fail)
        recording = recording or Recording(Recorder.off(), arenas)

        def make(steps: Executor) -> tuple[Route, ArenaValues]:
            self._route = make_route(RouteEvents(steps.updated, steps.arrived, steps.applied, steps.later, self.fail))
            self._values = ArenaValues(
                plan,
                arenas,
                self._route,
                threads,
                recording,
                compressor,
                scheduled,
                on_compressed,
                clock,
                tracer,
                chaos,
            )
            return self._route, self._values

        self.steps = Executor(plan, rules, protocol, threads, make, now=clock.now, tracer=tracer)
        """The inputs of the training loop, of which what waits is for `carry_out`."""

        self.begin, self.abort = self.steps.begin, self.steps.abort
        self.carry_out, self.settle = threads.carry_out, threads.settle
        self.held = None if holding is None else holding.held
        if holding is not None:
            self._hold(holding)
        self._route.path.listen()

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
        self.steps.adopt(plan)

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
        """The last step that is known to have ended, with this worker or without it: it need not make that."""
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

    def fail(self, error: BaseException) -> None:
        """Make every present and later `wait` raise `error`; may be called by any thread."""
        failure = self._threads.end(error)
        if failure is not None:
            self._on_failure(failure)
        self._route.path.fail(error)

    @property
    def awaited(self) -> str:
        """The cause of the training thread's wait, in words; "" where it does not wait."""
        return self._threads.awaited

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

    def _hold(self, holding: Holding) -> None:
        held, is_first = holding.held, holding.is_first

        def make_state() -> State:
            return holding.complete(self.state(is_first=is_first))

        def hold(step: int) -> None:
            held.begin(step, make_state)
            held.put(step, self.state(is_first=is_first))
            held.end(step)

        if not self._route.hold(held, make_state):
            self._values.ended = lambda step: self._threads.behind(partial(hold, step))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if value is not None:
            self.fail(value)
        self.close()
