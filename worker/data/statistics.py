"""Mean and standard deviation of raw inputs, per channel of images and per feature of vectors."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from taihu.errors import DataError

__all__ = ["Read", "Statistics", "image_statistics", "no_statistics", "read_statistics", "spread_rows"]

# The statistics widen the pixels to 8 bytes; in portions of this many images that stays small.
_CHUNK = 1024
_CHUNK_VALUES = 1 << 20

Statistics = tuple[NDArray[np.float32], NDArray[np.float32]]
Read = Callable[[NDArray[np.int64], NDArray[np.float32]], None]


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
    return mean.astype(np.float32), np.where(constant, 1.0, deviation).astype(np.float32)


def no_statistics(shape: tuple[int, ...]) -> Statistics:
    """Statistics that leave inputs of `shape` as they are: mean 0 and deviation 1."""
    return np.zeros(shape[-1], np.float32), np.ones(shape[-1], np.float32)


def spread_rows(count: int, most: int) -> NDArray[np.int64]:
    """Rows of 0..count-1, at most so many, evenly spread over them: the same in every process."""
    if count <= most:
        return np.arange(count)
    return np.arange(most) * count // most


def read_statistics(read: Read, rows: NDArray[np.int64], shape: tuple[int, ...], where: str) -> Statistics:
    """Mean and standard deviation of the inputs `rows`, over all axes but the last; 1 where all are the same.

    `read(rows, out)` writes inputs of `shape` as float32.

    Raises:
        DataError: an input is not finite; its row is named.
    """
    moments = _Moments(shape[-1])
    portion = max(1, _CHUNK_VALUES // math.prod(shape))
    buffer = np.empty((min(portion, len(rows)), *shape), np.float32)
    for start in range(0, len(rows), portion):
        chosen = rows[start : start + portion]
        inputs = buffer[: len(chosen)]
        read(chosen, inputs)
        finite = np.isfinite(inputs.reshape(len(chosen), -1)).all(axis=1)
        if not finite.all():
            raise DataError(
                f"{where}: the input of sample {chosen[finite.argmin()]} is not finite; replace or drop it"
            )
        moments.add(inputs.reshape(-1, shape[-1]))
    return moments.statistics()


class _Moments:
    """Count, mean, sum of squared differences from it, least and largest value of columns, portion by portion."""

    def __init__(self, columns: int) -> None:
        self._count = 0
        self._mean = np.zeros(columns)
        self._squares = np.zeros(columns)
        self._low = np.full(columns, np.inf, np.float32)
        self._high = np.full(columns, -np.inf, np.float32)

    def add(self, values: NDArray[np.float32]) -> None:
        """Take in `values` (n, columns)."""
        wide: NDArray[Any] = values.astype(np.float64)
        mean = wide.mean(axis=0)
        wide -= mean
        total = self._count + len(values)
        moved = mean - self._mean
        self._squares += (wide**2).sum(axis=0) + moved**2 * (self._count * len(values) / total)
        self._mean += moved * (len(values) / total)
        self._count = total
        np.minimum(self._low, values.min(axis=0), out=self._low)
        np.maximum(self._high, values.max(axis=0), out=self._high)

    def statistics(self) -> Statistics:
        """Mean and standard deviation; a constant column's are its value and 1, without rounding."""
        constant = self._low == self._high
        deviation = np.sqrt(self._squares / self._count).astype(np.float32)
        deviation[constant | (deviation == 0)] = 1
        return np.where(constant, self._low, self._mean).astype(np.float32), deviation
