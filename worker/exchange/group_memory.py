"""Which groups have memory in a worker's arenas, where not all of them have at once (ZeRO stages 2 and 3).

Pure bookkeeping around `Pages`: no threads and no network. Whoever uses it holds a lock, but for `narrow` and
`widen`, which touch the values of one group only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import takewhile

from taihu.layout import Layout
from taihu.planner.groups import Group, gradient_room, group_bounds, parameter_room
from worker.exchange.parameter_window import ParameterWindow, Todo, leading_groups
from worker.memory.arenas import Arenas

__all__ = ["GroupMemory"]


class GroupMemory:
    """The memory of the groups of one plan; where the arenas have no pages, every group has its own all the time.

    `ask(group)` is called when a group's parameters are to be fetched, those of one that is being summed when they
    have been updated; 16-bit ones that this worker keeps are widened instead. With `holds_gradients` all gradients of
    a step are kept until it ends, as 16-bit values.
    """

    def __init__(
        self,
        arenas: Arenas,
        layout: Layout,
        groups: Sequence[Group],
        *,
        bucket_elements: int,
        live_elements: int,
        ask: Callable[[int], None],
        holds_gradients: bool = False,
    ) -> None:
        self._arenas = arenas
        self._half = arenas.half
        self._holds_gradients = holds_gradients
        # What has come by one plan is there by the next one too.
        self._kept = set(range(len(groups))) if self._half is not None and self._half.complete else set()
        self._gradients = arenas.gradient_pages
        self._parameters = arenas.parameter_pages
        self._bounds = group_bounds(layout, groups)
        self._sizes = [stop - start for start, stop in self._bounds]
        self._room = gradient_room(self._sizes, bucket_elements)
        self._live = parameter_room(self._sizes, live_elements)
        self._held: set[int] = set()
        self._held_elements = 0
        self._window = ParameterWindow()
        self._ask = ask

    def has_room(self, group: int) -> bool:
        """Whether there is room for the group's gradients, or they have been given some already."""
        if self._gradients is None or self._holds_gradients or not self._held or group in self._held:
            return True
        return self._held_elements + self._sizes[group] <= self._room

    def take_room(self, group: int) -> None:
        """The group's gradients are going to be written."""
        if self._gradients is not None and group not in self._held:
            self._held.add(group)
            self._held_elements += self._sizes[group]

    @property
    def fetches(self) -> bool:
        """Whether parameters are fetched when they are needed."""
        return self._parameters is not None

    @property
    def keeps(self) -> bool:
        """Whether this worker keeps 16-bit parameters that are widened to be used."""
        return self._half is not None and self._half.keeps

    def is_here(self, group: int) -> bool:
        """Whether the group's parameters can be read."""
        return self._parameters is None or self._window.is_here(group)

    def is_quiet(self, group: int) -> bool:
        """Whether none of the group's parameters are on their way, nor will be."""
        return not self._window.is_asked(group)

    def is_stray(self, group: int, *wanted: int) -> bool:
        """Whether the group's parameters are on their way, and it is none of those that are wanted."""
        return self._window.is_asked(group) and group not in wanted

    def is_summing(self, group: int) -> bool:
        """Whether the group's parameters are going to change."""
        return self._window.is_summing(group)

    def beside(self, group: int, order: Iterable[int]) -> tuple[int, ...]:
        """Of the groups that come behind `group` in `order`, those that there is room for beside it."""
        fetched = takewhile(lambda each: each not in self._kept, order)
        return leading_groups(fetched, self._sizes, self._live - self._sizes[group])

    def use(self, group: int, following: Sequence[int], staying: Sequence[int]) -> list[int]:
        """See `ParameterWindow.use`; where parameters are fetched.

        Returns the groups that are kept as 16-bit values: `widen` and `arrived` follow for each.
        """
        return self._do(self._window.use(group, following, staying))

    def narrow(self, group: int, largest: float) -> bool:
        """Make the group's gradients, which are complete, what is sent; returns whether none exceeds `largest`.

        Without 16-bit values there is nothing to do.
        """
        if self._half is None or self._gradients is None:
            return True
        start, stop = self._bounds[group]
        fits = self._half.narrow(start, self._arenas.gradients[start:stop], largest)
        self._gradients.release(start, stop)
        return fits

    def widen(self, group: int) -> None:
        """Make the group's parameters, which have come, what is computed with."""
        if self._half is not None:
            start, stop = self._bounds[group]
            self._half.widen(start, self._arenas.parameters[start:stop])

    def pushed(self, group: int) -> None:
        """The group's gradients are complete, and its parameters not needed any more."""
        if self._parameters is not None:
            self._do(self._window.pushed(group))

    def summed(self, group: int) -> None:
        """Every server has summed the group, and nobody needs its gradients any more."""
        if self._gradients is not None:
            if self._half is not None:
                self._half.release_gradients(*self._bounds[group])
            else:
                self._gradients.release(*self._bounds[group])
            if group in self._held:
                self._held.discard(group)
                self._held_elements -= self._sizes[group]
        self._window.summed(group)
        self._keep(group)

    def arrived(self, group: int) -> None:
        """The group's parameters are complete."""
        self._window.arrived(group)
        self._keep(group)

    def close(self) -> None:
        """Give back all parameters; none are under way."""
        if self._parameters is not None:
            self._parameters.release(0, self._bounds[-1][1])

    def _keep(self, group: int) -> None:
        if self.keeps:
            assert self._half is not None  # noqa: S101
            self._kept.add(group)
            self._half.complete = len(self._kept) == len(self._bounds)

    def _do(self, todo: Todo) -> list[int]:
        assert self._parameters is not None  # noqa: S101
        for group in todo.drop:
            self._parameters.release(*self._bounds[group])
        for group in todo.ask:
            if group not in self._kept:
                self._ask(group)
        return [group for group in todo.ask if group in self._kept]
