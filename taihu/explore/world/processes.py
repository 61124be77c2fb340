"""Simulated processes of one run, as those that supervise see them: started, watched, ended."""

from __future__ import annotations

import signal
from collections.abc import Callable, Collection
from functools import partial
from pathlib import Path
from typing import Any, Final

from taihu.core.job import Job
from taihu.core.process.entry import EXIT_INTERRUPTED, Interrupts
from taihu.explore.disk.descriptors import Descriptors
from taihu.explore.disk.disk import SLOW
from taihu.explore.network import Network
from taihu.explore.scheduler import RUNNING, STALLED
from taihu.explore.tasks import Process, Task
from taihu.explore.world.members import Member
from taihu.local.processes.causes import Ended, cause_of, end_in_words
from taihu.local.processes.processes import DaemonFailedError
from taihu.local.processes.stuck import LastingNames

KILLED: Final = -9
"""The exit code of a process that SIGKILL has ended."""

# Who has started them holds the other end of a pipe: they see that it has ended, and end themselves.
_ORPHANED_S: Final = 0.02
_LOG: Final = Path("log")


class SimulatedProcesses:
    """The processes of a run. It has what `taihu.local.processes.supervision` uses of `LocalProcesses`.

    Args:
        job: of the run.
        model: the file that worker 0 saves.
        gone: is told of each process that is no more, killed or ended: what it held goes.
        step_s: virtual seconds that a worker computes in each step, about.
    """

    def __init__(self, job: Job, model: Path, gone: Callable[[Process], None], step_s: float = 0.0) -> None:
        self._step_s = step_s
        self._job = job
        self._model = model
        self._gone = gone
        self._members: dict[str, Member] = {}
        self.former: list[Member] = []
        self.left: list[str] = []
        self.connected: list[str] = []
        self.told: dict[str, dict[str, Any]] = {}
        self._stopped = LastingNames(job.cluster.lost_after_s)

    # -- lives

    def start(
        self, name: str, *, host: str = "", agent: int = 0, attends: Callable[[Interrupts], int] | None = None
    ) -> Member:
        """Start the process of a member, or its successor; `agent` runs it on its `host`, or it `attends` itself."""
        former = self._members.pop(name, None)
        if former is not None:
            self.former.append(former)
        lives = sum(each.name == name for each in self.former)
        process = Process(name, lives, host)
        member = Member(name, self._job, process, self._model, agent=agent, attends=attends)
        if name.startswith("worker"):
            member.chaos.computes(self._step_s, RUNNING().random(str(member.process)))
        self._members[name] = member
        RUNNING().spawn(lambda: self._life(member), "main", member.process)
        return member

    def _life(self, member: Member) -> None:
        member.live()
        _join_threads(member.process)
        if member.results is not None:
            self.told[member.name] = member.results
        scheduler = RUNNING()
        scheduler.call_at(0.0, lambda: self._end(member))

    def _end(self, member: Member) -> None:
        """An ended process's other threads end with it, and its files are closed; one that did its part has none."""
        living = RUNNING().living(member.process)
        # Some that stand still, or write slowly, may be about to end, and to close what they have.
        if member.code == 0 and not any(
            task.waits_for == STALLED or task.waits_for.startswith(SLOW) for task in living
        ):
            self._note_what_is_left(member.process, living)
        RUNNING().kill(member.process)
        self._gone(member.process)
        self._orphan(member)

    def _note_what_is_left(self, process: Process, living: list[Task]) -> None:
        scheduler = RUNNING()
        opened = scheduler.find(Descriptors).left_open(process)
        connected = scheduler.find(Network).left_open(process)
        self.left += [f"{task}, which waits for {task.waits_for}" for task in living]
        self.left += [f"{process}: {path} is open" for path in opened]
        self.connected += [f"{process}: a connection to {peer} is open" for peer in connected]

    def kill(self, name: str) -> None:
        """End a process at once, if it has not ended."""
        self.end(self._members[name])

    def end_all(self) -> None:
        """End whatever still lives, twins of others included."""
        for member in (*self.all, *self.former):
            self.end(member)

    def _end_at_once(self, member: Member, code: int) -> None:
        if member.code is None:
            member.code, member.ended_s = code, RUNNING().now
            if member.results is not None:
                self.told[member.name] = member.results
            RUNNING().kill(member.process)
            self._gone(member.process)
            self._orphan(member)

    def _orphan(self, member: Member) -> None:
        """Processes that it has started end a moment later."""
        chance = RUNNING().random(f"orphans of {member.process}")
        for child in member.children:
            RUNNING().call_at(_ORPHANED_S * chance.random(), partial(self.end, child))

    def end(self, member: Member) -> None:
        """End a process at once, if it has not ended."""
        self._end_at_once(member, KILLED)

    def signal(self, process: Process, number: int) -> None:
        """A process gets a signal."""
        member = next(each for each in (*self.all, *self.former) if each.process is process)
        scheduler = RUNNING()
        main, interrupts = scheduler.main_task(process), member.interrupts
        if number == signal.SIGKILL:  # of itself: faults kill otherwise
            member.was_stuck = True
        if number == signal.SIGKILL or main is None or interrupts is None:  # or it does not handle signals yet
            self._end_at_once(member, -number)
        else:
            scheduler.interrupt(main, lambda: interrupts.arrived(number))

    def exit(self, process: Process, code: int) -> None:
        """A process ends at once, with this exit code."""
        member = next(each for each in (*self.all, *self.former) if each.process is process)
        member.was_stuck = code != EXIT_INTERRUPTED
        self._end_at_once(member, code)

    def member(self, name: str) -> Member:
        """The present process of a member."""
        return self._members[name]

    def found(self, name: str) -> Member | None:
        """The present process of a member; None where it has not come yet."""
        return self._members.get(name)

    def on_host(self, host: str) -> list[Member]:
        """The processes that live on a machine."""
        return [each for each in (*self.all, *self.former) if each.code is None and each.process.host == host]

    @property
    def hosts(self) -> list[str]:
        """All machines on which any has run."""
        return list(dict.fromkeys(each.process.host for each in (*self.all, *self.former)))

    @property
    def all(self) -> list[Member]:
        """The present processes."""
        return list(self._members.values())

    # -- what supervision asks

    def settle(self, name: str) -> None:
        """End a process, if it has not ended, and say nothing of that."""
        self.kill(name)
        self._members[name].is_settled = True

    def replace(self, name: str) -> None:
        """Start another process in the place of one that has ended."""
        self.start(name)

    def end_stopped(self) -> None:
        """End processes that have been stopped for too long."""
        self.end_lasting(self.all, self._stopped)

    def end_lasting(self, members: Collection[Member], lasting: LastingNames) -> None:
        """End those of some processes that are stopped, and have been at each look for so long."""
        stopped = {each.name: each for each in members if each.code is None and each.process.is_stopped}
        for name in lasting.look(RUNNING().now, stopped):
            stopped[name].given_up = f"was stopped for {lasting.after_s:g} s, and ended"
            self.end(stopped[name])

    def notices(self) -> list[str]:
        """Lines about what processes cannot write."""
        return []

    @property
    def names(self) -> list[str]:
        """The names of all members, the host's first."""
        return list(self._members)

    @property
    def living(self) -> list[str]:
        """The members that have a process which has not ended."""
        return [member.name for member in (*self.all, *self.former) if member.code is None]

    @property
    def any_has_ended(self) -> bool:
        """Whether a process has ended well."""
        return any(member.code == 0 for member in (*self.all, *self.former))

    @property
    def interrupted(self) -> list[str]:
        """The members whose processes have ended because they were asked to."""
        return [member.name for member in self.all if member.code == EXIT_INTERRUPTED]

    def check(self, awaiting: Collection[str] = ()) -> bool:
        """Whether all have ended, well or interrupted; see `LocalProcesses.check`."""
        raise_for(self.all, (0, EXIT_INTERRUPTED, None), apart_from=awaiting)
        return not self.living and not awaiting

    def raise_if_interrupted(self) -> None:
        """Raise DaemonFailedError where one was interrupted."""
        raise_for(self.all, (0, None))

    def wait(self, timeout_s: float) -> None:
        """Return when all have ended, or after so long."""
        wait_for(lambda: self.living, timeout_s)


