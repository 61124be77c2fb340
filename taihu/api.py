"""Training and prediction from Python, see docs/python.md; `taihu train` and `taihu predict` are made of the same."""

from __future__ import annotations

import inspect
import json
import shutil
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray
from rich.console import Console

from taihu.core.base.errors import ConfigError, DataError, ModelError
from taihu.core.job import Job
from taihu.core.job.environment import resolve_job, tables_of
from taihu.core.job.run_folder import describe_run
from taihu.core.process.entry import InterruptedRunError, Interrupts
from taihu.core.system.signals import SIGINT, set_handler
from taihu.core.system.threads import current_thread, main_thread
from taihu.local.display.display import make_display
from taihu.local.run import LocalRun, check_job, prepare
from taihu.local.training import LocalTraining
from taihu.worker.data.load import load_dataset
from taihu.worker.engine import Layer, Model
from taihu.worker.saved.prediction import LoadedModel, load_model_file
from taihu.worker.training.objective import objective

__all__ = ["Build", "LoadedModel", "Result", "load", "train"]

Build = Callable[[tuple[int, ...], int], Layer]
Arrays = tuple[ArrayLike, ArrayLike]

# Names of the run's own files in a job; the run's folder takes its name from them.
_LAYERS: Final = "./model.json"
_ARRAYS: Final = "./arrays"
_DAEMONS: Final = ("taihu.worker.__main__", "taihu.ps_server.__main__")


@dataclass(frozen=True)
class Result:
    """The outcome of a run.

    Attributes:
        metrics: of the last test: accuracy, or rmse, mae and r2, by name; empty where nothing was tested.
        final_loss: of training, the mean over the workers.
        steps: that were taken.
        history: a row for every test: epoch, test_loss, test_metrics and more.
        path: of the saved model; None where none was saved.
        folder: of the run; None where it has none.
        results: everything, as in results.json.
    """

    metrics: Mapping[str, float]
    final_loss: float
    steps: int
    history: tuple[Mapping[str, Any], ...]
    path: Path | None
    folder: Path | None
    results: Mapping[str, Any]

    def model(self) -> LoadedModel:
        """Load what was saved.

        Raises:
            ModelError: nothing was saved, or it has layers of the user's own: see `load`.
        """
        if self.path is None:
            raise ModelError("this run saved no model; leave run.save = 'none' out")
        return load(self.path)


def train(
    job: str | Path | Mapping[str, object] | Job | None = None,
    *,
    model: str | Build | Layer | None = None,
    data: str | Path | Sequence[Arrays] | None = None,
    run_dir: str | Path | None = None,
    progress: bool = False,
) -> Result:
    """Train on this machine, with servers and workers in processes of their own, and wait for the end.

    Args:
        job: the path of a job file, its tables as a dict ({"train": {"epochs": 3}}), or a Job; nothing for the
            defaults.
        model: a name as in `model.name`; a function (input_shape, outputs) -> Layer; or a Layer. Layers of your own
            need a function at the top of a file, which the workers import.
        data: a name as in `data.name`; or ((x_train, y_train), (x_test, y_test)), of which the second pair may be
            left out. They become files in the run's folder, which all workers map.
        run_dir: the run's folder; by default a new one, runs/NAME-TIME.
        progress: whether progress is shown as `taihu train` does.

    Raises:
        ConfigError: a setting, the model or the data are wrong; nothing has been started.
        RunError: the run failed.
        KeyboardInterrupt: the run was stopped by Ctrl-C: in order, after having saved the model.
    """
    if getattr(getattr(sys.modules["__main__"], "__spec__", None), "name", "") in _DAEMONS:
        raise ConfigError(
            "taihu.train() was called by a worker that imports this file for its model or data; call it under "
            "if __name__ == '__main__':"
        )
    own: dict[str, dict[str, object]] = {
        "model": {"name": model if isinstance(model, str) else None if model is None else _LAYERS},
        "data": {"name": str(data) if isinstance(data, (str, Path)) else None if data is None else _ARRAYS},
        "run": {"dir": run_dir if run_dir is None else Path(run_dir)},
    }
    resolved = _resolved(job, own)
    if str(resolved.run.dir) == "none" and _needs_folder(model, data):
        raise ConfigError("run.dir 'none': arrays and layers become files in the run's folder; leave it out")
    interrupts = Interrupts()
    run = _prepared(LocalTraining(resolved, interrupts=interrupts), model, data)
    display = make_display(Console(), quiet=not progress)
    with _interruptible(interrupts), display:
        results = run.run(display)
    for unwritten in run.unwritten:
        warnings.warn(unwritten, stacklevel=2)
    if results["stopped"]:
        raise KeyboardInterrupt(results["stop_reason"])
    return _result(run, results)


def load(path: str | Path, *, model: str | None = None) -> LoadedModel:
    """Load what `train`, or `taihu train --save`, saved; nothing of the file is executed.

    Args:
        path: of the file.
        model: for layers of your own, the "path/to/file.py:function" that built them, which is executed.

    Raises:
        ModelError: the file cannot be read, or its model cannot be built.
    """
    return load_model_file(Path(path), model)


