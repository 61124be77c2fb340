"""The batches of a loop that may go back: those of its last passes are there once more."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any, Final, Generic, NamedTuple, TypeVar

from taihu.torch.kept.loops import drawn_from, generators

T = TypeVar("T")

# Of the steps that lie in memory the older one is whole while the newer one is written.
_HELD: Final = 3


class _Pass(NamedTuple, Generic[T]):
    """A batch, and the states of the generators when the pass over it begins."""

    batch: T
    generators: dict[str, Any]


class DrawnBatches(Generic[T]):
    """Draws batches one by one, and keeps those of passes that may be taken again.

    Passes are counted from 0 in the whole loop, those of former lives of the script, too.

    Args:
        left: the batches.
        first: the pass that the first of them is of.
        keeps: whether any is kept.
    """

    def __init__(self, left: Iterator[T], first: int, *, keeps: bool) -> None:
        self._left, self._keeps = left, keeps
        self._passes: deque[_Pass[T]] = deque()
        self.first = first
        """The first pass that may be taken again."""
        self._next = first
        self._held: deque[int] = deque(maxlen=_HELD)
        self._held_step = -1

    def draw(self) -> T:
        """The batch of the next pass, with the generators as they were if it is taken again.

        Raises:
            StopIteration: there is none.
        """
        if self._next < self.first + len(self._passes):
            batch, states = self._passes[self._next - self.first]
            drawn_from(states)
        else:
            batch = next(self._left)
            if self._keeps:
                self._passes.append(_Pass(batch, generators()))
            else:
                self.first += 1
        self._next += 1
        return batch

    def held(self, step: int) -> None:
        """State is held behind `step`, if that is another one than before: passes long before are forgotten."""
        if step == self._held_step:
            return
        self._held_step = step
        self._held.append(self._next)
        while len(self._held) == _HELD and self.first < self._held[0] and self._passes:
            self._passes.popleft()
            self.first += 1

    def go_back(self, to: int) -> bool:
        """Have this pass be the next one; False where it is not there any more."""
        if not self.first <= to <= self.first + len(self._passes):
            return False
        self._next = to
        self._held.clear()
        return True
