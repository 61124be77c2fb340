"""The exchange without servers: groups are summed around a ring, and every worker updates all parameters itself."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray

from allreduce.communicator import Communicator
from allreduce.ring.operation import Operation, OperationKey
from allreduce.ring.schedule import Ring, cut_chunks
from kernels.reduce import all_finite
from taihu.coordination.plan import Plan
from taihu.errors import FrameError
from taihu.job import Job
from taihu.optimization import OptimizerShard, in_steps
from taihu.planner.carriage import carrier_in
from taihu.planner.partition import FrameSpec
from taihu.process.preparation import give_back_freed_memory
from taihu.trace import Tracer
from taihu.wire.clock import Clock, SystemClock
from taihu.wire.codec import ValueType
from worker.exchange.interface import ExchangeTotals
from worker.exchange.memory_exchange import MemoryExchange
from worker.exchange.times import GroupTimes
from worker.memory.arenas import Arenas

__all__ = ["RingExchange"]


class RingExchange(MemoryExchange):
    """See `GradientExchange`; `start` comes before the first step. The communicator is not closed here.

    A part of a group is updated as soon as its sum is complete, while the rest is still under way. Sums are the same
    bits on every worker and updates are pure functions of them, so replicas stay equal to the bit.
    """

    def __init__(
        self,
        *,
        job: Job,
        plan: Plan,
        communicator: Communicator,
        arenas: Arenas,
        clock: Clock | None = None,
        tracer: Tracer | None = None,
    ) -> None:
        super().__init__(job, arenas)
        self._communicator = communicator
        self._guard = threading.RLock()
        self._clock = clock or SystemClock()
        self._tracer = tracer or Tracer.off()
        self._step = 0
        self._operations: dict[int, Operation] = {}
        self._set_plan(plan)
        self._prepare_optimizer()

    def _prepare_optimizer(self) -> None:
        self._optimizer = OptimizerShard(
            in_steps(self._job.server_optimizer, self.plan.length), self._arenas.parameters
        )
        self._optimizer.warm_up()

    def start(self) -> None:
        """Bring worker 0's parameters to all others, and find out whether all workers share memory.

        Raises:
            ConfigError: they do not, although `exchange.transport` says so.
        """
        self._bring_parameters()
        if self.plan.carriage != "grpc":
            self._communicator.prepare("tcp")
        self._communicator.choose_path(self._job.exchange.transport, self._arenas.shared)
        give_back_freed_memory()

    def _bring_parameters(self) -> None:
        self._communicator.broadcast(self._arenas.parameters)

    @property
    def path(self) -> str:
        """See `GradientExchange.path`."""
        return self._communicator.path

    def adopt(self, plan: Plan) -> None:
        """See `GradientExchange.adopt`."""
        self._memory.close()
        self._set_plan(plan)
        if plan.carriage != "grpc":
            self._communicator.prepare("tcp")

    def _set_plan(self, plan: Plan) -> None:
        self.plan = plan
        size = self._communicator.size
        value_bytes = self._arenas.value_type.dtype.itemsize
        self._chunks = [cut_chunks(plan.layout, group, size, value_bytes) for group in plan.groups]
        self._times = self._fresh_times()
        self._memory = self._memory_of(plan)

    def begin(self, step: int) -> None:
        """See `GradientExchange.begin`."""
        self._step = step
        self._communicator.carry(carrier_in(self.plan.carriage, step))
        self._gradients.begin(len(self.groups))
        self._operations = {}
        self._times = self._fresh_times()

    def _submit(self, group: int) -> None:
        times = self._times[group]
        times.submitted_s = self._clock.now()
        times.selected = times.elements
        with self._guard:
            self._memory.pushed(group)
        self._operations[group] = self._operation(group)
        self._communicator.start(self._operations[group])

    def complete(self, group: int) -> None:
        """See `GradientExchange.complete`; a group that was not pushed in this step is there already."""
        operation = self._operations.get(group)
        if operation is not None:
            self._communicator.wait(operation)
        if not self._memory.is_quiet(group):
            self._wait_until(lambda: self._memory.is_quiet(group), lambda: f"the parameters of group {group}")

    def _wait_until(self, predicate: Callable[[], bool], what: Callable[[], str]) -> None:
        self._communicator.wait_until(predicate, what)

    def fail(self, error: BaseException) -> None:
        """See `GradientExchange.fail`."""
        self._communicator.fail(error)

    def totals(self) -> ExchangeTotals:
        """See `GradientExchange.totals`."""
        return ExchangeTotals(self._communicator.sent_bytes, self._communicator.received_bytes)

    def group_times(self) -> Sequence[GroupTimes]:
        """See `GradientExchange.group_times`."""
        return self._times

    def close(self) -> None:
        """See `GradientExchange.close`."""

    def _fresh_times(self) -> list[GroupTimes]:
        return [GroupTimes(sum(frame.count for chunk in chunks for frame in chunk)) for chunks in self._chunks]

    def _operation(self, group: int) -> Operation:
        operation = Operation(
            OperationKey(self.plan.version, self._step, 0, group),
            self._arenas.gradients,
            ValueType.FP32,
            Ring(self._communicator.rank, self._chunks[group]),
            on_final=partial(self._update, group),
        )
        operation.on_finished = partial(self._finished, group, operation)
        return operation

    def _update(self, group: int, frame: FrameSpec) -> None:
        """The sum of a part of the group is complete: apply it."""
        for piece in frame.pieces:
            gradient = self._arenas.gradients[piece.start : piece.stop]
            self._check_finite(group, gradient)
            scale = 1.0 / self._communicator.size
            self._optimizer.update(piece.start, piece.stop, gradient, self._step, scale)

    def _check_finite(self, group: int, total: NDArray[np.float32]) -> None:
        if self._job.exchange.non_finite == "error" and not all_finite(total):
            raise FrameError(
                f"group {group} of step {self._step}: the sum of all gradients is not finite; lower "
                "optimizer.learning_rate or check the data, or set exchange.non_finite = 'allow'"
            )

    def _finished(self, group: int, operation: Operation) -> None:
        times = self._times[group]
        times.bytes_up += operation.sent_bytes
        times.bytes_down += operation.received_bytes
        # All of it counts as the way up: bytes go both ways at once.
        times.first_completed_s = times.completed_s = times.answered_s = self._clock.now()
        with self._guard:
            self._memory.summed(group)
        self._tracer.add("ring", "allreduce", times.submitted_s, times.answered_s, step=self._step, group=group)
