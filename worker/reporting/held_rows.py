"""The last rows of a run's steps, in memory that outlives the process.

A table is written every second: a step that is not made again after a kill has its row from here.
"""

from __future__ import annotations

import os
from math import isnan
from pathlib import Path
from typing import Any, Final, Self

import numpy as np
import structlog
from numpy.typing import NDArray

from taihu.core.process.memory.mapped_files import OPEN_FLAGS, make_mapped, map_file
from taihu.worker.reporting.run_rows import STEP_COLUMNS, Scalars

_ROWS: Final = 2048
_WHOLE: Final = frozenset({"step", "epoch", "sent_bytes", "received_bytes"})
_STEP: Final = 0  # among STEP_COLUMNS
_SECONDS: Final = STEP_COLUMNS.index("step_seconds")


class HeldRows:
    """Rows in `values`, shape (rows, columns), fp64: NaN stands for what a row has not; one thread calls."""

    def __init__(self, values: NDArray[np.float64]) -> None:
        self._values = values

    @classmethod
    def open(cls, folder: Path | None) -> Self | None:
        """The rows in a run's folder in memory, which may be there; None where there can be none."""
        if folder is None:
            return None
        size = _ROWS * len(STEP_COLUMNS) * np.dtype(np.float64).itemsize
        path = folder / "rows"
        try:
            memory = _opened(path, size) if path.exists() else make_mapped(path, size)
        except OSError as error:
            structlog.get_logger().info("no row is held in memory", reason=str(error))
            return None
        return cls(memory.view(np.float64).reshape(_ROWS, len(STEP_COLUMNS)))

    def put(self, row: Scalars) -> None:
        """Hold a row, as far as it is known; that of the same step is replaced."""
        place = self._values[int(row["step"]) % _ROWS]
        # Its step comes last: a kill leaves the row of an older one, or none.
        place[_STEP] = 0.0
        place[_STEP + 1 :] = [row.get(name, np.nan) for name in STEP_COLUMNS[_STEP + 1 :]]
        place[_STEP] = row["step"]

    @property
    def newest(self) -> int:
        """The last step that is completed; 0 for none."""
        whole = ~np.isnan(self._values[:, _SECONDS])
        return int(self._values[whole, _STEP].max(initial=0.0))

    def between(self, first: int, last: int) -> list[Scalars]:
        """The rows of steps `first` to `last` that are held."""
        steps = range(max(first, last - _ROWS + 1), last + 1)
        return [_told(row) for step in steps if (row := self._values[step % _ROWS])[_STEP] == step]


def _told(row: NDArray[np.float64]) -> Scalars:
    told = {name: value for name, value in zip(STEP_COLUMNS, row.tolist(), strict=True) if not isnan(value)}
    return {name: int(value) if name in _WHOLE else value for name, value in told.items()}


def _opened(path: Path, size: int) -> NDArray[Any]:
    file = os.open(path, OPEN_FLAGS)
    try:
        if os.fstat(file).st_size != size:
            raise OSError(f"{path}: expected {size} bytes")
        return map_file(file, size)
    finally:
        os.close(file)
