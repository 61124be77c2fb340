"""Sparse allreduce up and down a binomial tree that keeps k entries: gTop-k (Shi et al., ICDCS 2019).

Any number of ranks: in round j of L = ceil(log2 P), rank r with r mod 2**(j + 1) == 2**j sends what it has kept to
rank r - 2**j, which adds it to its own, keeps the k entries of largest magnitude (of equals, the lower index) and
rejects the others. What rank 0 keeps goes down the tree, over the edge of round j in round 2 L - 1 - j. A rank merges
its children in the order of rounds, whatever arrives first, its own side on the left: sums are the same in every run.

What happens to rejected entries differs from the paper. There, every rank takes back its own value at each index that
is not in the result (its residual, where the global mask is not set). That is too little: when ranks 2 and 3 have an
index whose sum is rejected in their merge, and the same index survives from ranks 0 and 1, it is in the result; so
nobody takes it back, and what ranks 2 and 3 had there is lost.

Here, the rank that rejects an entry takes it back (`returned`), with the sum of all contributions in it, whatever
becomes of the index elsewhere. An entry is either passed on by a merge or rejected by it, so that nothing is lost and
nothing counts twice: for every index, the result plus what all ranks return is the sum of all slices, in fp32 up to
the rounding of the additions, exactly when they are exact. Conserved is that total and not whose it was: what rank 3
contributed may stay in the residual of rank 2 or 0, from where it is sent later like everything else there, and is
lost with that rank. And as in the paper, the result need not be the k largest sums: an index that is small in every
branch, and large in sum, can be rejected before the branches meet.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from taihu.allreduce.sparse.exchange import Expected, Message, Slice, SparseExchange
from taihu.core.base.errors import ConfigError
from taihu.kernels.selection.slice_sum import keep_largest, merge_add


class GtopkTree(SparseExchange):
    """The k entries that survive all merges; `k` is the same on all ranks.

    Of an own slice of more than `k` entries, the k largest are sent and the others returned.

    Raises:
        ConfigError: `k` is less than 1.
    """

    def __init__(self, own: Slice, *, rank: int, size: int, elements: int, k: int) -> None:
        super().__init__(own, rank=rank, size=size, elements=elements)
        if k < 1:
            raise ConfigError(f"gtopk on rank {rank}: keeps k = {k} entries; expected at least 1")
        self._k = k
        self._levels = (size - 1).bit_length()
        self._level = (rank & -rank).bit_length() - 1 if rank else self._levels
        self._children = [rank + (1 << j) for j in range(self._level) if rank + (1 << j) < size]
        self._arrived: dict[int, Slice] = {}
        self._merged = 0
        self._kept = own
        self._returned = Slice.empty()
        for j, child in enumerate(self._children):
            self._inbox.expect(child, self._expected(j))

    def returned(self) -> Slice:
        """Entries that this rank rejected, summed by index, for it to add to its residual.

        Raises:
            ExchangeError: the exchange is not done.
        """
        self._expect_done()
        return self._returned

    def _start(self) -> Sequence[Message]:
        if len(self._own.indices) > self._k:
            self._kept = self._keep(Slice(self._own.indices.copy(), self._own.values.copy()))
        return self._advance()

    def _accept(self, message: Message) -> Sequence[Message]:
        if message.round >= self._levels:
            self._kept = message.slice
            return self._pass_down()
        self._arrived[message.sender] = message.slice
        return self._advance() if self._begun else ()

    def _result(self) -> Slice:
        return self._kept

    def _advance(self) -> Sequence[Message]:
        """Merge the children that are next in order; after the last one, send what was kept up, or down."""
        while self._merged < len(self._children):
            child = self._arrived.pop(self._children[self._merged], None)
            if child is None:
                return ()
            self._kept = self._keep(_added(self._kept, child))
            self._merged += 1
        if self._rank == 0:
            return self._pass_down()
        parent = self._rank - (1 << self._level)
        # Not expected before: a result that comes before all contributions went up cannot be one.
        self._inbox.expect(parent, self._expected(2 * self._levels - 1 - self._level))
        is_own = not self._children
        return [self._message(parent, self._level, self._kept, 0, self._elements, is_own=is_own)]

    def _pass_down(self) -> Sequence[Message]:
        """The result to the children, the one with the largest subtree first."""
        return [
            self._message(child, 2 * self._levels - 1 - j, self._kept, 0, self._elements, is_own=False)
            for j, child in reversed(list(enumerate(self._children)))
        ]

    def _keep(self, candidates: Slice) -> Slice:
        """The k largest of a slice, whose memory is used; the others are returned to this rank."""
        indices, values = candidates.indices, candidates.values
        rejected = Slice(np.empty_like(indices), np.empty_like(values))
        kept = keep_largest(indices, values, self._k, rejected.indices, rejected.values)
        if kept < len(indices):
            count = len(indices) - kept
            self._returned = _added(self._returned, Slice(rejected.indices[:count], rejected.values[:count]))
        return Slice(indices[:kept], values[:kept])

    def _expected(self, number: int) -> Expected:
        return Expected(number, 0, self._elements, min(self._k, self._elements))


def _added(left: Slice, right: Slice) -> Slice:
    room = len(left.indices) + len(right.indices)
    indices, values = np.empty(room, dtype=np.int32), np.empty(room, dtype=np.float32)
    count = merge_add(left.indices, left.values, right.indices, right.values, indices, values)
    return Slice(indices[:count], values[:count])
