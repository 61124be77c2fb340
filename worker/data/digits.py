"""The handwritten digits that come inside scikit-learn: a data set without any download."""

from __future__ import annotations

import numpy as np

from taihu.errors import DataError
from worker.data.dataset import Dataset, build_dataset

__all__ = ["load_digits"]

_TRAIN = 1437


def load_digits() -> Dataset:
    """Return the digits, (8, 8, 1) and 10 classes: 1,437 for training and 360 for testing, always the same ones.

    Raises:
        DataError: scikit-learn is not installed.
    """
    try:
        from sklearn import datasets  # noqa: PLC0415 - an optional dependency that takes a second to import
    except ImportError:
        raise DataError("digits: needs scikit-learn; pip install taihu[demo]") from None
    source = datasets.load_digits()
    # The values are counts of ink in 4x4 cells, 0..16.
    images = np.rint(source.images * (255 / 16)).astype(np.uint8)[..., np.newaxis]
    labels = source.target.astype(np.int64)
    order = np.random.default_rng(0).permutation(len(labels))
    train, test = order[:_TRAIN], order[_TRAIN:]
    return build_dataset("digits", (images[train], labels[train]), (images[test], labels[test]), classes=10)
