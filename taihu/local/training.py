"""A whole run on this machine: real daemons, watched to the end, and their results put together."""

from __future__ import annotations

import importlib
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from taihu.errors import ConfigError, RunError
from taihu.job import Job, job_to_toml
from taihu.job.machine import share_of_threads
from taihu.local.display import Display
from taihu.local.own_token import kept_for_commands, security_of_run
from taihu.local.processes import LocalProcesses
from taihu.local.results import results_of
from taihu.local.successors import Successors
from taihu.local.supervision import Supervision
from taihu.process.entry import InterruptedRunError, Interrupts
from taihu.results import read_json
from taihu.run_folder import CHAOS, CHECKPOINTS, RunFiles
from taihu.settings import ChaosSettings, CheckpointSettings, RunSettings
from taihu.trace import merge_parts

__all__ = ["LocalTraining"]


@dataclass(frozen=True)
class LocalTraining:
    """`taihu train`: the job's servers, if it has any, and workers on this machine.

    Logs go to `logs`, else into the run's folder, else to a temporary one that is kept only when the run fails. The
    first of the `interrupts` stops the run in order. `forks` says that this process holds nothing but the run: its
    daemons may be forks of it.
    """

    job: Job
    files: RunFiles = field(default_factory=RunFiles)
    logs: Path | None = None
    trace: Path | None = None
    trace_steps: str | None = None
    interrupts: Interrupts = field(default_factory=Interrupts)
    forks: bool = False

    def run(self, display: Display) -> dict[str, Any]:
        """Train to the end, or until a stop, and return the results.

        Raises:
            DaemonFailedError: a daemon ended before its time, all others have been ended; if it was killed, there are
                no checkpoints to go on from, or this happened too often.
            InterruptedRunError: interrupted when there was nothing to save, or for the second time.
        """
        with self._log_folder() as logs, tempfile.TemporaryDirectory(prefix="taihu-") as name:
            folder = Path(name)
            try:
                lost_after_s = self.job.cluster.lost_after_s
                security = security_of_run(self.job)
                with (
                    LocalProcesses(
                        logs, fork=self.forks, lost_after_s=lost_after_s, token=security.token
                    ) as processes,
                    ExitStack() as kept,
                ):
                    job = self.job.model_copy(update={"checkpoint": self._checkpoint_settings()})
                    successors = Successors(job, processes, display, self.files.folder)
                    coordinator = self._start(processes, successors, folder)
                    kept.enter_context(kept_for_commands(security, coordinator))
                    supervision = Supervision(
                        job,
                        processes,
                        successors,
                        has_told=lambda name: _result_of(folder, name).exists(),
                        display=display,
                        interrupts=self.interrupts,
                        security=security,
                    )
                    supervision.watch(coordinator)
                    if not all(path.exists() for path in self._result_files(folder)):
                        processes.raise_if_interrupted()
            finally:
                self._merge_trace(folder)
            servers = [path for path in self._server_files(folder) if path.exists()]
            results = results_of(
                self.job,
                [read_json(path) for path in self._result_files(folder)],
                [read_json(path) for path in servers],
            )
            return {**results, "trace": self._trace_file}

    @property
    def _trace_file(self) -> str | None:
        return str(self.trace.absolute()) if self.trace is not None and self.trace.exists() else None

    def _trace_arguments(self, folder: Path, name: str) -> list[str]:
        if self.trace is None:
            return []
        steps = [] if self.trace_steps is None else ["--trace-steps", self.trace_steps]
        return ["--trace", str(_trace_part(folder, name)), *steps]

    def _merge_trace(self, folder: Path) -> None:
        """Put the processes' parts together; of a run that failed, those that are there."""
        if self.trace is not None:
            parts = [_trace_part(folder, name) for name, _, _ in self._members(folder)]
            with suppress(RunError):  # a run that failed before it began has none
                merge_parts(parts, self.trace)

    def _start(self, processes: LocalProcesses, successors: Successors, folder: Path) -> str:
        """Start everything; returns the coordinator's address."""
        if processes.forks:
            # Before anybody waits for the others: kernels may have to be compiled.
            importlib.import_module("worker.first_step").load_first_step(self.job)
        own_threads = {"coordinator": None, "threads": share_of_threads(self.job)}
        local = self.job.cluster.model_copy(update=own_threads)
        job_file = folder / "job.toml"
        # What was not given stays so: its default may depend on other settings.
        own = {
            "cluster": local,
            "run": self._run_settings(),
            "checkpoint": self._checkpoint_settings(),
            "chaos": self._chaos_settings(folder),
        }
        given = self.job.model_copy(update=own)
        job_file.write_text(job_to_toml(given, given=True))
        common = [str(job_file), "--log-format", "json"]
        (first, module, arguments), *others = self._members(folder)
        of_first = [*_rank_of(first), *common, *arguments]
        coordinator = successors.first(lambda: processes.start_listening(first, module, of_first))
        for name, module, arguments in others:
            processes.start(name, module, [*_rank_of(name), *common, "--coordinator", coordinator, *arguments])
        if successors.recovers:
            processes.stand_by()
        return coordinator

    def _run_settings(self) -> RunSettings:
        """The run's settings for worker 0; the results of all workers together are written here."""
        folder = self.files.folder.absolute() if self.files.folder else Path("none")
        model = self.files.model.absolute() if self.files.model else self.job.run.save
        own = {"dir": folder, "save": model, "results": Path("none"), "history": self._history}
        return self.job.run.model_copy(update=own)

    @property
    def _history(self) -> Path | None:
        """The folder of the processes' histories, in the run's folder unless it is said otherwise."""
        folder = self.job.history_folder
        return folder if folder is None else ((self.files.folder or Path()) / folder).absolute()

    def _checkpoint_settings(self) -> CheckpointSettings:
        """Checkpoints lie in the run's folder, if nothing else was said."""
        own = self.job.checkpoint
        if own.dir is not None or self.files.folder is None:
            return own
        return own.model_copy(update={"dir": self.files.folder.absolute() / CHECKPOINTS})

    def _chaos_settings(self, folder: Path) -> ChaosSettings:
        """Faults are noted in the run's folder, if nothing else was said; without one, for as long as it runs."""
        own = self.job.chaos
        if own.dir is not None or not own.is_asked_for:
            return own
        return own.model_copy(update={"dir": (self.files.folder or folder).absolute() / CHAOS})

    def _members(self, folder: Path) -> Iterator[tuple[str, str, list[str]]]:
        """Name, module and arguments of every process; the first one is the coordinator."""
        bind = ["--bind", "127.0.0.1:0"]
        for index, result in enumerate(self._server_files(folder)):
            name = f"server {index}"
            arguments = ["--json", str(result), *self._trace_arguments(folder, name)]
            yield name, "ps_server", [*arguments, *bind]
        for rank, result in enumerate(self._result_files(folder)):
            name = f"worker {rank}"
            arguments = ["--json", str(result), *self._trace_arguments(folder, name)]
            if rank == 0 and self.files.folder is not None:
                arguments.append("--run-dir-is-made")
            yield name, "worker", [*arguments, *bind] if self.job.workers_meet else arguments

    def _result_files(self, folder: Path) -> list[Path]:
        return [_result_of(folder, f"worker {rank}") for rank in range(self.job.cluster.workers)]

    def _server_files(self, folder: Path) -> list[Path]:
        return [_result_of(folder, f"server {index}") for index in range(self.job.servers)]

    @contextmanager
    def _log_folder(self) -> Iterator[Path]:
        logs = self.logs or (self.files.folder and self.files.folder / "logs")
        if logs is not None:
            try:
                logs.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise ConfigError(f"cannot write logs to {logs}: {error.strerror}") from None
            yield logs
            return
        folder = Path(tempfile.mkdtemp(prefix="taihu-logs-"))
        try:
            yield folder
        except InterruptedRunError:  # whose message names no log
            shutil.rmtree(folder, ignore_errors=True)
            raise
        shutil.rmtree(folder)


def _rank_of(name: str) -> list[str]:
    """The option of the rank in `server 1`; it comes first, so that `ps` has room for it."""
    return ["--rank", name.partition(" ")[2]]


def _result_of(folder: Path, name: str) -> Path:
    return folder / f"{name.replace(' ', '-')}.json"


def _trace_part(folder: Path, name: str) -> Path:
    return folder / f"trace-{name.replace(' ', '-')}.json"
