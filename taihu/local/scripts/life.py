"""One life of a script's processes on this machine: from their start until all have ended."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Final, NoReturn

from taihu.core.base.errors import ConfigError, RunError
from taihu.core.base.whole_file import write_text
from taihu.core.job import Job, job_to_toml
from taihu.core.job.variables import variable_of
from taihu.core.process.entry import Interrupts
from taihu.core.process.results import read_json
from taihu.core.security.security import Security
from taihu.core.settings import CheckpointSettings
from taihu.core.system.clocks import monotonic, sleep
from taihu.local.display.display import Display
from taihu.local.display.watching import StatusWatch
from taihu.local.own_token import kept_for_commands
from taihu.local.processes.process_files import ProcessFiles
from taihu.local.processes.processes import DaemonFailedError
from taihu.local.scripts.ground import Ground, ScriptProcesses, WorkerPlace
from taihu.local.scripts.lives import ScriptLives

_LOOK_S: Final = 0.05
_STATUS_S: Final = 0.5
_CONSEQUENCES_S: Final = 4.0
# The time that processes have to end which did not when they were asked to.
_LAST_S: Final = 1.0
GRACE_S: Final = 30.0
"""The time that a script has to save behind a signal; schedulers kill after as long."""
SCRIPT: Final = "taihu.torch.script"
"""The module that runs a script as a worker."""


@dataclass(frozen=True)
class Script:
    """A user's script, and how its processes are run.

    Attributes:
        path: a Python file, see `check`.
        arguments: for the script.
        metrics_port: of worker 0's page of metrics, those of others follow; 0 for free ones, None for no pages.
        trace_steps: of the trace, as `ProcessFiles` has them.
        interrupts: the first one is passed to all processes of the script.
        grace_s: the time that these have then; the second one ends them at once.
    """

    path: Path
    arguments: Sequence[str] = ()
    metrics_port: int | None = None
    trace_steps: str | None = None
    interrupts: Interrupts = field(default_factory=Interrupts)
    grace_s: float = GRACE_S

    def check(self) -> None:
        """Check what can be known to be wrong before anything is made.

        Raises:
            ConfigError: there is no such script, or no PyTorch.
        """
        if not self.path.is_file():
            raise ConfigError(f"script {self.path}: no such file; give the path of a Python script")
        if find_spec("torch") is None:
            raise ConfigError(
                "PyTorch is not installed for this Python: pip install torch, or taihu with the extra 'torch'"
            )


class Members:
    """The names of a run's processes and their files, in a life with so many workers."""

    def __init__(self, job: Job, files: ProcessFiles) -> None:
        self.workers = [f"worker {rank}" for rank in range(job.world.workers)]
        self.servers = [f"server {index}" for index in range(job.servers)]
        self._files = files

    def used(self) -> list[Path]:
        """Results that workers which have used taihu.torch have left."""
        return [path for path in map(self._files.results, self.workers) if path.exists()]

    def forget(self) -> None:
        """The results that are there are of a life that is over."""
        for name in (*self.workers, *self.servers):
            self._files.results(name).unlink(missing_ok=True)


