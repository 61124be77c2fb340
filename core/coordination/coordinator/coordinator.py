"""The coordinator: a membership and the run's planning that threads may share."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

import structlog

from taihu.core.base.errors import PeerUnreachableError, StaleError
from taihu.core.coordination.coordinator.checkpointing import Checkpointing
from taihu.core.coordination.membership.members import MemberId, RunState
from taihu.core.coordination.membership.membership import Membership
from taihu.core.coordination.plans.choosing import Choosing
from taihu.core.coordination.plans.plan import Plan
from taihu.core.coordination.plans.planning import Planning
from taihu.core.model.layout import Layout
from taihu.core.planner.measurement import StepMeasurement
from taihu.core.planner.profile import Profile
from taihu.core.system.threads import Condition, Event, Lock, Thread, spawn
from taihu.core.wire.base.clock import Clock

_KEEP_AGAIN_S: Final = 0.5


class Coordinator:
    """A `Membership` and the run's `Planning` that threads may share.

    `make_planning` is called once, when the run's layout, and its length where it has one, are known; `keep_end` with
    the hash of the final parameters, before anybody is told that the run has finished. Where it says why that cannot
    be kept, it is called again and again, until it can or the coordinator is closed. As soon as a trial of
    `choosing` is over the generation ends.
    """

    def __init__(
        self,
        membership: Membership,
        make_planning: Callable[[Layout], Planning],
        clock: Clock,
        checkpointing: Checkpointing | None = None,
        keep_end: Callable[[str], str | None] = lambda _: None,
        *,
        choosing: Choosing | None = None,
    ) -> None:
        self._choosing = choosing
        self._clock = clock
        self._checkpointing = checkpointing
        self._membership = membership
        self._make_planning = make_planning
        self._planning: Planning | None = None
        self._changed = Condition()
        self._reporting = Lock()
        self._keep_end = keep_end
        self._conclusion: Thread | None = None
        self._closed = Event()

    def close(self, timeout_s: float) -> None:
        """Nobody asks any more: the end is not kept later. Waits so long for a disk that is being written to."""
        self._closed.set()
        if self._conclusion is not None:
            self._conclusion.join(timeout_s)

    @contextmanager
    def changing(self) -> Iterator[tuple[Membership, float]]:
        """The membership and the time, alone; whoever waits for a change looks again afterwards."""
        with self._changed:
            yield self._membership, self._clock.now()
            self._changed.notify_all()

    @contextmanager
    def noting(self) -> Iterator[tuple[Membership, float]]:
        """The membership and the time, alone, to note a sign of life: nobody waits for that while all goes on."""
        with self._changed:
            yield self._membership, self._clock.now()
            outcome = self._membership.outcome
            if outcome.state is not RunState.RUNNING or outcome.stop.reason:
                self._changed.notify_all()

    def wait_for(self, condition: Callable[[Membership], bool], timeout_s: float | None) -> bool:
        """Wait until `condition` holds; False when `timeout_s` passed first."""
        with self._changed:
            return self._changed.wait_for(lambda: condition(self._membership), timeout_s)

    def conclude(self) -> None:
        """Have the end kept of a run that all workers have finished; who waits for that is told then.

        A thread of its own keeps it: a disk may be slow, and calls are answered in time.
        """
        with self._changed:
            conclusion = self._membership.outcome.conclusion
            if conclusion is not None and self._conclusion is None:
                self._conclusion = spawn("conclusion", self._conclude, conclusion)

    def _conclude(self, parameters_sha256: str) -> None:
        told = False
        while (problem := self._keep_end(parameters_sha256)) is not None:
            with self.changing() as (membership, _):
                membership.outcome.conclude(kept=False)
            if not told:
                structlog.get_logger().warning("the end of the run cannot be kept yet", reason=problem)
                told = True
            if self._closed.wait(_KEEP_AGAIN_S):
                return
        with self.changing() as (membership, _):
            membership.outcome.conclude()

    def plan(self, timeout_s: float | None = None) -> Plan:
        """The run's plan; waits until a worker has brought the layout.

        Raises:
            RunError: the run failed first.
            PeerUnreachableError: no worker joined within `timeout_s`.
        """
        self.wait_for(lambda m: m.alike.layout is not None or m.outcome.broken is not None, timeout_s)
        with self._changed:
            layout = self._membership.alike.layout
            self._raise_if_broken()
            if layout is None:
                raise PeerUnreachableError(f"no worker joined within {timeout_s:g} s, so there is no plan yet")
            if self._planning is None:
                self._planning = self._make_planning(layout)
                self._end_trial()
                self._raise_if_broken()
            return self._planning.plan

    def _end_trial(self) -> None:
        """All members begin again where this trial of the run's compression is over."""
        if self._choosing is not None and self._choosing.is_over:
            self._membership.outcome.end_generation(self._choosing.words)

    def report(self, member: MemberId, step: int, steps: Sequence[StepMeasurement], timeout_s: float | None) -> Plan:
        """Take in a worker's measurements; returns when all workers' have led to the plan of the next step.

        Raises:
            RunError: the run failed first.
            StaleError, FrameError: see `Planning.report`.
            PeerUnreachableError: another worker did not report within `timeout_s`.
        """
        with self._changed:
            planning = self._planning
            if planning is None:
                raise StaleError(f"{member} reports steps, but there is no plan yet")
        # A plan may take seconds to make, and the first one compiles: nobody's sign of life waits for that.
        with self._reporting:
            planning.report(member.rank, step, steps)
        with self._changed:
            self._end_trial()
            self._changed.notify_all()
            self._changed.wait_for(
                lambda: planning.decided_after(step) or self._membership.outcome.broken is not None, timeout_s
            )
            self._raise_if_broken()
            if not planning.decided_after(step):
                raise PeerUnreachableError(f"the other workers did not report step {step} within {timeout_s:g} s")
            return planning.plan

    def profile(self) -> tuple[Plan, Profile | None] | None:
        """The plan and the costs it was made from; None before there is a plan."""
        with self._changed:
            return None if self._planning is None else (self._planning.plan, self._planning.profile)

    @property
    def checkpointing(self) -> Checkpointing:
        """The checkpoints of the run; raises StaleError where it has none."""
        if self._checkpointing is None:
            raise StaleError("this run keeps no checkpoints; give every process the same job")
        return self._checkpointing

    @property
    def checkpoint_problem(self) -> str:
        """The reason why the newest checkpoint is not complete; "" if it is, or may be yet."""
        return "" if self._checkpointing is None else self._checkpointing.problem

    def fix_last_step(self, step: int, timeout_s: float | None) -> int:
        """Agree on the last step by `StopAgreement.fix`, and return it when worker 0 may go on.

        Raises:
            RunError: the run failed first.
            PeerUnreachableError: a worker did not learn of it within `timeout_s`.
        """
        with self.changing() as (membership, _):
            last_step = membership.outcome.stop.fix(step)
        agreed = self.wait_for(lambda m: m.outcome.stop.agreed or m.outcome.state.is_final, timeout_s)
        with self._changed:
            self._raise_if_broken()
        if not agreed:
            raise PeerUnreachableError(f"not all workers learnt within {timeout_s:g} s that the run stops")
        return last_step

    def _raise_if_broken(self) -> None:
        if (error := self._membership.outcome.broken) is not None:
            raise error
