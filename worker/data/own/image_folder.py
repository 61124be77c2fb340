"""A folder of images with a folder for each class, with or without a part for testing."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np

from taihu.errors import DataError
from taihu.names import OwnData
from taihu.settings import DataSettings
from worker.data.dataset import Dataset
from worker.data.own.assemble import Part, assemble
from worker.data.own.images import IMAGE_SUFFIXES, ImageInputs, common_shape

__all__ = ["count_own_images", "load_own_images"]

_TRAIN: Final = "train"
_TEST: Final = ("test", "val", "valid", "validation")
_FORM: Final = "expected FOLDER/CLASS/*.png or .jpg, or FOLDER/train/CLASS/* and FOLDER/test/CLASS/*"


def load_own_images(settings: DataSettings, own: OwnData) -> Dataset:
    """Find the images of every class; they stay on disk.

    Classes are numbered in the order of their folders' names.

    Raises:
        DataError: there are none, a class is empty or unknown to training, or one of the images looked at is damaged.
    """
    train, test = _parts(own.path)
    classes = _classes(train)
    parts = [_files(train, classes)]
    if test is not None:
        unknown = sorted(set(_folders(test)) - set(classes))
        if unknown:
            raise DataError(f"data folder {test / unknown[0]}: class {unknown[0]!r} has no images for training")
        parts.append(_files(test, [name for name in classes if (test / name).is_dir()]))
    size = settings.size
    shape = common_shape([file for files, _ in parts for file in files], size)
    made = [
        Part(ImageInputs(files, shape, size, f"data {place}"), _numbers(names, classes), f"data {place}")
        for (files, names), place in zip(parts, (train, test), strict=False)
    ]
    return assemble(settings, made[0], made[1] if test is not None else None, classes)


def count_own_images(own: OwnData) -> tuple[int, bool]:
    """Number of images for training, and whether there are others for testing; none is opened.

    Raises:
        DataError: there are none, or a class is empty.
    """
    train, test = _parts(own.path)
    files, _ = _files(train, _classes(train))
    return len(files), test is not None


def _parts(folder: Path) -> tuple[Path, Path | None]:
    """The folders of the classes for training and, if there is such a part, for testing."""
    folders = _folders(folder)
    if _TRAIN not in folders:
        return folder, None
    return folder / _TRAIN, next((folder / name for name in _TEST if name in folders), None)


def _classes(train: Path) -> list[str]:
    classes = _folders(train)
    if not classes:
        raise DataError(f"data folder {train}: no folders of classes; {_FORM}")
    return classes


def _folders(folder: Path) -> list[str]:
    return sorted(entry.name for entry in _entries(folder) if entry.is_dir() and entry.name[0] != ".")


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    try:
        return list(os.scandir(folder))
    except OSError as error:
        raise DataError(f"data folder {folder}: cannot be read ({error.strerror}); {_FORM}") from None


def _files(folder: Path, classes: Sequence[str]) -> tuple[list[str], list[str]]:
    """Images of the classes, each with the name of its class."""
    files: list[str] = []
    names: list[str] = []
    for name in classes:
        found = sorted(entry.path for entry in _entries(folder / name) if _is_image(entry.name))
        if not found:
            raise DataError(f"data folder {folder / name}: no images; {_FORM}")
        files += found
        names += [name] * len(found)
    if not files:
        raise DataError(f"data folder {folder}: no images; {_FORM}")
    return files, names


def _is_image(name: str) -> bool:
    return name[0] != "." and os.path.splitext(name)[1].lower() in IMAGE_SUFFIXES  # noqa: PTH122 - of every file


def _numbers(names: Sequence[str], classes: Sequence[str]) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    number = {name: place for place, name in enumerate(classes)}
    return np.array([number[name] for name in names], np.int64)
