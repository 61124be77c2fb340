"""Loggers of a run, as its job names them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Final

from taihu.core import __version__
from taihu.core.base.errors import WriteError
from taihu.core.base.whole_file import writing
from taihu.core.job import Job
from taihu.core.job.loggers import LoggedRun, make_logger
from taihu.core.system.clocks import monotonic
from taihu.worker.reporting.loggers.handing import HandedOn

_LOGGERS: Final = "loggers"
_IMPORTS_S: Final = 20.0
_OF_SCRIPTS: Final = ("cluster.", "exchange.", "compression.", "checkpoint.")


def open_loggers(
    job: Job, folder: Path | None, say: Callable[[str], None], script: str | None = None
) -> list[HandedOn]:
    """The loggers of a run, each in a thread of its own from now on; none where the run has no folder.

    Their packages have been imported then, or take more than 20 seconds.

    Args:
        job: all settings.
        folder: of the run.
        say: is told of what goes wrong with one of them; the run goes on.
        script: the name of the script, where the run is of one.
    """
    if folder is None or not job.run.loggers:
        return []
    former = next(_former(job, folder), None)
    tables = (folder,) if former is None else (former, folder)
    made = []
    for name in job.run.loggers:
        kept = folder / _LOGGERS / name
        try:
            _prepare(kept, None if former is None else former / _LOGGERS / name)
        except WriteError as error:
            say(f"run.loggers: {name}: {error}; the run goes on without it")
            continue
        place = folder.absolute()
        run = LoggedRun(place.name, place, kept.absolute(), _settings(job, script), _tags(job, script))
        made.append(HandedOn(name, partial(make_logger, name, run), kept, tables, say))
    ends = monotonic() + _IMPORTS_S
    for each in made:
        each.await_made(max(0.0, ends - monotonic()))
    return made


def _prepare(kept: Path, former: Path | None) -> None:
    """Make a logger's folder, with what an earlier run has in its own: this one goes on with that."""
    with writing(kept):
        if kept.is_dir():
            return
        if former is not None and former.is_dir():
            shutil.copytree(former, kept)
        else:
            kept.mkdir(parents=True)


def _former(job: Job, folder: Path) -> Iterator[Path]:
    """Folders of runs with loggers that this one goes on from."""
    for place in (job.checkpoint.resume, job.checkpoint.dir):
        if isinstance(place, Path):
            for parent in (place, *place.parents[:2]):
                if (parent / _LOGGERS).is_dir() and parent.resolve() != folder.resolve():
                    yield parent


def _settings(job: Job, script: str | None) -> dict[str, str | int | float | bool]:
    """The settings that members share, by their keys; of a script's run those that scripts have."""
    told = {key: json.loads(value) for key, value in job.shared_settings.items() if key != "name"}
    return {
        key: value if isinstance(value, str | int | float | bool) else json.dumps(value)
        for key, value in told.items()
        if value is not None and (script is None or key.startswith(_OF_SCRIPTS))
    }


def _tags(job: Job, script: str | None) -> dict[str, str]:
    return {
        "taihu.job": job.name,
        "taihu.version": __version__,
        **({} if script is None else {"taihu.script": script}),
    }
