"""A network of sparse exchanges in one process: it carries messages in whatever order it is told to.

From one rank to another messages arrive in the order sent; otherwise any order is possible.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from taihu.allreduce.sparse.exchange import Message, RankOrderSum, Slice, SparseAllgather, SparseExchange
from taihu.allreduce.sparse.reduce_scatter import SparseReduceScatter
from taihu.allreduce.sparse.tree import GtopkTree

__all__ = ["ALGORITHMS", "Network", "make_exchange"]

ALGORITHMS = ("allgather", "reduce_scatter", "gtopk")


def make_exchange(algorithm: str, own: Slice, *, rank: int, size: int, elements: int, k: int) -> SparseExchange:
    """One rank's part; only gtopk has a `k`."""
    if algorithm == "gtopk":
        return GtopkTree(own, rank=rank, size=size, elements=elements, k=k)
    exact = {"allgather": SparseAllgather, "reduce_scatter": SparseReduceScatter}[algorithm]
    return exact(own, rank=rank, size=size, elements=elements, summation=RankOrderSum())


class Network:
    """Ranks, and the messages between them that were sent and have not arrived.

    `sent` is every message so far.
    """

    def __init__(self, exchanges: Sequence[SparseExchange]) -> None:
        self.exchanges = exchanges
        self.sent: list[Message] = []
        self._under_way: dict[tuple[int, int], deque[Message]] = {}
        self._silent: set[int] = set()

    def begin(self, rank: int) -> Sequence[Message]:
        return self._send(rank, self.exchanges[rank].begin())

    def deliver(self, sender: int, to: int) -> Sequence[Message]:
        """Deliver the oldest message of a pair; returns what the receiver sends."""
        message = self._under_way[sender, to].popleft()
        if not self._under_way[sender, to]:
            del self._under_way[sender, to]
        return self._send(to, self.exchanges[to].arrive(message))

    def oldest(self, sender: int, to: int) -> Message:
        """The message that `deliver` would deliver."""
        return self._under_way[sender, to][0]

    def pairs(self) -> list[tuple[int, int]]:
        """The (sender, to) with messages under way, ascending."""
        return sorted(self._under_way)

    def silence(self, rank: int) -> None:
        """Let a rank send nothing from now on."""
        self._silent.add(rank)

    def run(self, pick: Callable[[int], int], *, ranks: Sequence[int]) -> None:
        """Begin `ranks` and deliver everything, one event after another; of m possible ones `pick(m)` is next."""
        waiting = list(ranks)
        while waiting or self._under_way:
            number = pick(len(waiting) + len(self._under_way))
            if number < len(waiting):
                self.begin(waiting.pop(number))
            else:
                self.deliver(*self.pairs()[number - len(waiting)])

    def _send(self, rank: int, messages: Sequence[Message]) -> Sequence[Message]:
        assert all(message.sender == rank for message in messages)
        if rank in self._silent:
            return ()
        for message in messages:
            self._under_way.setdefault((rank, message.to), deque()).append(message)
        self.sent += messages
        return messages
