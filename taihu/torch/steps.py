"""Backward passes as the steps of an exchange: each brings the mean gradients of all workers, or an update."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray

from taihu.compression import CompressionState
from taihu.errors import RunError
from taihu.job import Job
from taihu.layout import Layout
from taihu.torch.gradients import GradientArena
from taihu.torch.reports import Reports
from taihu.torch.server_updates import ServerUpdates
from taihu.wire.clock import Clock, SystemClock
from worker.session import Session
from worker.training.calibration import Measuring
from worker.training.plan_follower import PlanFollower
from worker.training.step_driver import StepDriver, Wait
from worker.training.step_record import StepRecord

__all__ = ["BackwardSteps"]


class BackwardSteps:
    """Drives an exchange by what autograd tells of parameters; the thread that calls backward does all of it.

    Groups are pushed in the plan's order, whatever order gradients come in: all workers push alike.

    Args:
        job: of the run.
        layout: a layer for each parameter.
        gradients: of the parameters.
        session: that the exchange belongs to.
        reports: are told of steps and plans.
        waits: called with whether this worker waits for others from now on.
        updates: of the servers, where these update: parameters come back then, while the script goes on.
    """

    def __init__(
        self,
        job: Job,
        layout: Layout,
        gradients: GradientArena,
        session: Session,
        reports: Reports,
        *,
        waits: Callable[[bool], None],
        updates: ServerUpdates | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._layout = layout
        self._gradients = gradients
        self._session = session
        self._exchange = session.exchange
        self._reports = reports
        self._waits = waits
        self._updates = updates
        self._copies = job.zero >= 2
        self._clock = clock or SystemClock()
        self._driver = StepDriver(job, session.exchange, self._wait)
        self._measuring = Measuring(job.exchange.calibration_steps, job.exchange.replan_every)
        self._follower = PlanFollower(self._measuring, session.client, job.exchange.timeout_s)
        self.step = 0
        """The number of backward passes whose gradients were exchanged."""
        self.is_synced = True
        """Whether the next backward's gradients are exchanged; else they are added up here."""
        self.is_joined = False
        """Whether workers may have different numbers of backwards, and tell each other of one before each."""
        self._own = 0
        self._record: StepRecord | None = None
        # The step whose updates may still be on their way, and the groups that nobody has read since.
        self._open: StepRecord | None = None
        self._unread: set[int] = set()
        self._waited_in_forward_s = 0.0
        self._start_s = self._forward_end_s = self._clock.now()
        for index, parameter in enumerate(gradients.parameters):
            parameter.register_post_accumulate_grad_hook(partial(self._ready, index))
            if updates is not None:
                parameter.register_hook(partial(self._accumulates, index))
        if updates is not None:
            updates.watch(self.read, self.settle)

    @property
    def compression(self) -> CompressionState | None:
        """The state of compression here, live; None where nothing is compressed."""
        return self._exchange.compression

    def begins(self) -> None:
        """A forward begins: gradients that it leads to are to be added to the arena."""
        if self._updates is None:
            self._gradients.bind()

    def forwarded(self) -> None:
        """A forward has ended, most likely the last one before backward."""
        self._forward_end_s = self._clock.now()

    def read(self, layers: Sequence[int]) -> None:
        """Return when the updated parameters of `layers` are here, which a module is about to read."""
        assert self._updates is not None  # noqa: S101
        if self._record is not None:
            return  # what is computed again in backward has been read, and is pushed after that
        for layer in layers:
            group = self._driver.group_of(layer)
            if group in self._unread:
                self._driver.read(layer)
                self._unread.discard(group)
            self._updates.read(layer)

    def settle(self) -> None:
        """Return when all parameters are those of the last step, where servers update them."""
        if self._updates is None:
            return
        self._finish_last()
        if self._record is None:
            for layer in range(len(self._gradients.parameters)):
                self._updates.read(layer)

    def _finish_last(self) -> None:
        """Return when nothing of the step before is under way."""
        if self._open is not None:
            record, self._open = self._open, None
            self._wait(lambda _: self._driver.finish(), 0)
            self._unread.clear()
            self._close(record)

    def stepped(self) -> None:
        """The script's optimizer steps, where servers have the gradients already."""
        assert self._updates is not None  # noqa: S101
        self._updates.stepped()
        self.read(self._updates.at_step)

    def follow(self, update: Callable[[], None]) -> int:
        """Take part in the backwards of workers that have more, with gradients of zeros; `update` follows each.

        Returns:
            The worker that has had most of its own, the first of several.
        """
        while self._sums(0.0).any():
            self.settle()
            self._gradients.forget()
            self._begin(follows=True)
            self._end()
            update()
        return int(np.argmax(self._sums(self._own)))

    def _sums(self, own: float) -> NDArray[np.float32]:
        """Numbers of all workers by rank, of which `own` is this one's."""
        communicator = self._session.communicator
        assert communicator is not None  # noqa: S101 - workers whose gradients come back have met
        numbers = np.zeros(communicator.size, dtype=np.float32)
        numbers[communicator.rank] = own
        self._wait(lambda _: communicator.allreduce(numbers), 0)
        return numbers

    def _accumulates(self, index: int, _: torch.Tensor) -> None:
        """Autograd is about to add to the gradient of a parameter, in memory that may be on its way yet."""
        self._finish_last()
        if self._record is not None and self._is_ready[index]:
            raise self._twice(index)
        self._gradients.bind_one(index)

    def _ready(self, index: int, _: torch.Tensor) -> None:
        """The gradient of a parameter is complete for this backward."""
        if self._updates is not None:
            self._updates.brought(index)
        if not self.is_synced:
            return
        record = self._record or self._begin_in_backward()
        if self._is_ready[index]:
            raise self._twice(index)
        self._is_ready[index] = True
        if not self._copies:
            self._gradients.take(index)
        self._push_in_order(record)

    def _twice(self, index: int) -> RunError:
        name = self._layout.layers[index].name
        return RunError(f"step {self.step}: {name} has brought its gradient twice in one backward")

    def _begin_in_backward(self) -> StepRecord:
        if self.is_joined:
            self._sums(1.0)
            self._own += 1
        record = self._begin()
        # As DistributedDataParallel does: gradients are those of all workers when backward returns.
        torch.autograd.Variable._execution_engine.queue_callback(self._end)
        return record

    def _begin(self, *, follows: bool = False) -> StepRecord:
        rates = None if self._updates is None else () if follows else self._updates.rates()
        self.step += 1
        serial = self._measuring.is_serial(self.step)
        record = StepRecord(self.step, serial, self._measuring.is_steady(self.step), self._start_s)
        record.forward_end_s = max(self._start_s, self._forward_end_s)
        record.waited_s = record.waited_in_forward_s = self._waited_in_forward_s
        self._waited_in_forward_s = 0.0
        self._record = record
        count = len(self._gradients.parameters)
        self._is_ready, self._ready_s, self._next = [False] * count, [0.0] * count, 0
        self._driver.begin(self.step, one_by_one=serial, rates=rates)
        return record

    def _push_in_order(self, record: StepRecord, *, waits: bool = False) -> None:
        """Tell the driver of layers in the plan's order, as far as their gradients are there, or with `waits` of all.

        A device may still compute what this thread has been told of: it is ready when it has arrived.
        """
        while self._next < len(self._is_ready) and self._is_ready[self._next]:
            if self._copies:
                self._driver.prepare(self._next)
                self._gradients.take(self._next)
            if not self._gradients.is_there(self._next):
                if not waits:
                    return
                self._gradients.wait(self._next)
            self._ready_s[self._next] = self._clock.now() - record.waited_in_backward_s
            self._driver.ready(self._next)
            self._next += 1

    def _end(self) -> None:
        """Backward is over: return when all gradients are the means of all workers, unless servers update by them."""
        record = self._record
        assert record is not None  # noqa: S101
        for index, is_ready in enumerate(self._is_ready):
            if not is_ready:
                # It took no part in this forward, here at least.
                self._is_ready[index] = True
                if not self._copies:
                    self._gradients.take(index)
        self._push_in_order(record, waits=True)
        record.backward_end_s = self._clock.now()
        self._driver.end_backward()
        if self._updates is not None:
            self._updates.pushed()
            self._unread = set(range(len(self._session.exchange.plan.groups)))
            self._record, self._open = None, record
            record.end_s = self._start_s = self._clock.now()
            return
        self._wait(lambda _: self._driver.finish(), 0)
        self._gradients.give()
        self._record = None
        record.end_s = self._start_s = self._clock.now()
        self._close(record)

    def _close(self, record: StepRecord) -> None:
        """Note the step, and go on by another plan where the workers have agreed on one."""
        # The plan's order is the layout's: a layer counts when those before it are there, too.
        latest = record.forward_end_s
        for ready_s in self._ready_s:
            latest = max(latest, ready_s)
            record.ready_s.append(latest)
        record.waited_s += record.waited_in_backward_s
        record.times, record.path = self._exchange.group_times(), self._exchange.path
        self._follower.observe(record)
        self._reports.stepped(record)
        self._reports.travels(record.path)
        if self._measuring.reports_after(self.step):
            self._waits(True)
            plan = self._follower.report(self.step)
            self._waits(False)
            self._driver.adopt(plan)
            self._reports.planned(plan)

    def _wait(self, wait: Wait, group: int) -> None:
        self._waits(True)
        start = self._clock.now()
        try:
            wait(group)
        finally:
            self._waits(False)
        waited_s = self._clock.now() - start
        if self._record is not None:
            self._record.waited_in_backward_s += waited_s
        else:
            self._waited_in_forward_s += waited_s
