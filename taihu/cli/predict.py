"""`taihu predict`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from numpy.typing import NDArray

from taihu.errors import ModelError
from taihu.process.options import JsonOption, OwnModelOption
from taihu.results import check_writable, write_json
from worker.saved.inputs import read_samples
from worker.saved.prediction import LoadedModel, load_model_file

__all__ = ["predict"]


def predict(
    model_file: Annotated[Path, typer.Argument(metavar="MODEL.safetensors", help="What `taihu train --save` wrote.")],
    files: Annotated[
        list[Path], typer.Argument(metavar="FILES...", help="Images, arrays (.npy, .npz), tables (.csv, .parquet).")
    ],
    model: OwnModelOption = None,
    top: Annotated[int, typer.Option(metavar="K", min=1, help="How many classes are told, the likeliest first.")] = 3,
    batch: Annotated[int, typer.Option(metavar="B", min=1, help="Samples that are computed at once.")] = 256,
    json_file: JsonOption = None,
) -> None:
    """Tell what a saved model says about samples in files: a line for each, likeliest classes first, or values.

    Images are resized as for training. Of a table the columns are taken that the model was trained on.

    \b
    Examples:
      taihu predict model.safetensors cat.png dog.jpg
      taihu predict model.safetensors x_test.npy --top 1
      taihu predict model.safetensors houses.csv --json predictions.json
      taihu predict model.safetensors *.png --model my_model.py:build      of layers of your own
    """  # noqa: D301
    check_writable(json_file)
    loaded = load_model_file(model_file, model)
    if loaded.info.targets == "tokens":
        raise ModelError(
            f"{model_file}: tells the bytes that follow in text, which has no line of classes; test it with "
            "`taihu evaluate`, call LoadedModel.predict, or export it"
        )
    rows: list[dict[str, Any]] = []
    for samples in read_samples(files, loaded.info, batch):
        for name, answer in zip(samples.names, loaded.predict(samples.inputs, batch), strict=True):
            row = {"sample": name, **_told(loaded, answer, top)}
            typer.echo("  ".join([name, *_words(row)]))
            rows += [row] if json_file is not None else []
    if json_file is not None:
        write_json(json_file, {"model": str(model_file), "predictions": rows})


def _told(loaded: LoadedModel, answer: NDArray[np.float32], top: int) -> dict[str, Any]:
    if not loaded.info.classes:
        return {"values": [float(value) for value in answer]}
    best = np.argsort(-answer, kind="stable")[:top]
    return {
        "classes": [
            {"class": int(number), "name": loaded.class_names[number], "probability": float(answer[number])}
            for number in best
        ]
    }


def _words(row: dict[str, Any]) -> Iterator[str]:
    for value in row.get("values", ()):
        yield f"{value:.6g}"
    for each in row.get("classes", ()):
        yield f"{each['name']} {each['probability']:.4f}"
