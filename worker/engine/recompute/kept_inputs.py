"""Inputs of a model's segments, to compute these again from: copies, in memory or in a file."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from taihu.worker.engine.base.layer import Array, Shape
from taihu.worker.engine.base.workspace import Workspace
from taihu.worker.engine.recompute.temporary_file import TemporaryFile


class KeptInputs:
    """A stack of arrays: a forward pushes the inputs of segments, the backward pops them in reverse order.

    Both return a buffer of this object. It stays as it is until it has been popped; then it is the caller's, until
    the next `push`. Buffers are used again in the next step.
    """

    def __init__(self) -> None:
        self._buffers = Workspace()
        self._kept: list[Array] = []

    @property
    def held_bytes(self) -> int:
        """Memory of all buffers."""
        return self._buffers.held_bytes

    def clear(self) -> None:
        """Forget what an earlier forward pushed."""
        self._kept.clear()

    def push(self, x: Array) -> Array:
        """Keep `x`, any shape and dtype, and return a copy of it."""
        self._kept.append(self._buffers.copy(str(len(self._kept)), x))
        return self._kept[-1]

    def pop(self) -> Array:
        """Return what was pushed last and has not been popped."""
        return self._kept.pop()


class SpilledInputs(KeptInputs):
    """The same with two buffers that take turns; all but what was pushed last lie in a temporary file without a name.

    What was popped is the caller's until the second `pop` behind it.

    ZeRO-R offloads what it keeps from the GPU to the CPU (section 6.1 of Rajbhandari et al. 2020); here it goes from
    memory to a disk. The file is written and read, not mapped: a full disk is then an error of `push`, not a signal
    that ends the process, and its pages never count as the process's. They are the system's to keep while there is
    memory, and to write out when there is none; nothing is flushed, for nobody needs them after the step.

    Raises:
        RunError: the file cannot be made, written or read.
    """

    def __init__(self) -> None:
        super().__init__()
        self._file = TemporaryFile("train.recompute = 'memory'")
        self._latest: Array | None = None
        self._spilled: list[_Spilled] = []

    def clear(self) -> None:
        """Forget all inputs; the file stays as long as it is."""
        self._latest = None
        self._spilled.clear()

    def push(self, x: Array) -> Array:
        """Keep `x`, and return a copy of it.

        It is the input before this one that is written out: the last one is needed first, and never leaves memory.
        """
        if self._latest is not None:
            offset = self._spilled[-1].end if self._spilled else 0
            self._file.write(offset, self._latest)
            self._spilled.append(_Spilled(offset, self._latest.shape, self._latest.dtype))
        self._latest = self._buffers.copy(self._turn(), x)
        return self._latest

    def pop(self) -> Array:
        """Return the last input and forget it, from the file where it has been written out."""
        if self._latest is not None:
            latest, self._latest = self._latest, None
            return latest
        spilled = self._spilled.pop()
        x = self._buffers.take(self._turn(), spilled.shape, spilled.dtype)
        self._file.read(spilled.offset, x)
        return x

    def _turn(self) -> str:
        return str(len(self._spilled) % 2)


@dataclass(frozen=True)
class _Spilled:
    """The place of an input in the file."""

    offset: int
    shape: Shape
    dtype: np.dtype[np.generic]

    @property
    def end(self) -> int:
        return self.offset + math.prod(self.shape) * self.dtype.itemsize
