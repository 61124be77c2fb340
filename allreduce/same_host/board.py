"""A board in memory that all ranks of a machine share: each writes its own numbers, and adds what all have written.

A rank writes before it waits. So who comes last waits for nobody, and a rank that computes between both waits no
longer than it would have to. There are two places for each rank, in turns: nobody writes the next but one numbers
before all have written the next ones, and so have read these.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from taihu.allreduce.order.operation import IsFailed
from taihu.allreduce.same_host.agreement import Sums, share_new
from taihu.core.base.errors import FrameError
from taihu.core.wire.links.shared_memory import SharedBuffer
from taihu.kernels.futex import publish, wait_until

BOARD_BYTES: Final = 1 << 17
# Control words: how often this rank has written, and how many numbers each of its places is about.
_WRITTEN: Final = 0
_LENGTHS: Final = (8, 16)
_PLACES: Final = 2


class SharedBoard:
    """Rank `rank`'s part in sums of float64 over all ranks, one after the other; one thread calls it.

    Args:
        rank: the own one.
        buffers: one for each rank, all of one size; new ones.
    """

    def __init__(self, rank: int, buffers: Sequence[SharedBuffer]) -> None:
        self._rank = rank
        self._room = buffers[rank].size_bytes // (8 * _PLACES)
        self._places = [
            [buffer.array(np.float64, self._room, 8 * self._room * place) for place in range(_PLACES)]
            for buffer in buffers
        ]
        self._controls = [buffer.control for buffer in buffers]
        self._others = [control for other, control in enumerate(self._controls) if other != rank]
        self._written = 0

    def warm_up(self) -> None:
        """Compile the kernels before the first sum, so that nobody waits for it."""
        words = np.ones(1, dtype=np.int64)
        publish(words, 0, 1)
        wait_until(words, 0, 1)

    def write(self, values: NDArray[np.float64]) -> None:
        """Begin a sum of `values`, shape (n,), n being the same on all ranks: others can read them."""
        self._write(values[: self._room], len(values))

    def add(self, values: NDArray[np.float64], is_failed: IsFailed) -> None:
        """End a sum: replace `values`, which this rank has begun to `write`, by the sums over all ranks.

        All ranks add in rank order, and so have the same bits.

        Raises:
            FrameError: on all ranks, where they sum other numbers of values.
            BaseException: what `is_failed` returned, which is asked while this rank waits.
        """
        for start in range(0, max(len(values), 1), self._room):
            piece = values[start : start + self._room]
            if start:
                self._write(piece, len(values))
            self._wait(is_failed)
            place = self._written % _PLACES
            lengths = [int(control[_LENGTHS[place]]) for control in self._controls]
            if len(set(lengths)) > 1:
                raise FrameError(f"the ranks add {lengths} numbers: expected the same call of all ranks")
            piece[:] = self._places[0][place][: len(piece)]
            for places in self._places[1:]:
                piece += places[place][: len(piece)]

    def _write(self, piece: NDArray[np.float64], length: int) -> None:
        self._written += 1
        place, control = self._written % _PLACES, self._controls[self._rank]
        self._places[self._rank][place][: len(piece)] = piece
        control[_LENGTHS[place]] = length
        publish(control, _WRITTEN, self._written)

    def _wait(self, is_failed: IsFailed) -> None:
        for control in self._others:
            while not wait_until(control, _WRITTEN, self._written):
                # Whoever has left in good order had come before that, and is waited for no more.
                if (failure := is_failed()) is not None and control[_WRITTEN] < self._written:
                    raise failure


def open_board(sums: Sums, rank: int, size: int) -> SharedBoard | None:
    """A board if all ranks can have one, else None; all ranks call this together."""
    opened = share_new(sums, rank, size, BOARD_BYTES)
    if opened is None:
        return None
    board = SharedBoard(rank, opened)
    board.warm_up()
    return board
