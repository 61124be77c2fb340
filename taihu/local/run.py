"""A whole run on this machine from its settings to its files: what `taihu train` and `taihu.train` have in common."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from taihu.core.base.errors import TaihuError, WriteError
from taihu.core.base.words import one_line
from taihu.core.job import Job
from taihu.core.job.advice import advice
from taihu.core.job.machine import check_processes, check_threads
from taihu.core.job.run_folder import RunFiles, note_failure, prepare_run, usual_results
from taihu.core.model.caffe_net import notes_on_model
from taihu.core.process.aside import asked_aside
from taihu.core.process.results import write_json
from taihu.core.system.clocks import utc_now
from taihu.local.display.display import Display
from taihu.local.training import LocalTraining
from taihu.worker.preflight import check_inputs

RUN_FOLDER: Final = Path("runs/{name}-{time}")


@dataclass(frozen=True)
class LocalRun:
    """A run that can begin.

    Attributes:
        training: of it.
        warnings: about settings that have no effect.
        unwritten: what the run was to leave and could not write, each in a line; known at its end.
    """

    training: LocalTraining
    warnings: tuple[str, ...]
    unwritten: list[str] = field(default_factory=list)

    @property
    def files(self) -> RunFiles:
        """Places of what stays of it."""
        return self.training.files

    def run(self, display: Display) -> dict[str, Any]:
        """Train, see `LocalTraining.run`; the results are written to the run's files too."""
        try:
            results = self.training.run(display)
        except TaihuError as error:
            if self.files.folder is not None:
                note_failure(self.files.folder, one_line(str(error)), utc_now())
            raise
        for file in self.files.results:
            try:
                write_json(file, results)
            except WriteError as error:
                if file == usual_results(self.files.folder):
                    display.warn(f"{error}; the summary has them in short")
                else:
                    self.unwritten.append(str(error))
        if results["not_saved"] and not results["stopped"]:
            self.unwritten.append(f"the model was not saved: {results['not_saved']}")
        return results


def check_job(job: Job, *, aside: bool = False) -> None:
    """Say all that can be known to be wrong before anything is made or started.

    Files of the user's are read in a process `aside`, where this one is to be forked, or here.

    Raises:
        ConfigError: there is not room for so many threads or processes, or an input is missing.
    """
    check_threads(job)
    check_processes(job)
    if aside:
        asked_aside(partial(check_inputs, job), "it looked at model and data")
    else:
        check_inputs(job)


def prepare(training: LocalTraining, job_file: Path | None) -> LocalRun:
    """Make the folder of a run whose job is checked; `job_file` is where it came from.

    Raises:
        ConfigError: see `prepare_run`.
    """
    files = prepare_run(training.job, job_file, default=RUN_FOLDER)
    return LocalRun(replace(training, files=files), (*advice(training.job), *notes_on_model(training.job.model.name)))
