"""Image files: found by class, looked over, and decoded when they are needed."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

from taihu.errors import DataError
from worker.data.dataset import Rows
from worker.data.statistics import Statistics, read_statistics, spread_rows

__all__ = ["IMAGE_SUFFIXES", "ImageInputs", "common_shape", "read_image"]

IMAGE_SUFFIXES: Final = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm"})
_GREY: Final = {"1", "L", "LA", "I", "I;16", "I;16B", "I;16L", "F"}
# Their values go up to 65,535, which Pillow would cut off at 255.
_SIXTEEN_BITS: Final = {"I", "I;16", "I;16B", "I;16L"}
_MOST_LOOKED_OVER: Final = 4096
_MOST_SAMPLED: Final = 1000
_MOST_THREADS: Final = 4

Pixels = NDArray[np.uint8]
T = TypeVar("T")


def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(min(_MOST_THREADS, len(os.sched_getaffinity(0))), thread_name_prefix="images")


@dataclass(frozen=True, eq=False)
class ImageInputs:
    """The images of `files` as (height, width, channels); `size` is what they are resized to, if at all.

    Files are decoded in every read, by a few threads.
    """

    files: Sequence[str]
    shape: tuple[int, int, int]
    size: tuple[int, int] | None
    where: str
    _threads: ThreadPoolExecutor = field(default_factory=_pool, init=False)

    @property
    def in_memory(self) -> bool:
        """Never: files are decoded in every read."""
        return False

    def __len__(self) -> int:
        return len(self.files)

    def read(self, rows: Rows, out: NDArray[np.float32]) -> None:
        """Decode the files of `rows` into `out`, one task for each."""

        def read_one(place: int, row: int) -> None:
            file = self.files[row]
            pixels = read_image(Path(file), self.shape[2], self.size)
            if pixels.shape != self.shape:
                raise _sizes_differ(file, pixels.shape, self.shape)
            out[place] = pixels

        for _ in self._threads.map(read_one, range(len(rows)), rows.tolist()):
            pass

    def statistics(self, rows: Rows) -> Statistics:
        """Mean and deviation of 1,000 images."""
        return read_statistics(self.read, rows[spread_rows(len(rows), _MOST_SAMPLED)], self.shape, self.where)


def read_image(path: Path, channels: int, size: tuple[int, int] | None = None) -> Pixels:
    """The image in a file as (height, width, channels), grey with 1 channel, red, green and blue with 3.

    It is turned as its EXIF orientation says, and resized to `size` (height, width), bilinear, where that is given.

    Raises:
        DataError: it cannot be decoded.
    """
    return _opened(path, lambda image: _decoded(image, channels, size))


def common_shape(files: Sequence[str], size: tuple[int, int] | None) -> tuple[int, int, int]:
    """Height, width and channels of all images: grey where all are, and of `size` where that is given.

    The headers of at most 4,096 of the files, evenly spread, are read.

    Raises:
        DataError: one is no image, or they have different sizes and there is no `size`.
    """
    grey, shape = True, None
    for row in spread_rows(len(files), _MOST_LOOKED_OVER).tolist():
        seen, is_grey = _opened(Path(files[row]), _described)
        grey = grey and is_grey
        shape = shape or seen
        if size is None and seen != shape:
            raise _sizes_differ(files[row], seen, shape)
    height, width = size or shape or (0, 0)
    return height, width, 1 if grey else 3


def _opened(path: Path, use: Callable[[Image.Image], T]) -> T:
    try:
        with Image.open(path) as image:
            return use(image)
    except Exception as error:  # decoders raise whatever they like at a damaged file
        cause = " ".join(str(error).split()) or type(error).__name__
        raise DataError(f"image {path}: cannot be read ({cause}); replace or delete it") from None


def _described(image: Image.Image) -> tuple[tuple[int, int], bool]:
    """Height and width as shown, and whether it has no colours."""
    width, height = image.size
    turned = image.getexif().get(0x0112, 1) in {5, 6, 7, 8}
    return ((width, height) if turned else (height, width)), image.mode in _GREY


def _decoded(image: Image.Image, channels: int, size: tuple[int, int] | None) -> Pixels:
    mode = "L" if channels == 1 else "RGB"
    if size is not None:
        # JPEG files are decoded at a fraction of their size where that is enough.
        image.draft(mode, (max(size), max(size)))
    if image.mode in _SIXTEEN_BITS:
        image = Image.fromarray((np.asarray(image).astype(np.int64).clip(0, 65535) >> 8).astype(np.uint8))
    elif image.mode == "P":
        image = image.convert("RGBA")
    turned: Any = ImageOps.exif_transpose(image).convert(mode)
    if size is not None:
        turned = turned.resize(size[::-1], Image.Resampling.BILINEAR)
    pixels: Pixels = np.asarray(turned, np.uint8)
    return pixels.reshape(*pixels.shape[:2], channels)


def _sizes_differ(file: str, seen: tuple[int, ...], expected: tuple[int, ...]) -> DataError:
    height, width = expected[:2]
    return DataError(
        f"image {file}: {seen[0]}x{seen[1]} (height x width), others are {height}x{width}; resize all of them: "
        f"data.resize = '{height}x{width}'"
    )
