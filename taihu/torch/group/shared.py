"""Sums in memory that the processes of a group share, where all of them run on one machine.

Tensors lie where PyTorch puts them, so their values pass through a buffer that all processes have mapped, part by
part: a part is small enough that it never leaves the processor's caches.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from allreduce.communicator import Communicator
from allreduce.same_host.agreement import share_with_all
from allreduce.same_host.allreduce import IsFailed, SharedAllreduce
from kernels.shared_reduce import ReduceKind, dtype_of
from taihu.errors import SharedMemoryError
from taihu.wire.shared_memory import SharedBuffer

__all__ = ["SharedSums", "share"]

_STAGE_BYTES: Final = 2 << 20


class SharedSums:
    """Rank `rank`'s part in sums through `buffers`, one for each rank; one thread calls it."""

    def __init__(self, rank: int, buffers: list[SharedBuffer]) -> None:
        self._sums = SharedAllreduce(rank, buffers)
        self._stage = buffers[rank].array(np.uint8, buffers[rank].size_bytes)

    @property
    def behind(self) -> list[int]:
        """The ranks that have not come as far as this one."""
        return self._sums.behind

    def allreduce(self, values: NDArray[Any], kind: ReduceKind, is_failed: IsFailed, *, mean: bool) -> None:
        """Replace `values`, shape (n,) of the kind's dtype, by the sum or mean over all ranks.

        Raises:
            ExchangeError: another rank sums something else.
            BaseException: what `is_failed` returned, which is asked while it waits.
        """
        stage = self._stage.view(dtype_of(kind))
        for start in range(0, len(values), len(stage)):
            part = values[start : start + len(stage)]
            np.copyto(stage[: len(part)], part)
            self._sums.allreduce(0, len(part), kind, mean=mean, is_failed=is_failed)
            np.copyto(part, stage[: len(part)])


def share(communicator: Communicator, rank: int, size: int) -> SharedSums | None:
    """Sums in shared memory if all ranks can have them, else None; all ranks call this together."""
    try:
        buffer = SharedBuffer.create(_STAGE_BYTES)
    except SharedMemoryError:
        buffer = None
    try:
        opened = share_with_all(communicator, rank, size, buffer)
    finally:
        if buffer is not None:
            buffer.unlink()
    return None if opened is None else SharedSums(rank, opened)
