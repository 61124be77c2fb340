"""Mean and standard deviation of raw inputs, per channel of images and per feature of vectors."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["Statistics", "image_statistics"]

# The statistics widen the pixels to 8 bytes; in portions of this many images that stays small.
_CHUNK = 1024

Statistics = tuple[NDArray[np.float32], NDArray[np.float32]]


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
