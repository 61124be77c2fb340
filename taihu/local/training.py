"""A whole run on this machine: real daemons, watched to the end, and their results put together."""

from __future__ import annotations

import importlib
import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from statistics import fmean
from typing import Any

from taihu.coordination.members import RunState
from taihu.coordination.status import stop_run
from taihu.errors import ConfigError, PeerUnreachableError, RunError, TaihuError
from taihu.job import Job, job_to_toml
from taihu.job.advice import advice_on_schedule
from taihu.local.departed import DepartedMembers
from taihu.local.display import Display, RunView
from taihu.local.processes import DaemonFailedError, LocalProcesses
from taihu.local.replacing import Replacing
from taihu.local.stuck import LateMembers, StuckMembers
from taihu.local.watching import StatusWatch
from taihu.process.entry import InterruptedRunError, Interrupts
from taihu.results import RESULTS_FORMAT, read_json
from taihu.run_folder import CHAOS, CHECKPOINTS, RunFiles, add_events
from taihu.run_length import RunLength
from taihu.settings import ChaosSettings, CheckpointSettings, RunSettings
from taihu.trace import merge_parts

__all__ = ["LocalTraining", "results_of"]

_LOOK_S = 0.03
_STATUS_S = 0.5
_CONSEQUENCES_S = 2.0
_STOP_S = 10.0
_STUCK_S = 60.0
_STUCK_STEPS = 4
# A process that takes the place of another one needs some time to start.
_LEAST_STUCK_S = 10.0
_FIRST_WORKERS = (
    "measured_steps",
    "selected_ratio",
    "predicted_seconds_per_step",
    "plan",
    "path",
    "groups",
    "group_layers",
    "profile",
    "thresholds",
    "frame_bytes",
)
_OF_RANKS = ("rank", "final_loss", "bytes_sent_per_step", "bytes_received_per_step")


