"""`taihu check-data`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from taihu.core.base.errors import DataError
from taihu.core.base.words import counted, one_line
from taihu.core.job import load_job, parse_assignments
from taihu.core.process.options import JsonOption, SetOption
from taihu.core.process.results import check_writable, write_json
from taihu.local.display.display import waiting

if TYPE_CHECKING:
    from taihu.worker.data.base.dataset import Dataset
    from taihu.worker.data.base.reading import Column
    from taihu.worker.data.checking import CheckedData

_MOST_COLUMNS = 20
_MOST_TEXTS = 5


def check_data(
    data: Annotated[str, typer.Argument(metavar="DATA", help="A file or folder of your own, as --data of train.")],
    assignments: SetOption = None,
    json_file: JsonOption = None,
) -> None:
    """Tell all defects of a data set at once, each kind with its number and the first rows or files.

    Every row of a table and every pixel of a folder of images is looked at. Where nothing is wrong, it tells what a
    model would be trained on: the number of samples, and how each column of a table is read. It ends with 2 where the
    data cannot be trained on.

    \b
    Examples:
      taihu check-data houses.csv
      taihu check-data houses.csv --set data.target=price --set data.fill=median --set data.skip_bad=5
      taihu check-data ./photos --set data.resize=64x64 --json defects.json
    """  # noqa: D301
    from taihu.worker.data.checking import check_data as look

    check_writable(json_file)
    settings = load_job(None, parse_assignments(assignments or []), {"data": {"name": data}}).data
    with waiting(f"checking {data}"):
        checked = look(settings)
    for line in _told(checked):
        typer.echo(one_line(line))
    if json_file is not None:
        write_json(json_file, _as_json(checked))
    if checked.dataset is None:
        kinds = sum(len(part.as_json()) for part in checked.defects)
        raise DataError(f"{data}: {counted(kinds, 'kind')} of defects, see above" if kinds else checked.error)
    typer.echo("these data can be trained on")


def _told(checked: CheckedData) -> Iterator[str]:
    for part in checked.defects:
        for line in part.lines():
            yield f"{part.where}: {line}"
        if part.bad:
            yield f"{part.where}: {part.counted_bad} with a defect"
    if checked.dataset is not None:
        yield from _samples(checked.dataset)


def _samples(dataset: Dataset) -> Iterator[str]:
    shape = "x".join(map(str, dataset.input_shape))
    yield (
        f"{counted(len(dataset.train), 'sample')} for training, {len(dataset.test):,} for testing; inputs {shape}, "
        f"{counted(dataset.outputs, 'value') if dataset.targets == 'values' else f'{dataset.outputs:,} classes'}"
    )
    if dataset.class_names:
        yield f"classes: {_some(dataset.class_names)}"
    columns = dataset.reading.columns if dataset.reading is not None else ()
    for column in columns[:_MOST_COLUMNS]:
        yield f"column {column.name}: {_read(column)}"
    if len(columns) > _MOST_COLUMNS:
        yield f"and {len(columns) - _MOST_COLUMNS} more columns"
    yield from dataset.told


def _read(column: Column) -> str:
    kinds = {
        "number": "a number", "percent": "a percentage, 5 % as 0.05", "truth": "true and false, as 1 and 0",
        "date": "a date, in seconds since 1970", "text": f"texts, one input each: {_some(column.texts)}",
    }  # fmt: skip
    filled = "" if column.fill is None else f"; {column.fill!r} where it is missing"
    return f"{kinds.get(column.form, 'a number')}{filled}"


def _some(texts: Sequence[str]) -> str:
    return ", ".join(texts[:_MOST_TEXTS]) + (f", ... ({len(texts)} in all)" if len(texts) > _MOST_TEXTS else "")


def _as_json(checked: CheckedData) -> dict[str, Any]:
    dataset = checked.dataset
    return {
        "can_be_trained_on": dataset is not None,
        "error": checked.error,
        "parts": [{"where": part.where, "bad": len(part.bad), "defects": part.as_json()} for part in checked.defects],
        "training_samples": None if dataset is None else len(dataset.train),
        "test_samples": None if dataset is None else len(dataset.test),
        "input_shape": None if dataset is None else list(dataset.input_shape),
        "targets": None if dataset is None else dataset.targets,
        "class_names": None if dataset is None else list(dataset.class_names),
    }
