"""Makes a failing case smaller while it still fails. Pure: whoever calls runs the cases."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Final

from taihu.explore.campaign.work import Smaller

_MOST_HOLDS: Final = 1 << 20


def shrunk(smaller: Smaller, fails: Callable[[Smaller], bool]) -> Smaller:
    """The smallest case that still fails on the way from `smaller`, whose faults are given.

    Faults are dropped one at a time, then agents, steps, workers and servers; at last, the points at which tasks are
    held up.
    """
    while (fewer := next((each for each in _steps_down(smaller) if fails(each)), None)) is not None:
        smaller = fewer
    return replace(smaller, holds=_fewest_holds(smaller, fails))


def _steps_down(smaller: Smaller) -> Iterator[Smaller]:
    faults = smaller.faults or ()
    for place in range(len(faults)):
        yield replace(smaller, faults=[*faults[:place], *faults[place + 1 :]])
    agents = smaller.agents or ()
    for place in range(len(agents) if len(agents) > 1 else 0):
        yield replace(smaller, agents=[*agents[:place], *agents[place + 1 :]])
    for what in ("steps", "workers", "servers"):
        count = getattr(smaller, what)
        if count is not None and count > 1:
            yield replace(smaller, **{what: count - 1})


def _fewest_holds(smaller: Smaller, fails: Callable[[Smaller], bool]) -> int | None:
    """The fewest points at which tasks are held up, of the first ones; None where all are needed.

    More of them need not fail, too: it is one of the edges behind which the case fails.
    """
    least, most = -1, 1
    while not fails(replace(smaller, holds=most)):
        least, most = most, 2 * most
        if most > _MOST_HOLDS:
            return None
    while most - least > 1:
        middle = (least + most) // 2
        if fails(replace(smaller, holds=middle)):
            most = middle
        else:
            least = middle
    return most
