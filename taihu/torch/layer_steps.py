"""The layers of a backward, told to an exchange in the order of its layout."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from taihu.job import Job
from taihu.torch.gradients import GradientArena
from taihu.torch.reports import Reports
from taihu.wire.clock import Clock
from worker.exchange.shell import Exchange
from worker.session import Session
from worker.training.calibration import Measuring
from worker.training.plan_follower import PlanFollower
from worker.training.step_driver import StepDriver, Wait
from worker.training.step_record import StepRecord

__all__ = ["LayerSteps"]


class LayerSteps:
    """Pushes groups in the plan's order, whatever order gradients come in: all workers push alike.

    A step is `begin`; `take` for each gradient; `end`, `finish` and `close`. One thread calls all of these.

    Args:
        job: of the run.
        gradients: of the parameters, in the layout's order.
        session: that the exchange belongs to.
        reports: are told of steps and plans.
        measuring: says when workers report.
        timed: carries out a wait, and measures it.
        waits: called with whether this worker waits for others from now on.
    """

    def __init__(
        self,
        job: Job,
        gradients: GradientArena,
        session: Session,
        reports: Reports,
        measuring: Measuring,
        *,
        timed: Callable[[Wait, int], None],
        waits: Callable[[bool], None],
        clock: Clock,
    ) -> None:
        self.gradients = gradients
        self.exchange: Exchange = session.exchange
        self._reports = reports
        self._measuring = measuring
        self._timed = timed
        self._waits = waits
        self._clock = clock
        self._copies = job.zero >= 2
        self._driver = StepDriver(job, session.exchange, timed)
        self._follower = PlanFollower(measuring, session.client, job.exchange.timeout_s)

    def group_of(self, layer: int) -> int:
        """The group that a layer belongs to."""
        return self._driver.group_of(layer)

    def read(self, layer: int) -> None:
        """Return when the updated parameters of a layer are here."""
        self._driver.read(layer)

    def begin(self, record: StepRecord, rates: Sequence[float] | None) -> None:
        """A step begins; nothing of the one before is under way. `rates` as `Exchange.begin` takes them."""
        count = len(self.gradients.parameters)
        self._is_ready, self._ready_s, self._next = [False] * count, [0.0] * count, 0
        self._driver.begin(record.step, one_by_one=record.serial, rates=rates)

    def take(self, layer: int) -> None:
        """The gradient of a layer is complete."""
        self._is_ready[layer] = True
        if not self._copies:
            self.gradients.take(layer)

    def push(self, record: StepRecord, *, waits: bool = False) -> None:
        """Tell the driver of layers in the plan's order, as far as their gradients are there, or with `waits` of all.

        A device may still compute what this thread has been told of: it is ready when it has arrived.
        """
        while self._next < len(self._is_ready) and self._is_ready[self._next]:
            if self._copies:
                self._driver.prepare(self._next)
                self.gradients.take(self._next)
            if not self.gradients.is_there(self._next):
                if not waits:
                    return
                self.gradients.wait(self._next)
            self._ready_s[self._next] = self._clock.now() - record.waited_in_backward_s
            self._driver.ready(self._next)
            self._next += 1

    def end(self, record: StepRecord) -> None:
        """Backward is over: what has not come took no part in this forward, here at least, and counts as zeros."""
        for layer, is_ready in enumerate(self._is_ready):
            if not is_ready:
                self.take(layer)
        self.push(record, waits=True)
        record.backward_end_s = self._clock.now()
        self._driver.end_backward()

    def finish(self) -> None:
        """Return when every group has been summed, and updated where servers do so."""
        self._timed(lambda _: self._driver.finish(), 0)

    def close(self, record: StepRecord) -> None:
        """Note a step that has ended, and go on by another plan where the workers have agreed on one."""
        # The plan's order is the layout's: a layer counts when those before it are there, too.
        latest = record.forward_end_s
        for ready_s in self._ready_s:
            latest = max(latest, ready_s)
            record.ready_s.append(latest)
        record.waited_s += record.waited_in_backward_s
        record.times, record.path = self.exchange.group_times(), self.exchange.path
        self._follower.observe(record)
        self._reports.stepped(record)
        self._reports.travels(record.path)
        if self._measuring.reports_after(record.step):
            self._waits(True)
            plan = self._follower.report(record.step)
            self._waits(False)
            self._driver.adopt(plan)
            self._reports.planned(plan)
