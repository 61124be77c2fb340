"""Those that start the processes of a run, and start them again: `taihu train`'s supervision, and others' habits."""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import Any, Final, cast

from rich.console import Console

from taihu.core.base.errors import TaihuError
from taihu.core.job import Job
from taihu.core.process.entry import Interrupts
from taihu.explore.scheduler import RUNNING
from taihu.explore.world.processes import SimulatedProcesses, lost_ones
from taihu.local.display.display import PlainDisplay
from taihu.local.processes.processes import LocalProcesses
from taihu.local.processes.successors import Successors
from taihu.local.processes.supervision import Supervision

_LOOK_S: Final = 0.05
_LATE_S: Final = 12.0
# After one has ended well the others are about to: who starts one of them again only keeps it from ending.
_MOST_LIVES: Final = 12


class _Lines:
    """A file of lines: what a display has shown."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def write(self, text: str) -> int:
        """Take lines."""
        self.lines += text.splitlines()
        return len(text)

    def flush(self) -> None:
        """Do nothing."""


class Supervisor:
    """One that starts the processes of a run and watches them.

    Attributes:
        habit: of `taihu.explore.cases.SUPERVISORS`.
        interrupts: its own: a Ctrl-C comes here. None before it has begun, and when all have ended.
        error: the error that it ended with; None where all have ended well.
    """

    def __init__(self, habit: str, job: Job, processes: SimulatedProcesses) -> None:
        self.habit = habit
        self.interrupts: Interrupts | None = None
        self.error: TaihuError | None = None
        self._job = job
        self._processes = processes
        self._shown = _Lines()
        self._is_ending = False

    @property
    def lines(self) -> list[str]:
        """Lines that it has said."""
        return self._shown.lines

    def run(self, members: list[str]) -> None:
        """Start all, and return when all have ended."""
        interrupts = self.interrupts = Interrupts()
        for name in members:
            self._processes.start(name)
        if self.habit == "local":
            self._as_taihu_train(interrupts)
        else:
            HABITS[self.habit](self)
        self.interrupts = None

    def _as_taihu_train(self, interrupts: Interrupts) -> None:
        """The project's own supervision, as `taihu train` uses it."""
        processes = cast(LocalProcesses, self._processes)
        display = PlainDisplay(Console(file=cast(Any, self._shown), width=200))
        successors = Successors(self._job, processes, display, None)
        supervision = Supervision(
            self._job,
            processes,
            successors,
            has_told=lambda name: name in self._processes.told or self._processes.member(name).results is not None,
            display=display,
            interrupts=interrupts,
        )
        try:
            supervision.watch(self._job.cluster.coordinator or "")
        except TaihuError as error:
            self.error = error
            for name in self._processes.living:  # as `LocalProcesses` does at its end
                self._processes.kill(name)

    def ask_to_end(self) -> None:
        """A Ctrl-C: `taihu train` takes it as a wish; others send SIGTERM to all processes, and start none again."""
        self._is_ending = True
        if self.habit == "local":
            RUNNING().interrupt(RUNNING().tasks[0], self._take_interrupt)
            return
        for member in (*self._processes.all, *self._processes.former):
            if member.code is None:
                self._processes.signal(member.process, signal.SIGTERM)

    def _take_interrupt(self) -> None:
        """Take a Ctrl-C as long as there is somebody to end: a run that has ended has no supervisor any more."""
        if self.interrupts is not None:
            self.interrupts.arrived(signal.SIGINT)

    def never(self) -> None:
        """Start nobody again."""
        while self._processes.living:
            RUNNING().block("processes to end", RUNNING().now + _LOOK_S)

    def early(self) -> None:
        """Start a process again as soon as it has ended."""
        self._again_after(0.0)

    def late(self) -> None:
        """Start a process again long after it was given up."""
        self._again_after(_LATE_S)

    def twice(self) -> None:
        """Start a process again, and then once more although that one lives."""
        self._again_after(0.0, times=2)

    def _again_after(self, pause_s: float, times: int = 1) -> None:
        scheduler, due = RUNNING(), dict[str, float]()
        lives = 0
        while True:
            for name in self._lost() if lives < _MOST_LIVES else ():
                due.setdefault(name, scheduler.now + pause_s)
            if not (self._processes.living or due):
                return
            for name in [name for name, at_s in due.items() if at_s <= scheduler.now]:
                del due[name]
                for _ in range(times):
                    lives += 1
                    self._processes.start(name)
            scheduler.block("processes to end", scheduler.now + _LOOK_S)

    def _lost(self) -> list[str]:
        return [] if self._is_ending else lost_ones(self._processes)


HABITS: Final[dict[str, Callable[[Supervisor], None]]] = {
    "never": Supervisor.never,
    "early": Supervisor.early,
    "late": Supervisor.late,
    "twice": Supervisor.twice,
}
"""The habits of other launchers."""
