"""Values in the place of missing ones: the mean, median or most frequent of a column, or one that is given."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from taihu.worker.data.base.reading import Form
from taihu.worker.data.own.tables.dress import parse_number, seconds_of

COMPUTED: Final = ("mean", "median", "most")


def fill_of(name: str, form: Form, settings: Sequence[str]) -> str | None:
    """The setting for a column: its own, else that of all columns where it suits the form; None without any."""
    own = next((fill.rpartition("=")[2] for fill in settings if fill.rpartition("=")[0] == name), None)
    general = next((fill for fill in settings if "=" not in fill), None)
    if own is not None or general is None:
        return own
    if form == "text":
        return general if general == "most" or (general not in COMPUTED and _number(general, form) is None) else None
    return general if general in COMPUTED or _number(general, form) is not None else None


def fill_value(setting: str, form: Form, values: NDArray[Any] | Mapping[str, int]) -> float | str | None:
    """The value that a setting means for a column.

    Args:
        setting: as `fill_of` tells it.
        form: of the column.
        values: those for training, without missing ones: float64 numbers, or how often each text is there.

    Returns:
        None where the setting does not suit the form, or there are no values.
    """
    if isinstance(values, Mapping):
        if setting in {"mean", "median"}:
            return None
        return _most(values) if setting == "most" else setting
    if setting not in COMPUTED:
        return _number(setting, form)
    if not len(values):
        return None
    if setting == "most":
        different, counts = np.unique(values, return_counts=True)
        return float(different[counts.argmax()])
    return float(np.mean(values) if setting == "mean" else np.median(values))


def _most(counts: Mapping[str, int]) -> str | None:
    return min(counts, key=lambda text: (-counts[text], text)) if Counter(counts) else None


def _number(text: str, form: Form) -> float | None:
    if form == "date" and (moment := seconds_of(text)) is not None:
        return moment
    number = parse_number(text, ".")
    return None if number is None else number.value
