"""Sparse allreduce by allgather: every slice goes to every rank, and each rank sums all of them.

Slices go directly to each rank, not around a ring. Either way, a rank's link carries (P - 1) k entries out and as
many in at once, in P - 1 rounds. But a ring passes a slice on only after it has come: P - 1 start-ups one behind the
other, and a late rank holds up the slices of others. Directly, no message waits for another one: with a stream to
every rank the start-ups overlap, and a late rank delays nothing but its own slice, which it encodes once for all.
Rounds are staggered, so that senders do not meet at one receiver. The ring would be better where slices differ much
in size (a rank sends its own P - 1 times here, and everybody's there), or where streams between all pairs of ranks
are too many.
"""

from __future__ import annotations

from collections.abc import Sequence

from taihu.allreduce.sparse.exchange import Expected, Message, RankOrderSum, Slice, SparseExchange, ring_offset_rounds


class SparseAllgather(SparseExchange):
    """Sum of all slices in rank order, at the union of their indices; nothing is rejected."""

    def __init__(self, own: Slice, *, rank: int, size: int, elements: int, summation: RankOrderSum) -> None:
        super().__init__(own, rank=rank, size=size, elements=elements)
        self._summation = summation
        self._slices = {rank: own}
        self._sum: Slice | None = None
        self._rounds = ring_offset_rounds(rank, size)
        for number, (_, sender) in enumerate(self._rounds):
            self._inbox.expect(sender, Expected(number, 0, elements, elements))

    def _start(self) -> Sequence[Message]:
        return [
            self._message(to, number, self._own, 0, self._elements, is_own=True)
            for number, (to, _) in enumerate(self._rounds)
        ]

    def _accept(self, message: Message) -> Sequence[Message]:
        self._slices[message.sender] = message.slice
        return ()

    def _result(self) -> Slice:
        if self._sum is None:
            self._sum = self._summation([self._slices[rank] for rank in range(self._size)], 0, self._elements)
        return self._sum
