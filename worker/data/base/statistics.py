"""Mean and standard deviation of raw inputs, per channel of images and per feature of vectors."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from taihu.core.base.errors import DataError

# The statistics widen the pixels to 8 bytes; in portions of this many images that stays small.
_CHUNK = 1024
_CHUNK_VALUES = 1 << 20
_LARGEST = float(np.finfo(np.float32).max)

# Inputs so many deviations away from 0 become those of float32 with an error of 2e-6 of a deviation; of inputs that
# float32 has exactly the mean alone is rounded.
_MOST_DEVIATIONS = 32
_MOST_DEVIATIONS_OF_EXACT = 256

Read = Callable[[NDArray[np.int64], NDArray[Any]], None]


class Statistics(NamedTuple):
    """Facts by which inputs are normalised, each for a channel or feature.

    Attributes:
        mean: float32, of the inputs less `offset`.
        scale: their standard deviation, float32; 1 where all are the same.
        offset: float64, what is taken away from inputs before they are rounded to float32, so that 1.7e9 seconds and
            some minutes stay apart, where float32 has steps of 128: the mean where that is far from 0, else 0. None
            where none is.
    """

    mean: NDArray[np.float32]
    scale: NDArray[np.float32]
    offset: NDArray[np.float64] | None = None


def image_statistics(images: NDArray[np.uint8]) -> Statistics:
    """Mean and standard deviation per channel (C,) of `images` (n, H, W, C), from exact counts of the 256 values.

    The standard deviation is given as 1 for a channel that is constant.
    """
    channels = images.shape[-1]
    counts = np.zeros((channels, 256), np.int64)
    for start in range(0, len(images), _CHUNK):
        chunk = images[start : start + _CHUNK]
        for channel in range(channels):
            counts[channel] += np.bincount(chunk[..., channel].ravel(), minlength=256)
    values = np.arange(256.0)
    weights = counts / counts.sum(axis=1, keepdims=True)
    mean = weights @ values
    deviation = np.sqrt((weights * (values - mean[:, None]) ** 2).sum(axis=1))
    constant = counts.max(axis=1) == counts.sum(axis=1)
    return Statistics(mean.astype(np.float32), np.where(constant, 1.0, deviation).astype(np.float32))


def no_statistics(shape: tuple[int, ...]) -> Statistics:
    """Statistics that leave inputs of `shape` as they are: mean 0 and deviation 1."""
    return Statistics(np.zeros(shape[-1], np.float32), np.ones(shape[-1], np.float32))


def spread_rows(count: int, most: int) -> NDArray[np.int64]:
    """Rows of 0..count-1, at most so many, evenly spread over them: the same in every process."""
    if count <= most:
        return np.arange(count)
    return np.arange(most) * count // most


def read_statistics(read: Read, rows: NDArray[np.int64], shape: tuple[int, ...], where: str) -> Statistics:
    """Mean and standard deviation of the inputs `rows`, over all axes but the last; 1 where all are the same.

    `read(rows, out)` writes inputs of `shape` as float64.

    Raises:
        DataError: an input is not finite; its row is named.
    """
    moments = Moments(shape[-1])
    portion = max(1, _CHUNK_VALUES // math.prod(shape))
    buffer = np.empty((min(portion, len(rows)), *shape))
    for start in range(0, len(rows), portion):
        chosen = rows[start : start + portion]
        inputs = buffer[: len(chosen)]
        read(chosen, inputs)
        # Larger ones than float32 has count as infinite.
        finite = (np.abs(inputs.reshape(len(chosen), -1)) <= _LARGEST).all(axis=1)
        if not finite.all():
            raise DataError(
                f"{where}: the input of sample {chosen[finite.argmin()]} is not finite; replace or drop it"
            )
        moments.add(inputs.reshape(-1, shape[-1]))
    return moments.statistics()


class Moments:
    """Count, mean, sum of squared differences from it, least and largest value of columns, portion by portion."""

    def __init__(self, columns: int) -> None:
        self._count = 0
        self._mean = np.zeros(columns)
        self._squares = np.zeros(columns)
        self._low = np.full(columns, np.inf)
        self._high = np.full(columns, -np.inf)
        self._rounded = np.zeros(columns, np.bool_)

    def add(self, values: NDArray[np.float64]) -> None:
        """Take in `values` (n, columns)."""
        wide = values.copy()
        mean = wide.mean(axis=0)
        wide -= mean
        total = self._count + len(values)
        moved = mean - self._mean
        self._squares += (wide**2).sum(axis=0) + moved**2 * (self._count * len(values) / total)
        self._mean += moved * (len(values) / total)
        self._count = total
        np.minimum(self._low, values.min(axis=0), out=self._low)
        np.maximum(self._high, values.max(axis=0), out=self._high)
        self._rounded |= (values.astype(np.float32) != values).any(axis=0)

    def statistics(self) -> Statistics:
        """Mean, standard deviation and offset; a constant column's are its value, 1 and none, without rounding."""
        constant = self._low == self._high
        deviation = np.sqrt(self._squares / self._count).astype(np.float32)
        deviation[constant | (deviation == 0)] = 1
        mean = np.where(constant, self._low, self._mean)
        most = np.where(self._rounded, _MOST_DEVIATIONS, _MOST_DEVIATIONS_OF_EXACT)
        far = ~constant & (np.abs(mean) > most * deviation.astype(np.float64))
        if not far.any():
            return Statistics(mean.astype(np.float32), deviation)
        offset = np.where(far, mean, 0.0)
        return Statistics((mean - offset).astype(np.float32), deviation, offset)
