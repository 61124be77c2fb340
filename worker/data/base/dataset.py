"""A data set: two sets of examples that are read row by row, and the statistics that normalise them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from taihu.core.base.errors import DataError
from taihu.core.model.losses import TargetKind
from taihu.worker.data.base.depth import Depth
from taihu.worker.data.base.reading import TableReading
from taihu.worker.data.base.statistics import image_statistics

__all__ = [
    "ArrayExamples",
    "Dataset",
    "Examples",
    "Images",
    "Labels",
    "Rows",
    "TargetKind",
    "Targets",
    "build_dataset",
    "check_labels",
    "evaluation_batches",
    "read_normalised",
    "standardise",
]

Images = NDArray[np.uint8]
Labels = NDArray[np.int64]
Rows = NDArray[np.int64]
Targets = NDArray[Any]


class Examples(Protocol):
    """Inputs of one shape with their targets; they may lie in memory, in a file, or in many files."""

    def __len__(self) -> int:
        """Number of examples."""
        ...

    def read(self, rows: Rows, out: NDArray[np.float32]) -> None:
        """Write the inputs of `rows` (n,) into `out` (n, *input_shape), float32: raw, but for `Dataset.offset`.

        Rows may come in any order and more than once. Several threads may call this at the same time.

        Raises:
            DataError: one of them cannot be read; the message names its file or its number.
        """
        ...

    def targets(self, rows: Rows) -> Targets:
        """The targets of `rows` (n,): int64 (n,) classes or (n, time) tokens, or float32 (n, outputs) values."""
        ...


@dataclass(frozen=True, eq=False)
class ArrayExamples:
    """Examples of one array, in memory or mapped from a file.

    `inputs` (n, ...) is of any real dtype, `values` int64 (n,) classes or float32 (n, outputs) values.
    """

    inputs: NDArray[Any]
    values: Targets

    def __len__(self) -> int:
        return len(self.values)

    def read(self, rows: Rows, out: NDArray[np.float32]) -> None:
        """Copy rows of the array."""
        out[...] = self.inputs[rows]

    def targets(self, rows: Rows) -> Targets:
        """The values of `rows`."""
        found: Targets = self.values[rows]
        return found


@dataclass(frozen=True, eq=False)
class Dataset:
    """Examples for training and for testing.

    Attributes:
        name: as in the job.
        train: what is learned from.
        test: what accuracy is measured on.
        input_shape: of one example: (height, width, channels) of an image, (features,), or (time,) tokens.
        outputs: what a model has to compute for an example: one logit per class, or so many values.
        targets: whether targets are the numbers of classes, 0 to outputs - 1, or values to come near to, or tokens:
            the number of a class for every place of a sequence.
        mean: of the training inputs as they are read, float32 (channels,) or (features,).
        scale: standard deviation, like `mean`, in the units of the raw inputs; 1 where all inputs are the same.
        class_names: names of the classes in the order of their numbers; empty where they have none.
        load_ahead: whether reading takes so long that the next batch should be made while one is computed.
        depth: range of images of more than 8 bits where their files do not tell it; None where there are none.
        notes: lines on what a user may not expect, for example files that were left out.
        columns: of a table that became the features: name, and the texts that it may have, one feature each; empty
            texts for a column of numbers.
        reading: of a table, how its columns are read.
        offset: what is taken away from raw inputs when they are read, float64 like `mean`: see `Statistics`. None
            where nothing is.
        left_out: the samples that were left out for their defects, in words.
    """

    name: str
    train: Examples
    test: Examples
    input_shape: tuple[int, ...]
    outputs: int
    targets: TargetKind
    mean: NDArray[np.float32]
    scale: NDArray[np.float32]
    class_names: tuple[str, ...] = ()
    load_ahead: bool = False
    columns: tuple[tuple[str, tuple[str, ...]], ...] = ()
    reading: TableReading | None = None
    offset: NDArray[np.float64] | None = None
    left_out: str = ""
    depth: Depth | None = None
    notes: tuple[str, ...] = ()

    @property
    def told(self) -> tuple[str, ...]:
        """Notes, and what was left out, a line each."""
        return tuple(filter(None, (*self.notes, self.left_out)))


def build_dataset(name: str, train: tuple[Images, Labels], test: tuple[Images, Labels], classes: int) -> Dataset:
    """Put a data set of classes together from checked (images, labels) pairs, and compute its statistics."""
    mean, scale, _ = image_statistics(train[0])
    shape = train[0].shape[1:]
    return Dataset(name, ArrayExamples(*train), ArrayExamples(*test), shape, classes, "classes", mean, scale)


def check_labels(labels: NDArray[np.integer], images: int, classes: int, source: str, remedy: str) -> Labels:
    """Return `labels` (n,) of the file `source` as int64.

    Raises:
        DataError: there are not `images` of them, none at all, or one lies outside 0..classes-1.
    """
    if len(labels) != images:
        raise DataError(f"{source}: {len(labels)} labels for {images} images; {remedy}")
    if images == 0:
        raise DataError(f"{source}: holds no images; {remedy}")
    wrong = np.flatnonzero((labels < 0) | (labels >= classes))
    if len(wrong):
        seen = labels[wrong[0]]
        raise DataError(f"{source}: label {seen} of image {wrong[0]} is not in 0..{classes - 1}; {remedy}")
    return labels.astype(np.int64)


def standardise(dataset: Dataset, inputs: NDArray[np.float32]) -> None:
    """Turn `inputs` (n, *input_shape) as they are read into (x - mean) / scale per channel or feature, in place."""
    np.subtract(inputs, dataset.mean, out=inputs)
    np.divide(inputs, dataset.scale, out=inputs)


def read_normalised(dataset: Dataset, examples: Examples, rows: Rows, out: NDArray[np.float32]) -> None:
    """Write the normalised inputs of `rows` (n,) into `out` (n, *input_shape)."""
    examples.read(rows, out)
    standardise(dataset, out)


def evaluation_batches(dataset: Dataset, batch: int) -> Iterator[tuple[NDArray[np.float32], Targets]]:
    """All test examples in order, normalised, `batch` or at the end fewer at a time, with their targets.

    The inputs (n, *input_shape) lie in one buffer, which the next batch overwrites.
    """
    samples = len(dataset.test)
    buffer = np.empty((min(batch, samples), *dataset.input_shape), np.float32)
    for start in range(0, samples, batch):
        rows = np.arange(start, min(start + batch, samples))
        inputs = buffer[: len(rows)]
        read_normalised(dataset, dataset.test, rows, inputs)
        yield inputs, dataset.test.targets(rows)
