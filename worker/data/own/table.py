"""Tables of the user's own for regression and classification: a column to predict, the others as features."""

from __future__ import annotations

import difflib
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from taihu.errors import DataError
from taihu.names import OwnData
from taihu.settings import DataSettings
from worker.data.dataset import Dataset
from worker.data.own.assemble import Part, assemble
from worker.data.own.inputs import ArrayInputs
from worker.data.own.table_files import TableFile, count_rows, open_table
from worker.data.sources import table_files

__all__ = ["count_own_table", "load_own_table", "read_features"]

_MOST_CATEGORIES: Final = 100
_MOST_CLASSES: Final = 1000
_MOST_INTEGER_CLASSES: Final = 100
_MOST_BYTES_IN_MEMORY: Final = 256 << 20

Kind = Literal["number", "text"]


@dataclass(frozen=True)
class _Feature:
    """One column as inputs: a number, or 1 at the place of its text among the categories."""

    name: str
    first: int
    categories: tuple[str, ...]

    @property
    def width(self) -> int:
        return len(self.categories) or 1


def load_own_table(settings: DataSettings, own: OwnData) -> Dataset:
    """Make inputs of all columns but `data.target`, and targets of that one.

    Numbers stay numbers, a text becomes as many inputs as there are different ones in its column. The inputs lie in
    memory up to 256 MiB, else in a temporary file that is mapped.

    Raises:
        DataError: a value is missing or not finite (row and column are named), a column is neither of numbers nor of
            texts, or there are too many different texts.
    """
    train_path, test_path = table_files(own)
    train = open_table(train_path)
    target = _target_name(train, settings.target)
    kinds = {name: _kind(train, name) for name in train.schema.names}
    names = [name for name in kinds if name != target]
    if not names:
        raise DataError(f"{train.path}: {target} is its only column; expected others to predict it from")
    texts, rows, raw = _scan(train, kinds, target)
    features = tuple(_features(train, names, kinds, texts))
    classes = _classes(train, target, raw, settings)
    parts = [_part(train, features, rows, _numbered(train, target, raw, classes))]
    if test_path is not None:
        test = open_table(test_path)
        _check_columns(test, train, kinds)
        _, rows, raw = _scan(test, kinds, target)
        parts.append(_part(test, features, rows, _numbered(test, target, raw, classes)))
    task = "values" if classes is None else "classes"
    settings = settings.model_copy(update={"task": task})
    dataset = assemble(settings, parts[0], parts[1] if len(parts) == 2 else None, classes or ())
    return replace(dataset, columns=tuple((feature.name, feature.categories) for feature in features))


def count_own_table(own: OwnData, most_bytes: int) -> tuple[int, bool] | None:
    """Number of rows for training, and whether there are others for testing; None where it takes too long.

    Raises:
        DataError: the file is no table.
    """
    train, test = table_files(own)
    rows = count_rows(train, most_bytes)
    return None if rows is None else (rows, test is not None)


def read_features(path: Path, columns: Sequence[tuple[str, Sequence[str]]]) -> NDArray[np.float32]:
    """The inputs (rows, features) of a table with the `columns` of `Dataset.columns`; others in it are ignored.

    Raises:
        DataError: a column is missing or of another kind, or a value is missing, not finite, or an unknown text.
    """
    table = open_table(path)
    kinds: dict[str, Kind] = {name: "text" if texts else "number" for name, texts in columns}
    texts = {name: set(own) for name, own in columns}
    for name, kind in kinds.items():
        if name not in table.schema.names:
            raise DataError(f"{path}: no column {name}, which the model was trained on; it takes {', '.join(kinds)}")
        if _kind(table, name) != kind:
            raise DataError(f"{path}: column {name} is of {table.schema.field(name).type}, the model takes a {kind}")
    features = tuple(_features(table, kinds, kinds, texts))
    rows = 0
    for portion in table.portions():
        for name, kind in kinds.items():
            _check_column(table, name, kind, portion.column(name), rows)
        rows += len(portion)
    return _inputs(table, features, rows)


