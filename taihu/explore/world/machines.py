"""Machines of a simulated world that come and go: the process of an agent, and the workers that it runs."""

from __future__ import annotations

import signal
from collections.abc import Callable, Collection, Sequence
from typing import cast

from taihu.agent.agent import Agent
from taihu.agent.attending import Attending
from taihu.core.coordination.coordinator.service import new_incarnation
from taihu.core.job import Job
from taihu.core.process.entry import EXIT_INTERRUPTED, Interrupts
from taihu.explore.scheduler import RUNNING
from taihu.explore.world.members import Member
from taihu.explore.world.processes import SimulatedProcesses, raise_for, wait_for
from taihu.local.processes.processes import LocalProcesses
from taihu.local.processes.stuck import LastingNames


def agents_life(host: str, job: Job, processes: SimulatedProcesses) -> Callable[[Interrupts], int]:
    """The life of an agent on a machine of that name, as `taihu.agent.living` leads it."""

    def live(interrupts: Interrupts) -> int:
        life = new_incarnation()
        machine = Machine(host, life, processes, job.cluster.lost_after_s)
        attending = Attending(job, life, host)

        def arguments(rank: int, beside: int) -> list[str]:
            return ["--rank", str(rank)]

        workers = cast(LocalProcesses, machine)
        try:
            return Agent(job, workers, arguments, attending=attending, interrupts=interrupts).run()
        finally:
            machine.stop()

    return live


class Machine:
    """The workers of one agent. It has what `taihu.agent.agent` uses of `LocalProcesses`.

    Args:
        host: its name, which is that of its agent.
        agent: the life of that.
        processes: of the whole run.
        lost_after_s: the time after which a worker that is stopped is ended.
    """

    def __init__(self, host: str, agent: int, processes: SimulatedProcesses, lost_after_s: float) -> None:
        self._host = host
        self._agent = agent
        self._processes = processes
        self._workers: dict[str, Member] = {}
        self._stopped = LastingNames(lost_after_s)

    def start(self, name: str, module: str, arguments: Sequence[str]) -> None:
        """Start a worker; its name tells which one that is."""
        self.replace(name)

    def replace(self, name: str) -> None:
        """Start a worker in the place of one that has ended."""
        worker = self._workers[name] = self._processes.start(name, host=self._host, agent=self._agent)
        self._processes.member(self._host).children.append(worker)

    def dismiss(self, name: str) -> None:
        """End a worker at once, if it has not ended, and forget it."""
        self._processes.end(self._workers.pop(name))

    def check(self, awaiting: Collection[str] = ()) -> bool:
        """Whether all have ended, well or interrupted; see `LocalProcesses.check`."""
        raise_for(list(self._workers.values()), (0, EXIT_INTERRUPTED, None), apart_from=awaiting)
        return not self.living and not awaiting

    def end_stopped(self) -> None:
        """End workers that have been stopped for too long."""
        self._processes.end_lasting(list(self._workers.values()), self._stopped)

    def wait(self, timeout_s: float) -> None:
        """Return when all have ended, or after so long."""
        wait_for(lambda: self.living, timeout_s)

    def stop(self) -> None:
        """Have all end: they get SIGTERM, and are killed when their agent has ended."""
        RUNNING().point("end workers")
        for worker in self._workers.values():
            if worker.code is None:
                self._processes.signal(worker.process, signal.SIGTERM)

    @property
    def living(self) -> list[str]:
        """The workers that have not ended."""
        return [name for name, worker in self._workers.items() if worker.code is None]

    @property
    def interrupted(self) -> list[str]:
        """The workers that have ended because they were asked to."""
        return [name for name, worker in self._workers.items() if worker.code == EXIT_INTERRUPTED]
