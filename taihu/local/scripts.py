"""A user's script as the workers of a run on this machine, beside the servers that the job wants."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, NoReturn

from taihu.core.base.errors import ConfigError, RunError
from taihu.core.base.whole_file import write_text
from taihu.core.job import Job, job_to_toml
from taihu.core.job.run_folder import CHECKPOINTS, RunFiles
from taihu.core.job.variables import variable_of
from taihu.core.process.entry import Interrupts
from taihu.core.process.lives import passing_folder
from taihu.core.process.results import read_json
from taihu.core.security.security import Security
from taihu.core.settings import CheckpointSettings, RunSettings
from taihu.local.display import Display
from taihu.local.ground import Ground, OneMachine, ScriptProcesses
from taihu.local.own_token import kept_for_commands
from taihu.local.process_files import ProcessFiles, log_folder
from taihu.local.processes import DaemonFailedError
from taihu.local.results import results_of
from taihu.local.script_lives import ScriptLives
from taihu.local.watching import StatusWatch

__all__ = ["GRACE_S", "ScriptRun", "check_script"]

_LOOK_S: Final = 0.05
_STATUS_S: Final = 0.5
_CONSEQUENCES_S: Final = 4.0
# The time that processes have to end which did not when they were asked to.
_LAST_S: Final = 1.0
GRACE_S: Final = 30.0
"""The time that a script has to save behind a signal; schedulers kill after as long."""
_SCRIPT: Final = "taihu.torch.script"
_SERVER: Final = ("taihu.ps_server.command", "taihu.ps_server.daemon")


def check_script(script: Path) -> None:
    """Check what can be known to be wrong before anything is made.

    Raises:
        ConfigError: there is no such script, or no PyTorch.
    """
    if not script.is_file():
        raise ConfigError(f"script {script}: no such file; give the path of a Python script")
    if find_spec("torch") is None:
        raise ConfigError(
            "PyTorch is not installed for this Python: pip install torch, or taihu with the extra 'torch'"
        )


@dataclass(frozen=True)
class ScriptRun:
    """`taihu run`: servers, and as many processes of a script as the job has workers.

    Worker 0 writes to this process's output; what all others say goes into `logs`, else into the run's folder, else
    into a temporary one that is kept when the run fails.

    Attributes:
        job: of the run.
        script: a Python file, see `check_script`.
        arguments: for the script.
        files: of the run; its folder is there.
        logs: a folder.
        trace, trace_steps: the trace of the run, as `ProcessFiles` has them.
        metrics_port: of worker 0's page of metrics, those of others follow; 0 for free ones, None for no pages.
        interrupts: the first one is passed to all processes of the script.
        grace_s: the time that these have then; the second one ends them at once.
        forks: whether the processes may be forks of this one, which holds nothing but the run.
        ground: the machines on which they run.
    """

    job: Job
    script: Path
    arguments: Sequence[str]
    files: RunFiles = field(default_factory=RunFiles)
    logs: Path | None = None
    trace: Path | None = None
    trace_steps: str | None = None
    metrics_port: int | None = None
    interrupts: Interrupts = field(default_factory=Interrupts)
    grace_s: float = GRACE_S
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
        imported = (_SCRIPT, *(_SERVER if self.job.servers else ())) if self._is_forked else ()
        security = self.ground.security(self.job)
        with log_folder(self.logs, self.files) as logs, passing_folder() as folder:
            files = ProcessFiles(folder, self.trace, self.trace_steps)
            lives = ScriptLives(self._kept_in, self.job.checkpoint.restarts)
            try:
                lost_after_s = self.job.cluster.lost_after_s
                with self.ground.processes(
                    logs, folder, fork=imported, lost_after_s=lost_after_s, token=security.token
                ) as processes:
                    while True:
                        try:
                            self._live(processes, files, display, security, lives)
                            break
                        except DaemonFailedError as error:
                            self._pause(lives.pause_s(error, time.monotonic()), error, display)
                            self._end_all(processes, files)
            finally:
                files.merge_trace([*self._servers, *self._workers], display.warn)
            return self._results(files), bool(self._used_by(files))

    def _live(
        self,
        processes: ScriptProcesses,
        files: ProcessFiles,
        display: Display,
        security: Security,
        lives: ScriptLives,
    ) -> None:
        """One life of the script's processes: from their start until all have ended."""
        coordinator = self._start_servers(processes, files)
        status = StatusWatch(coordinator, display, security)
        # From its first moment on a script may have something to save.
        with kept_for_commands(security, coordinator), self.interrupts.offered_to(lambda reason: True):
            self._start_workers(processes, files, coordinator, lives)
            self._watch(processes, status, files, display, lives)

    def _pause(self, pause_s: float, error: DaemonFailedError, display: Display) -> None:
        """Say that all begin again, and wait so long; raises InterruptedRunError where a signal comes first."""
        display.say(f"{error.end}; all processes of the script are started again, and go on from their state")
        until_s = time.monotonic() + pause_s
        while time.monotonic() < until_s:
            if self.interrupts.reason:
                raise self.interrupts.error(self.interrupts.reason)
            time.sleep(_LOOK_S)

    def _end_all(self, processes: ScriptProcesses, files: ProcessFiles) -> None:
        """End all processes; what they have told is of a life that is over."""
        for name in processes.names:
            processes.dismiss(name)
        for name in (*self._workers, *self._servers):
            files.results(name).unlink(missing_ok=True)

    @property
    def _kept_in(self) -> Path | None:
        """The folder in which scripts keep their state: the job's, or one in the run's folder."""
        folder = self.job.checkpoint.dir
        if folder is None and self.files.folder is not None and self.ground.shares(self.files.folder):
            return self.files.folder.absolute() / CHECKPOINTS
        return folder.absolute() if isinstance(folder, Path) and folder != Path("none") else None

    @property
    def _is_forked(self) -> bool:
        return self.forks and self.job.world.workers > 1

    def _watch(
        self,
        processes: ScriptProcesses,
        status: StatusWatch,
        files: ProcessFiles,
        display: Display,
        lives: ScriptLives,
    ) -> None:
        looked = time.monotonic()
        try:
            while not processes.check():
                if self.interrupts.reason:
                    self._stop(processes, display)
                time.sleep(_LOOK_S)
                if set(processes.living) <= set(self._servers) and not self._used_by(files):
                    for name in processes.living:  # they would wait for workers that never come
                        processes.settle(name)
                if time.monotonic() - looked > _STATUS_S:
                    looked = time.monotonic()
                    self._look(processes, status, files)
        except DaemonFailedError as error:
            if lives.may_follow(error):
                raise
            # What one failure leads to elsewhere ends within a moment; the cause is told, not the consequence.
            processes.wait_for_words(_CONSEQUENCES_S)
            processes.check()
            raise

    def _look(self, processes: ScriptProcesses, status: StatusWatch, files: ProcessFiles) -> None:
        """Show how the run goes; raises RunError where a worker waits for one that has ended without taking part."""
        processes.end_stopped()
        if not processes.any_has_ended:
            status.show()
            return
        joining = {name for name in self._workers if _joins(files.results(name))}
        departed = [name for name in self._workers if name not in processes.living and name not in joining]
        waiting = [name for name in self._workers if name in processes.living and name in joining]
        if departed and waiting:
            raise RunError(
                f"{departed[0]} has ended (exit code 0) before its first DistributedOptimizer while {waiting[0]} "
                f"waits in it; have all workers of the script make it; log: {processes.log_of(departed[0])}"
            )

    def _stop(self, processes: ScriptProcesses, display: Display) -> NoReturn:
        """Pass the signal to the script's processes, which may save, and end when they have.

        Raises:
            InterruptedRunError: whether they have ended in time or not; at once where a second signal comes.
        """
        reason, number = self.interrupts.reason, self.interrupts.number
        display.say(
            f"{reason}: the script's processes are told, and have {self.grace_s:g} s; press Ctrl-C to end them"
        )
        end = f"all processes of the script are ended, for they have not within {self.grace_s:g} s"
        try:
            for name in self._workers:
                processes.signal(name, number)
            until_s = time.monotonic() + self.grace_s
            while time.monotonic() < until_s:
                processes.wait(_LOOK_S)
                if set(processes.living) <= set(self._servers):
                    end = "all processes of the script have ended"
                    break
            raise self.interrupts.error(f"{reason}: {end}")
        finally:
            self.interrupts.ignore()
            processes.stop(_LAST_S)

    def _start_servers(self, processes: ScriptProcesses, files: ProcessFiles) -> str:
        """Write the job and start the servers; returns the coordinator's address."""
        job_file = _job_file(files)
        own = {
            "cluster": self.job.cluster.model_copy(update={"coordinator": None}),
            "run": self._run_settings(),
            "checkpoint": CheckpointSettings(),
        }
        write_text(job_file, job_to_toml(self.job.model_copy(update=own), given=True))
        coordinator = ""
        for index, name in enumerate(self._servers):
            options = ["--log-format", "json", *self.ground.listening(name), *files.arguments(name)]
            if self.metrics_port:
                options += ["--metrics-port", str(self.metrics_port + self.job.world.workers + index)]
            arguments = ["--rank", str(index), str(job_file), *options]
            if coordinator:
                processes.start(name, "taihu.ps_server", [*arguments, "--coordinator", coordinator])
            else:
                coordinator = processes.start_listening(name, "taihu.ps_server", arguments)
        return coordinator or self.ground.coordinator()

    def _start_workers(
        self, processes: ScriptProcesses, files: ProcessFiles, coordinator: str, lives: ScriptLives
    ) -> None:
        """Start the script's processes."""
        for rank, (name, place) in enumerate(zip(self._workers, self.ground.places(self.job), strict=True)):
            variables = {
                "JOB": str(_job_file(files)),
                "RANK": str(rank),
                "CLUSTER__COORDINATOR": coordinator,
                **self._options(rank, files),
                **self._kept(lives),
                "LOG": str(processes.log_of(name).absolute()),
            }
            environment = processes.environment() | {variable_of(key): value for key, value in variables.items()}
            environment |= place.variables
            # Libraries take all cores otherwise.
            environment.setdefault("OMP_NUM_THREADS", str(place.threads))
            command = [_SCRIPT, str(os.getpid()), str(self.script), *self.arguments]
            processes.run(name, command, environment, is_shown=rank == 0)
        if lives.are_possible and not lives.count:
            processes.stand_by()

    def _kept(self, lives: ScriptLives) -> Mapping[str, str]:
        """The settings of `[checkpoint]`, by the variables that give them: they are the script's alone."""
        settings = self.job.checkpoint
        if (folder := settings.dir if lives.folder is None else lives.folder) is None:
            return {}
        numbers = settings.model_dump(mode="json", include=settings.model_fields_set - {"dir", "resume"})
        told = {key: json.dumps(value) for key, value in numbers.items()}
        places = {"dir": folder, "resume": settings.resume}
        told |= {key: str(place) for key, place in places.items() if place is not None}
        kept = {f"CHECKPOINT__{key.upper()}": value for key, value in told.items() if value != "null"}
        return {"LIVES": str(lives.count), **kept}

    def _options(self, rank: int, files: ProcessFiles) -> Mapping[str, str]:
        """The options of a worker, by the variables that give them."""
        name = self._workers[rank]
        options = {"JSON": str(files.results(name))}
        if (part := files.trace_part(name)) is not None:
            options["TRACE"] = str(part)
        if self.trace_steps is not None:
            options["TRACE_STEPS"] = self.trace_steps
        if self.metrics_port is not None:
            options["METRICS_PORT"] = str(self.metrics_port and self.metrics_port + rank)
        if self.files.folder is not None:
            options["RUN_DIR_IS_MADE"] = "1"
        return options

    def _run_settings(self) -> RunSettings:
        """The run's settings for worker 0; the results of all workers together are written by who started them."""
        folder = self.files.folder.absolute() if self.files.folder else Path("none")
        return self.job.run.model_copy(update={"dir": folder, "save": Path("none"), "results": Path("none")})

    def _results(self, files: ProcessFiles) -> dict[str, Any] | None:
        workers = [read_json(path) for path in self._used_by(files)]
        if len(workers) < len(self._workers) or not all(worker["steps"] for worker in workers):
            return None
        servers = [read_json(path) for path in map(files.results, self._servers) if path.exists()]
        results = results_of(self.job, workers, servers)
        return {**results, "script": self.script.name, "trace": files.merged_trace}

    def _used_by(self, files: ProcessFiles) -> list[Path]:
        """Results that workers which have used taihu.torch have left."""
        return [path for path in map(files.results, self._workers) if path.exists()]

    @property
    def _workers(self) -> list[str]:
        return [f"worker {rank}" for rank in range(self.job.world.workers)]

    @property
    def _servers(self) -> list[str]:
        return [f"server {index}" for index in range(self.job.servers)]


def _job_file(files: ProcessFiles) -> Path:
    return files.folder / "job.toml"


def _joins(results: Path) -> bool:
    """Whether a worker has come to what all of them begin together."""
    return results.exists() and bool(read_json(results).get("joins", True))
