"""The steps of a run, one after the other, and what all workers do together between two of them."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

from taihu.core.chaos.points import Chaos, Point
from taihu.core.coordination.client.client import CoordinatorClient
from taihu.core.coordination.membership.stopping import StopNotice
from taihu.core.job import Job
from taihu.core.wire.base.clock import Clock
from taihu.worker.data.base.dataset import Dataset
from taihu.worker.exchange.shell import Exchange
from taihu.worker.reporting.activity import Activity
from taihu.worker.reporting.observer import Observer
from taihu.worker.training.calibration import Measuring
from taihu.worker.training.checkpoints import Keeper
from taihu.worker.training.plan_follower import PlanFollower
from taihu.worker.training.replica import Replica
from taihu.worker.training.stopping import EvaluationAbandonedError, LastStep
from taihu.worker.training.trainer import Trainer


def is_tested(step: int, per_epoch: int, *, is_last: bool, is_early: bool, goes_on: bool) -> bool:
    """Whether the replica is tested behind a step: at the end of every epoch, and of the run.

    A stop does not wait for a test. Where the run `goes_on` from there, the epoch's test would be missing.
    """
    ends_epoch = step % per_epoch == 0
    if is_last and is_early:
        return goes_on and ends_epoch
    return ends_epoch or is_last


@dataclass(frozen=True, kw_only=True)
class TrainingLoop:
    """One worker's way from the step that the run goes on from to the last one; `run` is called once.

    Attributes:
        per_epoch: steps of an epoch.
        begun_after: the step that the run goes on from, 0 for a new one.
        is_untested: whether the process that was to test the model behind that step was lost before it had.
    """

    job: Job
    dataset: Dataset
    client: CoordinatorClient
    exchange: Exchange
    replica: Replica
    trainer: Trainer
    measuring: Measuring
    follower: PlanFollower
    keeper: Keeper
    last: LastStep
    stop: StopNotice
    observer: Observer
    activity: Activity
    chaos: Chaos
    clock: Clock
    per_epoch: int
    begun_after: int
    is_untested: bool = False

    def run(self) -> int:
        """Make all steps; returns the last one."""
        step = self.begun_after
        if self.is_untested:
            self._test(step)
        if self._are_apart:
            # All begin with the same parameters, which the first to push would change for those who come later.
            self._meet()
        while self.last.follows(step):
            step += 1
            if self._is_left_out(step):
                continue
            loss = self.trainer.step(step)
            self.observer.computed(step, loss)
            self.keeper.hold(step)
            self._between(step, is_last=self.last.is_last(step))
        if self._are_apart and not self.last.is_last(step):
            # A stop: each worker ends where it stands, with the parameters that all end with.
            self.trainer.finish()
            self._meet(at_end=True)
        return step

    def _between(self, step: int, *, is_last: bool) -> None:
        ends_epoch = step % self.per_epoch == 0
        if ends_epoch or is_last:
            self.trainer.finish()
            if is_last and self._are_apart:
                self._meet(at_end=True)
            early, goes_on = self.last.is_early, self.stop.goes_on
            if is_tested(step, self.per_epoch, is_last=is_last, is_early=early, goes_on=goes_on):
                self._test(step)
        if self._checks_behind(step):
            self.trainer.finish()
            if self._are_here(is_last=is_last):
                with self.activity.busy("a comparison of parameters"):
                    self.client.compare(step, self.replica.digest(self.exchange))
        if self.keeper.asks_behind(step, is_last=is_last):
            self.trainer.finish()
            if self._are_here(is_last=is_last):
                with self.activity.busy("a checkpoint"):
                    self.keeper.keep(step, is_last=is_last)
                if self._are_apart and not is_last:
                    # Nobody changes anything before all of it is copied.
                    self._meet(fetches=False)
        if self.measuring.reports_after(step) and not is_last and not self._are_apart:
            self.trainer.finish()
            with self.activity.busy("measurements and a plan"):
                plan = self.follower.report(step)
            self.trainer.adopt(plan)
            self.keeper.adopt(plan)
            self.observer.planned(plan)

    @property
    def _are_apart(self) -> bool:
        """Whether workers may stand at several steps."""
        return not self.job.consistency.is_strict

    def _is_left_out(self, step: int) -> bool:
        """Whether a step has ended without this worker, and nothing is done behind it."""
        if step > self.exchange.ended_without or self.last.is_last(step) or step % self.per_epoch == 0:
            return False
        return not (self._checks_behind(step) or self.keeper.asks_behind(step, is_last=False))

    def _are_here(self, *, is_last: bool) -> bool:
        """Whether all workers have come to the step where this one is; behind the last one they have met."""
        return is_last or not self._are_apart or self._meet()

    def _meet(self, *, at_end: bool = False, fetches: bool = True) -> bool:
        with self.activity.busy("all workers"):
            return self.exchange.meet(at_end=at_end, fetches=fetches)

    def _test(self, step: int) -> None:
        with self.activity.busy("a test"):
            self._evaluate(-(-step // self.per_epoch))

    def _checks_behind(self, step: int) -> bool:
        """Whether all workers compare their parameters behind a step."""
        every = self.job.train.check_every
        return every is not None and step % every == 0

    def _evaluate(self, epoch: int) -> None:
        """Worker 0 tests its replica; the others meet it in the next step's exchange, or read along.

        A test is abandoned for a stop, whose time is bounded, unless the others read along.
        """
        if not self.replica.uses.tests:
            return
        self.chaos.passes(Point.EVALUATION)
        start = self.clock.now()
        tested = None
        with suppress(EvaluationAbandonedError):
            tested = self.replica.evaluate(self.dataset, self._read_layer)
        if tested is not None:
            self.observer.evaluated(tested, epoch=epoch, seconds=self.clock.now() - start)

    def _read_layer(self, layer: int) -> None:
        if self.stop.expected and not (self.stop.goes_on or self.replica.reads_together):
            raise EvaluationAbandonedError
        self.activity.moved()
        self.trainer.read_layer(layer)
