"""The memory of a plan's groups in a worker's arenas: given back, narrowed and widened group by group."""

from __future__ import annotations

from taihu.core.coordination.plans.plan import Plan
from taihu.core.planner.groups import group_bounds
from taihu.kernels.base.half import LARGEST
from taihu.worker.memory.arenas import Arenas

__all__ = ["GroupMemory"]


class GroupMemory:
    """Acts as the step protocol says; nothing is decided here. One thread at a time touches the same group.

    `shares_sums` values are added up in 16 bits, so that each must be so much smaller than what they can hold.

    Attributes:
        narrows: whether there are 16-bit values, which a group has to be made before it is sent.
        sizes: elements of each group.
    """

    def __init__(self, arenas: Arenas, plan: Plan, *, shares_sums: int = 1) -> None:
        self._arenas = arenas
        self.narrows = arenas.half is not None
        self._bounds = group_bounds(plan.layout, plan.groups)
        self._largest = LARGEST[arenas.half.kind] / shares_sums if arenas.half is not None else 0.0
        self.sizes = [stop - start for start, stop in self._bounds]

    def narrow(self, group: int) -> bool:
        """Make the group's gradients, which are complete, what is sent; returns whether all of them fit.

        Without 16-bit values there is nothing to do.
        """
        half, pages = self._arenas.half, self._arenas.gradient_pages
        if half is None or pages is None:
            return True
        start, stop = self._bounds[group]
        fits = half.narrow(start, self._arenas.gradients[start:stop], self._largest)
        pages.release(start, stop)
        return fits

    def widen(self, group: int) -> None:
        """Make the group's parameters, which have come, what is computed with."""
        if self._arenas.half is not None:
            start, stop = self._bounds[group]
            self._arenas.half.widen(start, self._arenas.parameters[start:stop])

    def release(self, group: int) -> None:
        """Give the memory of the group's gradients back."""
        start, stop = self._bounds[group]
        if self._arenas.half is not None:
            self._arenas.half.release_gradients(start, stop)
        elif self._arenas.gradient_pages is not None:
            self._arenas.gradient_pages.release(start, stop)

    def drop(self, group: int) -> None:
        """Give the group's parameters back."""
        if self._arenas.parameter_pages is not None:
            self._arenas.parameter_pages.release(*self._bounds[group])

    def drop_all(self) -> None:
        """Give all parameters back."""
        if self._arenas.parameter_pages is not None and self._bounds:
            self._arenas.parameter_pages.release(0, self._bounds[-1][1])
