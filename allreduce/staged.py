"""Sums of values that do not lie in shared memory, through memory that all ranks of one machine share.

Values lie where somebody else, such as PyTorch, puts them. They pass through a buffer that all processes have mapped,
part by part, of which none leaves the caches of the processor. A rank brings its part, sums its piece of an earlier
one, and fetches the sums of one before that. So no rank waits for others that are a part behind: where there are more
ranks than processors, these are kept busy. What a rank sums itself is read, and written, where it lies.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from taihu.allreduce.communicator import Communicator
from taihu.allreduce.order.operation import IsFailed
from taihu.allreduce.same_host.agreement import share_new
from taihu.allreduce.same_host.allreduce import Mark, SharedAllreduce
from taihu.core.planner.partition import slice_bounds
from taihu.core.wire.links.shared_memory import SharedBuffer
from taihu.kernels.sums import ReduceKind, dtype_of

_STAGE_BYTES: Final = 8 << 20
# Turns between bringing a part and summing it, and fetching it; so many parts and one find room.
_SUMMED_AFTER, _FETCHED_AFTER = 1, 2
_PLACES: Final = _FETCHED_AFTER + 1


class StagedSums:
    """Rank `rank`'s part in sums through `buffers`, one for each rank; one thread calls it.

    Of each part the ranks sum a piece each, which lies in their own chunk of all values: so bits are those of a ring.
    """

    def __init__(self, rank: int, buffers: list[SharedBuffer]) -> None:
        self._rank = rank
        self._size = len(buffers)
        self._sums = SharedAllreduce(rank, buffers)
        self._parts = 0
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
        # Of no values none: ranks meet all the same, or who has some would wait for who has not.
        parts = list(self._cut(values, len(stage))) if len(values) else []
        sums = self._sums
        sums.begin(0, len(values), kind, mean=mean, is_failed=is_failed)
        before = self._parts
        for number in range(len(parts) + _FETCHED_AFTER if parts else 0):
            if number < len(parts):
                # Its place is free: this rank has fetched what all have summed there.
                parts[number].bring(stage)
                sums.mark(Mark.BROUGHT, before + number + 1)
            summed, fetched = number - _SUMMED_AFTER, number - _FETCHED_AFTER
            if 0 <= summed < len(parts):
                sums.wait_for(Mark.BROUGHT, before + summed + 1, is_failed)
                sums.reduce([parts[summed].own], kind, mean=mean, place=parts[summed].place)
                sums.mark(Mark.REDUCED, before + summed + 1)
            if fetched >= 0:
                sums.wait_for(Mark.REDUCED, before + fetched + 1, is_failed)
                parts[fetched].fetch(stage)
        self._parts += len(parts)
        sums.end(is_failed)

    def _cut(self, values: NDArray[Any], room: int) -> Iterator[_Stretch]:
        """Parts of `values`, each of which finds a place in buffers with `room` for so many values."""
        chunks = [values[slice(*slice_bounds(len(values), self._size, rank))] for rank in range(self._size)]
        place = room // _PLACES
        most = place // self._size
        for number, start in enumerate(range(0, max(map(len, chunks)), most)):
            first = number % _PLACES * place
            pieces = [chunk[start : start + most] for chunk in chunks]
            yield _Stretch(self._rank, pieces, [first + rank * most for rank in range(self._size)])


class _Stretch:
    """A piece of each rank's chunk, which begin at `begins` in all buffers; `rank` sums its own where that lies."""

    def __init__(self, rank: int, pieces: Sequence[NDArray[Any]], begins: Sequence[int]) -> None:
        self.own = (begins[rank], begins[rank] + len(pieces[rank]))
        self.place = pieces[rank].ctypes.data - begins[rank] * pieces[rank].itemsize
        """The address of element 0 of a buffer that has the own piece where its values lie."""
        self._others = [pair for other, pair in enumerate(zip(begins, pieces, strict=True)) if other != rank]

    def bring(self, stage: NDArray[Any]) -> None:
        """Copy what the others sum."""
        for begin, piece in self._others:
            np.copyto(stage[begin : begin + len(piece)], piece)

    def fetch(self, stage: NDArray[Any]) -> None:
        """Copy what the others have summed."""
        for begin, piece in self._others:
            np.copyto(piece, stage[begin : begin + len(piece)])


def share(communicator: Communicator, rank: int, size: int) -> StagedSums | None:
    """Sums in shared memory if all ranks can have them, else None; all ranks call this together."""
    opened = share_new(communicator, rank, size, _STAGE_BYTES)
    return None if opened is None else StagedSums(rank, opened)
