"""`taihu evaluate`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from taihu.errors import ModelError
from taihu.job import load_job
from taihu.options import JsonOption
from taihu.results import write_json
from taihu.scores import ACCURACY, score_lines
from worker.data.load import load_dataset
from worker.evaluation import evaluate
from worker.hashing import parameters_sha256
from worker.saving import load_model

__all__ = ["evaluate_file"]


def evaluate_file(
    file: Annotated[Path, typer.Argument(metavar="FILE.safetensors", help="What `taihu train --save` wrote.")],
    data: Annotated[str | None, typer.Option(metavar="D", help="Data set; by default the one trained on.")] = None,
    data_path: Annotated[Path | None, typer.Option(metavar="DIR", help="Where the data set's files lie.")] = None,
    json_file: JsonOption = None,
) -> None:
    """Test a saved model on the test set of its data.

    \b
    Example:
      taihu evaluate model.safetensors
    """  # noqa: D301
    loaded = load_model(file)
    saved = loaded.saved
    dataset = load_dataset(load_job(None, {"data": {"name": data or saved.data, "path": data_path}}).data)
    if (dataset.input_shape, dataset.outputs) != (saved.input_shape, saved.classes):
        raise ModelError(
            f"{file}: the model takes images {saved.input_shape} of {saved.classes} classes, "
            f"{dataset.name} has {dataset.input_shape} of {dataset.outputs}; give --data what it was trained on"
        )
    tested = evaluate(loaded.model, dataset)
    digest = parameters_sha256(loaded.parameters)
    scores = ", ".join(" ".join(line) for line in score_lines(tested.metrics))
    typer.echo(f"{saved.model} after {saved.steps} steps on {dataset.name}: {scores}")
    typer.echo(f"test loss {tested.loss:.4f}, parameters sha256 {digest}")
    if json_file is not None:
        results = {
            "test_accuracy": tested.metrics.get(ACCURACY),
            "test_metrics": dict(tested.metrics),
            "test_loss": tested.loss,
            "parameters_sha256": digest,
        }
        write_json(json_file, results)
