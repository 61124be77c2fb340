"""`taihu predict`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from numpy.typing import NDArray

from taihu.checkpoint.places import place_of
from taihu.cli.model_argument import ModelArgument
from taihu.cli.predict_text import TextOptions, predict_text
from taihu.errors import ConfigError
from taihu.process.options import JsonOption, OwnModelOption
from taihu.results import check_writable, write_json
from worker.saved.inputs import read_samples
from worker.saved.prediction import LoadedModel, load_model_file

__all__ = ["predict"]


def predict(
    model_file: ModelArgument,
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILES...", help="Images, arrays (.npy, .npz), tables (.csv, .parquet); text, - for stdin."
        ),
    ],
    model: OwnModelOption = None,
    top: Annotated[int, typer.Option(metavar="K", min=1, help="How many classes are told, the likeliest first.")] = 3,
    batch: Annotated[int, typer.Option(metavar="B", min=1, help="Samples that are computed at once.")] = 256,
    length: Annotated[
        int | None,
        typer.Option(
            metavar="N", min=0, max=1 << 20, help="Of text: bytes that follow; 0: their chances. Default 100."
        ),
    ] = None,
    temperature: Annotated[
        float | None,
        typer.Option(
            metavar="T", min=0, help="Of text: 0, the default, takes the likeliest byte; 1 draws by chances."
        ),
    ] = None,
    seed: Annotated[int | None, typer.Option(metavar="S", min=0, help="Of text: of what is drawn.")] = None,
    json_file: JsonOption = None,
) -> None:
    """Tell what a saved model says about samples in files: a line for each, likeliest classes first, or values.

    Images are resized as for training. Of a table the columns are taken that the model was trained on. A model of
    text goes on from the text in each file.

    \b
    Examples:
      taihu predict model.safetensors cat.png dog.jpg
      taihu predict model.safetensors x_test.npy --top 1
      taihu predict model.safetensors houses.csv --json predictions.json
      taihu predict model.safetensors *.png --model my_model.py:build      of layers of your own
      taihu predict gpt.safetensors prompt.txt --length 400 --temperature 0.7
      echo -n "def main(" | taihu predict gpt.safetensors - --length 0 --top 5
    """  # noqa: D301
    check_writable(json_file)
    loaded = load_model_file(place_of(model_file), model)
    of_text = TextOptions(length, temperature, seed)
    if loaded.info.targets == "tokens":
        rows = predict_text(loaded, files, of_text, top)
    elif (option := of_text.given) is not None:
        raise ConfigError(f"{option}: is for models of text, {model_file} tells {loaded.info.targets}; leave it out")
    else:
        rows = list(_samples(loaded, files, batch, top))
    if json_file is not None:
        write_json(json_file, {"model": str(place_of(model_file)), "predictions": rows})


def _samples(loaded: LoadedModel, files: Sequence[Path], batch: int, top: int) -> Iterator[dict[str, Any]]:
    """Print a line for each sample; yields the rows of the results."""
    for samples in read_samples(files, loaded.info, batch):
        for name, answer in zip(samples.names, loaded.predict(samples.inputs, batch), strict=True):
            row = {"sample": name, **_told(loaded, answer, top)}
            typer.echo("  ".join([name, *_words(row)]))
            yield row


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
