"""A run in MLflow: where it is kept is said to MLflow itself, by its own variables."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Final

from mlflow import MlflowClient
from mlflow.entities import Metric, Param

from taihu.core.base.whole_file import write_text
from taihu.core.job.loggers import Kind, LoggedRow, LoggedRun, State
from taihu.core.wire.base.clock import WallClock

_EXPERIMENT: Final = "taihu"
_AT_ONCE: Final = 1000  # metrics in a request, of which MLflow's servers take no more
_PARAMS_AT_ONCE: Final = 100
_LONGEST_PARAM: Final = 6000
_TOLD_BY: Final[Mapping[Kind, str]] = {"step": "seconds/", "test": "test/"}
_STATES: Final = {"finished": "FINISHED", "stopped": "KILLED", "failed": "FAILED"}


class MlflowRun:
    """A `Logger`; the client alone, so that a script's own `mlflow.start_run` stays its own."""

    def __init__(self, run: LoggedRun) -> None:
        self._run = run
        self._client = MlflowClient()
        self._id = ""
        self._is_new = True
        self._had: dict[str, int] = {}

    def begin(self, handed: Mapping[Kind, int]) -> Mapping[Kind, int]:
        """Make the run, or go on with that of an earlier life, of which MLflow says what it has."""
        kept = self._run.kept / "id"
        if not kept.exists():
            made = self._client.create_run(self._experiment(), tags=dict(self._run.tags), run_name=self._run.name)
            self._id = made.info.run_id
            write_text(kept, self._id)
            self._tell_settings()
            return {}
        self._id, self._is_new = kept.read_text(encoding="utf-8"), False
        self._client.update_run(self._id, status="RUNNING")
        # A kill may have come between two metrics of a step. Steps that only some have are handed over again.
        names = self._client.get_run(self._id).data.metrics
        had: dict[Kind, int] = {
            kind: min((self._last(name) for name in names if name.startswith(prefix)), default=0)
            for kind, prefix in _TOLD_BY.items()
        }
        return {**handed, **had}

    def log(self, rows: Sequence[LoggedRow]) -> None:
        """Send the rows, by as many metrics as a request takes."""
        metrics = self._metrics(rows)
        while part := list(islice(metrics, _AT_ONCE)):
            self._client.log_batch(self._id, metrics=part)

    def end(self, state: State) -> None:
        """Tell MLflow how the run has ended; one that goes on stays as it is."""
        if state in _STATES:
            self._client.set_terminated(self._id, _STATES[state])

    def _metrics(self, rows: Sequence[LoggedRow]) -> Iterator[Metric]:
        now_ms = int(WallClock().now() * 1e3)
        for row in rows:
            for name, value in row.values.items():
                if row.step > self._last(name) or row.kind == "own":
                    yield Metric(name, value, now_ms, row.step)

    def _last(self, name: str) -> int:
        """The last step of a metric that earlier lives have logged; 0 for none."""
        if self._is_new:
            return 0
        if name not in self._had:
            history = self._client.get_metric_history(self._id, name)
            self._had[name] = max((each.step for each in history), default=0)
        return self._had[name]

    def _experiment(self) -> str:
        if told := os.environ.get("MLFLOW_EXPERIMENT_ID"):
            return told
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME") or _EXPERIMENT
        found = self._client.get_experiment_by_name(name)
        return str(self._client.create_experiment(name) if found is None else found.experiment_id)

    def _tell_settings(self) -> None:
        params = iter([Param(key, str(value)[:_LONGEST_PARAM]) for key, value in self._run.settings.items()])
        while part := list(islice(params, _PARAMS_AT_ONCE)):
            self._client.log_batch(self._id, params=part)
