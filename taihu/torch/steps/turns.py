"""Optimizers whose gradients a backward brings, where a script has several: what all workers know, and expect."""

from __future__ import annotations

Brought = frozenset[int]
"""Numbers of the optimizers that some worker has gradients of in a backward."""


class Turns:
    """The backwards until now, as all workers know them alike, and what they so expect of the next one. Pure.

    What followed two backwards once is expected behind two of their like: the loop of a GAN comes in turns. Groups of
    what is expected are pushed while backward goes on, the others at its end; nothing else depends on it.

    Args:
        optimizers: their number.

    Attributes:
        expected: of the backward that is under way.
        counted: backwards that were expected to bring gradients of all, and did. Plans are made of these alone.
        counts: whether the last one that was agreed on is one of them.
    """

    def __init__(self, optimizers: int) -> None:
        self._all: Brought = frozenset(range(optimizers))
        first = self._all if optimizers == 1 else frozenset[int]()
        self.expected: Brought = first
        self.counted, self.counts = 0, False
        self._last: tuple[Brought, Brought] = (first, first)
        self._followed: dict[tuple[Brought, Brought], Brought] = {}

    @property
    def expects_all(self) -> bool:
        """Whether gradients of all optimizers are expected."""
        return self.expected == self._all

    def begin(self) -> None:
        """A backward begins."""
        self.expected = self._followed.get(self._last, self._last[1])

    def agreed(self, brought: Brought) -> None:
        """It has brought these."""
        self.counts = self.expects_all and brought == self._all
        self.counted += self.counts
        self._followed[self._last] = brought
        self._last = (self._last[1], brought)