def _target_name(table: TableFile, wanted: str | None) -> str:
    names: list[str] = table.schema.names
    if wanted is None:
        return names[-1]
    if wanted not in names:
        near = difflib.get_close_matches(wanted, names, n=1)
        hint = f"did you mean {near[0]}?" if near else f"it has {', '.join(names)}"
        raise DataError(f"{table.path}: no column {wanted!r} for data.target; {hint}")
    return wanted


def _kind(table: TableFile, name: str) -> Kind:
    dtype = table.schema.field(name).type
    if pa.types.is_dictionary(dtype):
        dtype = dtype.value_type
    numbers = (pa.types.is_boolean, pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal, pa.types.is_null)
    if any(is_one(dtype) for is_one in numbers):
        return "number"
    if any(is_one(dtype) for is_one in (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)):
        return "text"
    raise DataError(f"{table.path}: column {name} is of {dtype}; make it numbers or texts, or drop it")


def _check_columns(test: TableFile, train: TableFile, kinds: dict[str, Kind]) -> None:
    for name, kind in kinds.items():
        if name not in test.schema.names:
            raise DataError(f"{test.path}: no column {name}, which {train.path} has")
        if _kind(test, name) != kind:
            raise DataError(
                f"{test.path}: column {name} is of {test.schema.field(name).type}, unlike in {train.path}"
            )


def _scan(table: TableFile, kinds: dict[str, Kind], target: str) -> tuple[dict[str, set[str]], int, NDArray[Any]]:
    """Different texts of every column of texts, the number of rows, and the values of the target."""
    texts: dict[str, set[str]] = {name: set() for name, kind in kinds.items() if kind == "text"}
    targets: list[NDArray[Any]] = []
    rows = 0
    for portion in table.portions():
        for name, kind in kinds.items():
            column = portion.column(name)
            _check_column(table, name, kind, column, rows)
            if kind == "text":
                texts[name].update(pc.unique(_texts(column)).to_pylist())
                _check_categories(table, name, texts[name], _MOST_CLASSES if name == target else _MOST_CATEGORIES)
        try:
            targets.append(_target_values(portion.column(target), kinds[target]))
        except pa.ArrowInvalid as error:
            raise DataError(f"{table.path}: column {target}: {' '.join(str(error).split())}") from None
        rows += len(portion)
    if not rows:
        raise DataError(f"{table.path}: it has no rows")
    return texts, rows, np.concatenate(targets)


def _check_column(table: TableFile, name: str, kind: Kind, column: Any, first_row: int) -> None:
    if column.null_count:
        row = first_row + int(pc.index(column.is_null(), True).as_py()) + 1
        raise DataError(f"{table.path}: row {row}, column {name}: the value is missing; fill it in or drop it")
    if kind == "number":
        _check_finite(table, name, _numbers(column), first_row)


def _check_categories(table: TableFile, name: str, texts: set[str], most: int) -> None:
    if len(texts) > most:
        raise DataError(
            f"{table.path}: column {name} has more than {most} different texts, for example "
            f"{min(texts)!r}; drop it, or make it numbers"
        )


def _check_finite(table: TableFile, name: str, numbers: NDArray[np.float32], first_row: int) -> None:
    finite = np.isfinite(numbers)
    if not finite.all():
        row = first_row + int(finite.argmin()) + 1
        raise DataError(f"{table.path}: row {row}, column {name}: the value is not finite; replace it or drop it")


def _numbers(column: Any) -> NDArray[np.float32]:
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if pa.types.is_boolean(column.type):
        column = column.cast(pa.uint8())
    with np.errstate(over="ignore"):
        numbers: NDArray[np.float32] = (
            column.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False).astype("f4")
        )
    return numbers


def _texts(column: Any) -> Any:
    return column.cast(pa.string())


