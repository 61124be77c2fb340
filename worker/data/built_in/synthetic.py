"""Images made by a seeded generator, of any shape: for benchmarks and for trying a model without its data."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from taihu.core.model.names import parse_synthetic
from taihu.worker.data.base.dataset import Dataset, Images, Labels, build_dataset


@lru_cache(maxsize=1)
def load_synthetic(name: str) -> Dataset:
    """Return the data set that `name` describes; the same name is the same data set everywhere.

    Every class has a random prototype; an image is the mean of its class's prototype and uniform noise. There are
    a quarter as many test images as training images (`samples`, 2,048 unless given).

    Raises:
        DataError: `name` does not have the form `synthetic:CxHxW[:classes=K][:samples=N]`, or asks for more than
            4 GiB.
    """
    request = parse_synthetic(name)
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
