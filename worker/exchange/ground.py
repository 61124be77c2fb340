"""The ground of an executor: what it works on, by which it waits, and what touches values (docs/adr/0085)."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from taihu.core.wire.frames.headers import At
from taihu.worker.exchange.times import GroupTimes

Wait = tuple[Callable[[], bool], int]
"""The training loop goes on when the first says so, which is asked under the lock; the second is for which group."""

Waits = Generator[Wait, None, None]
"""The waits of a call, each of which whoever calls carries out before the call goes on."""

NOTHING: Final[Waits] = (wait for wait in tuple[Wait, ...]())
"""No waits: over already, so that all may have it."""


class Ground(Protocol):
    """The ground that work runs on: threads, or the work queues of a virtual clock."""

    lock: AbstractContextManager[object]
    """The one lock; whoever holds it may take it again."""

    def changed(self) -> None:
        """Have whoever waits look again; called under the lock."""

    def later(self, task: Callable[[], None]) -> None:
        """Carry `task` out on the exchange's own thread, behind all that it was given before."""

    def settle(self) -> None:
        """Return when all is done that had to be done behind the step before; a step begins."""


class Values(Protocol):
    """The values of a plan's groups, which actions touch: arenas, or seconds that this would take.

    Attributes:
        narrows: whether there are 16-bit values, which a group has to be made before it is sent.
        selects: whether some of a group's values are selected before they are sent.
        read: is told, if it wants to be, that a forward reads a group's parameters as they are after a step.
        pushing: is told, if it wants to be, that a group's gradients are about to be sent.
        ended: is told, if it wants to be, under the lock, that all groups of a step have been updated.
    """

    narrows: bool
    selects: bool
    read: Callable[[int, int], None] | None
    pushing: Callable[[int, At], None] | None
    ended: Callable[[int], None] | None

    def begin(self, at: At, rates: Sequence[float] | None, layer_rates: NDArray[np.float64] | None) -> None:
        """A step has begun; rates as `Executor.begin` takes them. Not told where none are brought, nor followed."""

    def narrow(self, group: int) -> bool:
        """Make the group's gradients, which are complete, what is sent; returns whether all of them fit."""

    def select(self, group: int, at: At, times: GroupTimes) -> bool:
        """Have some of the group's values selected, and sent then; False where all of them go, which follows."""

    def agree(self, at: At, told: Callable[[bool], None], *, overflowed: bool) -> None:
        """Tell all workers whether a gradient of this worker does not fit; `told` gets whether any does not."""

    def cancel(self, at: At) -> None:
        """Forget what is under way of an attempt."""

    def widen(self, group: int, done: Callable[[], None]) -> None:
        """Make the group's 16-bit parameters what is computed with; `done` follows."""

    def drop(self, group: int) -> None:
        """Give the group's parameters back."""

    def drop_all(self) -> None:
        """Give all parameters back."""

    def release(self, group: int) -> None:
        """Give the memory of the group's gradients back."""
