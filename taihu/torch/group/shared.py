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
from taihu.planner.partition import slice_bounds
from taihu.wire.shared_memory import SharedBuffer

__all__ = ["SharedSums", "share"]

_STAGE_BYTES: Final = 2 << 20


class SharedSums:
    """Rank `rank`'s part in sums through `buffers`, one for each rank; one thread calls it.

    Of each part the ranks sum a piece each, which lies in their own chunk of all values: so bits are those of a ring.
    """

    def __init__(self, rank: int, buffers: list[SharedBuffer]) -> None:
        self._rank = rank
        self._size = len(buffers)
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
        chunks = [values[slice(*slice_bounds(len(values), self._size, rank))] for rank in range(self._size)]
        longest = max(map(len, chunks))
        step = min(len(stage) // self._size, longest)
        for start in range(0, longest, step):
            pieces = [chunk[start : start + step] for chunk in chunks]
            places = [stage[rank * step : rank * step + len(piece)] for rank, piece in enumerate(pieces)]
            for place, piece in zip(places, pieces, strict=True):
                np.copyto(place, piece)
            begin = self._rank * step
            own = [(begin, begin + len(pieces[self._rank]))]
            self._sums.allreduce(0, step * self._size, kind, own=own, mean=mean, is_failed=is_failed)
            for place, piece in zip(places, pieces, strict=True):
                np.copyto(piece, place)


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
