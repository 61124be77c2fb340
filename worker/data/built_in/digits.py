"""The handwritten digits that come inside scikit-learn: a data set without any download."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from taihu.worker.data.base.dataset import Dataset, build_dataset
from taihu.worker.data.base.sources import digits_file

_TRAIN = 1437


@lru_cache(maxsize=1)
def load_digits() -> Dataset:
    """Return the digits, (8, 8, 1) and 10 classes: 1,437 for training and 360 for testing, always the same ones.

    Raises:
        DataError: scikit-learn is not installed, or does not contain them where it is known to.
    """
    rows = np.loadtxt(digits_file(), delimiter=",", dtype=np.int64)
    # The values are counts of ink in 4x4 cells, 0..16; the last column is the digit.
    images = np.rint(rows[:, :-1].reshape(-1, 8, 8, 1) * (255 / 16)).astype(np.uint8)
    labels = rows[:, -1]
    order = np.random.default_rng(0).permutation(len(labels))
    train, test = order[:_TRAIN], order[_TRAIN:]
    return build_dataset("digits", (images[train], labels[train]), (images[test], labels[test]), classes=10)
