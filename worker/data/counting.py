"""The number of samples for training, told by headers and listings before anything is loaded."""

from __future__ import annotations

import gzip
import struct
import zlib
from pathlib import Path
from typing import Final

from taihu.core.model.names import TEXT_DATA, OwnData, built_in_data, own_data
from taihu.core.settings import DataSettings
from taihu.worker.data.base.sources import (
    CIFAR10_RECORD_BYTES,
    CIFAR10_TRAIN,
    FASHION_MNIST_TRAIN,
    IDX_IMAGES_MAGIC,
    cifar10_folder,
    fashion_mnist_file,
    folder_kind,
)

# A CSV file has to be read to be counted; more than this is left to the workers, who read it anyway.
_MOST_BYTES_READ: Final = 16 << 20


def count_training_samples(settings: DataSettings) -> int | None:
    """Number of samples that are left for training, as in the `train` of `load_dataset`.

    The files are there, see `check_sources`. None where only loading shows it: data that a function makes, large or
    compressed CSV files, damaged files.

    Raises:
        DataError: a folder cannot be read or holds no images, a file is no table.
    """
    own = own_data(settings.name)
    if own is None:
        return _count_built_in(settings)
    found = _count_own(own, settings)
    if found is None:
        return None
    samples, has_test = found
    if samples < (1 if has_test else 2):
        return None
    return samples if has_test else samples - settings.samples_for_testing(samples)


def _count_built_in(settings: DataSettings) -> int | None:
    if settings.name == "fashion-mnist":
        return _count_idx(fashion_mnist_file(settings.path, FASHION_MNIST_TRAIN))
    if settings.name == "cifar10":
        folder = cifar10_folder(settings.path)
        return sum((folder / name).stat().st_size // CIFAR10_RECORD_BYTES for name in CIFAR10_TRAIN) or None
    if settings.name == TEXT_DATA:
        from taihu.worker.data.built_in.python_source import count_python_source  # noqa: PLC0415 - other data need no arrays here

        return count_python_source(settings.sequence)
    data = built_in_data(settings.name)
    return None if data is None else data.samples


def _count_idx(path: Path) -> int | None:
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            magic, samples = struct.unpack(">II", file.read(8))
    except (OSError, EOFError, zlib.error, struct.error):
        return None
    return int(samples) or None if magic == IDX_IMAGES_MAGIC else None


def _count_own(own: OwnData, settings: DataSettings) -> tuple[int, bool] | None:
    """Number of samples, and whether there are others for testing; what reads them is imported for it alone."""
    kind = folder_kind(own.path) if own.kind == "folder" else own.kind
    if kind == "arrays":
        from taihu.worker.data.own.arrays import count_own_arrays  # noqa: PLC0415

        return count_own_arrays(own)
    if kind == "text":
        from taihu.worker.data.own.text_files import count_own_text  # noqa: PLC0415 - other data need no arrays here

        return count_own_text(own, settings.sequence)
    if kind == "images":
        from taihu.worker.data.own.images.image_folder import count_own_images  # noqa: PLC0415

        return count_own_images(own)
    if kind == "table":
        from taihu.worker.data.own.tables.table import count_own_table  # noqa: PLC0415

        return count_own_table(own, _MOST_BYTES_READ, settings)
    return None
