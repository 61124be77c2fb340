"""The life of one simulated process of a run: a server daemon or a worker daemon, from its start to its exit code."""

from __future__ import annotations

import math
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from taihu.allreduce.rendezvous import listen_for_peers
from taihu.core.base.errors import TaihuError
from taihu.core.chaos.frames import FaultyFrames
from taihu.core.chaos.points import Point, Written
from taihu.core.coordination.listener import listen_options
from taihu.core.coordination.membership.members import RunState
from taihu.core.job import Job
from taihu.core.job.run_folder import RunFiles
from taihu.core.process.entry import EXIT_INTERRUPTED, Interrupts
from taihu.core.process.notices import Notices
from taihu.core.wire.base.clock import WallClock
from taihu.explore.scheduler import RUNNING
from taihu.explore.tasks import Process
from taihu.ps_server.daemon import ServerDaemon, ServerOptions
from taihu.worker.daemon import WorkerDaemon
from taihu.worker.options import WorkerOptions

FAILED = 1
"""The exit code of a process that an error ends which is none of the project's: a traceback."""


class MarkedPoints:
    """The points of `[chaos]` as marked points: a fault may be aimed at each. See `Chaos`."""

    def __init__(self) -> None:
        self.enabled = True
        self.frames = FaultyFrames()
        self._slow_until_s = self._pause_s = self._step_s = 0.0
        self._chance = Random(0)  # noqa: S311
        self._step = 0

    def computes(self, step_s: float, chance: Random) -> None:
        """Take about `step_s` for each step from now on, before its first gradients go."""
        self._step_s, self._chance = step_s, chance

    def passes(self, point: Point, step: int = 0) -> None:
        """Pass a marked point, and take longer for it while this process is slow."""
        scheduler = RUNNING()
        scheduler.point(point.value)
        if self._step_s and point is Point.PUSH and step != self._step:
            self._step = step
            scheduler.block("its computing", scheduler.now + self._step_s * self._chance.uniform(0.5, 1.5))
        if scheduler.now < self._slow_until_s:
            scheduler.block("a slow processor", scheduler.now + self._pause_s)

    def slow_until(self, moment_s: float, pause_s: float) -> None:
        """Take `pause_s` longer to each point until that virtual time."""
        self._slow_until_s, self._pause_s = moment_s, pause_s

    def disk(self, file: Written) -> Written:
        """Return `file` itself: disks have their own faults."""
        return file


@dataclass
class Member:
    """One process: what it is to run, and how it ended.

    Attributes:
        name: `worker 1`.
        job: of the run, with the address of its coordinator.
        process: of this life.
        model: the file that worker 0 saves.
        results: of a worker that has told them.
        code: its exit code; None until it has ended.
        ended_s: the virtual time at which it has.
        words: the line that it ends with where something went wrong.
        interrupts: signals of this process, once it handles them.
        traceback: of an error that is none of the project's.
        leaves: whether it was asked to end alone, so that another one takes its place.
        agent: the life of the agent that runs this worker; 0 where none does.
        attends: the life of an agent's process, in the place of a server's or worker's.
        children: processes that it has started, which end with it.
        saw_end: whether it has returned because its run has ended, finished or stopped.
        was_stuck: whether it has ended itself because nothing moved in it any more.
    """

    name: str
    job: Job
    process: Process
    model: Path
    results: dict[str, Any] | None = None
    code: int | None = None
    ended_s: float = math.inf
    words: str = ""
    traceback: str = ""
    interrupts: Interrupts | None = None
    chaos: MarkedPoints = field(default_factory=MarkedPoints)
    given_up: str = ""
    leaves: bool = False
    saw_end: bool = False
    was_stuck: bool = False
    is_settled: bool = False
    agent: int = 0
    attends: Callable[[Interrupts], int] | None = None
    children: list[Member] = field(default_factory=list)

    def live(self) -> None:
        """Be this process, until its last line."""
        role, rank = self.name.split()
        interrupts = self.interrupts = Interrupts()
        interrupts.leaves = self.agent != 0
        run: Callable[[int, Interrupts], int] = self._serve if role == "server" else self._work
        try:
            code = run(int(rank), interrupts) if self.attends is None else self.attends(interrupts)
            self.saw_end = True
        except TaihuError as error:
            code, self.words = error.exit_code, str(error)
        except Exception as error:
            code, self.words, self.traceback = FAILED, repr(error), traceback.format_exc()
        self.code, self.ended_s = code, RUNNING().now

    def _serve(self, index: int, interrupts: Interrupts) -> int:
        coordinator = self.job.cluster.coordinator or ""
        options = ServerOptions(
            index,
            bind=coordinator if index == 0 else "127.0.0.1:0",
            interrupts=interrupts,
            chaos=self.chaos,
            notices=Notices(),
        )
        with ServerDaemon(self.job, options) as daemon:
            state = daemon.run()
        return EXIT_INTERRUPTED if state is RunState.STOPPED else 0

    def _work(self, rank: int, interrupts: Interrupts) -> int:
        listener = None
        listen = listen_options(self.job, "worker", rank, bind=self._bind(rank))
        if self.job.workers_meet:
            listener = listen_for_peers(self.job, rank, listen)
        options = WorkerOptions(
            rank,
            agent=self.agent,
            listen=listen,
            listener=listener,
            files=RunFiles(model=self.model) if rank == 0 else RunFiles(),
            interrupts=interrupts,
            tell=self._tell,
            chaos=self.chaos,
            wall=WallClock(),
        )
        results = WorkerDaemon(self.job, options).run()
        return EXIT_INTERRUPTED if results["stopped"] else 0

    def _bind(self, rank: int) -> str:
        if not self.job.workers_meet:
            return ""
        return (self.job.cluster.coordinator or "") if rank == 0 else "127.0.0.1:0"

    def _tell(self, results: dict[str, Any]) -> None:
        self.results = results


def took_part(lives: Sequence[Member]) -> Member:
    """The life of a member that took part: a launcher may have started two at a time.

    One that has told results is asked first: its twin ends well, too, when it hears that the run has finished. One
    that was interrupted comes next, as its twin may wait for a run that is over; of those that were to leave one that
    was there until the run was stopped. Of others the last to end is taken: one that finds its place taken ends at
    once.
    """
    return max(
        lives,
        key=lambda each: (
            each.code == 0 and each.results is not None,
            each.code == 0,
            each.code == EXIT_INTERRUPTED and (each.saw_end or not each.leaves),
            each.ended_s,
        ),
    )