def _target_values(column: Any, kind: Kind) -> NDArray[Any]:
    """Texts as an array of them, whole numbers as int64, others as float64."""
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if kind == "text":
        return np.array(_texts(column).to_pylist(), dtype=np.str_)
    whole = pa.types.is_integer(column.type) or pa.types.is_boolean(column.type)
    values: NDArray[Any] = column.cast(pa.int64() if whole else pa.float64()).to_numpy(zero_copy_only=False)
    return values


def _features(
    table: TableFile, names: Iterable[str], kinds: dict[str, Kind], texts: dict[str, set[str]]
) -> Iterator[_Feature]:
    first = 0
    for name in names:
        feature = _Feature(name, first, tuple(sorted(texts[name])) if kinds[name] == "text" else ())
        first += feature.width
        yield feature


def _classes(table: TableFile, target: str, raw: NDArray[Any], settings: DataSettings) -> tuple[str, ...] | None:
    """Names of the classes in the order of their numbers; None where targets are values."""
    is_text = raw.dtype.kind == "U"
    if settings.task == "values" and is_text:
        raise DataError(f"{table.path}: column {target} has texts, which are no values; set data.task = 'classes'")
    if settings.task == "values" or (settings.task == "auto" and raw.dtype.kind == "f"):
        return None
    seen = np.unique(raw)
    if settings.task == "auto" and not is_text and len(seen) > _MOST_INTEGER_CLASSES:
        raise DataError(
            f"{table.path}: column {target} has {len(seen)} different whole numbers; set data.task = 'values' to "
            "predict the number, or 'classes'"
        )
    if len(seen) < 2:
        raise DataError(f"{table.path}: column {target} is {seen[0]} in every row; expected at least two classes")
    return tuple(map(str, seen.tolist()))


def _numbered(table: TableFile, target: str, raw: NDArray[Any], classes: Sequence[str] | None) -> NDArray[Any]:
    """Values as float64, or the numbers of classes."""
    if classes is None:
        return raw.astype(np.float64)
    number = {name: place for place, name in enumerate(classes)}
    names = list(map(str, raw.tolist()))
    unknown = next((row for row, name in enumerate(names) if name not in number), None)
    if unknown is not None:
        raise DataError(
            f"{table.path}: row {unknown + 1}, column {target}: class {names[unknown]!r} has no row for training"
        )
    return np.array([number[name] for name in names], np.int64)


def _part(table: TableFile, features: Sequence[_Feature], rows: int, targets: NDArray[Any]) -> Part:
    where = f"data {table.path}"
    return Part(ArrayInputs(_inputs(table, features, rows), where), targets, where)


def _inputs(table: TableFile, features: Sequence[_Feature], rows: int) -> NDArray[np.float32]:
    inputs = _room(rows, sum(feature.width for feature in features))
    start = 0
    for portion in table.portions():
        out = inputs[start : start + len(portion)]
        for feature in features:
            _encode(table, feature, portion.column(feature.name), start, out[:, feature.first :][:, : feature.width])
        start += len(portion)
    return inputs


def _encode(table: TableFile, feature: _Feature, column: Any, first_row: int, out: NDArray[np.float32]) -> None:
    if not feature.categories:
        out[:, 0] = _numbers(column)
        return
    places = pc.index_in(_texts(column), value_set=pa.array(feature.categories, pa.string()))
    if places.null_count:
        row = int(pc.index(places.is_null(), True).as_py())
        raise DataError(
            f"{table.path}: row {first_row + row + 1}, column {feature.name}: {column[row].as_py()!r} does not occur "
            "in the rows for training"
        )
    out[...] = places.to_numpy(zero_copy_only=False)[:, np.newaxis] == np.arange(feature.width)


def _room(rows: int, width: int) -> NDArray[np.float32]:
    """An array (rows, width): in memory, or mapped from a temporary file that has no name and goes with it."""
    if rows * width * 4 <= _MOST_BYTES_IN_MEMORY:
        return np.empty((rows, width), np.float32)
    with tempfile.TemporaryFile() as file:
        return np.memmap(file, np.float32, "w+", shape=(rows, width))
