"""Images made by a seeded generator, of any shape: for benchmarks and for trying a model without its data."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

import numpy as np

from taihu.errors import DataError
from worker.data.dataset import Dataset, Images, Labels, build_dataset

__all__ = ["load_synthetic"]

_FORM = "synthetic:CxHxW[:classes=K][:samples=N], for example synthetic:3x32x32:classes=10:samples=2048"
_MOST_BYTES = 4 << 30


@dataclass(frozen=True)
class _Request:
    shape: tuple[int, int, int]  # H, W, C
    classes: int
    samples: int

    @property
    def test_samples(self) -> int:
        return max(1, self.samples // 4)


def load_synthetic(name: str) -> Dataset:
    """Return the data set that `name` describes; the same name is the same data set everywhere.

    Every class has a random prototype; an image is the mean of its class's prototype and uniform noise. There are
    a quarter as many test images as training images (`samples`, 2,048 unless given).

    Raises:
        DataError: `name` does not have the form `synthetic:CxHxW[:classes=K][:samples=N]`, or asks for more than
            4 GiB.
    """
    request = _parse(name)
    pixels = math.prod(request.shape)
    images = request.classes + request.samples + request.test_samples
    if images * pixels > _MOST_BYTES:
        fitting = max(1, (_MOST_BYTES // pixels - request.classes) * 4 // 5)
        raise DataError(f"{name}: {images * pixels >> 20} MiB of images, at most 4096; try samples={fitting}")
    rng = np.random.default_rng([request.classes, *request.shape])
    halves = rng.integers(0, 128, (request.classes, *request.shape), np.uint8)
    train = _draw(rng, halves, request.samples)
    return build_dataset(name, train, _draw(rng, halves, request.test_samples), request.classes)


def _draw(rng: np.random.Generator, halves: Images, samples: int) -> tuple[Images, Labels]:
    """Draw labels, and images of which `halves` (classes, H, W, C), below 128, is the constant half."""
    labels = rng.integers(0, len(halves), samples)
    images = rng.integers(0, 128, (samples, *halves.shape[1:]), np.uint8)
    for number, label in enumerate(labels):
        images[number] += halves[label]
    return images, labels


def _parse(name: str) -> _Request:
    shape, *options = name.removeprefix("synthetic").removeprefix(":").split(":")
    sizes = re.fullmatch(r"(\d{1,9})x(\d{1,9})x(\d{1,9})", shape)
    if sizes is None:
        raise DataError(f"{name}: no image shape; expected {_FORM}")
    numbers = {"classes": 10, "samples": 2048}
    for option in options:
        parsed = re.fullmatch(r"(classes|samples)=(\d{1,9})", option)
        if parsed is None:
            raise DataError(f"{name}: unknown option {option!r}; expected {_FORM}")
        numbers[parsed[1]] = int(parsed[2])
    channels, height, width = map(int, sizes.groups())
    if not (channels and height and width and numbers["classes"] and numbers["samples"]):
        raise DataError(f"{name}: every number must be at least 1; expected {_FORM}")
    return _Request((height, width, channels), numbers["classes"], numbers["samples"])
