"""The faults of one member and when they are due: pure, points and times come in as arguments."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from taihu.core.chaos.faults import ANY, Fault, FaultKind
from taihu.core.chaos.points import Point


class Schedule:
    """Faults of one member by name; each is due once.

    Whether one has happened before, in a process whose place this one took, is for others to remember.

    Args:
        faults: by name, see `named`.
    """

    def __init__(self, faults: Mapping[str, Fault]) -> None:
        self._waiting = dict(faults)
        self._step = 0

    @property
    def is_empty(self) -> bool:
        """Whether nothing is waited for any more."""
        return not self._waiting

    def passed(self, point: Point, step: int = 0) -> dict[str, Fault]:
        """The faults that are due as the member passes `point`, in `step` or in none; they are so no more."""
        self._step = max(self._step, step)
        due = {name: fault for name, fault in self._waiting.items() if self._is_due(fault, point)}
        for name in due:
            del self._waiting[name]
        return due

    def timed(self) -> list[tuple[float, str, Fault]]:
        """The faults that are due at a time, with their seconds from the run's beginning, the first one first."""
        found = [(each.after_s, name, each) for name, each in self._waiting.items() if each.after_s is not None]
        return sorted(found, key=lambda each: each[0])

    def _is_due(self, fault: Fault, point: Point) -> bool:
        if fault.place is not point:
            return False
        return fault.after_step is None or self._step > fault.after_step


def named(faults: Sequence[Fault], members: Sequence[str], seed: int) -> dict[str, Fault]:
    """Faults of a schedule by names that tell all processes the same; the members of some are drawn by `seed`.

    Each draw has a generator of its own: a fault more or less changes no other one.
    """
    return {
        f"{number}-{fault.kind.value}": fault
        if fault.member != ANY
        else fault.of(str(np.random.default_rng([seed, number]).choice(members)))
        for number, fault in enumerate(faults)
    }


def drawn(
    kinds: Sequence[FaultKind], members: Sequence[str], *, seed: int, every_s: float
) -> Iterator[tuple[str, Fault]]:
    """Faults without an end, `every_s` apart in the mean as those of a Poisson process, with their names."""
    generator = np.random.default_rng(seed)
    now_s, number = 0.0, 0
    while True:
        now_s += float(generator.exponential(every_s))
        kind = kinds[int(generator.integers(len(kinds)))]
        member = members[int(generator.integers(len(members)))]
        yield f"drawn-{number}-{kind.value}", Fault(kind, member, after_s=now_s)
        number += 1
