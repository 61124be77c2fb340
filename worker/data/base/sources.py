"""Places of the data sets' files; found without reading them, and without what reads them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Final, Literal

from taihu.core.base.errors import DataError
from taihu.core.base.words import counted
from taihu.core.model.names import OwnData, own_data
from taihu.core.process.programs.user_code import split_function
from taihu.worker.data.base.files import check_readable, exists
from taihu.worker.data.base.folder_files import is_folder, is_hidden

CIFAR10_REMEDY: Final = (
    "unpack cifar-10-binary.tar.gz from https://www.cs.toronto.edu/~kriz/cifar.html "
    "and give its folder with --data-path"
)
CIFAR10_TRAIN: Final = tuple(f"data_batch_{number}.bin" for number in range(1, 6))
CIFAR10_TEST: Final = "test_batch.bin"
# A label and three planes.
CIFAR10_RECORD_BYTES: Final = 1 + 3 * 32 * 32
FASHION_MNIST_REMEDY: Final = (
    "apt install dataset-fashion-mnist, or give the folder of its idx files with --data-path"
)
_FASHION_MNIST: Final = tuple(
    f"{part}-{kind}-ubyte" for part in ("train", "t10k") for kind in ("images-idx3", "labels-idx1")
)
FASHION_MNIST_TRAIN: Final = _FASHION_MNIST[0]
# Of uint8 with three dimensions.
IDX_IMAGES_MAGIC: Final = 0x0803
_PACKED: Final = (".gz", ".bz2", ".xz")
_TABLES: Final = (".csv", ".tsv", ".parquet", *(f"{kind}{way}" for kind in (".csv", ".tsv") for way in _PACKED))
_FOLDER_REMEDY: Final = "give a folder of .npy files, of tables train and test, of .txt files, or of images by class"
# Module, project and extra of what reads a kind of data.
_PACKAGES: Final = {"images": ("PIL", "Pillow", "images"), "table": ("pyarrow", "PyArrow", "tables")}
FolderKind = Literal["arrays", "table", "text", "images"]
# Where Debian's package dataset-fashion-mnist puts the files.
_DEBIAN_PATH: Final = Path("/usr/share/datasets/fashion-mnist")


def check_sources(name: str, path: Path | None) -> None:
    """Check that the files of the data set `name` are there, which may be one that needs none, and what reads them.

    Raises:
        DataError: one is missing or cannot be read, no folder was given where one is needed, or a package is missing.
    """
    own = own_data(name)
    if own is not None:
        _check_own(own)
    for file, remedy in _files(name, path):
        check_readable(file, remedy)


def digits_file() -> Path:
    """The file of scikit-learn's digits: its own loader takes each process a second of imports.

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


def folder_kind(folder: Path) -> FolderKind:
    """Kind of a folder of the user's own: .npy files, the tables `train` and `test`, .txt files, or images.

    Texts beside folders are notes on the images in these.

    Raises:
        DataError: there is no such folder, or it cannot be read.
    """
    try:
        with os.scandir(folder) as entries:
            folders = {entry.name: is_folder(entry) for entry in entries if not is_hidden(entry.name)}
    except OSError as error:
        reason = "not found" if isinstance(error, FileNotFoundError) else f"cannot be read ({error.strerror})"
        raise DataError(f"data folder {folder}: {reason}; {_FOLDER_REMEDY}") from None
    names = folders.keys()
    if any(name.endswith(".npy") for name in names):
        return "arrays"
    if names & {f"train{suffix}" for suffix in _TABLES}:
        return "table"
    is_text = any(name.lower().endswith((".txt", ".txt.gz")) for name in names) and not any(folders.values())
    return "text" if is_text else "images"


def table_files(own: OwnData) -> tuple[Path, Path | None]:
    """The tables for training and, where there is one, for testing."""
    if own.kind != "folder":
        return own.path, None
    train, test = (
        [own.path / f"{part}{suffix}" for suffix in _TABLES if exists(own.path / f"{part}{suffix}")]
        for part in ("train", "test")
    )
    return train[0], test[0] if test else None


def missing_package(path: Path, kind: str) -> DataError:
    """The error where the package that reads data of this kind is not installed."""
    _, project, extra = _PACKAGES[kind]
    return DataError(f"data {path}: needs {project}, which is not installed; pip install taihu[{extra}]")


def _check_own(own: OwnData) -> None:
    kind = folder_kind(own.path) if own.kind == "folder" else own.kind
    if kind == "function":
        file, _ = split_function(f"{own.path}:{own.function}", thing="data", error=DataError)
        check_readable(file, "give path/to/file.py:function")
    elif own.kind != "folder":
        check_readable(own.path, f"give the path of a file {own.path.suffix}")
    if kind in _PACKAGES and find_spec(_PACKAGES[kind][0]) is None:
        raise missing_package(own.path, kind)


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


def check_batch(name: str, samples: int, batch: int, workers: int, in_step: int = 1) -> None:
    """Raise DataError when the workers' batches of one step need more than the `samples` of the training set."""
    if batch * workers * in_step <= samples:
        return
    largest = samples // (workers * in_step)
    if in_step > 1:
        raise DataError(
            f"{name}: {in_step} local steps of {counted(workers, 'worker')} with batch {batch} need "
            f"{counted(batch * workers * in_step, 'sample')}, the training set has {samples}; "
            f"the largest exchange.local_steps that fits is {max(1, samples // (batch * workers))}"
        )
    remedy = f"the largest batch that fits is {largest}" if largest else f"use at most {counted(samples, 'worker')}"
    raise DataError(
        f"{name}: batch {batch} of {counted(workers, 'worker')} needs {counted(batch * workers, 'sample')}, "
        f"the training set has {samples}; {remedy}"
    )
