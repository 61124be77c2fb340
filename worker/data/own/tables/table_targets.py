"""The column of a table that is to be predicted: whether it has classes or values, and which number each row has."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from taihu.core.settings import DataSettings
from taihu.worker.data.base.defects import Fault
from taihu.worker.data.base.reading import Form
from taihu.worker.data.own.tables.table_files import TableFile
from taihu.worker.data.own.tables.table_scan import Forms, Scanned

_MOST_CLASSES: Final = 1000
_MOST_INTEGER_CLASSES: Final = 100


@dataclass(frozen=True)
class TargetClasses:
    """Classes in the order of their numbers: names, and the value of each in a table."""

    names: tuple[str, ...]
    values: tuple[str | int | float, ...]

    @property
    def form(self) -> Form:
        """The form of a column that has them."""
        kinds = {type(value) for value in self.values}
        return "whole" if kinds == {int} else "number" if kinds <= {int, float} else "text"


def known_classes(names: Sequence[str]) -> TargetClasses | None:
    """The classes of a saved model, whole numbers, others or texts by all their names; None where it has none."""
    if not names:
        return None
    for kind in (int, float):
        try:
            values = tuple(map(kind, names))
        except ValueError:
            continue
        if tuple(map(str, values)) == tuple(names):
            return TargetClasses(tuple(names), values)
    return TargetClasses(tuple(names), tuple(names))


def target_values(chunks: Sequence[Any], good: NDArray[np.bool_], form: Form) -> NDArray[Any]:
    """Values of the rows that are `good`: texts as objects, whole numbers and truths int64, others float64."""
    values = pa.chunked_array(chunks).filter(pa.array(good))
    if pa.types.is_string(values.type):
        return np.array(values.to_pylist(), dtype=object)
    found: NDArray[Any] = values.to_numpy()
    return found.astype(np.int64) if form == "truth" else found


def classes_of(
    table: TableFile, target: str | None, forms: Forms, scanned: Scanned, settings: DataSettings
) -> TargetClasses | None:
    """The classes of the rows for training; None where targets are values, or there is something wrong with them."""
    if target is None or not scanned.rows or not (~scanned.bad).any():
        return None
    of = f"column {target}"
    raw = target_values(scanned.values[target], ~scanned.bad, forms.of[target])
    is_text = forms.of[target] == "text"
    if settings.task == "values" and is_text:
        table.defects.of_data(Fault("has texts, which are no values", "set data.task = 'classes'", of))
        return None
    if settings.task == "values" or (settings.task == "auto" and raw.dtype.kind == "f"):
        return None
    seen: list[Any] = sorted(set(raw.tolist()))
    fault = _fault(seen, settings, of, is_text=is_text)
    if fault is not None:
        table.defects.of_data(fault)
        return None
    return TargetClasses(tuple(map(str, seen)), tuple(seen))


def _fault(seen: Sequence[Any], settings: DataSettings, of: str, *, is_text: bool) -> Fault | None:
    if is_text and len(seen) > _MOST_CLASSES:
        return Fault(f"has more than {_MOST_CLASSES} different texts, for example {seen[0]!r}", "make it numbers", of)
    if settings.task == "auto" and not is_text and len(seen) > _MOST_INTEGER_CLASSES:
        return Fault(
            f"has {len(seen)} different whole numbers",
            "set data.task = 'values' to predict the number, or 'classes'",
            of,
        )
    if len(seen) < 2:
        return Fault(f"is {seen[0]} in every row", "expected at least two classes", of)
    return None


def numbered(raw: NDArray[Any], classes: TargetClasses | None) -> NDArray[Any]:
    """Values as float64, or the numbers of classes, -1 of one that is unknown."""
    if classes is None:
        return raw.astype(np.float64)
    number = {value: place for place, value in enumerate(classes.values)}
    return np.array([number.get(value, -1) for value in raw.tolist()], np.int64)
