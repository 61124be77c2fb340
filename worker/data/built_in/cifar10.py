"""CIFAR-10 from its binary version: records of one label byte and 3 planes (red, green, blue) of 32x32."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from taihu.worker.data.base.dataset import Dataset, Images, Labels, build_dataset, check_labels
from taihu.worker.data.base.files import check_size, read_file
from taihu.worker.data.base.sources import (
    CIFAR10_RECORD_BYTES,
    CIFAR10_REMEDY,
    CIFAR10_TEST,
    CIFAR10_TRAIN,
    cifar10_folder,
)


def load_cifar10(path: Path | None) -> Dataset:
    """Read CIFAR-10, (32, 32, 3) and 10 classes, from the folder `path` or its `cifar-10-batches-bin`.

    Each of the six files may hold any number of images.

    Raises:
        DataError: no folder was given, or a file is missing, does not hold whole records, or has a label above 9.
    """
    folder = cifar10_folder(path)
    parts = [_read_batch(folder / name) for name in CIFAR10_TRAIN]
    train = np.concatenate([images for images, _ in parts]), np.concatenate([labels for _, labels in parts])
    return build_dataset("cifar10", train, _read_batch(folder / CIFAR10_TEST), classes=10)


def _read_batch(path: Path) -> tuple[Images, Labels]:
    content = read_file(path, CIFAR10_REMEDY)
    records, rest = divmod(len(content), CIFAR10_RECORD_BYTES)
    if rest:
        expected = (records + 1) * CIFAR10_RECORD_BYTES
        meaning = f"{records + 1} records of {CIFAR10_RECORD_BYTES}"
        check_size(path, len(content), expected, meaning, CIFAR10_REMEDY)
    table = np.frombuffer(content, np.uint8).reshape(records, CIFAR10_RECORD_BYTES)
    planes = table[:, 1:].reshape(records, 3, 32, 32)
    labels = check_labels(table[:, 0], records, 10, str(path), CIFAR10_REMEDY)
    return np.ascontiguousarray(planes.transpose(0, 2, 3, 1)), labels
