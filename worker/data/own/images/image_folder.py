"""A folder of images with a folder for each class, with or without a part for testing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

import numpy as np

from taihu.core.base.errors import DataError
from taihu.core.base.words import counted, listed
from taihu.core.model.names import OwnData
from taihu.core.settings import DataSettings
from taihu.worker.data.base.dataset import Dataset
from taihu.worker.data.base.defects import Defects
from taihu.worker.data.base.depth import Depth
from taihu.worker.data.base.folder_files import IMAGES, entries, find_files, is_folder, is_hidden, words_on
from taihu.worker.data.own.assemble import Split, assemble

_TRAIN: Final = ("train", "training")
_TEST: Final = ("test", "testing", "val", "valid", "validation", "eval", "dev")
_MOST_TOLD: Final = 6
_FORM: Final = "expected FOLDER/CLASS/*.png or .jpg, or FOLDER/train/CLASS/* and FOLDER/test/CLASS/*"


@dataclass(frozen=True)
class _Class:
    """Images below a folder of a class."""

    name: str
    files: list[str]


@dataclass(frozen=True)
class ImageFolder:
    """Images of a folder by class, and words on what was not taken for one.

    `test` is None where there is no part for testing, else it has images of classes that `train` has too.
    """

    place: Path
    train: tuple[_Class, ...]
    test_place: Path | None = None
    test: tuple[_Class, ...] = ()
    notes: tuple[str, ...] = field(default=())

    @property
    def class_names(self) -> tuple[str, ...]:
        """Names of the classes in the order of their numbers."""
        return tuple(each.name for each in self.train)

    @property
    def files(self) -> list[str]:
        """All images."""
        return [file for each in (*self.train, *self.test) for file in each.files]

    @classmethod
    def of(cls, folder: Path) -> ImageFolder:
        """Find the images of a folder by their names; none is opened that has an ending.

        Raises:
            DataError: there are none, or none in a folder of a class, or a class is unknown to training.
        """
        left_out: Counter[str] = Counter()
        train, others = _parts(folder)
        classes = _classes(train, left_out)
        notes = []
        test: tuple[_Class, ...] = ()
        test_place = None
        for part in others:
            these = _classes_for_testing(part, left_out)
            if these and not test:
                test_place, test = part, these
            else:
                notes.append(_unused(part, these))
        if test_place is not None:
            _check_known(test_place, test, classes)
        if train != folder:
            notes += _beside(folder, (train, *others), left_out)
        if left_out:
            notes.append(f"{folder}: {words_on(left_out)}")
        return cls(train, classes, test_place, test, tuple(notes))

    def without(self, bad: frozenset[str]) -> ImageFolder:
        """The same but for `bad` files.

        Raises:
            DataError: a class has no others for training.
        """
        train, test = (
            tuple(_Class(each.name, [file for file in each.files if file not in bad]) for each in part)
            for part in (self.train, self.test)
        )
        empty = next((each.name for each in train if not each.files), None)
        if empty is not None:
            raise DataError(f"data folder {self.place / empty}: no image of it can be read; replace them")
        left = tuple(each for each in test if each.files)
        return ImageFolder(self.place, train, self.test_place if left else None, left, self.notes)


def load_own_images(settings: DataSettings, own: OwnData, depth: Depth | None = None) -> Dataset:
    """Find the images of every class; they stay on disk.

    Classes are numbered in the order of their folders' names. `depth` is the range of images of more than 8 bits, if
    it is known.

    Raises:
        DataError: there are none, a class is empty or unknown to training, or some of the images looked at are
            damaged or of another size.
    """
    from taihu.worker.data.own.images.image_survey import most_looked_over, survey  # noqa: PLC0415
    from taihu.worker.data.own.images.images import ImageInputs  # noqa: PLC0415 - Pillow is an extra, and counting needs none

    folder = ImageFolder.of(own.path)
    defects = Defects(f"data {settings.name}", "image")
    seen = survey(folder.files, settings.size, defects, decode_all=settings.skip_bad > 0, known=depth)
    if defects and not settings.skip_bad:
        # One answer tells what reading the pixels shows, too.
        defects = Defects(defects.where, "image")
        survey(most_looked_over(folder.files), settings.size, defects, decode_all=True, known=depth)
    left_out = defects.check(settings.skip_bad)
    if left_out:
        folder = folder.without(frozenset(map(str, defects.bad)))
    names = folder.class_names

    def part(classes: Sequence[_Class], where: str) -> Split:
        inputs = ImageInputs(_files(classes), seen.shape, settings.size, where, seen.depth)
        return Split(inputs, _numbers(classes, names), where)

    train = part(folder.train, f"data {folder.place}")
    test = part(folder.test, f"data {folder.test_place}") if folder.test else None
    notes = (*folder.notes, *(f"{own.path}: {note}" for note in seen.notes))
    dataset = assemble(settings, train, test, names)
    return replace(dataset, notes=(*dataset.notes, *notes), depth=seen.depth, left_out=left_out)


def count_own_images(own: OwnData) -> tuple[int, bool]:
    """Number of images for training, and whether there are others for testing; none is decoded.

    Raises:
        DataError: there are none, or a class is empty.
    """
    folder = ImageFolder.of(own.path)
    return len(_files(folder.train)), bool(folder.test)


def _parts(folder: Path) -> tuple[Path, list[Path]]:
    """The folder of the classes for training, and those of parts for testing, as they are looked for.

    A class may be called `train`, too: a part has folders of classes and no images beside them.
    """
    by_name = {name.lower(): folder / name for name in _folders(folder)}
    train = next((by_name[name] for name in _TRAIN if name in by_name), None)
    if train is None or _has_images(train, below=False):
        return folder, []
    tests = [by_name[name] for name in _TEST if name in by_name]
    if not tests and (
        other := next((each for each in by_name.values() if each != train and _has_images(each)), None)
    ):
        raise DataError(
            f"data folder {folder}: {train.name} has folders of images, and {other.name} has images; if {train.name} "
            f"is a class, move its images out of these, else give {train}"
        )
    return train, tests


def _has_images(folder: Path, *, below: bool = True) -> bool:
    return bool(find_files(folder, IMAGES, Counter(), _FORM, below=below))


def _folders(folder: Path) -> list[str]:
    return [entry.name for entry in entries(folder, _FORM) if not is_hidden(entry.name) and is_folder(entry)]


def _classes(train: Path, left_out: Counter[str]) -> tuple[_Class, ...]:
    names = _folders(train)
    _count_loose(train, left_out)
    if not names:
        raise DataError(f"data folder {train}: no folders of classes; {_FORM}")
    classes = tuple(_Class(name, find_files(train / name, IMAGES, left_out, _FORM)) for name in names)
    if not any(each.files for each in classes):
        raise DataError(f"data folder {train}: no images{_seen(left_out)}; {_FORM}")
    empty = next((each.name for each in classes if not each.files), None)
    if empty is not None:
        raise DataError(f"data folder {train / empty}: no images; delete it, or put images there: {_FORM}")
    if len(classes) == 1:
        raise DataError(
            f"data folder {train}: one class, {classes[0].name!r}; expected two at least{_deeper(train / names[0])}"
        )
    return classes


def _deeper(folder: Path) -> str:
    """A hint where a folder holds nothing but the folder of the data, as archives are unpacked."""
    return f": give the folder with those of classes, for example ./{folder}" if len(_folders(folder)) > 1 else ""


def _seen(left_out: Counter[str]) -> str:
    kinds = [f"{count:,} {kind}" for kind, count in left_out.most_common(3)]
    return f", but {listed(kinds)}" if kinds else ""


def _classes_for_testing(part: Path, left_out: Counter[str]) -> tuple[_Class, ...]:
    _count_loose(part, left_out)
    classes = (_Class(name, find_files(part / name, IMAGES, left_out, _FORM)) for name in _folders(part))
    return tuple(each for each in classes if each.files)


def _check_known(place: Path, test: Sequence[_Class], train: Sequence[_Class]) -> None:
    known = {each.name for each in train}
    unknown = next((each.name for each in test if each.name not in known), None)
    if unknown is not None:
        raise DataError(f"data folder {place / unknown}: class {unknown!r} has no images for training")


def _count_loose(folder: Path, left_out: Counter[str]) -> None:
    """Count what lies beside folders of classes; images there have none."""
    loose = find_files(folder, IMAGES, left_out, _FORM, below=False)
    if loose:
        left_out["images outside of classes"] += len(loose)


def _unused(part: Path, classes: Sequence[_Class]) -> str:
    if not classes:
        return f"{part}: no images in folders of classes; it is left out"
    images = sum(len(each.files) for each in classes)
    return f"{part}: {counted(images, 'image')} left out, another part is for testing"


def _beside(folder: Path, parts: Sequence[Path], left_out: Counter[str]) -> Iterator[str]:
    """Words on folders beside parts."""
    _count_loose(folder, left_out)
    others = [name for name in _folders(folder) if folder / name not in parts]
    if others:
        beside = listed([part.name for part in parts])
        yield f"{folder}: {counted(len(others), 'folder')} beside {beside} left out: {', '.join(others[:_MOST_TOLD])}"


def _files(part: Sequence[_Class]) -> list[str]:
    return [file for each in part for file in each.files]


def _numbers(part: Sequence[_Class], names: Sequence[str]) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    number = {name: place for place, name in enumerate(names)}
    return np.repeat([number[each.name] for each in part], [len(each.files) for each in part]).astype(np.int64)