def _needs_folder(model: object, data: object) -> bool:
    return not (model is None or isinstance(model, str)) or not (data is None or isinstance(data, (str, Path)))


def _resolved(job: object, own: Mapping[str, Mapping[str, object]]) -> Job:
    if isinstance(job, (str, Path)):
        return resolve_job(Path(job), (), own)
    if isinstance(job, Job):
        job = job.model_dump(exclude_unset=True)
    elif not (job is None or isinstance(job, Mapping)):
        raise ConfigError(f"job: expected a path, a dict of tables or a Job, seen {type(job).__name__}")
    return resolve_job(None, (), tables_of(job or {}, own))


def _prepared(training: LocalTraining, model: object, data: object) -> LocalRun:
    """The run, its folder made, with the files in it that arrays and layers become."""
    if not _needs_folder(model, data):
        check_job(training.job)
        return prepare(training, None)
    parts = None if data is None or isinstance(data, (str, Path)) else _parts(data)
    run = prepare(training, None)
    folder = run.files.folder
    assert folder is not None  # noqa: S101 - it was checked that the run has one
    try:
        job = training.job
        if parts is not None:
            _write_arrays(folder / "arrays", parts)
            job = _renamed(job, "data", str((folder / "arrays").absolute()))
        if not (model is None or isinstance(model, str)):
            job = _renamed(job, "model", _model_name(job, model, (folder / "model.json").absolute()))
        describe_run(folder, job, None)
        check_job(job)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return replace(run, training=replace(run.training, job=job))


def _renamed(job: Job, section: str, name: str) -> Job:
    return job.model_copy(update={section: getattr(job, section).model_copy(update={"name": name})})


def _parts(data: object) -> dict[str, NDArray[Any]]:
    """Arrays by the names of their files."""
    pairs = list(data) if isinstance(data, Sequence) and not isinstance(data, (str, bytes)) else []
    if len(pairs) not in {1, 2} or any(not isinstance(pair, Sequence) or len(pair) != 2 for pair in pairs):
        raise DataError(
            "data: expected ((x_train, y_train), (x_test, y_test)), or the first pair of it alone in a list"
        )
    named: dict[str, NDArray[Any]] = {}
    for (x, y), part in zip(pairs, ("train", "test"), strict=False):
        for letter, values in (("x", x), ("y", y)):
            try:
                named[f"{letter}_{part}"] = np.asarray(values)
            except ValueError:
                raise DataError(f"data: {letter}_{part} has rows of several shapes; expected an array") from None
            if named[f"{letter}_{part}"].dtype.hasobject:
                raise DataError(f"data: {letter}_{part} holds Python objects; expected an array of numbers")
    return named


def _write_arrays(folder: Path, parts: Mapping[str, NDArray[Any]]) -> None:
    try:
        folder.mkdir()
        for name, values in parts.items():
            np.save(folder / f"{name}.npy", values, allow_pickle=False)
    except OSError as error:
        raise DataError(f"data: the arrays cannot be written to {folder}: {error.strerror}") from None


def _model_name(job: Job, model: object, file: Path) -> str:
    """The name by which workers find a model: a file of its definitions, or where its function is."""
    dataset = load_dataset(job.data, job.model.name)
    _, outputs = objective(job.train, dataset)
    root = model(dataset.input_shape, outputs) if callable(model) else model
    if not isinstance(root, Layer):
        raise ModelError(
            f"model: expected a name, a Layer or a function that returns one, seen {type(root).__name__}"
        )
    definition = root.definition()
    Model(root, dataset.input_shape, outputs)
    if definition is None:
        return _place_of(model)
    file.write_text(json.dumps(definition), encoding="utf-8")
    return str(file)


def _place_of(build: object) -> str:
    """`path/to/file.py:function` of a function that workers can import."""
    name = getattr(build, "__name__", "")
    module = inspect.getmodule(build)
    file = getattr(module, "__file__", None)
    if file is None or getattr(module, name, None) is not build or not file.endswith(".py"):
        raise ModelError(
            "model: it has layers of your own, which workers import; give a function at the top of a .py file"
        )
    return f"{Path(file).absolute()}:{name}"


@contextmanager
def _interruptible(interrupts: Interrupts) -> Iterator[None]:
    """Ctrl-C stops the run in order during the block, in the main thread; elsewhere nothing is changed."""
    if current_thread() is not main_thread():
        yield
        return
    before = set_handler(SIGINT, interrupts.arrived)
    try:
        yield
    except InterruptedRunError as error:
        raise KeyboardInterrupt(str(error)) from None
    finally:
        set_handler(SIGINT, before)


def _result(run: LocalRun, results: Mapping[str, Any]) -> Result:
    path = run.files.model
    return Result(
        metrics=results["test_metrics"] or {},
        final_loss=results["final_loss"],
        steps=results["steps"],
        history=tuple(results["evaluations"]),
        path=path if path is not None and path.exists() else None,
        folder=run.files.folder,
        results=results,
    )
