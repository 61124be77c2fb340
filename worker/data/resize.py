"""Images of one size as images of another: bilinear, and an average over all pixels that become one."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from taihu.worker.data.base.dataset import Examples, Rows, Targets

Images = NDArray[np.float32]


@dataclass(frozen=True)
class _Taps:
    """Pixel i of an axis becomes the sum over t of pixels[t][i] * weights[t][i] of the axis before."""

    pixels: NDArray[np.int64]  # (taps, size)
    weights: NDArray[np.float32]  # (taps, size)

    def __iter__(self) -> Iterator[tuple[NDArray[np.int64], NDArray[np.float32]]]:
        return zip(self.pixels, self.weights, strict=True)


def resize_images(images: Images, size: tuple[int, int], out: Images) -> None:
    """Write `images` (n, H, W, C) in the `size` (height, width) into `out` (n, height, width, C).

    Every pixel is the average of those below a triangle around its centre, as wide as two pixels of the coarser
    image: what Pillow calls bilinear. The result does not depend on the other images.
    """
    height, width = size
    rows, columns = _taps(images.shape[1], height), _taps(images.shape[2], width)
    stretched = np.zeros((len(images), images.shape[1], width, images.shape[3]), np.float32)
    for pixels, weights in columns:
        stretched += images[:, :, pixels] * weights[:, np.newaxis]
    out.fill(0)
    for pixels, weights in rows:
        out += stretched[:, pixels] * weights[:, np.newaxis, np.newaxis]


@dataclass(frozen=True, eq=False)
class ResizedExamples:
    """Images of `raw_shape` (H, W, C) of other examples, in the `size` (height, width)."""

    examples: Examples
    raw_shape: tuple[int, ...]
    size: tuple[int, int]

    def __len__(self) -> int:
        return len(self.examples)

    def read(self, rows: Rows, out: NDArray[np.float32]) -> None:
        """Read the images of `rows`, and resize them."""
        raw = np.empty((len(rows), *self.raw_shape), np.float32)
        self.examples.read(rows, raw)
        resize_images(raw, self.size, out)

    def targets(self, rows: Rows) -> Targets:
        """The targets of the other examples."""
        return self.examples.targets(rows)


def _taps(before: int, after: int) -> _Taps:
    """Pixels of an axis of `before` that make each of the `after`, and their shares."""
    scale = before / after
    reach = max(1.0, scale)
    centres = (np.arange(after) + 0.5) * scale - 0.5
    first = np.floor(centres - reach).astype(np.int64) + 1
    count = math.ceil(2 * reach)
    pixels = first + np.arange(count)[:, np.newaxis]
    weights = np.maximum(0.0, 1 - np.abs(pixels - centres) / reach)
    weights[(pixels < 0) | (pixels >= before)] = 0
    weights /= weights.sum(axis=0)
    return _Taps(pixels.clip(0, before - 1), weights.astype(np.float32))
