"""The checkpoint that a run goes on from, as a user names it: by a run, by its own folder, or `auto`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from taihu.core.base.errors import CheckpointError, ConfigError
from taihu.core.checkpoint.ended import forget_end
from taihu.core.checkpoint.keepers import checkpoint_folder
from taihu.core.checkpoint.manifest import MANIFEST, SCRIPT, parse_manifest
from taihu.core.checkpoint.places import Place, RemotePath, place_of, setting_of
from taihu.core.checkpoint.reading import Checkpoint, open_checkpoint
from taihu.core.checkpoint.store import CheckpointStore
from taihu.core.job import Job
from taihu.core.job.run_folder import CHECKPOINTS, SETTINGS
from taihu.core.settings import Url

AUTO: Final = "auto"
"""The newest checkpoint of all runs."""


@dataclass(frozen=True)
class Resumed:
    """A checkpoint whose files are as they were written.

    Attributes:
        checkpoint: to go on from.
        settings: of the run that wrote it, a job file; None where they are not beside it.
        problems: what is wrong with newer ones.
    """

    checkpoint: Checkpoint
    settings: Path | None
    problems: tuple[str, ...] = ()


def find_checkpoint(named: str, runs: Path, *, of_script: bool = False) -> Resumed:
    """The checkpoint that `named` stands for.

    Args:
        named: `auto`, the folder of a run or of its checkpoints, or that of one of them; or the URL of either.
        runs: the folder of all runs.
        of_script: whether `auto` is the newest one of a script, else of a model of taihu's own.

    Raises:
        CheckpointError: there is none, or all are damaged.
    """
    folder: Place = _newest_of(runs, of_script=of_script) if named == AUTO else place_of(named)
    if (folder / MANIFEST).is_file():
        checkpoint = open_checkpoint(folder)
        checkpoint.verify()
        return Resumed(checkpoint, _settings_beside(folder.parent))
    inside = folder / CHECKPOINTS
    store = CheckpointStore(inside if inside.is_dir() else folder)
    checkpoint, problems = store.newest()
    return Resumed(checkpoint, _settings_beside(store.folder), tuple(problems))


def find_state(named: str, runs: Path, folder: Path | Url | None) -> tuple[dict[str, object], Path | None]:
    """The settings of `[checkpoint]` by which a script goes on from what `named` stands for, and those of its run.

    A run, or the folder of its checkpoints, is gone on with there; from one checkpoint a new run goes on. `auto` is
    the job's own `folder`, where it has one: there a script may begin, too.

    Raises:
        CheckpointError: there is none, or all are damaged.
    """
    if named == AUTO and folder is not None:
        return {"resume": AUTO}, None
    resumed = find_checkpoint(named, runs, of_script=True)
    found = resumed.checkpoint.folder
    if named != AUTO and place_of(named) == found:
        return {"resume": setting_of(found.absolute())}, resumed.settings
    return {"dir": setting_of(found.parent.absolute()), "resume": AUTO}, resumed.settings


def check_folder(job: Job) -> None:
    """Raise ConfigError where the job's own folder has checkpoints that it does not go on from, or is of no use."""
    folder = checkpoint_folder(job)
    if isinstance(folder, RemotePath) and folder.url.startswith("memory:"):
        raise ConfigError(f"checkpoint.dir {folder}: is memory of one process; name a store that all processes reach")
    if folder is None:
        return
    if not (steps := CheckpointStore(folder).steps()):
        forget_end(folder)
        return
    newest, resumed = CheckpointStore(folder).folder_of(steps[0]), job.checkpoint.resume
    if job.checkpoint.resumes_auto or (resumed is not None and place_of(resumed).resolve() == newest.resolve()):
        forget_end(folder)  # of a former run of the same job: this one begins
        return
    raise ConfigError(
        f"checkpoint.dir {folder}: it has checkpoints up to step {steps[0]:,}; go on from the newest with --resume "
        f"{folder}, or name another folder"
    )


def _newest_of(runs: Path, *, of_script: bool) -> Path:
    """The run that wrote the newest checkpoint, of a script or of a model of taihu's own."""
    found = sorted(runs.glob(f"*/{CHECKPOINTS}/*/{MANIFEST}"), key=lambda path: path.stat().st_mtime, reverse=True)
    newest = next((path for path in found if _is_of_script(path) in (of_script, None)), None)
    if newest is None:
        who = "script" if of_script else "run"
        remedy = "has it a taihu.torch.state?" if of_script else "name a run's folder"
        raise CheckpointError(f"--resume {AUTO}: no {who} in {runs} has a checkpoint; {remedy}")
    return newest.parents[2]


def _is_of_script(manifest: Path) -> bool | None:
    """Whether a script has written the checkpoint of a manifest; None where that cannot be read."""
    try:
        return parse_manifest(manifest.read_bytes()).settings == SCRIPT
    except (OSError, CheckpointError):
        return None


def _settings_beside(checkpoints: Place) -> Path | None:
    """Settings that lie beside checkpoints, of a run whose folder holds both; none in a store."""
    if isinstance(checkpoints, RemotePath):
        return None
    settings = checkpoints.parent / SETTINGS
    return settings.absolute() if settings.is_file() else None
