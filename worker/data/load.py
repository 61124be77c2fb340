"""Finding a data set by its name."""

from __future__ import annotations

import difflib
from pathlib import Path

from taihu.errors import DataError
from worker.data.cifar10 import load_cifar10
from worker.data.dataset import Dataset
from worker.data.digits import load_digits
from worker.data.fashion_mnist import load_fashion_mnist
from worker.data.synthetic import load_synthetic

__all__ = ["load_dataset"]

_NAMES = ("digits", "fashion-mnist", "cifar10", "synthetic:CxHxW")


def load_dataset(name: str, path: Path | None = None) -> Dataset:
    """Load `digits`, `fashion-mnist`, `cifar10` or `synthetic:CxHxW[:classes=K][:samples=N]`.

    `path` is the folder of the files of `fashion-mnist` and `cifar10`; the others need none and ignore it.

    Raises:
        DataError: the name is unknown, or the data set is missing or damaged.
    """
    if name == "digits":
        return load_digits()
    if name == "fashion-mnist":
        return load_fashion_mnist(path)
    if name == "cifar10":
        return load_cifar10(path)
    if name.partition(":")[0] == "synthetic":
        return load_synthetic(name)
    raise DataError(f"unknown data set {name!r}{_suggestion(name)}; known: {', '.join(_NAMES)}")


def _suggestion(name: str) -> str:
    near = difflib.get_close_matches(name.lower(), _NAMES, n=1, cutoff=0.5)
    return f": did you mean {near[0]}?" if near else ""
