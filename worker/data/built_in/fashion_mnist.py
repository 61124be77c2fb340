"""Fashion-MNIST from its four idx files (big-endian header: magic number, then one size for each dimension)."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np

from taihu.core.base.errors import DataError
from taihu.worker.data.base.dataset import Dataset, Images, Labels, build_dataset, check_labels
from taihu.worker.data.base.files import check_size, read_file
from taihu.worker.data.base.sources import FASHION_MNIST_REMEDY, fashion_mnist_file

_MAGIC_UINT8 = 0x0800  # plus the number of dimensions
_SIDE = 28


def load_fashion_mnist(path: Path | None) -> Dataset:
    """Read Fashion-MNIST, (28, 28, 1) and 10 classes, from the folder `path`, plain or gzipped.

    Raises:
        DataError: a file is missing, corrupt, truncated, of another shape, or its labels do not fit its images.
    """
    return build_dataset("fashion-mnist", _read_set(path, "train"), _read_set(path, "t10k"), classes=10)


def _read_set(folder: Path | None, prefix: str) -> tuple[Images, Labels]:
    images, source = _read_idx(folder, f"{prefix}-images-idx3-ubyte", 3)
    if images.shape[1:] != (_SIDE, _SIDE):
        seen = "x".join(map(str, images.shape[1:]))
        raise DataError(f"{source}: images of {seen}, expected {_SIDE}x{_SIDE}; {FASHION_MNIST_REMEDY}")
    labels, source = _read_idx(folder, f"{prefix}-labels-idx1-ubyte", 1)
    return images[..., np.newaxis], check_labels(labels, len(images), 10, str(source), FASHION_MNIST_REMEDY)


def _read_idx(folder: Path | None, name: str, dimensions: int) -> tuple[Images, Path]:
    """Return the array of one idx file of uint8 with `dimensions` dimensions, and the file it came from."""
    path = fashion_mnist_file(folder, name)
    content = read_file(path, FASHION_MNIST_REMEDY)
    header_bytes = 4 * (1 + dimensions)
    if len(content) < header_bytes:
        check_size(path, len(content), header_bytes, "the idx header", FASHION_MNIST_REMEDY)
    magic, *shape = np.frombuffer(content, ">u4", 1 + dimensions).tolist()
    expected = _MAGIC_UINT8 + dimensions
    if magic != expected:
        raise DataError(f"{path}: magic number {magic}, expected {expected} (idx, uint8); {FASHION_MNIST_REMEDY}")
    meaning = f"a header and {'x'.join(map(str, shape))} uint8"
    check_size(path, len(content), header_bytes + math.prod(shape), meaning, FASHION_MNIST_REMEDY)
    return np.frombuffer(content, np.uint8, offset=header_bytes).reshape(shape), path
