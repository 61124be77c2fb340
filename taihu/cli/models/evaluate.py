"""`taihu evaluate`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

import typer

from taihu.cli.models.model_argument import ModelArgument
from taihu.core.base.errors import ModelError
from taihu.core.base.words import counted
from taihu.core.checkpoint.places import Place, place_of
from taihu.core.job import load_job
from taihu.core.model.names import DATA_NAMES
from taihu.core.model.scores import ACCURACY, score_lines
from taihu.core.process.options import JsonOption, OwnModelOption
from taihu.core.process.results import write_json
from taihu.core.settings import DataSettings
from taihu.worker.data.base.dataset import Dataset
from taihu.worker.data.load import load_dataset, with_statistics
from taihu.worker.saved.metadata import SavedModel
from taihu.worker.saved.reading import load_model
from taihu.worker.training.evaluation import evaluate, samples_at_once
from taihu.worker.training.hashing import parameters_sha256

# Settings of the data that are no paths and name nothing that is executed.
_READING: Final = (
    "resize", "target", "task", "test_share", "split_seed", "sequence", "drop", "fill", "texts", "header", "encoding",
    "decimal", "skip_bad",
)  # fmt: skip
_MOST_LISTED: Final = 8


def evaluate_file(
    file: ModelArgument,
    model: OwnModelOption = None,
    data: Annotated[str | None, typer.Option(metavar="D", help="Data set; by default the one trained on.")] = None,
    data_path: Annotated[Path | None, typer.Option(metavar="DIR", help="Where the data set's files lie.")] = None,
    json_file: JsonOption = None,
) -> None:
    """Test a saved model on the test set of its data.

    \b
    Examples:
      taihu evaluate model.safetensors
      taihu evaluate model.safetensors --data fashion-mnist --data-path DIR
      taihu evaluate s3://bucket/checkpoints/step-000120             the model of a checkpoint
      taihu evaluate model.safetensors --model my_model.py:build      of layers of your own
    """  # noqa: D301
    place = place_of(file)
    loaded = load_model(place, model)
    saved = loaded.saved
    settings = _data_settings(saved, data or _known_data(saved, place), data_path)
    dataset = _as_trained(load_dataset(settings, saved.model, saved.as_trained), saved, place)
    tested = evaluate(loaded.model, dataset, loaded.batch(samples_at_once(loaded.model)))
    digest = parameters_sha256(loaded.parameters)
    scores = ", ".join(" ".join(line) for line in score_lines(tested.metrics))
    typer.echo(f"{saved.model} after {counted(saved.steps, 'step')} on {dataset.name}: {scores}")
    typer.echo(f"test loss {tested.loss:.4f}, parameters sha256 {digest}")
    if json_file is not None:
        results = {
            "test_accuracy": tested.metrics.get(ACCURACY),
            "test_metrics": dict(tested.metrics),
            "test_loss": tested.loss,
            "parameters_sha256": digest,
        }
        write_json(json_file, results)


def _data_settings(saved: SavedModel, name: str, path: Path | None) -> DataSettings:
    """The data set `name`, read as the one was that the model was trained on.

    Raises:
        ConfigError: there is no such data set, or the file has settings that are none.
    """
    trained = saved.job.get("data")
    kept = {key: trained[key] for key in _READING if key in trained} if isinstance(trained, dict) else {}
    return load_job(None, {"data": {**kept, "name": name, "path": path}}).data


def _known_data(saved: SavedModel, file: Place) -> str:
    """The data set that the file names, if it is one of taihu's own: a file of anybody's else may be code."""
    if saved.data.partition(":")[0] not in {name.partition(":")[0] for name in DATA_NAMES}:
        raise ModelError(f"{file}: was trained on {saved.data}; give --data what it is to be tested on")
    return saved.data


def _as_trained(dataset: Dataset, saved: SavedModel, file: Place) -> Dataset:
    """`dataset` with the normalisation of the one that the model was trained on.

    Raises:
        ModelError: the model takes other inputs, or tells other things.
    """
    outputs = saved.classes or saved.outputs
    if (dataset.input_shape, dataset.targets, dataset.outputs) != (saved.input_shape, saved.targets, outputs):
        raise ModelError(
            f"{file}: the model takes inputs {saved.input_shape} and tells {outputs} {saved.targets}, {dataset.name} "
            f"has {dataset.input_shape} and {dataset.outputs} {dataset.targets}; give --data what it was trained on"
        )
    if saved.class_names and dataset.class_names and saved.class_names != dataset.class_names:
        raise ModelError(
            f"{file}: the model tells the classes {_listed(saved.class_names)}, {dataset.name} has "
            f"{_listed(dataset.class_names)}; give --data what has the same ones"
        )
    if not saved.mean:
        return dataset
    return with_statistics(dataset, saved.statistics)


def _listed(names: tuple[str, ...]) -> str:
    return ", ".join(names[:_MOST_LISTED]) + (", ..." if len(names) > _MOST_LISTED else "")
