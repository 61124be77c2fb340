"""What a data set is: two sets of uint8 images with labels, and the statistics that normalise them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from taihu.errors import DataError

__all__ = ["Dataset", "Images", "Labels", "build_dataset", "check_labels", "normalise", "standardise"]

Images = NDArray[np.uint8]
Labels = NDArray[np.int64]

# The statistics widen the pixels to 8 bytes; in portions of this many images that stays small.
_CHUNK = 1024


@dataclass(frozen=True, eq=False)
class Dataset:
    """Images (n, H, W, C) uint8 with labels (n,) int64 in 0..classes-1, for training and for testing.

    `mean` and `scale` (C,) are the mean and standard deviation of the training images per channel, in units of
    0..255; `scale` is 1 for a channel that is constant.
    """

    name: str
    train_images: Images
    train_labels: Labels
    test_images: Images
    test_labels: Labels
    classes: int
    mean: NDArray[np.float32]
    scale: NDArray[np.float32]

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """Height, width and channels of one image."""
        _, height, width, channels = self.train_images.shape
        return height, width, channels


def build_dataset(name: str, train: tuple[Images, Labels], test: tuple[Images, Labels], classes: int) -> Dataset:
    """Put a data set together from checked (images, labels) pairs and compute its statistics."""
    mean, scale = _statistics(train[0])
    return Dataset(name, train[0], train[1], test[0], test[1], classes, mean, scale)


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


def normalise(dataset: Dataset, images: Images) -> NDArray[np.float32]:
    """Return `images` (n, H, W, C) as float32, (x - mean) / scale per channel; pass chunks of a large set."""
    normalised = images.astype(np.float32)
    standardise(dataset, normalised)
    return normalised


def standardise(dataset: Dataset, pixels: NDArray[np.float32]) -> None:
    """Turn `pixels` (n, H, W, C) from units of 0..255 into (x - mean) / scale, in place."""
    np.subtract(pixels, dataset.mean, out=pixels)
    np.divide(pixels, dataset.scale, out=pixels)


def _statistics(images: Images) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Mean and standard deviation per channel, from exact counts of the 256 values."""
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
