"""Whole sets of examples as arrays, read as training reads them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from taihu.worker.data.base.dataset import Dataset, Examples

__all__ = ["inputs_of", "targets_of"]


def inputs_of(dataset: Dataset, examples: Examples) -> NDArray[np.float32]:
    """All raw inputs of one of the sets of `dataset`."""
    out = np.full((len(examples), *dataset.input_shape), np.nan, np.float32)
    examples.read(np.arange(len(examples)), out)
    return out if dataset.offset is None else (out + dataset.offset).astype(np.float32)


def targets_of(examples: Examples) -> NDArray[Any]:
    return examples.targets(np.arange(len(examples)))
