"""The processes that take the places of killed ones, where the run recovers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

from taihu.core.job import Job
from taihu.core.job.run_folder import add_events
from taihu.core.system.clocks import monotonic, sleep, utc_now
from taihu.local.display.display import Display
from taihu.local.processes.processes import DaemonFailedError, LocalProcesses
from taihu.local.processes.replacing import Replacing

_LOOK_S: Final = 0.03


class Successors:
    """Starts a process again that was killed, if the job allows it, and says so.

    Args:
        job: of the run, with the folder of its checkpoints.
        processes: of the run.
        display: is told.
        run_folder: whose events tell it, too; None for none.
    """

    def __init__(self, job: Job, processes: LocalProcesses, display: Display, run_folder: Path | None) -> None:
        self._job = job
        self._processes = processes
        self._display = display
        self._run_folder = run_folder
        self._replacing = Replacing(job.checkpoint.restarts)
        self.remedy = ""
        """The way to go on where another process may not take a lost one's place any more; "" before that."""

    @property
    def recovers(self) -> bool:
        """Whether other processes take the places of lost ones."""
        # Who only looks on needs no arrays.
        from taihu.core.checkpoint.keepers import recovers  # noqa: PLC0415

        return recovers(self._job)

    @property
    def kept_step(self) -> int:
        """The step of the newest checkpoint of this run; 0 for none."""
        from taihu.core.checkpoint.keepers import checkpoint_folder  # noqa: PLC0415 - see above
        from taihu.core.checkpoint.store import CheckpointStore  # noqa: PLC0415

        checkpoints = checkpoint_folder(self._job)
        return 0 if checkpoints is None else next(iter(CheckpointStore(checkpoints).steps()), 0)

    @property
    def awaited(self) -> frozenset[str]:
        """The processes that are not started again yet."""
        return self._replacing.awaited

    def plan(self, error: DaemonFailedError) -> None:
        """Have another process take the place of one that was killed; raises `error` where it may not, or no more."""
        from taihu.core.checkpoint.keepers import checkpoint_folder, used_up  # noqa: PLC0415 - see above
        from taihu.core.checkpoint.salvage import newest_held, salvage  # noqa: PLC0415

        if not error.was_killed or checkpoint_folder(self._job) is None:
            raise error
        step = max(self.kept_step, newest_held(self._job))
        if not self._replacing.plan(error.name, monotonic(), step):
            if self.recovers:
                salvage(self._job)
                where = self._run_folder or checkpoint_folder(self._job)
                self.remedy = used_up(self._job, f"taihu train --resume {where}" if self.kept_step else "")
            raise error
        self._display.say(f"{error.end}; another process takes its place, and all go on after step {step:,}")
        if self._run_folder is not None:
            now = utc_now().isoformat(timespec="milliseconds")
            add_events(self._run_folder, [{"time": now, "step": step, "event": "restarted", "reason": error.end}])

    def start_due(self) -> None:
        """Start those whose time has come."""
        for name in self._replacing.due(monotonic()):
            self._processes.replace(name)

    def give_up(self, name: str) -> None:
        """Start no other process in that place: the run needs it no more."""
        self._replacing.give_up(name)

    def first(self, start: Callable[[], str]) -> str:
        """The address that a process tells which `start` starts, or starts again because it was killed before."""
        while True:
            try:
                return start()
            except DaemonFailedError as error:
                self.plan(error)
                while not self._replacing.due(monotonic()):
                    sleep(_LOOK_S)
