"""Ranks that exchange parts in memory, each in a thread of its own."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from queue import SimpleQueue
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from taihu.allreduce.parts.mesh import Transfer

T = TypeVar("T")


class MemoryNetwork:
    """Carries what ranks send to each other; counts its bytes."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._boxes: dict[tuple[int, ...], SimpleQueue[NDArray[Any]]] = {}
        self.received_bytes = [0] * size
        self.names: list[list[str]] = [[] for _ in range(size)]

    def box(self, *key: int) -> SimpleQueue[NDArray[Any]]:
        """The one queue of this key, whichever thread asks for it first."""
        return self._boxes.setdefault(key, SimpleQueue())

    def run(self, work: Callable[[MemoryMover], T]) -> list[T]:
        """Let every rank do its part; returns what came of it, by rank."""
        with ThreadPoolExecutor(self.size) as pool:
            futures = [pool.submit(work, MemoryMover(self, rank)) for rank in range(self.size)]
            # The first to fail is the cause: the others wait for it in vain.
            wait(futures, timeout=120, return_when=FIRST_EXCEPTION)
            for future in futures:
                if future.done():
                    future.result()
            return [future.result(timeout=120) for future in futures]


class MemoryMover:
    """One rank's `taihu.worker.fc.tail.Mover`."""

    def __init__(self, network: MemoryNetwork, rank: int) -> None:
        self.rank = rank
        self.size = network.size
        self._network = network

    def start(self, name: str, transfer: Transfer, *, urgent: bool = True) -> Callable[[], None]:
        """Send copies at once, receive when asked to wait."""
        names = self._network.names[self.rank]
        number = len(names)
        names.append(name)
        for to, pieces in enumerate(transfer.sends):
            if to != self.rank:
                self._network.box(self.rank, to, number).put(np.concatenate([*pieces, np.empty(0)]))

        def receive() -> None:
            for sender, pieces in enumerate(transfer.receives):
                if sender == self.rank:
                    assert not pieces
                    continue
                values = self._network.box(sender, self.rank, number).get(timeout=120)
                assert len(values) == sum(map(len, pieces))
                taken = 0
                for piece in pieces:
                    assert piece.flags.c_contiguous
                    piece[:] = values[taken : taken + len(piece)]
                    taken += len(piece)
                    self._network.received_bytes[self.rank] += piece.nbytes

        return receive
