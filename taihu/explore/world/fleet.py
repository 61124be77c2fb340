"""A launcher of machines that come and go: agents run the workers, and nobody takes the place of a lost machine."""

from __future__ import annotations

import signal
from typing import Final

from taihu.core.base.errors import TaihuError
from taihu.core.job import Job
from taihu.core.process.entry import Interrupts
from taihu.explore.cases import Machines
from taihu.explore.scheduler import RUNNING
from taihu.explore.world.machines import agents_life
from taihu.explore.world.processes import SimulatedProcesses, lost_ones

_LOOK_S: Final = 0.05
_ANOTHER_AFTER_S: Final = 2.0
_MOST_LIVES: Final = 12
_MOST_MACHINES: Final = 10


class Fleet:
    """Starts servers, or worker 0 of a ring, and again where they are lost; machines come when they are to.

    Where fewer are left than the run needs, and none is about to come, another one does a while later.

    Attributes:
        interrupts: None: it takes no Ctrl-C.
        error: None: it watches nobody's end.
        lines: none: it says nothing.
    """

    def __init__(self, machines: Machines, job: Job, processes: SimulatedProcesses) -> None:
        self.interrupts: Interrupts | None = None
        self.error: TaihuError | None = None
        self.lines: list[str] = []
        self._machines = machines
        self._job = job
        self._processes = processes
        self._due: list[float] = []
        self._came = self._lives = 0
        self._is_ending = False

    def run(self, members: list[str]) -> None:
        """Start all, and return when all have ended."""
        scheduler = RUNNING()
        hosts = [name for name in members if name.startswith("server")] or members[:1]
        self._due = [scheduler.now + after_s for after_s in self._machines.arrivals]
        for name in hosts:
            self._processes.start(name)
        while self._processes.living or self._due:
            self._look(hosts, scheduler.now)
            scheduler.block("processes to end", scheduler.now + _LOOK_S)

    def ask_to_end(self) -> None:
        """A Ctrl-C for all: it ends the run, and nobody comes any more."""
        self._is_ending = True
        for member in (*self._processes.all, *self._processes.former):
            if member.code is None:
                self._processes.signal(member.process, signal.SIGTERM)

    def _look(self, hosts: list[str], now: float) -> None:
        """Start who is due, as long as the run goes on."""
        lost = [] if self._is_ending else [name for name in lost_ones(self._processes) if name in hosts]
        for name in lost if self._lives < _MOST_LIVES else ():
            self._lives += 1
            self._processes.start(name)
        goes_on = not (self._is_ending or self._processes.any_has_ended)
        if not (goes_on and set(hosts) & set(self._processes.living)):
            self._due.clear()
        elif not self._due and len(self._staying) < self._machines.least and self._came < _MOST_MACHINES:
            self._due.append(now + _ANOTHER_AFTER_S)
        come = [at_s for at_s in self._due if at_s <= now]
        self._due = [at_s for at_s in self._due if at_s > now]
        for _ in come:
            self._come()

    def _come(self) -> None:
        name = f"agent {self._came}"
        self._came += 1
        self._processes.start(name, attends=agents_life(name, self._job, self._processes))

    @property
    def _staying(self) -> list[str]:
        """Machines that live, and are not about to leave."""
        all_ = self._processes.all
        return [each.name for each in all_ if each.attends is not None and each.code is None and not each.leaves]
