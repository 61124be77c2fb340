"""Texts as targets: classes, numbered in the order of their names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from taihu.core.base.errors import DataError

# So many samples with a text of their own each have no classes.
_LEAST_ALIKE: Final = 20


def plain_labels(labels: NDArray[Any], where: str) -> NDArray[Any]:
    """Objects and bytes as texts or numbers; all others as they are.

    Raises:
        DataError: bytes are no UTF-8, or objects neither texts nor numbers, or some of each.
    """
    if labels.dtype.kind == "S":
        try:
            return np.char.decode(labels, "utf-8")
        except UnicodeDecodeError:
            raise DataError(f"{where}: bytes that are no UTF-8 text; give texts, or the numbers of classes") from None
    if labels.dtype.kind != "O":
        return labels
    strange = next(
        (row for row, each in enumerate(labels.flat) if not isinstance(each, str | int | float | np.number)), None
    )
    if strange is not None:
        seen = type(labels.flat[strange]).__name__
        raise DataError(f"{where}: the target of sample {strange} is of type {seen}; expected a number or a text")
    texts = [isinstance(each, str) for each in labels.flat]
    if any(texts) and not all(texts):
        raise DataError(
            f"{where}: the target of sample {texts.index(False)} is a number, others are texts; give one kind of them"
        )
    return np.array(labels.tolist())


def numbered(
    parts: Sequence[tuple[NDArray[Any], str]], names: tuple[str, ...]
) -> tuple[tuple[str, ...], tuple[NDArray[np.int64], ...]]:
    """Names of the classes, and the number of each label of the parts, the first of them for training.

    Args:
        parts: labels (n,), and what names them in messages.
        names: of the classes; where they are empty, the texts of training in their order.

    Raises:
        DataError: a label is no text, or not one of the names.
    """
    for labels, where in parts:
        if labels.dtype.kind != "U":
            raise DataError(f"{where}: targets of {labels.dtype}; expected texts, as in the other part")
        if labels.ndim != 1:
            raise DataError(f"{where}: texts of shape {labels.shape}; expected one for each sample, (n,)")
    training, where = parts[0]
    names = names or _names(training, where)
    number = {name: place for place, name in enumerate(names)}
    found = []
    for labels, place in parts:
        texts, inverse = np.unique(labels, return_inverse=True)
        unknown = next((text for text in texts.tolist() if text not in number), None)
        if unknown is not None:
            row = int(np.flatnonzero(labels == unknown)[0])
            known = ", ".join(map(repr, names[:5])) + (", ..." if len(names) > 5 else "")
            raise DataError(f"{place}: class {unknown!r} of sample {row} is none of those for training: {known}")
        found.append(np.array([number[text] for text in texts.tolist()], np.int64)[inverse.reshape(-1)])
    return names, tuple(found)


def _names(labels: NDArray[Any], where: str) -> tuple[str, ...]:
    names = tuple(np.unique(labels).tolist())
    if "" in names:
        row = int(np.flatnonzero(labels == "")[0])
        raise DataError(f"{where}: the class of sample {row} is an empty text; replace or drop it")
    if len(names) == 1:
        raise DataError(f"{where}: all samples are of class {names[0]!r}; expected at least two classes")
    if len(names) == len(labels) >= _LEAST_ALIKE:
        raise DataError(f"{where}: every sample has a text of its own; expected classes that have several samples")
    return names
