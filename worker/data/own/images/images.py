"""Image files as inputs: decoded by a few threads whenever they are read."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from taihu.core.system.pools import ThreadPoolExecutor
from taihu.worker.data.base.dataset import Rows
from taihu.worker.data.base.defects import Defects, Fault
from taihu.worker.data.base.depth import Depth
from taihu.worker.data.base.statistics import Statistics, read_statistics, spread_rows
from taihu.worker.data.own.images.bad_image import BadImageError
from taihu.worker.data.own.images.pixels import read_image

_MOST_SAMPLED: Final = 1000
_MOST_THREADS: Final = 4


def image_threads() -> ThreadPoolExecutor:
    """Threads that decode: as many as there are cores, at most four."""
    return ThreadPoolExecutor(min(_MOST_THREADS, len(os.sched_getaffinity(0))), thread_name_prefix="images")


@dataclass(frozen=True, eq=False)
class ImageInputs:
    """The images of `files` as (height, width, channels); `size` is what they are resized to, if at all.

    `depth` is the range of those of more than 8 bits, where they do not tell it themselves. Files are decoded in
    every read, by a few threads.
    """

    files: Sequence[str]
    shape: tuple[int, int, int]
    size: tuple[int, int] | None
    where: str
    depth: Depth | None = None
    _threads: ThreadPoolExecutor = field(default_factory=image_threads, init=False)

    @property
    def in_memory(self) -> bool:
        """Never: files are decoded in every read."""
        return False

    def __len__(self) -> int:
        return len(self.files)

    def read(self, rows: Rows, out: NDArray[np.float32]) -> None:
        """Decode the files of `rows` into `out`, one task for each."""
        defects = Defects(self.where, "image")
        self._read(rows, out, defects)
        defects.check(0)

    def statistics(self, rows: Rows) -> Statistics:
        """Mean and deviation of 1,000 images."""
        defects = Defects(self.where, "image")
        chosen = rows[spread_rows(len(rows), _MOST_SAMPLED)]
        found = read_statistics(lambda some, out: self._read(some, out, defects), chosen, self.shape, self.where)
        defects.check(0)
        return found

    def _read(self, rows: Rows, out: NDArray[np.float32], defects: Defects) -> None:
        """Images that cannot be read become black, and are told."""

        def read_one(place: int, row: int) -> BadImageError | None:
            file = Path(self.files[row])
            try:
                pixels = read_image(file, self.shape[2], self.size, self.depth)
                if pixels.shape != self.shape:
                    raise BadImageError(file, another_size(pixels.shape, self.shape))
            except BadImageError as error:
                out[place] = 0
                return error
            out[place] = pixels
            return None

        for error in self._threads.map(read_one, range(len(rows)), rows.tolist()):
            if error is not None:
                defects.of_samples(error.fault, [error.path])


def another_size(seen: tuple[int, ...], expected: tuple[int, ...]) -> Fault:
    """The fault of an image of (height, width, ...) among others of another size."""
    height, width = expected[:2]
    return Fault(
        f"{seen[0]}x{seen[1]} (height x width), others are {height}x{width}",
        f"resize all of them: data.resize = '{height}x{width}'",
    )
