"""Whether targets are classes or values, how many outputs they take, and whether they are in order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from taihu.errors import DataError
from worker.data.dataset import TargetKind, Targets

__all__ = ["Task", "Understood", "understand"]

Task = Literal["auto", "classes", "values"]


@dataclass(frozen=True, eq=False)
class Understood:
    """Targets of the parts of a data set, int64 (n,) classes or float32 (n, outputs) values."""

    kind: TargetKind
    outputs: int
    parts: tuple[Targets, ...]


def understand(
    parts: Sequence[NDArray[Any]], wheres: Sequence[str], task: Task, known_classes: int = 0
) -> Understood:
    """Tell the meaning of the targets (n,) or (n, K) of the parts, the first of them for training.

    Whole numbers are classes, and floating-point numbers values, unless `task` says otherwise. There are
    `known_classes`, or, where that is 0, as many as the training part has, numbered from 0 without gaps.

    Raises:
        DataError: they are neither, or a class or value is out of order; the message names the sample.
    """
    flat = [each[:, 0] if each.ndim == 2 and each.shape[1] == 1 else each for each in parts]
    for each, where in zip(flat, wheres, strict=True):
        if each.dtype.kind not in "uifb" or each.ndim not in {1, 2} or 0 in each.shape:
            raise DataError(
                f"{where}: targets of {each.dtype} and shape {each.shape}; expected whole numbers (n,) for classes, "
                "or floating-point numbers (n,) or (n, K) for values"
            )
    kind = _kind(flat, task)
    if kind == "values":
        return _values(flat, wheres)
    return _classes(flat, wheres, known_classes)


def _kind(parts: Sequence[NDArray[Any]], task: Task) -> TargetKind:
    if task != "auto":
        return task
    return "classes" if all(each.dtype.kind in "uib" for each in parts) else "values"


def _values(parts: Sequence[NDArray[Any]], wheres: Sequence[str]) -> Understood:
    outputs = 1 if parts[0].ndim == 1 else parts[0].shape[1]
    found = []
    for each, where in zip(parts, wheres, strict=True):
        with np.errstate(over="ignore"):
            values = np.ascontiguousarray(each.reshape(len(each), -1), dtype=np.float32)
        if values.shape[1] != outputs:
            raise DataError(f"{where}: {values.shape[1]} values for a sample, expected {outputs} as for training")
        finite = np.isfinite(values).all(axis=1)
        if not finite.all():
            raise DataError(f"{where}: the target of sample {finite.argmin()} is not finite; replace or drop it")
        found.append(values)
    return Understood("values", outputs, tuple(found))


def _classes(parts: Sequence[NDArray[Any]], wheres: Sequence[str], known_classes: int) -> Understood:
    labels = tuple(_labels(each, where) for each, where in zip(parts, wheres, strict=True))
    classes = known_classes or _count(labels[0], wheres[0])
    for each, where in zip(labels, wheres, strict=True):
        wrong = np.flatnonzero((each < 0) | (each >= classes))
        if len(wrong):
            raise DataError(
                f"{where}: class {each[wrong[0]]} of sample {wrong[0]} is not in 0..{classes - 1}; number classes "
                "from 0, or set data.task = 'values'"
            )
    return Understood("classes", classes, labels)


def _labels(targets: NDArray[Any], where: str) -> NDArray[np.int64]:
    if targets.ndim == 2:
        raise DataError(
            f"{where}: whole numbers of shape {targets.shape} as targets; expected one class (n,) for each sample, "
            "or data.task = 'values'"
        )
    labels = targets.astype(np.int64)
    wrong = np.flatnonzero(labels != targets)
    if len(wrong):
        raise DataError(
            f"{where}: class {targets[wrong[0]]} of sample {wrong[0]} is no whole number; set data.task = 'values'"
        )
    return labels


def _count(labels: NDArray[np.int64], where: str) -> int:
    """Number of classes 0..most, all of which occur."""
    seen = np.unique(labels)
    if seen[0] < 0:
        return int(seen[-1]) + 1
    gap = np.flatnonzero(seen != np.arange(len(seen)))
    if len(gap):
        raise DataError(
            f"{where}: no sample of class {gap[0]}, but of class {seen[-1]}; number classes from 0 without gaps, "
            "give names for all of them, or set data.task = 'values'"
        )
    if len(seen) == 1:
        raise DataError(f"{where}: all samples are of class {seen[0]}; expected at least two classes")
    return len(seen)
