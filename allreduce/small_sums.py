"""Sums of a few numbers of all ranks, by the shortest way that all of them have."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
from numpy.typing import NDArray

from taihu.allreduce.communicator import Communicator
from taihu.allreduce.order.operation import reduce_kind
from taihu.allreduce.ring.kernel_ring import KernelRing
from taihu.allreduce.same_host.board import SharedBoard, open_board
from taihu.core.settings import Transport
from taihu.core.wire.frames.headers import ValueType


class SmallSums:
    """Sums of float64 over all ranks, which one thread of each makes in the same order.

    On one machine they are written on a board that all ranks read, else they go around a ring of connections that
    nothing else takes, and where there is none either as operations of the communicator. All ranks make this
    together.

    Args:
        communicator: between them.
        transport: that the job allows.
    """

    def __init__(self, communicator: Communicator, transport: Transport) -> None:
        self._communicator = communicator
        self._board: SharedBoard | None = None
        self._ring: KernelRing | None = None
        if communicator.size > 1 and transport in ("auto", "same-host"):
            self._board = open_board(communicator, communicator.rank, communicator.size)
        if self._board is None:
            self._ring = communicator.open_ring(ValueType.FP64)

    def begin(self, values: NDArray[np.float64]) -> Callable[[], None]:
        """Begin to have sums over all ranks in the place of `values`, shape (n,), n being the same on all.

        Returns:
            A function that returns when they are there, and raises as `Communicator.wait` does.
        """
        if self._board is not None:
            self._board.write(values)
            return partial(self._read, self._board, self._communicator.count_call(), values)
        if self._ring is not None:
            return partial(self._go_around, self._ring, values)
        return self._communicator.begin_allreduce(values, ValueType.FP64)

    def _read(self, board: SharedBoard, call: int, values: NDArray[np.float64]) -> None:
        communicator = self._communicator
        with communicator.waiting_in(call) as failure:
            board.add(values, lambda: failure() or communicator.left)

    def _go_around(self, ring: KernelRing, values: NDArray[np.float64]) -> None:
        communicator = self._communicator
        with communicator.waiting_in(communicator.count_call()) as failure:
            ring.allreduce(values, reduce_kind(ValueType.FP64), failure, mean=False)
