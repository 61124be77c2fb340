"""Whether targets are classes or values, how many outputs they take, and whether they are in order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from taihu.core.base.errors import DataError
from taihu.worker.data.base.dataset import TargetKind, Targets
from taihu.worker.data.own.text_labels import numbered, plain_labels

Task = Literal["auto", "classes", "values"]
_RENUMBER: Final = "number classes from 0, for example np.unique(labels, return_inverse=True)[1]"
# More different numbers than a data set usually has classes.
_MOST_CLASSES: Final = 100


@dataclass(frozen=True, eq=False)
class Given:
    """Targets (n,) or (n, K) as they were given; `where` names them in messages."""

    targets: NDArray[Any]
    where: str


@dataclass(frozen=True, eq=False)
class Understood:
    """Targets of the parts of a data set, int64 (n,) classes or float32 (n, outputs) values.

    `class_names` are known of classes alone, and may be empty; `notes` say what a user may not expect.
    """

    kind: TargetKind
    outputs: int
    parts: tuple[Targets, ...]
    class_names: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def understand(parts: Sequence[Given], task: Task, class_names: Sequence[str] = ()) -> Understood:
    """Tell the meaning of the targets (n,) or (n, K) of the parts, the first of them for training.

    Whole numbers and texts are classes, and floating-point numbers values, unless `task` says otherwise. There are
    `class_names`, or, where these are empty, as many classes as the training part has: numbered from 0 without gaps,
    or texts, which are numbered in their order.

    Raises:
        DataError: they are neither, or a class or value is out of order; the message names the sample.
    """
    flat = [_flat(each) for each in parts]
    names = tuple(class_names)
    if any(each.targets.dtype.kind == "U" for each in flat):
        if task == "values":
            raise DataError(f"{flat[0].where}: texts are classes, not values; leave data.task out")
        names, labels = numbered([(each.targets, each.where) for each in flat], names)
        return Understood("classes", len(names), labels, names)
    kind = _kind(flat, task)
    for each in flat:
        _check_one_hot(each, task)
    if kind == "values":
        return _values(flat, task)
    return _classes(flat, names)


def _flat(given: Given) -> Given:
    """Targets of one number each as (n,), and of texts as NumPy's own type of them."""
    targets = plain_labels(given.targets, given.where)
    if targets.ndim == 2 and targets.shape[1] == 1:
        targets = targets[:, 0]
    if targets.dtype.kind not in "uifbU" or targets.ndim not in {1, 2} or 0 in targets.shape:
        raise DataError(
            f"{given.where}: targets of {targets.dtype} and shape {targets.shape}; expected whole numbers or texts "
            "(n,) for classes, or floating-point numbers (n,) or (n, K) for values"
        )
    return Given(targets, given.where)


def _kind(parts: Sequence[Given], task: Task) -> TargetKind:
    if task != "auto":
        return task
    return "classes" if all(each.targets.dtype.kind in "uib" for each in parts) else "values"


def _check_one_hot(given: Given, task: Task) -> None:
    targets = given.targets
    if task == "values" or targets.ndim != 2:
        return
    if (np.isin(targets, (0, 1))).all() and (targets.sum(axis=1) == 1).all():
        raise DataError(
            f"{given.where}: of shape {targets.shape}, looks one-hot; give the numbers of classes: "
            "labels.argmax(axis=1), or set data.task = 'values'"
        )


def _values(parts: Sequence[Given], task: Task) -> Understood:
    outputs = 1 if parts[0].targets.ndim == 1 else parts[0].targets.shape[1]
    found = []
    for part in parts:
        with np.errstate(over="ignore"):
            values = np.ascontiguousarray(part.targets.reshape(len(part.targets), -1), dtype=np.float32)
        if values.shape[1] != outputs:
            raise DataError(
                f"{part.where}: {values.shape[1]} values for a sample, expected {outputs} as for training"
            )
        finite = np.isfinite(values).all(axis=1)
        if not finite.all():
            raise DataError(f"{part.where}: the target of sample {finite.argmin()} is not finite; replace or drop it")
        found.append(values)
    notes = (_note_on_whole(parts[0], found[0]),) if task == "auto" and outputs == 1 else ()
    return Understood("values", outputs, tuple(found), notes=tuple(filter(None, notes)))


def _note_on_whole(part: Given, values: NDArray[np.float32]) -> str:
    """Words where floating-point numbers look like those of classes."""
    seen = np.unique(values)
    if not 2 <= len(seen) <= min(_MOST_CLASSES, len(values) // 2) or not np.array_equal(seen, np.arange(len(seen))):
        return ""
    return (
        f"{part.where}: floating-point numbers are taken for values, though all are whole, 0 to {len(seen) - 1}; "
        "for classes set data.task = 'classes'"
    )


def _classes(parts: Sequence[Given], names: tuple[str, ...]) -> Understood:
    labels = tuple(map(_labels, parts))
    classes = len(names) or _count(labels[0], parts[0].where)
    if classes < 2:
        raise DataError(f"{parts[0].where}: all samples are of class {names[0]!r}; expected at least two classes")
    for number, (each, part) in enumerate(zip(labels, parts, strict=True)):
        wrong = np.flatnonzero((each < 0) | (each >= classes))
        if len(wrong):
            known = " as for training" if number else ""
            raise DataError(
                f"{part.where}: class {each[wrong[0]]} of sample {wrong[0]} is not in 0..{classes - 1}{known}; "
                f"{_RENUMBER}, or set data.task = 'values'"
            )
    return Understood("classes", classes, labels, names)


def _labels(part: Given) -> NDArray[np.int64]:
    targets = part.targets
    if targets.ndim == 2:
        raise DataError(
            f"{part.where}: whole numbers of shape {targets.shape} as targets; expected one class (n,) for each "
            "sample, or data.task = 'values'"
        )
    with np.errstate(invalid="ignore"):
        labels = targets.astype(np.int64)
    wrong = np.flatnonzero(labels != targets)
    if len(wrong):
        raise DataError(
            f"{part.where}: class {targets[wrong[0]]} of sample {wrong[0]} is no whole number; set data.task = "
            "'values'"
        )
    return labels


def _count(labels: NDArray[np.int64], where: str) -> int:
    """Number of classes 0..most, all of which occur."""
    seen = np.unique(labels)
    if seen[0] < 0:
        return max(2, int(seen[-1]) + 1)
    gap = np.flatnonzero(seen != np.arange(len(seen)))
    if len(gap):
        raise DataError(
            f"{where}: no sample of class {gap[0]}, but of class {seen[-1]}; {_RENUMBER}, give names for all of "
            "them, or set data.task = 'values'"
        )
    if len(seen) == 1:
        raise DataError(f"{where}: all samples are of class {seen[0]}; expected at least two classes")
    return len(seen)
