"""A run's processes on this machine, from the first one's start to the last one's end."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Final

from taihu.core.base.errors import ConfigError, PeerUnreachableError, TaihuError
from taihu.core.coordination.membership.members import RunState
from taihu.core.coordination.status import stop_run
from taihu.core.job import Job
from taihu.core.job.advice import advice_on_schedule
from taihu.core.model.run_length import RunLength
from taihu.core.process.entry import InterruptedRunError, Interrupts
from taihu.core.security.security import Security
from taihu.core.system.clocks import monotonic, sleep
from taihu.local.display.display import Display, RunView
from taihu.local.display.watching import StatusWatch
from taihu.local.processes.departed import DepartedMembers
from taihu.local.processes.processes import DaemonFailedError, LocalProcesses
from taihu.local.processes.stuck import LateMembers, StuckMembers
from taihu.local.processes.successors import Successors

_LOOK_S: Final = 0.03
_STATUS_S: Final = 0.5
_CONSEQUENCES_S: Final = 2.0
_STOP_S: Final = 10.0
# When the run is over a process may still write its part of the results. The patience that a job has with silent
# members says nothing of that.
_LEFT_BEHIND_S: Final = 3.0
_STUCK_S: Final = 60.0
_STUCK_STEPS: Final = 4
# A process that takes the place of another one needs some time to start.
_LEAST_STUCK_S: Final = 10.0


class Supervision:
    """Watches processes to their ends; ends those that the run has lost, and those that it does not need any more.

    Args:
        job: of the run.
        processes: all of them, started.
        successors: of those that are killed.
        has_told: says whether the worker of that name has told its results.
        display: shows how the run goes.
        interrupts: the first one stops the run in order.
        security: what the coordinator is shown.
    """

    def __init__(
        self,
        job: Job,
        processes: LocalProcesses,
        successors: Successors,
        *,
        has_told: Callable[[str], bool],
        display: Display,
        interrupts: Interrupts,
        security: Security | None = None,
    ) -> None:
        self._security = security
        self._job = job
        self._processes = processes
        self._successors = successors
        self._has_told = has_told
        self._display = display
        self._interrupts = interrupts
        host, lost_after_s = processes.names[0], job.cluster.lost_after_s
        self._stuck = StuckMembers(host, max(lost_after_s, _LEAST_STUCK_S))
        self._departed = DepartedMembers(host, lost_after_s)
        self._late = LateMembers(job.patience.still_after_s)
        self._left_behind = LateMembers(min(job.patience.farewell_s, _LEFT_BEHIND_S))
        self._stopping: _Stopping | None = None
        self._lost_any = False
        self._was_advised = False

    def watch(self, coordinator: str) -> None:
        """Return when all processes have ended.

        Args:
            coordinator: its address.

        Raises:
            DaemonFailedError: one ended before its time; if it was killed, no other one may take its place.
            InterruptedRunError: the run was stopped, and had nothing to save or did not end.
        """
        status = StatusWatch(coordinator, self._display, self._security)
        looked = monotonic()
        try:
            with self._interrupts.offered_to(lambda reason: True):
                while not self._all_have_ended():
                    sleep(_LOOK_S)
                    if self._interrupts.reason and self._stopping is None:
                        self._stopping = self._stop(coordinator)
                    if monotonic() - looked > _STATUS_S:
                        looked = monotonic()
                        self._look(looked, status)
            self._tell_notices()
        except InterruptedRunError:
            self._interrupts.ignore()  # all daemons are ended now, whatever else comes
            raise
        except TaihuError as error:
            # What one failure leads to elsewhere ends within a moment; the cause is told, not the consequence.
            # A wrong setting is a cause: whoever waits for the daemon that refused it would go on for long.
            if not isinstance(error, DaemonFailedError) or error.exit_code != ConfigError.exit_code:
                self._processes.wait(_CONSEQUENCES_S)
            try:
                self._processes.check()
            except DaemonFailedError as cause:
                raise cause.with_remedy(self._successors.remedy) from None
            raise

    def _all_have_ended(self) -> bool:
        """Whether all have ended well; a process that was killed is replaced where the run recovers."""
        processes, is_over = self._processes, self._processes.any_has_ended
        # Where one has ended well there is nobody to join any more, and all have told what there is to tell.
        for name in self._successors.awaited if is_over else ():
            if self._settle(name):
                self._successors.give_up(name)
        self._successors.start_due()
        try:
            return processes.check(awaiting=self._successors.awaited)
        except DaemonFailedError as error:
            self._lost_any = True
            if is_over and self._settle(error.name):
                self._display.say(f"{error.end}; it had done its part")
                return False
            if is_over:
                raise
            self._successors.plan(error)
            return False

    def _look(self, now: float, status: StatusWatch) -> None:
        """Ask how the run goes, show it, and do what is due."""
        processes = self._processes
        processes.end_stopped()
        self._tell_notices()
        # Where one has ended the coordinator is about to end: its port may be anybody's then.
        is_over = processes.any_has_ended
        view = None if is_over else status.show()
        if not is_over and not processes.any_has_ended:
            self._look_for_lost(now, status)
        self._settle_late(now)
        if self._stopping is not None:
            self._stopping.check(view, now)
        if view is not None and not self._was_advised:
            self._was_advised = True
            self._advise(view.total_steps)

    def _tell_notices(self) -> None:
        for line in self._processes.notices():
            self._display.warn(line)

    def _look_for_lost(self, now: float, status: StatusWatch) -> None:
        departed = self._departed.look(now, self._processes.interrupted, status.missing)
        if departed is not None:
            raise InterruptedRunError(f"{departed}: interrupted before it took part, and the others wait for it")
        if self._successors.recovers:
            if self._successors.kept_step:
                self._stuck.begin()
            for name in self._stuck.look(now, status.missing):
                self._display.say(f"{name} lives and takes no part any more; it is ended")
                self._processes.kill(name)

    def _settle_late(self, now: float) -> None:
        """End processes that have told what there was to tell, long after another one has ended well."""
        is_over = self._processes.any_has_ended
        # Who was lost may have been the coordinator: nobody tells the others that they are done.
        is_left_behind = self._left_behind.look(now, ended=is_over) and self._lost_any
        is_late = self._late.look(now, ended=is_over)
        for name in self._processes.living if is_late or is_left_behind else ():
            if self._settle(name) and is_late:
                self._display.say(f"{name} has done its part and does not end; it is ended")

    def _settle(self, name: str) -> bool:
        """End a process that has told its results, and make nothing of its end; whether it has told them."""
        has_told = name.startswith("server ") or self._has_told(name)
        if has_told:
            self._processes.settle(name)
        return has_told

    def _advise(self, total: int) -> None:
        """Say what only shows when the length of the run is known: by its workers, from their data."""
        if self._job.train.steps is None:
            length = RunLength(1, max(1, total // self._job.train.epochs), total)
            for line in advice_on_schedule(self._job, length):
                self._display.warn(line)

    def _stop(self, coordinator: str) -> _Stopping:
        """Ask the run to stop; raises InterruptedRunError when there is nothing to save."""
        reason = self._interrupts.reason
        state = RunState.RUNNING
        with suppress(PeerUnreachableError):  # who does not answer is about to end, or is waited for in vain
            state = stop_run(coordinator, self._job.name, reason, _STOP_S, self._security)
        if state is RunState.FAILED:
            raise InterruptedRunError(f"{reason} before the first step: there is nothing to save")
        self._display.say("stopping after the next steps and saving; press Ctrl-C again to end at once")
        return _Stopping(reason, monotonic())


class _Stopping:
    """Bounds how long a run that was asked to stop is waited for: as long as something goes on."""

    def __init__(self, reason: str, now: float) -> None:
        self._reason = reason
        self._moved_s = now
        self._step = 0

    def check(self, view: RunView | None, now: float) -> None:
        """Raise InterruptedRunError when the run, of which `view` may be known, has not moved for too long."""
        bound_s = _STUCK_S
        if view is not None:
            bound_s = max(_STUCK_S, _STUCK_STEPS * view.step_seconds)
            if view.step != self._step:
                self._step, self._moved_s = view.step, now
        if now - self._moved_s > bound_s:
            raise InterruptedRunError(
                f"{self._reason}: the run has not stopped, and nothing has moved for {bound_s:.0f} s; see the logs"
            )