@dataclass(frozen=True)
class _Started:
    """A run under way: its processes, the folder of what they write for this one, and who is told."""

    processes: LocalProcesses
    folder: Path
    replacing: Replacing
    display: Display

    def settle(self, name: str) -> bool:
        """End a process that has told its results, and make nothing of its end; whether it has told them."""
        role, _, rank = name.partition(" ")
        has_told = role == "server" or (self.folder / f"worker-{rank}.json").exists()
        if has_told:
            self.processes.settle(name)
        return has_told


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
                with LocalProcesses(logs, fork=self.forks, lost_after_s=lost_after_s) as processes:
                    started = _Started(processes, folder, Replacing(self.job.checkpoint.restarts), display)
                    coordinator = self._start(started)
                    self._watch(started, coordinator)
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

    def _all_have_ended(self, started: _Started) -> bool:
        """Whether all have ended well; a process that was killed is replaced where the run recovers."""
        processes, replacing = started.processes, started.replacing
        is_over = processes.any_has_ended
        for name in replacing.due(time.monotonic()):
            processes.replace(name)
        # Where one has ended well there is nobody to join any more, and all have told what there is to tell.
        for name in replacing.replaced if is_over else ():
            started.settle(name)
        try:
            return processes.check(awaiting=replacing.awaited)
        except DaemonFailedError as error:
            if is_over and started.settle(error.name):
                return False
            if is_over or not error.was_killed:
                raise
            self._replace(started, error)
            return False

    def _replace(self, started: _Started, error: DaemonFailedError) -> None:
        """Have another process take the place of one that was killed; raises `error` where it may not, or no more."""
        # Who only looks on needs no arrays.
        from taihu.checkpoint.keepers import checkpoint_folder  # noqa: PLC0415

        if checkpoint_folder(self._with_checkpoints()) is None:
            raise error
        step = self._last_checkpoint()
        if not started.replacing.plan(error.name, time.monotonic(), step):
            raise error
        words = str(error).partition(";")[0]
        started.display.say(f"{words}; another process takes its place, and all go on after step {step:,}")
        if self.files.folder is not None:
            now = datetime.now(UTC).isoformat(timespec="milliseconds")
            add_events(self.files.folder, [{"time": now, "step": step, "event": "restarted", "reason": words}])

    def _last_checkpoint(self) -> int:
        """The step of the newest checkpoint of this run; 0 for none."""
        from taihu.checkpoint.keepers import checkpoint_folder  # noqa: PLC0415 - see above
        from taihu.checkpoint.store import CheckpointStore  # noqa: PLC0415

        checkpoints = checkpoint_folder(self._with_checkpoints())
        return 0 if checkpoints is None else next(iter(CheckpointStore(checkpoints).steps()), 0)

    def _recovers(self) -> bool:
        """Whether other processes take the places of lost ones."""
        from taihu.checkpoint.keepers import recovers  # noqa: PLC0415 - see above

        return recovers(self._with_checkpoints())

    def _with_checkpoints(self) -> Job:
        return self.job.model_copy(update={"checkpoint": self._checkpoint_settings()})

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

    def _start(self, started: _Started) -> str:
        """Start everything; returns the coordinator's address."""
        processes, folder = started.processes, started.folder
        if processes.forks:
            # Before anybody waits for the others: kernels may have to be compiled.
            importlib.import_module("worker.first_step").load_first_step(self.job)
        threads = self.job.cluster.threads or max(1, (os.cpu_count() or 1) // self.job.cluster.workers)
        local = self.job.cluster.model_copy(update={"coordinator": None, "threads": threads})
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
        coordinator = ""
        while not coordinator:
            try:
                coordinator = processes.start_listening(first, module, [*_rank_of(first), *common, *arguments])
            except DaemonFailedError as error:
                if not error.was_killed:
                    raise
                self._replace(started, error)
                while not started.replacing.due(time.monotonic()):
                    time.sleep(_LOOK_S)
        for name, module, arguments in others:
            processes.start(name, module, [*_rank_of(name), *common, "--coordinator", coordinator, *arguments])
        if self._recovers():
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

    def _watch(self, started: _Started, coordinator: str) -> None:
        processes, display = started.processes, started.display
        start = looked = time.monotonic()
        status = StatusWatch(coordinator, display)
        stopping: _Stopping | None = None
        host = next(iter(self._members(Path())))[0]
        stuck = StuckMembers(host, max(self.job.cluster.lost_after_s, _LEAST_STUCK_S))
        departed = DepartedMembers(host, self.job.cluster.lost_after_s)
        late = LateMembers(self.job.patience.still_after_s)
        advised = False
        try:
            with self.interrupts.offered_to(lambda reason: True):
                while not self._all_have_ended(started):
                    time.sleep(_LOOK_S)
                    if self.interrupts.reason and stopping is None:
                        stopping = self._stop(coordinator, display)
                    if time.monotonic() - looked > _STATUS_S:
                        looked = time.monotonic()
                        processes.end_stopped()
                        # Where one has ended the coordinator is about to end: its port may be anybody's then.
                        view = None if processes.any_has_ended else status.show(looked - start)
                        if not processes.any_has_ended:
                            _raise_for(departed.look(looked, processes.interrupted, status.missing))
                        if self._recovers() and not processes.any_has_ended:
                            if self._last_checkpoint():
                                stuck.begin()
                            _end_stuck(started, stuck.look(looked, status.missing))
                        _settle_late(started, late.look(looked, ended=processes.any_has_ended))
                        if stopping is not None:
                            stopping.check(view, looked)
                        if view is not None and not advised:
                            advised = True
                            self._advise(view.total_steps, display)
        except InterruptedRunError:
            self.interrupts.ignore()  # all daemons are ended now, whatever else comes
            raise
        except TaihuError as error:
            # What one failure leads to elsewhere ends within a moment; the cause is told, not the consequence.
            # A wrong setting is a cause: whoever waits for the daemon that refused it would go on for long.
            if not isinstance(error, DaemonFailedError) or error.exit_code != ConfigError.exit_code:
                processes.wait(_CONSEQUENCES_S)
            processes.check()
            raise

    def _advise(self, total: int, display: Display) -> None:
        """Say what only shows when the length of the run is known: by its workers, from their data."""
        if self.job.train.steps is None:
            length = RunLength(1, max(1, total // self.job.train.epochs), total)
            for line in advice_on_schedule(self.job, length):
                display.say(f"warning: {line}")

    def _stop(self, coordinator: str, display: Display) -> _Stopping:
        """Ask the run to stop; raises InterruptedRunError when there is nothing to save."""
        reason = self.interrupts.reason
        state = RunState.RUNNING
        with suppress(PeerUnreachableError):  # who does not answer is about to end, or is waited for in vain
            state = stop_run(coordinator, self.job.name, reason, _STOP_S)
        if state is RunState.FAILED:
            raise InterruptedRunError(f"{reason} before the first step: there is nothing to save")
        display.say("stopping after the next steps and saving; press Ctrl-C again to end at once")
        return _Stopping(reason, time.monotonic())

    def _result_files(self, folder: Path) -> list[Path]:
        return [folder / f"worker-{rank}.json" for rank in range(self.job.cluster.workers)]

    def _server_files(self, folder: Path) -> list[Path]:
        return [folder / f"server-{index}.json" for index in range(self.job.servers)]

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


def _end_stuck(started: _Started, names: Sequence[str]) -> None:
    """Kill processes that the run does not get back; others take their places then."""
    for name in names:
        started.display.say(f"{name} lives and takes no part any more; it is ended")
        started.processes.kill(name)


def _settle_late(started: _Started, is_late: bool) -> None:
    """End processes that have told what there was to tell, long after another one has ended well."""
    for name in started.processes.living if is_late else ():
        if started.settle(name):
            started.display.say(f"{name} has done its part and does not end; it is ended")


def _raise_for(departed: str | None) -> None:
    """Raise InterruptedRunError for a member that is waited for in vain."""
    if departed is not None:
        raise InterruptedRunError(f"{departed}: interrupted before it took part, and the others wait for it")


def _rank_of(name: str) -> list[str]:
    """The option of the rank in `server 1`; it comes first, so that `ps` has room for it."""
    return ["--rank", name.partition(" ")[2]]


def _trace_part(folder: Path, name: str) -> Path:
    return folder / f"trace-{name.replace(' ', '-')}.json"


class _Stopping:
    """Bounds how long a run that was asked to stop is waited for: as long as something goes on."""

    def __init__(self, reason: str, now: float) -> None:
        self._reason = reason
        self._moved_s = now
        self._step = 0

    def check(self, view: RunView | None, now: float) -> None:
        """Raise InterruptedRunError when the run, of which `view` may be known, has not moved for too long."""
        bound_s = _STUCK_S
        if view is not None:
            bound_s = max(_STUCK_S, _STUCK_STEPS * view.step_seconds)
            if view.step != self._step:
                self._step, self._moved_s = view.step, now
        if now - self._moved_s > bound_s:
            raise InterruptedRunError(
                f"{self._reason}: the run has not stopped, and nothing has moved for {bound_s:.0f} s; see the logs"
            )


def results_of(job: Job, workers: Sequence[dict[str, Any]], servers: Sequence[dict[str, Any]] = ()) -> dict[str, Any]:
    """The results of a run, from those that its workers, the first of them at least, and servers wrote."""
    first = workers[0]
    evaluations = first["evaluations"]
    return {
        "format": RESULTS_FORMAT,
        "test_accuracy": evaluations[-1]["test_accuracy"] if evaluations else None,
        "test_metrics": evaluations[-1]["test_metrics"] if evaluations else None,
        "final_loss": fmean(worker["final_loss"] for worker in workers),
        "parameters_sha256": first["parameters_sha256"],
        "steps": first["steps"],
        **{name: first[name] for name in ("total_steps", "stopped", "stop_reason", "saved", "not_saved")},
        "servers": job.servers,
        "workers": job.cluster.workers,
        "exchange": job.exchange.kind,
        "compression": job.compression.method,
        "density": 1.0 if job.compression.method == "none" else job.compression.density,
        "refresh_every": job.compression.refresh_every,
        "threshold": job.compression.threshold,
        "downlink": job.downlink,
        "precision": job.train.precision,
        "recompute": job.train.recompute,
        "recompute_segments": job.train.recompute_segments,
        "compute": job.cluster.compute,
        "modelled": first["modelled"],
        "skipped_steps": first["skipped_steps"],
        "bytes_sent_per_step": sum(worker["bytes_sent_per_step"] for worker in workers),
        "bytes_received_per_step": sum(worker["bytes_received_per_step"] for worker in workers),
        **{name: value for name, value in first.items() if name.startswith("seconds_")},
        **{name: first[name] for name in _FIRST_WORKERS},
        "evaluations": evaluations,
        "fc": first.get("fc"),
        "by_rank": [_of_rank(worker) for worker in workers],
        "memory": [
            *({"process": f"worker {each['rank']}", **each["memory"]} for each in workers),
            *({"process": f"server {each['rank']}", **_planned(first), **each["memory"]} for each in servers),
        ],
    }


def _planned(worker: dict[str, Any]) -> dict[str, Any]:
    """The planned memory of a server, as a worker knows it."""
    return {"planned": worker["memory"]["planned_of_server"]}


def _of_rank(worker: dict[str, Any]) -> dict[str, Any]:
    """The figures of one worker that differ between them."""
    return {name: value for name, value in worker.items() if name in _OF_RANKS or name.startswith("seconds_")}
