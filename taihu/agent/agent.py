"""The workers of an agent: started as the run assigns them, started again where they are killed, ended elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import structlog

from taihu.agent.attending import Answer, Attending
from taihu.core.base.errors import PeerUnreachableError, RunError
from taihu.core.checkpoint.keepers import ended_run, used_up
from taihu.core.checkpoint.salvage import newest_held
from taihu.core.coordination.membership.members import RunState
from taihu.core.job import Job
from taihu.core.process.background import in_background
from taihu.core.process.entry import EXIT_INTERRUPTED, Interrupts
from taihu.core.system.clocks import monotonic, sleep
from taihu.local.processes.processes import DaemonFailedError, LocalProcesses
from taihu.local.processes.replacing import Replacing

_LOOK_S: Final = 0.03
_CONSEQUENCES_S: Final = 2.0
_SILENT_S: Final = 2.0


class Agent:
    """Runs the workers of one machine until the run has ended, or it leaves.

    Args:
        job: of the run.
        processes: are started here; none yet.
        arguments: of the worker of a rank, beside so many others.
        attending: asks the coordinator.
        interrupts: the first one has this agent leave the run.
    """

    def __init__(
        self,
        job: Job,
        processes: LocalProcesses,
        arguments: Callable[[int, int], list[str]],
        *,
        attending: Attending,
        interrupts: Interrupts,
    ) -> None:
        self._job = job
        self._processes = processes
        self._arguments = arguments
        self._attending = attending
        self._interrupts = interrupts
        self._replacing = Replacing(job.checkpoint.restarts)
        self._running: set[int] = set()
        self._log = structlog.get_logger()
        self._interrupted_s: dict[str, float] = {}
        self._said = ""

    def run(self) -> int:
        """Return when there is nothing left to do here: the exit code.

        Raises:
            DaemonFailedError: a worker has failed, or was killed too often.
            RunError: the run has failed elsewhere.
            PeerUnreachableError: the coordinator did not answer for `cluster.connect_timeout_s`, and nothing runs.
            StaleError, ConfigError, RefusedError: it answers that this is another job, or takes no agents.
        """
        with self._interrupts.offered_to(self.leave), in_background(self._attending.work, "attending"):
            while (code := self.look(self._attending.answer, monotonic())) is None:
                sleep(_LOOK_S)
            return code

    def leave(self, reason: str) -> bool:
        """Leave the run behind its next steps; True, as signals want to hear."""
        self._attending.leaves = True
        return True

    def look(self, answer: Answer, now: float) -> int | None:
        """Do what is due; the exit code when nothing is left to do."""
        if answer.error is None:
            self._follow(answer)
        elif now - answer.heard_s > _SILENT_S:
            self._tell(f"waiting for an answer: {answer.error}")
        self._replace_killed(now)
        self._replace_interrupted(answer, now)
        self._attending.runs = tuple(sorted(self._running))
        if self._running:
            return self._end_of_workers(answer, now)
        if self._attending.is_refused and answer.error is not None:
            raise answer.error
        return self._end_without_workers(answer, now)

    def _follow(self, answer: Answer) -> None:
        """Run what the coordinator says."""
        wanted = set(answer.ranks)
        if answer.state.is_over:
            wanted &= self._running  # nobody has to begin any more
        if wanted == self._running:
            self._say(answer)
            return
        for rank in self._running - wanted:
            self._replacing.give_up(_name(rank))
            self._processes.dismiss(_name(rank))
        for rank in wanted - self._running:
            self._processes.start(_name(rank), "taihu.worker", self._arguments(rank, len(wanted)))
        self._running = wanted
        self._log.info("runs", workers=sorted(wanted), reason=answer.reason or answer.state.value)

    def _say(self, answer: Answer) -> None:
        waits = f"waiting for {answer.awaited}" if answer.awaited else ""
        if not waits and not self._running and answer.state in (RunState.WAITING, RunState.RUNNING):
            waits = "standing by: all workers have agents"
        self._tell(waits)

    def _tell(self, waits: str) -> None:
        """Log what is waited for, once."""
        if waits and waits != self._said:
            self._log.info(waits)
        self._said = waits

    def _replace_killed(self, now: float) -> None:
        """Start workers again that were killed, or stopped for so long that the run has lost them."""
        self._processes.end_stopped()
        try:
            self._processes.check(awaiting=self._replacing.awaited)
        except DaemonFailedError as error:
            if not error.was_killed:
                self._processes.wait(_CONSEQUENCES_S)
                raise
            self._plan(error, now)
        for name in self._replacing.due(now):
            self._processes.replace(name)

    def _plan(self, error: DaemonFailedError, now: float) -> None:
        """Start another process in the place of one soon; raises `error` where that happened too often."""
        if not self._replacing.plan(error.name, now, newest_held(self._job)):
            raise error.with_remedy(used_up(self._job, "")) from None
        self._log.warning("worker lost", end=error.end)

    def _replace_interrupted(self, answer: Answer, now: float) -> None:
        """Start workers again that somebody else has interrupted, while the run goes on."""
        found = set(self._processes.interrupted) - self._replacing.awaited
        self._interrupted_s = {name: self._interrupted_s.get(name, now) for name in found}
        goes_on = answer.error is None and not answer.state.is_over
        for name, ended_s in self._interrupted_s.items():
            if goes_on and answer.heard_s > ended_s:
                error = DaemonFailedError(f"{name} was interrupted", name, EXIT_INTERRUPTED)
                self._plan(error, now)

    def _end_of_workers(self, answer: Answer, now: float) -> int | None:
        """The exit code when all have ended well, or because the run was stopped."""
        if self._replacing.awaited or self._processes.living:
            return None
        if not self._processes.interrupted or answer.state is RunState.FINISHED or ended_run(self._job) is not None:
            return 0  # who is interrupted behind its part of a run that has finished is missed by nobody
        # Somebody may have interrupted them alone: the run says so, if it does not end without another word.
        ended_s = max(self._interrupted_s.values(), default=now)
        return EXIT_INTERRUPTED if answer.state.is_over or now - ended_s > _CONSEQUENCES_S else None

    def _end_without_workers(self, answer: Answer, now: float) -> int | None:
        """The exit code where the run has ended, or goes on without this agent."""
        if answer.error is not None and now - answer.heard_s > self._job.cluster.connect_timeout_s:
            if ended_run(self._job) is not None:
                return 0
            raise PeerUnreachableError(str(answer.error))
        if self._attending.leaves:
            has_left = answer.error is not None or not answer.ranks
            if has_left:
                self._log.info("left", reason=self._interrupts.reason)
            return EXIT_INTERRUPTED if has_left else None
        if answer.error is not None:
            return 0 if ended_run(self._job) is not None else None
        if answer.state is RunState.FAILED:
            raise RunError(answer.reason)
        return {RunState.FINISHED: 0, RunState.STOPPED: EXIT_INTERRUPTED}.get(answer.state)


def _name(rank: int) -> str:
    return f"worker {rank}"
