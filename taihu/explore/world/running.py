"""One run of a case: the world is made, the run goes to its end, and is looked at."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from random import Random
from typing import Any, Final

from taihu.core.base.errors import TaihuError
from taihu.core.checkpoint.store import CheckpointStore
from taihu.core.history.checking import check_histories
from taihu.core.history.files import read_histories
from taihu.core.job import Job, load_job
from taihu.explore.carriers import Carrier
from taihu.explore.cases import Case, Machines, OrderDraw, Shape
from taihu.explore.coverage import Coverage
from taihu.explore.disk.disk import RECORDS, SHARED, Disk
from taihu.explore.disk.modules import provide_disk
from taihu.explore.ending import Endings
from taihu.explore.line_switches import LineSwitches
from taihu.explore.network import Network
from taihu.explore.orders import BoundedOrder, Order, PriorityOrder, RandomOrder
from taihu.explore.outcomes import End, Outcome
from taihu.explore.scheduler import BEGUN_S, Scheduler, StandstillError
from taihu.explore.tasks import Process
from taihu.explore.watching import Aim, Profile, Story
from taihu.explore.world.disturbing import Disturbance
from taihu.explore.world.fleet import Fleet
from taihu.explore.world.members import Member, took_part
from taihu.explore.world.processes import SimulatedProcesses
from taihu.explore.world.resuming import go_on
from taihu.explore.world.supervisors import Supervisor

_COORDINATOR: Final = "127.0.0.1:7070"
_CHECKPOINTS: Final = Path(SHARED) / "checkpoints"
_MODEL: Final = Path(SHARED) / "model.safetensors"
_HISTORY: Final = Path(RECORDS) / "history"
# A run of some seconds, which may wait for a lost member, for a restart, and for connections, several times over.
_LONGEST_S: Final = 600.0
# A disk needs about as long as a message: what is written and what is received come in any order.
_BUSY_S: Final = 0.01
_CLUSTER: Final = {
    "threads": 1,
    "heartbeat_s": 0.2,
    "lost_after_s": 5.0,
    "connect_timeout_s": 60.0,
    "coordinator": _COORDINATOR,
}


def run_case(case: Case, carrier: Carrier, *, tells: bool = False) -> Outcome:
    """Run a case; with `tells` the outcome has its story."""
    order = _order(case.order, Random(f"{case.seed} order"))  # noqa: S311
    scheduler = Scheduler(case.seed, carrier, order, longest_s=_LONGEST_S)
    with _held_up(case, scheduler):
        return _Run(case, scheduler, tells=tells).run()


def _held_up(case: Case, scheduler: Scheduler) -> AbstractContextManager[object]:
    """Tasks are held up between lines during the block, where the case says so."""
    if case.between is None:
        return nullcontext()
    chance, draw = Random(f"{case.seed} between lines"), case.between  # noqa: S311
    return LineSwitches(scheduler, draw.modules, chance, draw.share, within_lines=draw.within_lines)


def run_calm(shape: Shape, carrier: Carrier) -> tuple[Outcome, Profile]:
    """Run the job of a case without any fault; also how often each point was passed."""
    case = Case(0, shape, "local", OrderDraw(None, 0.2))
    profile = Profile()
    scheduler = Scheduler(0, carrier, RandomOrder(Random(0), 0.2), longest_s=_LONGEST_S)  # noqa: S311
    run = _Run(case, scheduler, tells=False)
    run.profile = profile
    return run.run(), profile


def _order(draw: OrderDraw, chance: Random) -> Order:
    order: Order = PriorityOrder(chance, draw.changes or 0)
    if draw.changes is None:
        order = RandomOrder(chance, draw.preempting, draw.stalling)
    return order if draw.holds is None else BoundedOrder(order, draw.holds)


def job_of(shape: Shape, machines: Machines | None = None) -> Job:
    """The job of a case.

    Raises:
        ConfigError: its settings do not go together.
    """
    own: dict[str, dict[str, Any]] = {
        "cluster": {
            **_CLUSTER,
            "servers": max(1, shape.servers),
            "workers": shape.workers,
            "min_agents": 1 if machines is None else machines.least,
        },
        "checkpoint": {"dir": _CHECKPOINTS, "every_steps": shape.every_steps, "restarts": 6},
        "run": {"history": _HISTORY, "dir": Path("none")},
        "train": {"steps": shape.steps, "evaluate": True},
    }
    return load_job(None, shape.settings, own)


class _Run:
    """A run that is made, run, and looked at once."""

    def __init__(self, case: Case, scheduler: Scheduler, *, tells: bool) -> None:
        self.profile: Profile | None = None
        self._case = case
        self._scheduler = scheduler
        self._tells = tells
        self._job = job_of(case.shape, case.machines)
        self._network = Network(scheduler)
        is_on_one_host = case.shape.is_on_one_host
        self._disk = Disk(
            scheduler, host_of=lambda process: "host" if is_on_one_host else process.host, busy_s=_BUSY_S
        )
        self._processes = SimulatedProcesses(self._job, _MODEL, self._gone, case.shape.step_s)
        self._supervisor: Supervisor | Fleet = Supervisor(case.supervisor, self._job, self._processes)
        if case.machines is not None:
            self._supervisor = Fleet(case.machines, self._job, self._processes)
        self._coverage = Coverage()
        self._disturbance = Disturbance(
            self._processes, self._supervisor, self._network, self._disk, tell=self._tell, coverage=self._coverage
        )
        self._aim = Aim([fault for fault in case.faults if fault.mark], self._disturbance.do, self._coverage)
        self._story = Story(scheduler, self._aim) if tells else None
        self._findings: list[str] = []
        self._ends: dict[str, End] = {}
        self._resumed: tuple[End, ...] = ()
        self._generations = self._told_from = self._made_again = 0
        self._kept: tuple[int, ...] = ()
        self._damaged: list[str] = []

    def run(self) -> Outcome:
        """Go to the end."""
        scheduler, standstill = self._scheduler, ""
        scheduler.provide(self._network)
        provide_disk(scheduler, self._disk)
        scheduler.provide(Endings(self._processes))
        if self._story is not None:
            scheduler.provide(self._story)
        scheduler.observer = self.profile or self._story or self._aim
        for fault in self._case.faults:
            if not fault.mark:
                scheduler.call_at(fault.after_s, self._doing(fault))
        try:
            try:
                scheduler.run(self._main, Process("supervisor"))
            except StandstillError as error:
                standstill = str(error)
            return self._outcome(standstill)
        finally:
            scheduler.close()

    def _main(self) -> None:
        self._supervisor.run(self._case.shape.members)
        self._check_history()
        self._check_checkpoints()
        self._ends = {member.name: _end(self._best(member)) for member in self._processes.all}
        if any(end.code != 0 for end in self._ends.values() if not end.is_of_agent) and not self._damaged:
            self._processes.end_all()
            self._tell("", "all that was broken is repaired, and the run is to go on")
            resumed = go_on(self._job, _MODEL, self._gone, self._case.shape.members)
            self._resumed = tuple(map(_end, resumed))

    def _doing(self, fault: Any) -> Callable[[], None]:
        return lambda: self._disturbance.do(fault)

    def _gone(self, process: Process) -> None:
        self._tell(str(process), "is gone")
        self._network.crash(process)

    def _tell(self, who: str, what: str) -> None:
        if self._story is not None:
            self._story.tell(who, what)

    def _check_history(self) -> None:
        try:
            verdict = check_histories(read_histories(_HISTORY))
        except TaihuError as error:
            self._findings.append(str(error))
        else:
            self._findings += map(str, verdict.findings)
            self._generations, self._told_from = verdict.generations, verdict.first
            self._made_again = verdict.made_again

    def _check_checkpoints(self) -> None:
        """Whatever counts has to be whole."""
        store = CheckpointStore(_CHECKPOINTS)
        self._kept = tuple(store.steps())
        for step in self._kept:
            try:
                store.open(step).verify()
            except TaihuError as error:
                self._damaged.append(str(error))

    def _best(self, member: Member) -> Member:
        """The life of a member that took part: a launcher may have started two at a time."""
        return took_part([each for each in (*self._processes.former, member) if each.name == member.name])

    def _outcome(self, standstill: str) -> Outcome:
        scheduler = self._scheduler
        error = self._supervisor.error
        return Outcome(
            ends=self._ends or {member.name: _end(self._best(member)) for member in self._processes.all},
            resumed=self._resumed,
            former=tuple(map(_end, self._processes.former)),
            standstill=standstill,
            supervision="" if error is None else str(error),
            said=tuple(self._supervisor.lines),
            failures=tuple(f"{each.task}: {each.traceback}" for each in scheduler.failures),
            findings=tuple(self._findings),
            generations=self._generations,
            told_from=self._told_from,
            made_again=self._made_again,
            checkpoints=self._kept,
            damaged=tuple(self._damaged),
            left=tuple(self._processes.left),
            connected=tuple(self._processes.connected),
            done=tuple(self._disturbance.done),
            virtual_s=scheduler.now - BEGUN_S,
            switches=scheduler.switches,
            points=scheduler.points,
            digest=scheduler.digest,
            reached=frozenset(self._coverage.pairs),
            story=() if self._story is None else tuple(self._story.lines),
        )


def _end(member: Member) -> End:
    parameters = "" if member.results is None else str(member.results["parameters_sha256"])
    code = 0 if member.is_settled else member.code
    return End(
        member.name,
        member.process.life,
        code,
        member.words,
        member.traceback,
        parameters,
        was_stuck=member.was_stuck,
        at_s=member.ended_s - BEGUN_S,
    )
