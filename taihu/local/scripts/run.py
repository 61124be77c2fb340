"""A user's script as the workers of a run on this machine, beside the servers that the job wants."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from taihu.core.base.words import counted
from taihu.core.job import Job, revised
from taihu.core.job.run_folder import CHECKPOINTS, RunFiles
from taihu.core.process.lives import passing_folder
from taihu.core.process.results import read_json
from taihu.core.system.clocks import monotonic, sleep
from taihu.local.display.display import Display
from taihu.local.processes.process_files import ProcessFiles, log_folder
from taihu.local.processes.processes import DaemonFailedError
from taihu.local.results import results_of
from taihu.local.scripts.ground import Ground, OneMachine
from taihu.local.scripts.life import SCRIPT, Members, Script, ScriptLife
from taihu.local.scripts.lives import Numbers, ScriptLives

_LOOK_S: Final = 0.05
_TAKES_ITS_PLACE: Final = "another process takes its place, and all go on behind their last step"
_SERVER: Final = ("taihu.ps_server.command", "taihu.ps_server.daemon")


@dataclass(frozen=True)
class ScriptRun:
    """`taihu run`: the lives of a script's processes, from the first one's start to the last one's end.

    Worker 0 writes to this process's output; what all others say goes into `logs`, else into the run's folder, else
    into a temporary one that is kept when the run fails.

    Attributes:
        job: of the run, with the workers of its first life.
        script: that runs.
        numbers: of workers that it may have.
        files: of the run; its folder is there.
        logs: a folder.
        trace: the file of the run's trace.
        forks: whether the processes may be forks of this one, which holds nothing but the run.
        ground: the machines on which they run.
    """

    job: Job
    script: Script
    numbers: Numbers
    files: RunFiles = field(default_factory=RunFiles)
    logs: Path | None = None
    trace: Path | None = None
    forks: bool = False
    ground: Ground = field(default_factory=OneMachine)

    def run(self, display: Display) -> tuple[dict[str, Any] | None, bool]:
        """Start all processes; returns when they have ended.

        Returns:
            The results of the run, None where not every worker has exchanged the gradients of a step, and whether any
            worker has used taihu.torch.

        Raises:
            DaemonFailedError: one ended before its time, all others have been ended.
            InterruptedRunError: it was interrupted.
        """
        # PyTorch is imported once for all of them; a single one imports it as Python does.
        is_forked = self.forks and max(self.job.world.workers, self.numbers.most or 1) > 1
        imported = (SCRIPT, *(_SERVER if self.job.servers else ())) if is_forked else ()
        security = self.ground.security(self.job)
        lives = ScriptLives(self._kept_in, self.job.checkpoint.restarts, self.numbers, self.files.folder)
        with log_folder(self.logs, self.files) as logs, passing_folder() as folder:
            files = ProcessFiles(folder, self.trace, self.script.trace_steps)
            try:
                lost_after_s = self.job.cluster.lost_after_s
                with self.ground.processes(
                    logs, folder, fork=imported, lost_after_s=lost_after_s, token=security.token
                ) as processes:
                    while True:
                        job = revised(self.job, "cluster", workers=lives.workers)
                        life = ScriptLife(
                            job,
                            self.script,
                            self.ground,
                            processes,
                            files=files,
                            folder=self.files.folder,
                            lives=lives,
                            display=display,
                            security=security,
                        )
                        if not self._goes_on(life, lives, display):
                            break
            finally:
                names = Members(job, files)
                files.merge_trace([*names.servers, *names.workers], display.warn)
            return self._results(job, names, files), bool(names.used())

    def _goes_on(self, life: ScriptLife, lives: ScriptLives, display: Display) -> bool:
        """Run one life; whether another one follows, whose number of workers `lives` has."""
        before, lost = lives.workers, ""
        while True:
            try:
                asked = life.run(lost)
                break
            except DaemonFailedError as error:
                pause_s, lost = lives.pause_s(error, monotonic()), error.name
                stay = lives.workers == before and life.others_stay(error)
                display.say(f"{error.end}; {_TAKES_ITS_PLACE if stay else _all_begin_again(before, lives.workers)}")
                self._pause(pause_s)
                if not stay:
                    life.end()
                    return True
        if asked is None:
            return False
        lives.go_on_with(asked)
        display.say(f"asked for {counted(asked, 'worker')}: all processes go on from their state")
        life.end()
        return True

    def _pause(self, pause_s: float) -> None:
        """Wait so long; raises InterruptedRunError where a signal comes first."""
        until_s, interrupts = monotonic() + pause_s, self.script.interrupts
        while monotonic() < until_s:
            if interrupts.reason:
                raise interrupts.error(interrupts.reason)
            sleep(_LOOK_S)

    @property
    def _kept_in(self) -> Path | None:
        """The folder in which scripts keep their state: the job's, or one in the run's folder."""
        folder = self.job.checkpoint.dir
        if folder is None and self.files.folder is not None and self.ground.shares(self.files.folder):
            return self.files.folder.absolute() / CHECKPOINTS
        return folder.absolute() if isinstance(folder, Path) and folder != Path("none") else None

    def _results(self, job: Job, names: Members, files: ProcessFiles) -> dict[str, Any] | None:
        workers = [read_json(path) for path in names.used()]
        if len(workers) < len(names.workers) or not all(worker["steps"] for worker in workers):
            return None
        servers = [read_json(path) for path in map(files.results, names.servers) if path.exists()]
        return {**results_of(job, workers, servers), "script": self.script.path.name, "trace": files.merged_trace}


def _all_begin_again(before: int, workers: int) -> str:
    fewer = "" if workers == before else f"with {counted(workers, 'worker')}, "
    return f"all processes of the script are started again, {fewer}and go on from their state"
