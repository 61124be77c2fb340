"""Arrays of the user's own: an .npz file, read into memory, or a folder of .npy files, mapped into it."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import IO, Any, Final

import numpy as np
from numpy.typing import NDArray

from taihu.core.base.errors import DataError
from taihu.core.base.words import listed
from taihu.core.model.names import OwnData
from taihu.core.settings import DataSettings
from taihu.worker.data.base.dataset import Dataset
from taihu.worker.data.own.assemble import Split, assemble
from taihu.worker.data.own.inputs import array_inputs
from taihu.worker.data.own.text_labels import plain_labels

# Pairs of names for training and testing, as Keras, MedMNIST and scikit-learn call them.
_TRAIN: Final = (
    ("x_train", "y_train"),
    ("train_images", "train_labels"),
    ("train_inputs", "train_targets"),
    ("images", "labels"),
    ("inputs", "targets"),
    ("x", "y"),
)
_TEST: Final = (
    ("x_test", "y_test"),
    ("test_images", "test_labels"),
    ("test_inputs", "test_targets"),
    ("x_val", "y_val"),
    ("val_images", "val_labels"),
    ("val_inputs", "val_targets"),
)
_CLASS_NAMES: Final = "class_names"
# Readers of an array's header by the version of its format; the third one is for names of fields alone.
_HEADERS: Final = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}

Get = Callable[[str], NDArray[Any]]


def load_own_arrays(settings: DataSettings, own: OwnData) -> Dataset:
    """Load `x_train`, `y_train`, and where they are there `x_test`, `y_test` and `class_names`.

    Names may be in upper case, and `train_images`, `train_labels` and the like.

    Raises:
        DataError: a file is damaged, an array is missing, pickled or of another shape.
    """
    if own.kind == "folder":
        return _from_folder(settings, own.path)
    try:
        with own.path.open("rb") as opened:
            file = np.load(opened, allow_pickle=False)
            if not isinstance(file, np.lib.npyio.NpzFile):
                raise DataError(f"{own.path}: one array, not an .npz file of several; save it with numpy.savez")
            return _dataset(settings, file.files, lambda name: _read(file, name, own.path))
    except (OSError, zipfile.BadZipFile, ValueError, EOFError) as error:
        raise DataError(f"{own.path}: not a readable .npz file: {_cause(error)}") from None


def count_own_arrays(own: OwnData) -> tuple[int, bool] | None:
    """Number of training inputs by their array's header, and whether there are others for testing.

    None where there is no such array, or its header cannot be read.
    """
    try:
        if own.kind == "folder":
            files = {path.stem.lower(): path for path in sorted(own.path.glob("*.npy"))}
            return _count(files.keys(), lambda name: files[name].open("rb"))
        with zipfile.ZipFile(own.path) as archive:
            members = {name.removesuffix(".npy").lower(): name for name in archive.namelist()}
            return _count(members.keys(), lambda name: archive.open(members[name]))
    except (OSError, zipfile.BadZipFile, zlib.error, ValueError, KeyError, EOFError, RuntimeError):
        return None


def _count(names: Iterable[str], opened: Callable[[str], IO[bytes]]) -> tuple[int, bool] | None:
    known = set(names)
    name = next((inputs for inputs, targets in _TRAIN if {inputs, targets} <= known), None)
    if name is None:
        return None
    with opened(name) as file:
        header = _HEADERS[np.lib.format.read_magic(file)](file)
    shape: tuple[int, ...] = header[0]
    return (shape[0], any(inputs in known for inputs, _ in _TEST)) if shape else None


def _from_folder(settings: DataSettings, folder: Path) -> Dataset:
    def read(name: str) -> NDArray[Any]:
        path = folder / f"{name}.npy"
        try:
            found: NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
        except (OSError, ValueError, EOFError) as error:
            raise DataError(f"{path}: not a readable .npy file: {_cause(error)}") from None
        return found

    return _dataset(settings, sorted(path.stem for path in folder.glob("*.npy")), read)


def _dataset(settings: DataSettings, names: Iterable[str], read: Get) -> Dataset:
    known = {name.lower(): name for name in names}
    where = f"data {settings.name}"
    train = _part(_TRAIN, known, read, where)
    if train is None:
        found = ", ".join(known.values()) or "nothing"
        raise DataError(f"{where}: no arrays x_train and y_train; it holds {found}")
    test = _part(_TEST, known, read, where)
    class_names: list[str] = []
    if _CLASS_NAMES in known:
        names = plain_labels(read(known[_CLASS_NAMES]), f"{where}: {known[_CLASS_NAMES]}")
        class_names = list(map(str, names.ravel()))
    dataset = assemble(settings, train, test, class_names)
    used = {place for part in (train, test) if part is not None for place in (part.where, part.where_targets)}
    others = [name for key, name in known.items() if f"{where}: {name}" not in used and key != _CLASS_NAMES]
    note = f"{where}: not used: {listed(others)}"
    return replace(dataset, notes=(*dataset.notes, *([note] if others else [])))


def _part(pairs: Iterable[tuple[str, str]], known: dict[str, str], read: Get, where: str) -> Split | None:
    for inputs, targets in pairs:
        if inputs in known and targets in known:
            place = f"{where}: {known[inputs]}"
            labels = np.asarray(read(known[targets]))
            return Split(array_inputs(read(known[inputs]), place), labels, place, f"{where}: {known[targets]}")
        if inputs in known or targets in known:
            missing = targets if inputs in known else inputs
            raise DataError(f"{where}: array {missing} is missing beside {inputs if inputs in known else targets}")
    return None


def _read(file: Any, name: str, path: Path) -> NDArray[Any]:
    try:
        found: NDArray[Any] = file[name]
    except (OSError, zipfile.BadZipFile, zlib.error, ValueError, EOFError) as error:
        raise DataError(f"{path}: array {name} cannot be read: {_cause(error)}") from None
    return found


def _cause(error: Exception) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    if "allow_pickle" not in text:
        return text
    pickled = text.startswith("Object arrays")
    return (
        "pickled objects are not loaded, save plain arrays: np.array(x.tolist())"
        if pickled
        else "its content has another format"
    )