def wait_for(living: Callable[[], Collection[str]], timeout_s: float) -> None:
    """Return when none of those is `living` any more, or after so long."""
    scheduler = RUNNING()
    until_s = scheduler.now + timeout_s
    while living() and scheduler.now < until_s:
        scheduler.block("processes to end", scheduler.now + 0.05)


def raise_for(members: list[Member], accepted: Collection[int | None], apart_from: Collection[str] = ()) -> None:
    """Raise DaemonFailedError where one has ended by another exit code than those that are accepted."""
    failed = [
        member
        for member in members
        if member.code not in accepted and member.name not in apart_from and not member.is_settled
    ]
    if failed:
        everybody = [_ended(member) for member in members]
        names = {member.name for member in failed}
        cause = cause_of([each for each in everybody if each.name in names or each.is_stopped])
        message = end_in_words(cause, everybody)
        code, was_killed = max(1, cause.exit_code), cause.exit_code < 0
        raise DaemonFailedError(message, cause.name, code, was_killed=was_killed)


def lost_ones(processes: SimulatedProcesses) -> list[str]:
    """The members of which no process lives or has ended well, while the run goes on; always those that left."""
    living, is_over = processes.living, processes.any_has_ended
    ended = [each for each in processes.all if each.code not in (None, 0) and each.name not in living]
    left = [each.name for each in ended if each.leaves]
    lost = [each for each in ended if not (is_over or each.leaves or each.code == EXIT_INTERRUPTED)]
    # Where nobody lives any more, the run of one that has failed by itself is over: that of one killed goes on.
    return left + [each.name for each in lost if living or (each.code or 0) < 0]


def _join_threads(process: Process) -> None:
    """A process ends when all of its threads have ended that are no daemons."""
    scheduler = RUNNING()
    me = scheduler.current
    while others := [task for task in scheduler.living(process) if not (task.is_daemon or task is me)]:
        others[0].joiners.append(me)
        scheduler.block(f"the end of {others[0].name}")


def _ended(member: Member) -> Ended:
    is_stopped = member.code is None and member.process.is_stopped
    return Ended(member.name, member.code or 0, member.words, _LOG, member.given_up, is_stopped)
