"""The folder of a run, which holds what stays of it, and the places of its files."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Final

from taihu.core.base.errors import ConfigError, WriteError
from taihu.core.base.whole_file import make_durably, make_folder, write_bytes, write_text, writing
from taihu.core.job import Job, job_to_toml, load_job
from taihu.core.job.loggers import check_loggers
from taihu.core.process.results import as_json, check_writable
from taihu.core.settings import RunSettings
from taihu.core.system.clocks import local_now

_NONE = Path("none")
_MODEL = "model.safetensors"
_RESULTS = "results.json"
CHECKPOINTS: Final = "checkpoints"
"""The folder of a run's checkpoints in that of the run."""

CHAOS: Final = "chaos"
"""The folder of what faults of `[chaos]` have happened in that of the run."""

ORDER: Final = "order"
"""The folder of the servers' orders in that of the run."""

EVENTS: Final = "events.jsonl"
STEPS: Final = "steps.csv"
EPOCHS: Final = "epochs.csv"
SETTINGS: Final = "settings.toml"
"""The file of all settings of a run in its folder, which is a job file."""
_NO_NAME = re.compile(r"[^A-Za-z0-9._-]+")


@dataclass(frozen=True)
class RunFiles:
    """Places of a run's files.

    Attributes:
        folder: of the run; None where nobody asked for one.
        model: what is saved at the end; None where nothing is.
        results: every file that gets the results.
    """

    folder: Path | None = None
    model: Path | None = None
    results: tuple[Path, ...] = ()

    def check_writable(self) -> None:
        """Raise ConfigError for a file outside of the folder that cannot be written."""
        inside = [path for path in self._all() if self.folder is not None and path.is_relative_to(self.folder)]
        check_writable(*(path for path in self._all() if path not in inside))

    def make_parents(self) -> None:
        """Make the folders in the run's folder, which is there, that its files need."""
        for path in self._all():
            if self.folder is not None and path.is_relative_to(self.folder):
                make_folder(path.parent)

    def _all(self) -> list[Path]:
        return [*self.results, *([] if self.model is None else [self.model])]


def run_files(settings: RunSettings, folder: Path | None) -> RunFiles:
    """The files that `settings` ask for; `folder` is what `run.dir` led to."""
    model = _located(settings.save, folder)
    if settings.save is None and folder is not None:
        model = folder / _MODEL
    results = _located(settings.results, folder)
    usual = None if settings.results == _NONE else usual_results(folder)
    return RunFiles(folder, model, tuple(dict.fromkeys(path for path in (usual, results) if path is not None)))


def usual_results(folder: Path | None) -> Path | None:
    """The file of results that a run has unless it is told otherwise; None where it has no folder."""
    return None if folder is None else folder / _RESULTS


def _located(path: Path | None, folder: Path | None) -> Path | None:
    if path is None or path == _NONE:
        return None
    return path if folder is None else folder / path


def stopped_model(job: Job, files: RunFiles, step: int) -> Path | None:
    """Place of the model of a run that was stopped after `step`: it is saved even if nobody asked for it.

    That is in the current folder, where nothing else is said; None where `run.save` is none.
    """
    if files.model is not None or job.run.save == _NONE:
        return files.model
    return Path.cwd() / f"{run_name(job)}-step-{step}.safetensors"


def run_folder(job: Job, now: datetime, default: Path | None = None) -> Path | None:
    """The folder that `run.dir`, or else `default`, stands for at this time; None for none."""
    asked = job.run.dir if job.run.dir is not None else default
    if asked is None or asked == _NONE:
        return None
    return Path(str(asked).replace("{name}", run_name(job)).replace("{time}", now.strftime("%Y%m%d-%H%M%S")))


def run_name(job: Job) -> str:
    """The job's name, or model and data where it has none, as part of a file's name."""
    if job.name != Job.model_fields["name"].default:
        return job.name
    return _NO_NAME.sub("-", f"{_short(job.model.name)}-on-{_short(job.data.name)}")


def _short(name: str) -> str:
    """The name of a model or data set; of one of the user's own, that of its file."""
    file, separator, _ = name.partition(".py:")
    return Path(file if separator else name).stem


