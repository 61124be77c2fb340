"""Where the files of the data sets lie; found without reading them, and without what reads them."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from taihu.errors import DataError
from worker.data.files import check_readable, exists

__all__ = [
    "CIFAR10_REMEDY",
    "CIFAR10_TEST",
    "CIFAR10_TRAIN",
    "FASHION_MNIST_REMEDY",
    "check_sources",
    "cifar10_folder",
    "digits_file",
    "fashion_mnist_file",
]

CIFAR10_REMEDY: Final = (
    "unpack cifar-10-binary.tar.gz from https://www.cs.toronto.edu/~kriz/cifar.html "
    "and give its folder with --data-path"
)
CIFAR10_TRAIN: Final = tuple(f"data_batch_{number}.bin" for number in range(1, 6))
CIFAR10_TEST: Final = "test_batch.bin"
FASHION_MNIST_REMEDY: Final = (
    "apt install dataset-fashion-mnist, or give the folder of its idx files with --data-path"
)
_FASHION_MNIST: Final = tuple(
    f"{part}-{kind}-ubyte" for part in ("train", "t10k") for kind in ("images-idx3", "labels-idx1")
)
# Where Debian's package dataset-fashion-mnist puts the files.
_DEBIAN_PATH: Final = Path("/usr/share/datasets/fashion-mnist")


def check_sources(name: str, path: Path | None) -> None:
    """Check that the files of the data set `name` are there, which may be one that needs none.

    Raises:
        DataError: one is missing or cannot be read, or no folder was given where one is needed.
    """
    for file, remedy in _files(name, path):
        check_readable(file, remedy)


def digits_file() -> Path:
    """Where scikit-learn keeps its digits: its own loader takes each process a second of imports.

    Raises:
        DataError: scikit-learn is not installed, or does not contain them where it is known to.
    """
    package = find_spec("sklearn")
    if package is None or package.origin is None:
        raise DataError("digits: needs scikit-learn; pip install taihu[demo]")
    path = Path(package.origin).parent / "datasets" / "data" / "digits.csv.gz"
    if not path.exists():
        raise DataError(f"digits: {path} not found; pip install 'scikit-learn<2', or choose another data.name")
    return path


def fashion_mnist_file(path: Path | None, name: str) -> Path:
    """The idx file `name`, plain or gzipped, in the folder `path`, by default where Debian puts it."""
    folder = path or _DEBIAN_PATH
    plain = folder / name
    return plain if exists(plain) else folder / f"{name}.gz"


def cifar10_folder(path: Path | None) -> Path:
    """The folder of the batches: `path`, or its `cifar-10-batches-bin`.

    Raises:
        DataError: no folder was given.
    """
    if path is None:
        raise DataError(f"cifar10: no folder given; {CIFAR10_REMEDY}")
    unpacked = path / "cifar-10-batches-bin"
    return unpacked if exists(unpacked) else path


def _files(name: str, path: Path | None) -> Iterator[tuple[Path, str]]:
    """Files of a data set, each with what helps when it is missing."""
    if name == "digits":
        digits_file()
    elif name == "fashion-mnist":
        for part in _FASHION_MNIST:
            yield fashion_mnist_file(path, part), FASHION_MNIST_REMEDY
    elif name == "cifar10":
        for part in (*CIFAR10_TRAIN, CIFAR10_TEST):
            yield cifar10_folder(path) / part, CIFAR10_REMEDY
