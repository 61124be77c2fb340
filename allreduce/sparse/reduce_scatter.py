"""Sparse allreduce by index ranges: rank r sums what all ranks have in range r, and sends the sum to everybody.

Each rank receives k entries of contributions at most and the union of all slices, instead of (P - 1) k entries: the
more the selections of ranks agree, or the denser they are, the more that saves. It takes twice the rounds of
`SparseAllgather`. The ranges are those of the dense partition (`slice_bounds`); the first P - 1 rounds carry
contributions to the owners, the others their sums.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from taihu.allreduce.sparse.exchange import Expected, Message, RankOrderSum, Slice, SparseExchange, ring_offset_rounds
from taihu.core.planner.partition import slice_bounds


class SparseReduceScatter(SparseExchange):
    """Sum of all slices in rank order, at the union of their indices: the bits of `SparseAllgather`."""

    def __init__(self, own: Slice, *, rank: int, size: int, elements: int, summation: RankOrderSum) -> None:
        super().__init__(own, rank=rank, size=size, elements=elements)
        self._summation = summation
        self._contributions: dict[int, Slice] = {}
        self._sums: dict[int, Slice] = {}
        self._rounds = ring_offset_rounds(rank, size)
        start, stop = self._range(rank)
        for number, (_, sender) in enumerate(self._rounds):
            low, high = self._range(sender)
            self._inbox.expect(
                sender,
                Expected(number, start, stop, stop - start),
                Expected(size - 1 + number, low, high, high - low),
            )

    def _start(self) -> Sequence[Message]:
        messages = []
        for number, (to, _) in enumerate(self._rounds):
            start, stop = self._range(to)
            messages.append(self._message(to, number, self._own.between(start, stop), start, stop, is_own=True))
        return [*messages, *self._contribute(self._rank, self._own.between(*self._range(self._rank)))]

    def _accept(self, message: Message) -> Sequence[Message]:
        if message.round < self._size - 1:
            return self._contribute(message.sender, message.slice)
        self._sums[message.sender] = message.slice
        return ()

    def _result(self) -> Slice:
        parts = [self._sums[rank] for rank in range(self._size)]
        return Slice(
            np.concatenate([part.indices for part in parts]), np.concatenate([part.values for part in parts])
        )

    def _contribute(self, rank: int, part: Slice) -> Sequence[Message]:
        """Take a part of the own range; with the last one its sum is complete, and goes to everybody."""
        self._contributions[rank] = part
        if len(self._contributions) < self._size:
            return ()
        start, stop = self._range(self._rank)
        total = self._summation([self._contributions[rank] for rank in range(self._size)], start, stop)
        self._sums[self._rank] = total
        return [
            self._message(to, self._size - 1 + number, total, start, stop, is_own=False)
            for number, (to, _) in enumerate(self._rounds)
        ]

    def _range(self, rank: int) -> tuple[int, int]:
        return slice_bounds(self._elements, self._size, rank)
