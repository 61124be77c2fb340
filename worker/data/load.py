"""Finding a data set by its name."""

from __future__ import annotations

from taihu.settings import DataSettings
from worker.data.cifar10 import load_cifar10
from worker.data.dataset import Dataset
from worker.data.digits import load_digits
from worker.data.fashion_mnist import load_fashion_mnist
from worker.data.synthetic import load_synthetic

__all__ = ["load_dataset"]


def load_dataset(settings: DataSettings) -> Dataset:
    """Load `digits`, `fashion-mnist`, `cifar10` or `synthetic:CxHxW[:classes=K][:samples=N]`.

    `settings.path` is the folder of the files of `fashion-mnist` and `cifar10`; the others need none and ignore it.

    Raises:
        DataError: the data set is missing or damaged.
    """
    name, path = settings.name, settings.path
    if name == "digits":
        return load_digits()
    if name == "fashion-mnist":
        return load_fashion_mnist(path)
    if name == "cifar10":
        return load_cifar10(path)
    return load_synthetic(name)
