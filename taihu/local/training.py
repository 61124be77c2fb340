"""A whole run on this machine: real daemons, watched to the end, and their results put together."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from taihu.core.base.whole_file import write_text
from taihu.core.job import Job, job_to_toml
from taihu.core.job.machine import share_of_threads
from taihu.core.job.run_folder import CHAOS, CHECKPOINTS, ORDER, RunFiles
from taihu.core.process.entry import Interrupts
from taihu.core.process.lives import passing_folder
from taihu.core.process.results import read_json
from taihu.core.settings import ChaosSettings, CheckpointSettings, RunSettings
from taihu.local.display.display import Display
from taihu.local.own_token import kept_for_commands, security_of_run
from taihu.local.processes.process_files import ProcessFiles, log_folder
from taihu.local.processes.processes import LocalProcesses
from taihu.local.processes.successors import Successors
from taihu.local.processes.supervision import Supervision
from taihu.local.results import results_of


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
        with log_folder(self.logs, self.files) as logs, passing_folder() as folder:
            files = ProcessFiles(folder, self.trace, self.trace_steps)
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
                    coordinator = self._start(processes, successors, files)
                    kept.enter_context(kept_for_commands(security, coordinator))
                    supervision = Supervision(
                        job,
                        processes,
                        successors,
                        has_told=lambda name: files.results(name).exists(),
                        display=display,
                        interrupts=self.interrupts,
                        security=security,
                    )
                    supervision.watch(coordinator)
                    if not all(files.results(name).exists() for name in self._workers):
                        processes.raise_if_interrupted()
            finally:
                self._discard_memory()
                files.merge_trace([*self._servers, *self._workers], display.warn)
            servers = [path for path in map(files.results, self._servers) if path.exists()]
            results = results_of(
                self.job,
                [read_json(files.results(name)) for name in self._workers],
                [read_json(path) for path in servers],
            )
            return {**results, "trace": files.merged_trace}

    def _discard_memory(self) -> None:
        """All processes have ended: nobody goes on from what they held."""
        from taihu.core.checkpoint.run_memory import discard_memory  # noqa: PLC0415 - most commands need no arrays

        discard_memory(self.job.model_copy(update={"checkpoint": self._checkpoint_settings()}))

    def _start(self, processes: LocalProcesses, successors: Successors, files: ProcessFiles) -> str:
        """Start everything; returns the coordinator's address."""
        if processes.forks:
            # Before anybody waits for the others: kernels may have to be compiled.
            importlib.import_module("taihu.worker.first_step").load_first_step(self.job)
        own_threads = {"coordinator": None, "threads": share_of_threads(self.job)}
        local = self.job.cluster.model_copy(update=own_threads)
        job_file = files.folder / "job.toml"
        # What was not given stays so: its default may depend on other settings.
        own = {
            "cluster": local,
            "run": self._run_settings(),
            "checkpoint": self._checkpoint_settings(),
            "chaos": self._chaos_settings(files.folder),
        }
        given = self.job.model_copy(update=own)
        write_text(job_file, job_to_toml(given, given=True))
        common = [str(job_file), "--log-format", "json"]
        (first, module, arguments), *others = self._members(files)
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
        if not self.job.consistency.is_strict:
            own["order"] = self._order
        return self.job.run.model_copy(update=own)

    @property
    def _history(self) -> Path | None:
        """The folder of the processes' histories, in the run's folder unless it is said otherwise."""
        folder = self.job.history_folder
        return folder if folder is None else ((self.files.folder or Path()) / folder).absolute()

    @property
    def _order(self) -> Path | None:
        """The folder of the servers' orders, in the run's folder unless it is said otherwise."""
        asked = self.job.run.order
        if asked is None and self.files.folder is None:
            return None
        if asked == Path("none"):
            return asked
        return ((self.files.folder or Path()) / (asked or ORDER)).absolute()

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

    def _members(self, files: ProcessFiles) -> Iterator[tuple[str, str, list[str]]]:
        """Name, module and arguments of every process; the first one is the coordinator."""
        bind = ["--bind", "127.0.0.1:0"]
        for name in self._servers:
            yield name, "taihu.ps_server", [*files.arguments(name), *bind]
        for name in self._workers:
            arguments = files.arguments(name)
            if name == self._workers[0] and self.files.folder is not None:
                arguments.append("--run-dir-is-made")
            yield name, "taihu.worker", [*arguments, *bind] if self.job.workers_meet else arguments

    @property
    def _workers(self) -> list[str]:
        return [f"worker {rank}" for rank in range(self.job.world.workers)]

    @property
    def _servers(self) -> list[str]:
        return [f"server {index}" for index in range(self.job.servers)]


def _rank_of(name: str) -> list[str]:
    """The option of the rank in `server 1`; it comes first, so that `ps` has room for it."""
    return ["--rank", name.partition(" ")[2]]