class ScriptLife:
    """The servers, and as many processes of a script as the job has workers.

    Args:
        job: of this life.
        script: that runs.
        ground: the machines.
        processes: of the run.
        files: of its processes.
        folder: of the run; None where it has none.
        lives: those before.
        display: shows how the run goes.
        security: of the run.
    """

    def __init__(
        self,
        job: Job,
        script: Script,
        ground: Ground,
        processes: ScriptProcesses,
        *,
        files: ProcessFiles,
        folder: Path | None,
        lives: ScriptLives,
        display: Display,
        security: Security,
    ) -> None:
        self._job, self._script, self._ground, self._processes = job, script, ground, processes
        self._files, self._folder, self._lives = files, folder, lives
        self._display, self._security = display, security
        self._names = Members(job, files)
        self._coordinator = ""
        self._places: list[WorkerPlace] = []

    def run(self, in_place_of: str = "") -> int | None:
        """Start all processes, and watch them.

        Args:
            in_place_of: the one that was lost, and is started again alone.

        Returns:
            The number of workers with which another life is to follow this one; None where all have ended.

        Raises:
            DaemonFailedError: one ended before its time.
            InterruptedRunError: a signal has come.
        """
        coordinator = self._coordinator = self._coordinator if in_place_of else self._start_servers()
        status = StatusWatch(coordinator, self._display, self._security)
        # From its first moment on a script may have something to save.
        interrupts = self._script.interrupts.offered_to(lambda reason: True)
        with kept_for_commands(self._security, coordinator), interrupts:
            if in_place_of:
                self._start_again(in_place_of)
            else:
                self._start_workers()
            return self._watch(status)

    def others_stay(self, error: DaemonFailedError) -> bool:
        """Whether all others go on in their processes with one that is started in the place of a killed one."""
        others, living = [name for name in self._names.workers if name != error.name], set(self._processes.living)
        return error.was_killed and bool(others) and all(name in living and self._stays(name) for name in others)

    def _stays(self, name: str) -> bool:
        """Whether a worker has told that it goes on with others in the place of lost ones."""
        results = self._files.results(name)
        return results.exists() and bool(read_json(results).get("stays", False))

    def end(self) -> None:
        """End all processes; what they have told is of a life that is over."""
        for name in self._processes.names:
            self._processes.dismiss(name)
        self._names.forget()

    def _watch(self, status: StatusWatch) -> int | None:
        looked, processes = monotonic(), self._processes
        try:
            while not processes.check():
                if self._script.interrupts.reason:
                    self._stop()
                sleep(_LOOK_S)
                if set(processes.living) <= set(self._names.servers) and not self._names.used():
                    for name in processes.living:  # they would wait for workers that never come
                        processes.settle(name)
                if monotonic() - looked > _STATUS_S:
                    looked = monotonic()
                    self._look(status)
                    if (asked := self._lives.asked()) is not None:
                        return asked
        except DaemonFailedError as error:
            if self._lives.may_follow(error):
                raise
            # What one failure leads to elsewhere ends within a moment; the cause is told, not the consequence.
            processes.wait_for_words(_CONSEQUENCES_S)
            processes.check()
            raise
        return None

    def _look(self, status: StatusWatch) -> None:
        """Show how the run goes; raises RunError where a worker waits for one that has ended without taking part."""
        processes = self._processes
        processes.end_stopped()
        if not processes.any_has_ended:
            status.show()
            return
        workers = self._names.workers
        joining = {name for name in workers if _joins(self._files.results(name))}
        departed = [name for name in workers if name not in processes.living and name not in joining]
        waiting = [name for name in workers if name in processes.living and name in joining]
        if departed and waiting:
            raise RunError(
                f"{departed[0]} has ended (exit code 0) before its first DistributedOptimizer while {waiting[0]} "
                f"waits in it; have all workers of the script make it; log: {processes.log_of(departed[0])}"
            )

    def _stop(self) -> NoReturn:
        """Pass the signal to the script's processes, which may save, and end when they have.

        Raises:
            InterruptedRunError: whether they have ended in time or not; at once where a second signal comes.
        """
        interrupts, grace_s, processes = self._script.interrupts, self._script.grace_s, self._processes
        reason, number = interrupts.reason, interrupts.number
        self._display.say(
            f"{reason}: the script's processes are told, and have {grace_s:g} s; press Ctrl-C to end them"
        )
        end = f"all processes of the script are ended, for they have not within {grace_s:g} s"
        try:
            for name in self._names.workers:
                processes.signal(name, number)
            until_s = monotonic() + grace_s
            while monotonic() < until_s:
                processes.wait(_LOOK_S)
                if set(processes.living) <= set(self._names.servers):
                    end = "all processes of the script have ended"
                    break
            raise interrupts.error(f"{reason}: {end}")
        finally:
            interrupts.ignore()
            processes.stop(_LAST_S)

    def _start_servers(self, former: str = "") -> str:
        """Write the job and start the servers; returns the coordinator's address: the `former` one if any."""
        job_file, metrics_port = _job_file(self._files), self._script.metrics_port
        # Results of all workers together are written by who started them, and scripts keep their own state.
        run = self._job.run.model_copy(
            update={"dir": _absolute(self._folder), "save": Path("none"), "results": Path("none")}
        )
        cluster = self._job.cluster.model_copy(update={"coordinator": None})
        own = {"cluster": cluster, "run": run, "checkpoint": CheckpointSettings()}
        write_text(job_file, job_to_toml(self._job.model_copy(update=own), given=True))
        coordinator = ""
        for index, name in enumerate(self._names.servers):
            options = ["--log-format", "json", *self._ground.listening(name, "" if index else former)]
            options += [*self._files.arguments(name)]
            if metrics_port:
                options += ["--metrics-port", str(metrics_port + len(self._names.workers) + index)]
            arguments = ["--rank", str(index), str(job_file), *options]
            if coordinator:
                self._processes.start(name, "taihu.ps_server", [*arguments, "--coordinator", coordinator])
            else:
                coordinator = self._processes.start_listening(name, "taihu.ps_server", arguments)
        return coordinator or self._ground.coordinator()

    def _start_workers(self) -> None:
        """Start the script's processes."""
        self._places = self._ground.places(self._job)
        for rank in range(len(self._places)):
            self._start_worker(rank)
        if self._lives.are_possible and not self._lives.count:
            self._processes.stand_by()

    def _start_again(self, name: str) -> None:
        """Start a process in the place of a lost one; servers know all workers by their lives, and begin anew."""
        for lost in dict.fromkeys((name, *self._names.servers)):
            self._processes.dismiss(lost)
            self._files.results(lost).unlink(missing_ok=True)
        if self._names.servers:
            self._start_servers(self._coordinator)
        if name in self._names.workers:
            self._start_worker(self._names.workers.index(name))

    def _start_worker(self, rank: int) -> None:
        processes, name, place = self._processes, self._names.workers[rank], self._places[rank]
        variables = {
            "JOB": str(_job_file(self._files)),
            "RANK": str(rank),
            "CLUSTER__COORDINATOR": self._coordinator,
            **self._options(rank),
            **self._kept(),
            "LOG": str(processes.log_of(name).absolute()),
        }
        environment = processes.environment() | {variable_of(key): value for key, value in variables.items()}
        environment |= place.variables
        # Libraries take all cores otherwise.
        environment.setdefault("OMP_NUM_THREADS", str(place.threads))
        command = [SCRIPT, str(os.getpid()), str(self._script.path), *self._script.arguments]
        processes.run(name, command, environment, is_shown=rank == 0)

    def _kept(self) -> Mapping[str, str]:
        """The settings of `[checkpoint]`, by the variables that give them: they are the script's alone."""
        settings, lives = self._job.checkpoint, self._lives
        if (folder := settings.dir if lives.folder is None else lives.folder) is None:
            return {}
        numbers = settings.model_dump(mode="json", include=settings.model_fields_set - {"dir", "resume"})
        told = {key: json.dumps(value) for key, value in numbers.items()}
        places = {"dir": folder, "resume": settings.resume}
        told |= {key: str(place) for key, place in places.items() if place is not None}
        kept = {f"CHECKPOINT__{key.upper()}": value for key, value in told.items() if value != "null"}
        replaces = {"REPLACES": "1"} if lives.are_possible else {}
        return {"LIVES": str(lives.count), **replaces, **kept}

    def _options(self, rank: int) -> Mapping[str, str]:
        """The options of a worker, by the variables that give them."""
        name, port = self._names.workers[rank], self._script.metrics_port
        options = {"JSON": str(self._files.results(name))}
        if (part := self._files.trace_part(name)) is not None:
            options["TRACE"] = str(part)
        if self._script.trace_steps is not None:
            options["TRACE_STEPS"] = self._script.trace_steps
        if port is not None:
            options["METRICS_PORT"] = str(port and port + rank)
        if self._folder is not None:
            options["RUN_DIR_IS_MADE"] = "1"
        return options


def _absolute(folder: Path | None) -> Path:
    return Path("none") if folder is None else folder.absolute()


def _job_file(files: ProcessFiles) -> Path:
    return files.folder / "job.toml"


def _joins(results: Path) -> bool:
    """Whether a worker has come to what all of them begin together."""
    return results.exists() and bool(read_json(results).get("joins", True))