def prepare_run(
    job: Job, job_file: Path | None, *, default: Path | None = None, made: bool = False, goes_on: bool = False
) -> RunFiles:
    """Make the run's folder, if it gets one, with its settings; returns where the run's files go.

    Args:
        job: all settings.
        job_file: that it was read from.
        default: the folder where `run.dir` is not given.
        made: whether another process has prepared the folder.
        goes_on: whether a folder of a run of the same job is taken for that of this one.

    Raises:
        ConfigError: the folder holds something, a file could not be written, or what `run.loggers` needs is missing.
        WriteError: nothing can be written into the folder.
    """
    folder = run_folder(job, local_now(), default)
    _check_loggers(job.run.loggers, folder)
    files = run_files(job.run, folder)
    files.check_writable()
    if folder is None or made or (goes_on and _is_of(folder, job)):
        return files
    files = run_files(job.run, _make(folder, job, anew="{time}" in str(job.run.dir or default)))
    try:
        files.make_parents()
        describe_run(files.folder or folder, job, job_file)
    except WriteError:
        _remove(files.folder or folder)
        raise
    return files


def _check_loggers(names: tuple[str, ...], folder: Path | None) -> None:
    if names and folder is None:
        raise ConfigError(
            f"run.loggers {', '.join(names)}: without a run folder nothing is kept of them; give --run-dir"
        )
    check_loggers(names)


def _make(folder: Path, job: Job, *, anew: bool) -> Path:
    """Make the folder of a run and return it.

    Args:
        folder: its path.
        job: of the run, whose checkpoints may be in there already: its servers may be faster.
        anew: whether it gets another name, a number at its end, where it is there already.

    Raises:
        ConfigError: it holds something, or cannot be made.
    """
    try:
        make_durably(folder.parent)
        made = _make_anew(folder) if anew else folder
        make_durably(made)
        kept = job.checkpoint.dir
        own = {kept.absolute(), *kept.absolute().parents} if isinstance(kept, Path) else set()
        if any(each.absolute() not in own for each in made.iterdir()):
            raise ConfigError(
                f"run folder {folder}: it is not empty, and two runs do not share one; give a new --run-dir"
            )
    except OSError as error:
        why = f"{error.filename}: {error.strerror}"
        raise ConfigError(f"run folder {folder}: cannot be made: {why}; give another --run-dir, or none") from None
    return made


def _make_anew(folder: Path) -> Path:
    """Make a folder of that name, or the first with a number behind it that is not there; the last one may be."""
    for path in _names(folder):
        with suppress(FileExistsError):
            path.mkdir()
            return path
    return folder


def _remove(folder: Path) -> None:
    """Take back a folder that this run has made and cannot use: the same command finds it empty again."""
    for name in (SETTINGS, "job.toml"):
        with suppress(OSError):
            (folder / name).unlink(missing_ok=True)
    with suppress(OSError):
        folder.rmdir()


def _names(folder: Path) -> Iterator[Path]:
    """`folder`, and then with 2, 3, ... at its end."""
    yield folder
    for number in range(2, 1000):
        yield folder.with_name(f"{folder.name}-{number}")


def describe_run(folder: Path, job: Job, job_file: Path | None) -> None:
    """Write the job file as it was given, or what was given in its place, and all settings that it led to.

    The settings are a job file too.

    Raises:
        WriteError: one cannot be written.
    """
    write_text(folder / SETTINGS, _settings_of(job))
    # A pipe has been read already, and is empty now.
    if job_file is not None and job_file.is_file():
        write_bytes(folder / "job.toml", job_file.read_bytes())
    else:
        write_text(folder / "job.toml", job_to_toml(job, given=True))


def _is_of(folder: Path, job: Job) -> bool:
    """Whether the folder was made for a run of the same settings, but for addresses and paths."""
    settings = folder / SETTINGS
    return settings.is_file() and load_job(settings).shared_settings == job.shared_settings


def _settings_of(job: Job) -> str:
    """The settings as a job file, which begins the run again in another folder."""
    return job_to_toml(job.model_copy(update={"run": job.run.model_copy(update={"dir": None})}))


def add_events(folder: Path, events: Iterable[Mapping[str, float | str | None]]) -> None:
    """Add a line for each of the events to those of a run, as a JSON object; WriteError if they cannot be written."""
    path = folder / EVENTS
    with writing(path), path.open("a", encoding="utf-8") as file:
        file.writelines(as_json(event) + "\n" for event in events)


def note_failure(folder: Path, reason: str, now: datetime) -> None:
    """Add to a run's events that it failed, unless worker 0 could still say so itself."""
    path = folder / EVENTS
    with suppress(OSError, WriteError):
        if not (path.exists() and '"event": "failed"' in path.read_text(encoding="utf-8")):
            add_events(
                folder, [{"time": now.isoformat(timespec="milliseconds"), "event": "failed", "reason": reason}]
            )
