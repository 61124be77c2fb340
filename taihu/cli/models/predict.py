"""`taihu predict`."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from numpy.typing import NDArray

from taihu.cli.models.model_argument import ModelArgument
from taihu.cli.models.predict_text import TextOptions, predict_text
from taihu.core.base.errors import ConfigError, DataError
from taihu.core.base.words import counted, one_line
from taihu.core.checkpoint.places import place_of
from taihu.core.process.options import JsonOption, OwnModelOption
from taihu.core.process.results import check_writable, write_json
from taihu.local.display.progress import Progress
from taihu.worker.data.base.defects import Defects
from taihu.worker.data.own.images.bad_image import BadImageError
from taihu.worker.saved.folders import in_folders
from taihu.worker.saved.inputs import read_samples
from taihu.worker.saved.prediction import LoadedModel, load_model_file


def predict(
    model_file: ModelArgument,
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILES...",
            help="Images, arrays (.npy, .npz), tables (.csv, .parquet), folders of them; text, - for stdin.",
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

    Images are turned and resized as for training. Of a folder all files below it are taken that the model can be
    given, in the order of their paths. Of a table the columns are taken that the model was trained on. A model of
    text goes on from the text in each file.

    \b
    Examples:
      taihu predict model.safetensors cat.png dog.jpg
      taihu predict model.safetensors photos/ --json predictions.json      all images below
      taihu predict model.safetensors x_test.npy --top 1
      taihu predict model.safetensors houses.csv --json predictions.json
      taihu predict model.safetensors *.png --model my_model.py:build      of layers of your own
      taihu predict gpt.safetensors prompt.txt --length 400 --temperature 0.7
      echo -n "def main(" | taihu predict gpt.safetensors - --length 0 --top 5
    """  # noqa: D301
    check_writable(json_file)
    loaded = load_model_file(place_of(model_file), model)
    of_text = TextOptions(length, temperature, seed)
    is_text = loaded.info.targets == "tokens"
    if not is_text and (option := of_text.given) is not None:
        raise ConfigError(f"{option}: is for models of text, {model_file} tells {loaded.info.targets}; leave it out")
    found = _found(files, loaded)
    bad: list[BadImageError] = []
    rows = predict_text(loaded, found, of_text, top) if is_text else list(_samples(loaded, found, batch, top, bad))
    if json_file is not None:
        write_json(json_file, {"model": str(place_of(model_file)), "predictions": rows})
    if bad:
        raise bad[0] if len(bad) == 1 else _error_of(bad, len(found))


def _found(places: Sequence[Path], loaded: LoadedModel) -> list[Path]:
    """The files given, and those of the folders given."""
    found = []
    for files, note in in_folders(places, loaded.info):
        found += files
        if note:
            typer.echo(one_line(note), err=True)
    return found


def _samples(
    loaded: LoadedModel, files: Sequence[Path], batch: int, top: int, bad: list[BadImageError]
) -> Iterator[dict[str, Any]]:
    """Print a line for each sample; yields the rows of the results. Images that cannot be read go to `bad`."""
    tell, done = Progress(), 0
    for samples in read_samples(files, loaded.info, batch):
        bad += samples.bad
        for name, answer in zip(samples.names, loaded.predict(samples.inputs, batch), strict=True):
            row = {"sample": name, **_told(loaded, answer, top)}
            typer.echo("  ".join([one_line(name), *_words(row)]))
            yield row
        done += len(samples.names) + len(samples.bad)
        if not sys.stdout.isatty():
            tell(f"{counted(done, 'sample')} of {counted(len(files), 'file')}")


def _error_of(bad: Sequence[BadImageError], files: int) -> DataError:
    """One line on all images that could not be read."""
    defects = Defects("", "image")
    for error in bad:
        defects.of_samples(error.fault, [error.path])
    return DataError(f"{len(bad)} of {counted(files, 'file')} left out: {' '.join(defects.lines())}")


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
