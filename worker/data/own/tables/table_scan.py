"""The rows of a table, looked over once: which are in order, their different texts, and the values of the target."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from taihu.worker.data.base.defects import Fault
from taihu.worker.data.base.reading import Column, Form
from taihu.worker.data.own.tables.columns import (
    Converted,
    Survey,
    column_form,
    convert,
    decimal_of,
    is_of_texts,
    own_decimal,
    survey,
    typed_form,
)
from taihu.worker.data.own.tables.dress import Decimal
from taihu.worker.data.own.tables.table_files import TableFile

_LARGEST: Final = float(np.finfo(np.float32).max)
_MOST_SURVEYED_ROWS: Final = 1 << 20


@dataclass(frozen=True)
class Forms:
    """The form of every column that is read, and the sign before decimals in each that is written as texts."""

    of: Mapping[str, Form]
    decimals: Mapping[str, Decimal]
    file_decimal: Decimal


@dataclass(frozen=True)
class Portion:
    """Some rows, each column brought to its type."""

    rows: int
    columns: Mapping[str, Converted]


@dataclass(frozen=True)
class Known:
    """The values that a column may have, and what is said of others."""

    values: Sequence[str | int | float]
    fault: Fault


Portions = Callable[[], Iterator[Portion]]


@dataclass
class Scanned:
    """A table that was looked over.

    Attributes:
        rows: their number.
        texts: how often each text of a column of texts occurs, in rows in order.
        values: of the columns whose values were to be kept, with nan in the place of missing ones.
        bad: whether a row has a defect, (rows,).
    """

    rows: int = 0
    texts: dict[str, Counter[str]] = field(default_factory=dict)
    values: dict[str, list[Any]] = field(default_factory=dict)
    bad: NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, np.bool_))


def decide_forms(
    table: TableFile, names: Sequence[str], known: Mapping[str, Form], decimal: Decimal | None, remembered: Decimal
) -> Forms:
    """Tell the forms of the columns `names`; `known` ones are as they are said.

    Args:
        table: the file; what is wrong with all of a column is taken down there.
        names: of the columns.
        known: forms of some of them.
        decimal: the sign before decimals, where that is said.
        remembered: the sign where neither that nor the file says it.
    """
    of: dict[str, Form] = {}
    as_texts = []
    for name in names:
        form = typed_form(table.types[name])
        if form is None and _is_texts(table.types[name]):
            as_texts.append(name)
        elif form is None and name not in known:
            table.defects.of_data(
                Fault(
                    f"is of {table.types[name]}",
                    f"make it numbers or texts, or set data.drop = ['{name}']",
                    _of(name),
                )
            )
            form = "text"
        of[name] = known.get(name, form or "text")
    surveys = {
        name: survey(_chunks(table, name), name, is_typed=table.is_typed, by_comma=table.separator == ",")
        for name in as_texts
        if known.get(name) != "text"
    }
    signs = frozenset({decimal}) if decimal else _signs(list(surveys.values()))
    decimals: dict[str, Decimal] = {}
    for name, each in surveys.items():
        decimals[name] = decimal or own_decimal(each, signs or frozenset({remembered}))
        if name not in known:
            of[name], fault = column_form(each, signs)
            if fault is not None:
                table.defects.of_data(fault)
    return Forms(of, decimals, next(iter(signs)) if len(signs) == 1 else remembered)


def _signs(surveys: Sequence[Survey]) -> frozenset[Decimal]:
    """The signs before decimals in a file, without a look where all its numbers are plain and nothing else."""
    return frozenset() if all(each.plain and each.by_comma for each in surveys) else decimal_of(surveys)


def _is_texts(dtype: Any) -> bool:
    if pa.types.is_dictionary(dtype):
        dtype = dtype.value_type
    return is_of_texts(dtype)


def _chunks(table: TableFile, name: str) -> list[Any]:
    found, rows = [], 0
    for portion in table.portions():
        found.append(portion.column(name))
        rows += len(portion)
        if table.is_typed and rows > _MOST_SURVEYED_ROWS:
            break
    return found


def _of(name: str) -> str:
    return f"column {name}"


def portions_of(table: TableFile, forms: Forms) -> Portions:
    """Portions with columns of their forms; texts that a file has in memory are read once."""

    def made() -> Iterator[Portion]:
        for batch in table.portions():
            columns = {
                name: convert(batch.column(name), name, form, forms.decimals.get(name, "."))
                for name, form in forms.of.items()
            }
            yield Portion(len(batch), columns)

    if table.is_typed:
        return made
    kept = list(made())
    return lambda: iter(kept)


def scan(
    table: TableFile,
    portions: Portions,
    columns: Sequence[Column],
    *,
    keep: Sequence[str] = (),
    filled: Sequence[str] = (),
    may_be_filled: Sequence[str] = (),
    known: Mapping[str, Known] | None = None,
) -> Scanned:
    """Look over all rows; their defects are taken down in those of the table.

    Args:
        table: the file.
        portions: its rows.
        columns: names and forms of what is looked at.
        keep: columns whose values are kept.
        filled: columns in which values may be missing.
        may_be_filled: columns whose missing values a setting can fill.
        known: columns whose values must be among some.
    """
    scanned = Scanned(texts={each.name: Counter() for each in columns if each.form == "text"})
    bad = []
    for portion in portions():
        look = _Look(table, scanned.rows, np.zeros(portion.rows, np.bool_))
        missing = {}
        for column in columns:
            converted = portion.columns[column.name]
            missing[column.name] = look.at(column, converted, (known or {}).get(column.name))
            if column.form == "text":
                for each in pc.value_counts(converted.values.drop_null()).to_pylist():
                    scanned.texts[column.name][each["values"]] += each["counts"]
            if column.name in keep:
                scanned.values.setdefault(column.name, []).append(converted.values)
        look.at_missing(missing, filled, may_be_filled)
        bad.append(look.bad)
        scanned.rows += portion.rows
    scanned.bad = np.concatenate(bad) if bad else scanned.bad
    return scanned


@dataclass(frozen=True)
class _Look:
    """A look at one portion, whose first row is at the place `first`."""

    table: TableFile
    first: int
    bad: NDArray[np.bool_]

    def take_down(self, fault: Fault, places: NDArray[np.int64], seen: Sequence[str] = ()) -> None:
        """Note that the rows at `places` have a defect."""
        self.bad[places] = True
        self.table.defects.of_samples(fault, (self.table.row(self.first + int(place)) for place in places), seen)

    def at(self, column: Column, converted: Converted, known: Known | None) -> NDArray[np.bool_]:
        """Look at a column; returns where its values are missing."""
        missing: NDArray[np.bool_] = converted.values.is_null().to_numpy(zero_copy_only=False).copy()
        for fault, places, seen in converted.faults:
            self.take_down(fault, places, seen)
            missing[places] = False
        if known is not None:
            self._at_unknown(converted.values, known)
        if column.form == "text":
            return missing
        numbers = converted.values.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
        large = np.flatnonzero(np.abs(numbers) > _LARGEST)
        if len(large):
            finite = np.isfinite(numbers[large])
            self._at_large(column, large[~finite], "the value is not finite")
            self._at_large(column, large[finite], "the value is too large, at most 3.4e38 is read")
        return missing

    def _at_large(self, column: Column, places: NDArray[np.int64], text: str) -> None:
        if len(places):
            self.take_down(Fault(text, "replace it or drop it", _of(column.name)), places)

    def _at_unknown(self, values: Any, known: Known) -> None:
        unknown = pc.invert(pc.is_in(values, value_set=pa.array(list(known.values), values.type)))
        places = np.flatnonzero(pc.and_(unknown, values.is_valid()).to_numpy(zero_copy_only=False))
        if len(places):
            seen = [str(values[int(place)].as_py()) for place in places[:3]]
            self.take_down(known.fault, places, seen)

    def at_missing(
        self, missing: Mapping[str, NDArray[np.bool_]], filled: Sequence[str], may_be_filled: Sequence[str]
    ) -> None:
        """Note missing values: of rows that have none at all, and of columns."""
        empty = np.logical_and.reduce(list(missing.values())) if len(missing) > 1 else np.zeros_like(self.bad)
        if empty.any():
            self.take_down(Fault("no value is there in the whole row", "delete it"), np.flatnonzero(empty))
        for name, each in missing.items():
            places = np.flatnonzero(each & ~empty)
            if len(places) and name not in filled:
                remedy = "fill it in or drop it"
                if name in may_be_filled:
                    remedy += f", or set data.fill, for example ['{name}=most']"
                self.take_down(Fault("the value is missing", remedy, _of(name)), places)
