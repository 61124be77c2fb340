"""Inputs of a saved model from files: images, arrays and tables, read as its training data were."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from taihu.core.base.errors import DataError
from taihu.core.model.model_defaults import smallest_size
from taihu.worker.data.base.defects import Fault
from taihu.worker.data.base.sources import missing_package
from taihu.worker.data.own.images.bad_image import BadImageError
from taihu.worker.saved.metadata import SavedModel

_ARRAY_NAMES: Final = ("x_test", "x", "test_images", "images", "inputs")
_TABLES: Final = (".csv", ".tsv", ".parquet")
_PACKED: Final = (".gz", ".bz2", ".xz")


@dataclass(frozen=True)
class Samples:
    """Raw inputs (n, *input_shape) with a name for each; `bad` are images that have none."""

    names: Sequence[str]
    inputs: NDArray[Any]
    bad: Sequence[BadImageError] = ()


def read_samples(files: Sequence[Path], saved: SavedModel, batch: int) -> Iterator[Samples]:
    """Read the samples of all files in order; at most `batch` images at a time.

    Images that cannot be read, or have another size, are told and do not keep the others from being read.

    Raises:
        DataError: another file is missing or damaged, or does not hold what the model takes.
    """
    images: list[Path] = []
    for file in files:
        name = file.name.lower()
        read = _READERS.get(Path(name.removesuffix(next(filter(name.endswith, _PACKED), ""))).suffix)
        if read is None:
            images.append(file)
        if images and (read is not None or len(images) == batch or file is files[-1]):
            yield _images(images, saved)
            images = []
        if read is not None:
            inputs = read(file, saved)
            yield Samples([f"{file}[{row}]" for row in range(len(inputs))], inputs)


def _images(files: Sequence[Path], saved: SavedModel) -> Samples:
    try:
        from taihu.worker.data.own.images.images import image_threads  # noqa: PLC0415 - an extra
    except ImportError:
        raise missing_package(files[0], "images") from None
    if len(saved.input_shape) != 3:
        raise DataError(f"{files[0]}: the model takes {saved.input_shape[0]} features, give it arrays or tables")

    def read_one(file: Path) -> NDArray[np.uint8] | BadImageError:
        try:
            return _image(file, saved)
        except BadImageError as error:
            return error

    with image_threads() as threads:
        read = list(zip(files, threads.map(read_one, files), strict=True))
    good = [(str(file), pixels) for file, pixels in read if not isinstance(pixels, BadImageError)]
    inputs = np.empty((len(good), *saved.input_shape), np.uint8)
    for place, (_, pixels) in enumerate(good):
        inputs[place] = pixels
    bad = [pixels for _, pixels in read if isinstance(pixels, BadImageError)]
    return Samples([name for name, _ in good], inputs, bad)


def _image(file: Path, saved: SavedModel) -> NDArray[np.uint8]:
    """An image in the shape that the model takes."""
    from taihu.worker.data.own.images.pixels import read_image  # noqa: PLC0415 - an extra

    height, width, channels = saved.input_shape
    size, colours = (height, width), 1 if channels == 1 else 3
    pixels = read_image(file, colours, size if _resized(saved) else None, saved.pixel_range)
    if smallest_size(saved.model, pixels.shape) == size:
        pixels = read_image(file, colours, size, saved.pixel_range)
    if pixels.shape != saved.input_shape:
        seen = "x".join(map(str, pixels.shape[:2]))
        raise BadImageError(
            file,
            Fault(
                f"{seen} (height x width), the model takes {height}x{width} with {channels} channels and was trained "
                "without data.resize",
                "bring it to that size",
            ),
        )
    return pixels


def _resized(saved: SavedModel) -> bool:
    data = saved.job.get("data")
    return isinstance(data, dict) and data.get("resize") is not None


def _array(file: Path, saved: SavedModel) -> NDArray[Any]:
    return _shaped(_loaded(file, lambda opened: opened), saved, file)


def _arrays(file: Path, saved: SavedModel) -> NDArray[Any]:
    def choose(opened: Any) -> Any:
        names = [name for name in _ARRAY_NAMES if name in opened.files] or opened.files
        if not names or (len(opened.files) > 1 and names[0] not in _ARRAY_NAMES):
            raise DataError(
                f"{file}: expected one array, or one called {' or '.join(_ARRAY_NAMES[:2])}; it has "
                f"{', '.join(opened.files) or 'none'}"
            )
        return opened[names[0]]

    return _shaped(_loaded(file, choose), saved, file)


def _loaded(file: Path, use: Callable[[Any], Any]) -> NDArray[Any]:
    try:
        found: NDArray[Any] = use(np.load(file, mmap_mode="r", allow_pickle=False))
    except FileNotFoundError:
        raise DataError(f"{file}: not found") from None
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise DataError(f"{file}: not a readable array: {' '.join(str(error).split())}") from None
    return found


def _shaped(array: NDArray[Any], saved: SavedModel, file: Path) -> NDArray[Any]:
    """One sample becomes a batch of one; grey images may lack their channel."""
    shape = saved.input_shape
    for one in (shape, shape[:-1]) if shape[-1] == 1 and len(shape) == 3 else (shape,):
        if array.shape == one or array.shape[1:] == one:
            return array.reshape(-1, *shape)
    first = len(shape) == 3 and array.shape[-3:] == (shape[2], *shape[:2])
    remedy = "; channels come last: np.moveaxis(x, -3, -1)" if first else ""
    expected = ", ".join(map(str, shape))
    raise DataError(f"{file}: an array of shape {array.shape}, the model takes (n, {expected}){remedy}")


def _table(file: Path, saved: SavedModel) -> NDArray[Any]:
    try:
        from taihu.worker.data.own.tables.table import read_features  # noqa: PLC0415 - an extra
    except ImportError:
        raise missing_package(file, "table") from None
    if not saved.columns:
        raise DataError(f"{file}: the model was not trained on a table; give it what it was trained on")
    return read_features(file, saved.reading, saved.table_settings)


_READERS: Final[Mapping[str, Callable[[Path, SavedModel], NDArray[Any]]]] = MappingProxyType(
    {".npy": _array, ".npz": _arrays, **dict.fromkeys(_TABLES, _table)}
)
