"""Reports of a script's worker on its steps: progress, metrics, the tables of the run, a trace, results."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import structlog

from taihu.core.base.errors import WriteError
from taihu.core.base.words import one_line
from taihu.core.coordination.coordinator.coordinator import Coordinator
from taihu.core.coordination.listener import ListenOptions
from taihu.core.coordination.membership.members import MemberId, Role
from taihu.core.coordination.metrics import CoordinatorMetrics
from taihu.core.coordination.plans.plan import Plan
from taihu.core.job import Job, load_job
from taihu.core.job.environment import number_from_environment
from taihu.core.job.run_folder import SETTINGS, RunFiles, describe_run, prepare_run
from taihu.core.job.variables import variable_of
from taihu.core.process.memory.use import MemoryGrowth
from taihu.core.process.notices import Notices
from taihu.core.process.options import make_tracer
from taihu.core.process.results import RESULTS_FORMAT, write_json
from taihu.core.wire.base.address import host_of
from taihu.core.wire.serving.metrics import MetricsPage, RefusedCalls, WorkerMetrics
from taihu.worker.exchange.session import Session
from taihu.worker.reporting.activity import Activity
from taihu.worker.reporting.loggers.opening import open_loggers
from taihu.worker.reporting.observer import Observer
from taihu.worker.reporting.run_log import RunLog, open_writers
from taihu.worker.training.step_record import StepRecord


@dataclass(frozen=True)
class ReportOptions:
    """Options of this process beside the job, as a daemon has them on its command line.

    Attributes:
        results: the file of this worker's results.
        trace: the file of this worker's part of a trace, of the steps `trace_steps`.
        metrics_port: of the page of metrics, 0 for a free one; None for no page.
        linger_s: how long the page stays after the end.
        folder_is_made: whether the run's folder has been made for this worker.
        lives: of the script that are over, whose rows the folder has.
    """

    results: Path | None = None
    trace: Path | None = None
    trace_steps: str | None = None
    metrics_port: int | None = None
    linger_s: int = 0
    folder_is_made: bool = False
    lives: int = 0


def options_of(environment: Mapping[str, str]) -> ReportOptions:
    """The options that variables of the environment give.

    Raises:
        ConfigError: one that should be a number is none.
    """
    results, trace, steps = (environment.get(variable_of(name)) for name in ("JSON", "TRACE", "TRACE_STEPS"))
    return ReportOptions(
        None if results is None else Path(results),
        None if trace is None else Path(trace),
        steps,
        number_from_environment(environment, "METRICS_PORT"),
        number_from_environment(environment, "LINGER") or 0,
        variable_of("RUN_DIR_IS_MADE") in environment,
        number_from_environment(environment, "LIVES") or 0,
    )


def begin_results(file: Path | None, rank: int, *, joins: bool = True, stays: bool = False) -> None:
    """Leave a word that this process uses taihu, before it has results.

    Args:
        file: of the results.
        rank: of this worker.
        joins: whether it has come to the others.
        stays: whether it goes on where others are lost, and other processes come in their place.
    """
    if file is not None:
        write_json(file, {"rank": rank, "steps": 0, "joins": joins, "stays": stays})


def replaces(environment: Mapping[str, str]) -> bool:
    """Whether the launcher starts a process in the place of a lost one alone."""
    return variable_of("REPLACES") in environment


class Reports:
    """Takes in the steps of a script; a context manager, at whose end everything is written.

    Args:
        job: of the run.
        rank: of this worker.
        options: of this process.
        activity: of this worker.
        listen: where others reach it, if they do; the page of metrics is on the same host.

    Raises:
        ConfigError: a file cannot be written, or the page of metrics has no port.
    """

    def __init__(
        self, job: Job, rank: int, options: ReportOptions, activity: Activity, listen: ListenOptions | None = None
    ) -> None:
        self._job, self._rank, self._options = job, rank, options
        self._listen = listen or ListenOptions()
        self._files = _files_of(job, options) if rank == 0 else RunFiles()
        self._stays = False
        self._memory = MemoryGrowth()
        self._metrics = WorkerMetrics(rank, is_read=options.metrics_port is not None)
        self._stack = ExitStack()
        self._notices = Notices()
        self._run_log = RunLog(
            open_writers(self._files.folder, sys.maxsize if options.lives else 0),
            steps_per_epoch=None,
            learning_rate=lambda _: 0.0,
            loggers=open_loggers(job, self._files.folder, self._notices.say, _script()),
        )
        self._last = self.before = 0
        """The steps that earlier lives of the script have made."""
        self.tracer = make_tracer(options.trace, options.trace_steps)
        self.observer = Observer(
            rank, total_steps=0, batch=0, metrics=self._metrics, run_log=self._run_log, activity=activity
        )

    def __enter__(self) -> Self:
        begin_results(self._options.results, self._rank, joins=False)
        if self._options.metrics_port is not None:
            refusals = self._listen.security.refusals
            self._metrics.exported.put(RefusedCalls("worker", self._rank, refusals))
            host, port = host_of(self._listen.bind), self._options.metrics_port
            linger_s, health = self._options.linger_s, self._listen.health
            page = MetricsPage(
                self._metrics.registry, port, host, linger_s=linger_s, health=health, refusals=refusals
            )
            self._stack.enter_context(page)
            structlog.get_logger().info("metrics", port=page.port, role="worker", rank=self._rank)
        self._stack.enter_context(self._run_log)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        facts = {} if value is None else {"reason": one_line(str(value)) or type(value).__name__}
        self._run_log.happened("finished" if value is None else "failed", **facts)
        self._stack.__exit__(kind, value, trace)

    def hosting(self, coordinator: Coordinator) -> None:
        """This worker hosts the run's coordinator."""
        self._metrics.exported.put(CoordinatorMetrics(coordinator, MemberId(Role.WORKER, self._rank)))

    def joins(self) -> None:
        """This worker is about to wait for the others."""
        begin_results(self._options.results, self._rank, stays=self._stays)

    def stays(self, whether: bool) -> None:
        """This worker goes on where another one is lost, and a new process comes in its place."""
        self._stays = whether
        begin_results(self._options.results, self._rank, stays=whether)

    def joined(self, job: Job) -> None:
        """This worker takes part from now on, in `job`, which says who updates."""
        self._job = job
        self._run_log.happened("training", workers=self._job.world.workers, script=_script())

    def goes_on(self, before: int) -> None:
        """The script goes on behind so many steps of earlier lives."""
        self.before = before
        self._run_log.cut(before)
        self.observer.goes_on(before)
        self._run_log.happened("resumed", after_step=before)

    def flush(self) -> None:
        """Have rows in their table that a kill of this process would lose."""
        self._run_log.flush()

    def stepped(self, record: StepRecord) -> None:
        """A step and its exchange have ended."""
        record = replace(record, step=record.step + self.before)
        self._last = record.step
        self.observer.stepped(record)
        for name, start_s, stop_s in (
            ("forward", record.start_s, record.forward_end_s),
            ("backward", record.forward_end_s, record.backward_end_s),
            ("wait", record.backward_end_s, record.end_s),
        ):
            self.tracer.add("compute", name, start_s, stop_s, step=record.step)

    def logs(self, values: Mapping[str, float], step: int) -> None:
        """The script has values of its own for the loggers of the run."""
        self._run_log.logged(values, step)

    def travels(self, path: str) -> None:
        """Values take `path` now."""
        self.observer.travels(path)

    def planned(self, plan: Plan) -> None:
        """The run goes on by `plan`."""
        self.observer.planned(plan)

    def tell_trace(self, session: Session) -> None:
        """Write this worker's part of the trace, where one is asked for."""
        if self._options.trace is not None:
            clock, index = session.client.coordinator_clock, self._job.servers + self._rank
            with self._said():
                self.tracer.write_part(
                    self._options.trace,
                    f"worker {self._rank}",
                    index,
                    offset_s=clock.offset_s,
                    error_s=clock.error_s,
                )

    def tell_results(self, session: Session) -> None:
        """Write this worker's results, if it has made a step; the coordinator is still there."""
        files = [*self._files.results, *([] if self._options.results is None else [self._options.results])]
        if not self._last or not files:
            return
        results = self._results(session)
        for file in files:
            with self._said():
                write_json(file, results)

    @contextmanager
    def _said(self) -> Iterator[None]:
        """Say what the block cannot write: the script has done its part, and ends well."""
        try:
            yield
        except WriteError as error:
            self._notices.say(f"{error}; the run goes on without it")

    def _results(self, session: Session) -> dict[str, Any]:
        exchange = session.exchange
        profile = session.client.get_profile() if self._rank == 0 else None
        return {
            "format": RESULTS_FORMAT,
            "rank": self._rank,
            "script": _script(),
            "parameters_sha256": None,
            "stopped": False,
            "stop_reason": None,
            "total_steps": self._last,
            "saved": None,
            "not_saved": None,
            "plan": self._job.exchange.plan,
            "downlink": self._job.downlink,
            "path": exchange.path,
            "skipped_steps": exchange.skipped_steps,
            "memory": {**self._memory.results(), "planned": None, "planned_of_server": None},
            "modelled": None,
            **self.observer.results(exchange.plan, profile),
        }


def _files_of(job: Job, options: ReportOptions) -> RunFiles:
    """The run's files, in a folder that is there from now on; its settings are those that the script has chosen."""
    files = prepare_run(job, None, made=options.folder_is_made)
    if files.folder is not None and options.folder_is_made:
        # Where files go, and what is kept, the launcher knows alone.
        launched = load_job(files.folder / SETTINGS)
        own = {"run": launched.run, "checkpoint": launched.checkpoint}
        describe_run(files.folder, job.model_copy(update=own), files.folder / "job.toml")
    return files


def _script() -> str:
    return os.path.basename(sys.argv[0])  # noqa: PTH119 - of whatever stands there
