"""Tables of the user's own for regression and classification: a column to predict, the others as features."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from taihu.core.base.errors import DataError
from taihu.core.model.names import OwnData
from taihu.core.settings import DataSettings
from taihu.worker.data.base.dataset import Dataset
from taihu.worker.data.base.defects import Defects, Fault, check_all
from taihu.worker.data.base.reading import Column, Form, TableReading
from taihu.worker.data.base.sources import table_files
from taihu.worker.data.base.statistics import Moments
from taihu.worker.data.own.assemble import Split, assemble, split_rows
from taihu.worker.data.own.inputs import ArrayInputs
from taihu.worker.data.own.tables.fills import fill_of, fill_value
from taihu.worker.data.own.tables.table_files import TableFile, count_rows, open_table
from taihu.worker.data.own.tables.table_plan import Plan, plan_columns
from taihu.worker.data.own.tables.table_scan import Forms, Known, Portions, Scanned, decide_forms, portions_of, scan
from taihu.worker.data.own.tables.table_targets import (
    TargetClasses,
    classes_of,
    known_classes,
    numbered,
    target_values,
)

_MOST_CATEGORIES: Final = 100
_MOST_BYTES_IN_MEMORY: Final = 256 << 20


@dataclass(frozen=True)
class _Surveyed:
    """The tables of a data set, looked over: nothing is made of them yet, and `defects` may forbid it."""

    target: tuple[str, Form]
    tables: tuple[tuple[TableFile, Portions, Scanned], ...]
    reading: TableReading
    classes: TargetClasses | None

    @property
    def defects(self) -> list[Defects]:
        return [table.defects for table, _, _ in self.tables]


def load_own_table(
    settings: DataSettings, own: OwnData, reading: TableReading | None = None, class_names: Sequence[str] = ()
) -> Dataset:
    """Make inputs of all columns but `data.target` and `data.drop`, and targets of that one.

    Numbers stay numbers, moments become seconds since 1970, a text becomes as many inputs as there are different ones
    in its column. The inputs lie in memory up to 256 MiB, else in a temporary file that is mapped. Columns are read
    as the `reading` of a saved model says, which knows the classes `class_names`; by default the rows for training
    tell both.

    Raises:
        DataError: more rows than `data.skip_bad` have defects, or the whole has: one line tells all of them.
    """
    surveyed = _survey(settings, own, reading, class_names)
    left_out = check_all(surveyed.defects, settings.skip_bad)
    classes = surveyed.classes
    wide = surveyed.reading.wide or any(
        _is_wide(portions, surveyed.reading, scanned) for _, portions, scanned in surveyed.tables[:1]
    )
    reading = replace(surveyed.reading, wide=wide)
    parts = [_part(each, surveyed.target, reading, classes) for each in surveyed.tables]
    settings = settings.model_copy(update={"task": "values" if classes is None else "classes"})
    dataset = assemble(settings, parts[0], parts[1] if len(parts) == 2 else None, classes.names if classes else ())
    columns = tuple((column.name, column.texts) for column in reading.columns)
    return replace(dataset, columns=columns, reading=reading, left_out=left_out)


def table_defects(settings: DataSettings, own: OwnData) -> list[Defects]:
    """All defects of a table, or of the two of a folder, by one look at each.

    Raises:
        DataError: a file cannot be read as a table at all.
    """
    return _survey(settings, own, None, ()).defects


def count_own_table(own: OwnData, most_bytes: int, settings: DataSettings) -> tuple[int, bool] | None:
    """Number of rows for training, and whether there are others for testing; None where it takes too long.

    Raises:
        DataError: the file is no table.
    """
    train, test = table_files(own)
    rows = count_rows(train, most_bytes, settings)
    return None if rows is None else (rows, test is not None)


def read_features(path: Path, reading: TableReading, settings: DataSettings) -> NDArray[np.float64]:
    """The inputs (rows, features) of a table whose columns are read as those for training; others are ignored.

    Raises:
        DataError: a column is missing, or a value is missing, not of its column's form, or an unknown text.
    """
    names = [column.name for column in reading.columns]
    table = open_table(path, settings, names)
    missing = [name for name in names if name not in table.types]
    if missing:
        raise DataError(
            f"{path}: no column {missing[0]}, which the model was trained on; it takes {', '.join(names)}"
        )
    forms = decide_forms(table, names, _known_forms(reading), _told_decimal(settings), reading.decimal)
    portions = portions_of(table, forms)
    scanned = scan(table, portions, reading.columns, filled=_filled(reading), known=_known_texts(reading.columns))
    if not scanned.rows and not table.defects:
        table.defects.of_data(Fault("it has no rows"))
    check_all([table.defects], 0, told=False)
    return _inputs(portions, replace(reading, wide=True), scanned)


def _survey(
    settings: DataSettings, own: OwnData, reading: TableReading | None, class_names: Sequence[str]
) -> _Surveyed:
    train_path, test_path = table_files(own)
    expected = [column.name for column in reading.columns] if reading else []
    train = open_table(train_path, settings, expected)
    plan = plan_columns(train, settings, expected)
    if any(name not in train.types for name in expected):
        check_all([train.defects], 0)
    known: dict[str, Form] = _known_forms(reading) if reading else dict.fromkeys(settings.texts, "text")
    classes = known_classes(class_names)
    if classes is not None and plan.target is not None:
        known[plan.target] = classes.form
    remembered = reading.decimal if reading else "."
    forms = decide_forms(train, plan.read, known, _told_decimal(settings), remembered)
    looked = [(train, *_look(train, forms, plan, settings.fill, (reading, classes)))]
    if classes is None:
        classes = classes_of(train, plan.target, forms, looked[0][2], settings)
    if reading is None:
        reading = _reading(train, forms, plan, looked[0][2], settings, split=test_path is None)
    if test_path is not None:
        test = open_table(test_path, settings, plan.read)
        absent = [name for name in plan.read if name not in test.types]
        for name in absent:
            test.defects.of_data(Fault(f"no column {name}, which {train.path} has", "add it"))
        if not absent:
            own_forms = decide_forms(test, plan.read, forms.of, _told_decimal(settings), forms.file_decimal)
            looked.append((test, *_look(test, own_forms, plan, settings.fill, (reading, classes))))
        else:
            looked.append((test, lambda: iter(()), Scanned()))
    target = plan.target or ""  # which is a defect
    return _Surveyed((target, forms.of.get(target, "text")), tuple(looked), reading, classes)


def _told_decimal(settings: DataSettings) -> Any:
    return None if settings.decimal == "auto" else settings.decimal


def _known_forms(reading: TableReading) -> dict[str, Form]:
    return {column.name: column.form for column in reading.columns}


def _filled(reading: TableReading) -> list[str]:
    return [column.name for column in reading.columns if column.fill is not None]


def _known_texts(columns: Sequence[Column]) -> dict[str, Known]:
    return {
        column.name: Known(
            column.texts,
            Fault("does not occur in the rows for training", "drop the row", f"column {column.name}"),
        )
        for column in columns
        if column.texts
    }


def _look(
    table: TableFile,
    forms: Forms,
    plan: Plan,
    fills: Sequence[str],
    known: tuple[TableReading | None, TargetClasses | None],
) -> tuple[Portions, Scanned]:
    """Look over the rows of a table; of one for testing by what is known of the other."""
    portions = portions_of(table, forms)
    reading, classes = known
    among: dict[str, Known] = {}
    if reading is not None:
        columns = list(reading.columns)
        filled, among = _filled(reading), _known_texts(columns)
    else:
        columns = [Column(name, forms.of[name]) for name in plan.features]
        filled = [name for name in plan.features if fill_of(name, forms.of[name], fills) is not None]
    if plan.target is not None:
        columns.append(Column(plan.target, forms.of[plan.target]))
        if classes is not None:
            fault = Fault("this class has no row for training", "drop the row", f"column {plan.target}")
            among[plan.target] = Known(classes.values, fault)
    keep = [*filled, *([plan.target] if plan.target else [])]
    scanned = scan(table, portions, columns, keep=keep, filled=filled, may_be_filled=plan.features, known=among)
    if not scanned.rows and not table.defects:
        table.defects.of_data(Fault("it has no rows"))
    return portions, scanned


def _reading(
    table: TableFile, forms: Forms, plan: Plan, scanned: Scanned, settings: DataSettings, *, split: bool
) -> TableReading:
    """The reading of the columns of features, by the rows for training."""
    train = np.flatnonzero(~scanned.bad)
    if split and len(train) > 1:
        train = train[split_rows(len(train), settings, str(table.path))[0]]
    columns = []
    for name in plan.features:
        form, texts = forms.of[name], set(scanned.texts.get(name, ()))
        setting = fill_of(name, form, settings.fill)
        fill = None
        if setting is not None:
            fill = _fill((name, form), setting, scanned.values.get(name, ()), train, table.defects)
        if isinstance(fill, str) and _has_missing(scanned, name):
            texts.add(fill)
        if len(texts) > _MOST_CATEGORIES:
            table.defects.of_data(
                Fault(
                    f"has more than {_MOST_CATEGORIES} different texts, for example {min(texts)!r}",
                    f"make it numbers, or set data.drop = ['{name}']",
                    f"column {name}",
                )
            )
            texts = set()
        columns.append(Column(name, "number" if form == "whole" else form, tuple(sorted(texts)), fill))
    return TableReading(tuple(columns), forms.file_decimal)


def _has_missing(scanned: Scanned, name: str) -> bool:
    return any(each.null_count for each in scanned.values.get(name, ()))


def _fill(
    column: tuple[str, Form], setting: str, chunks: Sequence[Any], train: NDArray[np.int64], defects: Defects
) -> float | str | None:
    name, form = column
    found = pa.chunked_array(chunks).take(pa.array(train)).drop_null() if chunks else None
    values: Any = np.empty(0)
    if form == "text":
        listed = pc.value_counts(found).to_pylist() if found is not None else []
        values = {each["values"]: each["counts"] for each in listed}
    elif found is not None:
        values = found.cast(pa.float64(), safe=False).to_numpy()
    fill = fill_value(setting, form, values)
    if fill is None:
        kind = "texts" if form == "text" else "numbers"
        defects.of_data(
            Fault(
                f"has {len(values)} {kind}, for which data.fill {setting!r} tells no value",
                "give a value",
                f"column {name}",
            )
        )
    return fill


def _part(
    looked: tuple[TableFile, Portions, Scanned],
    target: tuple[str, Form],
    reading: TableReading,
    classes: TargetClasses | None,
) -> Split:
    table, portions, scanned = looked
    name, form = target
    where = f"data {table.path}"
    raw = target_values(scanned.values[name], ~scanned.bad, form)
    return Split(ArrayInputs(_inputs(portions, reading, scanned), where), numbered(raw, classes), where)


def _inputs(portions: Portions, reading: TableReading, scanned: Scanned) -> NDArray[Any]:
    """Inputs of the rows without defects, float64 or float32 as the reading says."""
    rows = int((~scanned.bad).sum())
    width = sum(column.width for column in reading.columns)
    inputs = _room(rows, width, np.float64 if reading.wide else np.float32)
    start = place = 0
    for portion in portions():
        good = ~scanned.bad[place : place + portion.rows]
        place += portion.rows
        out = inputs[start : start + int(good.sum())]
        first = 0
        for column in reading.columns:
            _encode(column, portion.columns[column.name].values, good, out[:, first : first + column.width])
            first += column.width
        start += len(out)
    return inputs


def _is_wide(portions: Portions, reading: TableReading, scanned: Scanned) -> bool:
    """Whether a column of numbers has to be kept in float64 until its mean is taken away."""
    numbers = [column for column in reading.columns if column.form != "text"]
    if not numbers:
        return False
    moments = Moments(len(numbers))
    place = 0
    for portion in portions():
        good = ~scanned.bad[place : place + portion.rows]
        place += portion.rows
        if good.any():
            moments.add(
                np.stack([_numbers(column, portion.columns[column.name].values)[good] for column in numbers], 1)
            )
    return moments.statistics().offset is not None


def _numbers(column: Column, values: Any) -> NDArray[np.float64]:
    values = values.cast(pa.float64(), safe=False)
    if column.fill is not None:
        values = values.fill_null(column.fill)
    found: NDArray[np.float64] = values.to_numpy(zero_copy_only=False)
    return found


def _encode(column: Column, values: Any, good: NDArray[np.bool_], out: NDArray[Any]) -> None:
    if not column.texts:
        out[:, 0] = _numbers(column, values)[good]
        return
    if column.fill is not None:
        values = values.fill_null(column.fill)
    places = pc.index_in(values, value_set=pa.array(column.texts, pa.string())).fill_null(-1)
    out[...] = places.to_numpy(zero_copy_only=False)[good][:, np.newaxis] == np.arange(column.width)


def _room(rows: int, width: int, dtype: Any) -> NDArray[Any]:
    """An array (rows, width): in memory, or mapped from a temporary file that has no name and goes with it."""
    if rows * width * np.dtype(dtype).itemsize <= _MOST_BYTES_IN_MEMORY:
        return np.empty((rows, width), dtype)
    with tempfile.TemporaryFile() as file:
        return np.memmap(file, dtype, "w+", shape=(rows, width))
