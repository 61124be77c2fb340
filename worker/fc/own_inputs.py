"""A worker's own part of the inputs of spread layers, kept between forward and backward (ZeRO-R's Pa).

All examples' inputs are gathered for a forward, and gathered again for the gradients of weights; what stays meanwhile
is the own part, in memory or in a file (Rajbhandari et al. 2020, section 6.1: Pa, and Pa + CPU).
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from taihu.worker.engine.base.layer import Array
from taihu.worker.engine.base.workspace import Workspace
from taihu.worker.engine.recompute.temporary_file import TemporaryFile

InputsKept = Literal["all", "own", "spilled"]


class OwnInputs:
    """Parts by stage and pass; with `spilled` they lie in a temporary file, and one at a time in memory.

    Raises:
        RunError: the file cannot be made, written or read.
    """

    def __init__(self, *, spilled: bool) -> None:
        self._file = TemporaryFile("exchange.fc_inputs = 'own'") if spilled else None
        self._buffers = Workspace()
        self._kept: dict[tuple[int, int], Array] = {}
        self._offsets: dict[tuple[int, int], int] = {}
        self._end = 0

    @property
    def held_bytes(self) -> int:
        """Bytes in memory."""
        return self._buffers.held_bytes

    def keep(self, stage: int, first_row: int, own: Array) -> None:
        """Keep a copy of `own`, the part of the pass that begins with `first_row`."""
        key = stage, first_row
        if self._file is None:
            self._kept[key] = self._buffers.copy(f"{stage} {first_row}", own)
            return
        if key not in self._offsets:
            self._offsets[key] = self._end
            self._end += own.nbytes
        self._file.write(self._offsets[key], own)

    def bring(self, stage: int, first_row: int, shape: tuple[int, int], dtype: np.dtype[np.generic]) -> Array:
        """The part that was kept, of that shape and dtype; valid until the next call."""
        if self._file is None:
            return self._kept[stage, first_row]
        own = self._buffers.take("read", shape, dtype)
        self._file.read(self._offsets[stage, first_row], own)
        return own
