"""Data sets from inputs and targets of the user's own: understood, split, and with statistics."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from taihu.core.base.errors import DataError
from taihu.core.settings import DataSettings
from taihu.worker.data.base.dataset import Dataset, Rows
from taihu.worker.data.base.statistics import no_statistics
from taihu.worker.data.own.inputs import Inputs, Paired
from taihu.worker.data.own.targets import Given, understand


@dataclass(frozen=True, eq=False)
class Split:
    """Inputs with targets (n,) or (n, K) as they were given; `where` names them in messages.

    `where_targets` names the targets, where they lie elsewhere.
    """

    inputs: Inputs
    targets: NDArray[Any]
    where: str
    where_targets: str = ""

    @property
    def given(self) -> Given:
        """The targets alone."""
        return Given(self.targets, self.where_targets or self.where)


def assemble(settings: DataSettings, train: Split, test: Split | None, class_names: Sequence[str] = ()) -> Dataset:
    """Make a data set of its parts; without a part for testing, a share of the training part becomes it.

    Raises:
        DataError: inputs and targets do not fit each other or the settings.
    """
    parts = [train] if test is None else [train, test]
    for part in parts:
        _check(part, train)
    targets = understand([part.given for part in parts], settings.task, class_names)
    if test is None:
        rows, kept_apart = split_rows(len(train.inputs), settings, train.where)
        values = targets.parts[0]
        training = Paired(train.inputs, values[rows], rows)
        testing = Paired(train.inputs, values[kept_apart], kept_apart)
    else:
        rows = np.arange(len(train.inputs))
        training = Paired(train.inputs, targets.parts[0])
        testing = Paired(test.inputs, targets.parts[1])
    shape = train.inputs.shape
    mean, scale, offset = train.inputs.statistics(rows) if settings.normalise == "auto" else no_statistics(shape)
    if offset is not None:
        training, testing = training.moved(offset), testing.moved(offset)
    return Dataset(
        settings.name,
        training,
        testing,
        shape,
        targets.outputs,
        targets.kind,
        mean,
        scale,
        class_names=targets.class_names,
        load_ahead=not train.inputs.in_memory,
        offset=offset,
        notes=targets.notes,
    )


def _check(part: Split, train: Split) -> None:
    if len(part.inputs) != len(part.targets):
        beside = f" in {part.where_targets}" if part.where_targets else ""
        raise DataError(f"{part.where}: {len(part.inputs)} inputs, but {len(part.targets)} targets{beside}")
    if part.inputs.shape != train.inputs.shape:
        raise DataError(
            f"{part.where}: inputs of shape {part.inputs.shape}, expected {train.inputs.shape} as for training"
        )


def split_rows(samples: int, settings: DataSettings, where: str) -> tuple[Rows, Rows]:
    """Rows for training and for testing, each in ascending order; the same for as many samples and one split_seed."""
    if samples < 2:
        raise DataError(f"{where}: {samples} sample, of which none can be set apart for testing; give at least 2")
    testing = settings.samples_for_testing(samples)
    order = np.random.default_rng([settings.split_seed, samples]).permutation(samples)
    return np.sort(order[testing:]), np.sort(order[:testing])
