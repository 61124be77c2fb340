"""The model at the end of a run, saved by worker 0 while the others read along."""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import structlog

from taihu.core.base.errors import ModelError, WriteError
from taihu.core.job import Job
from taihu.core.job.run_folder import RunFiles, run_name, stopped_model
from taihu.core.process.notices import Notices
from taihu.worker.data.base.dataset import Dataset
from taihu.worker.engine import Array, Model
from taihu.worker.saved.metadata import SavedModel
from taihu.worker.saved.writing import describe_model, save_model
from taihu.worker.training.replica import Replica


class Ending(NamedTuple):
    """The place of the saved model on worker 0, if there is one, and why it could not be saved."""

    path: Path | None = None
    problem: str = ""


def save_at_end(
    job: Job,
    dataset: Dataset,
    files: RunFiles,
    replica: Replica,
    read_layer: Callable[[int], None],
    *,
    rank: int,
    steps: int,
    stopped: bool,
    notices: Notices,
) -> Ending:
    """Save the model after `steps`, if anybody wants it; all workers call this at the same time.

    `read_layer(i)` is called before the parameters of layer i are read. A run that was `stopped` saves its model in
    any case, where it can. Where there is no room for the file it becomes one of the current folder, or of that for
    temporary files, and `notices` say so.

    Raises:
        ModelError: the model of a run that was not stopped is none that a file can say.
    """
    if stopped:
        replica.uses = replace(replica.uses, saves=True)
    if not replica.uses.saves:
        return Ending()
    path = stopped_model(job, files, steps) if stopped else files.model
    endings: list[Ending] = []

    def write(whole: Model, pieces: Iterator[Array]) -> None:
        try:
            saved = None if path is None else describe_model(job, dataset, whole, steps)
        except ModelError as error:
            if not stopped:
                raise
            saved = None
            endings.append(Ending(None, str(error)))
        if path is not None and saved is not None:
            name = f"{run_name(job)}-step-{steps}.safetensors"
            endings.append(save_somewhere(places_of(path, name), partial(_save, whole, saved), pieces))
        for _ in pieces:
            pass  # other workers may read along

    replica.save(write, read_layer)
    if rank:
        return Ending()
    ending = next(iter(endings), Ending(None, "run.save is none" if stopped and path is None else ""))
    if ending.path is None and ending.problem:
        structlog.get_logger().bind(role="worker", rank=rank).error("the model was not saved", reason=ending.problem)
    elif ending.problem:
        notices.say(f"{ending.problem}; the model is {ending.path}")
    return Ending(ending.path, "" if ending.path is not None else ending.problem)


def places_of(path: Path, name: str) -> Iterator[Path]:
    """Places for a model, the first of which is `path`; the others are new files, called `name` or alike."""
    yield path
    temporary = None
    with suppress(OSError):
        temporary = Path(tempfile.gettempdir())
    for folder in (Path.cwd(), temporary):
        if folder is not None:
            yield next(place for place in _names(folder / name) if not place.exists())


def _names(path: Path) -> Iterator[Path]:
    yield path
    for number in itertools.count(2):
        yield path.with_stem(f"{path.stem}-{number}")


def save_somewhere(
    places: Iterable[Path], save: Callable[[Path, Iterator[Array]], None], pieces: Iterator[Array]
) -> Ending:
    """Let `save` write `pieces` to the first of `places` that takes them; pieces that were taken cannot be had again.

    Returns where that is, and what was wrong with those before it.
    """
    taken = _Taken(pieces)
    problems: list[str] = []
    for place in places:
        try:
            save(place, taken)
        except WriteError as error:
            problems.append(str(error))
            if taken.any:
                break
        else:
            return Ending(place, "; ".join(problems))
    return Ending(None, "; ".join(problems))


class _Taken(Iterator[Array]):
    """Pieces, and whether `any` of them was asked for."""

    def __init__(self, pieces: Iterator[Array]) -> None:
        self._pieces = pieces
        self.any = False

    def __next__(self) -> Array:
        self.any = True
        return next(self._pieces)


def _save(whole: Model, saved: SavedModel, path: Path, pieces: Iterator[Array]) -> None:
    save_model(path, whole, saved, pieces)
