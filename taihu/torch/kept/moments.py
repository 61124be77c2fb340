"""The steps behind which a script's state is held and written. Pure: times come in as arguments."""

from __future__ import annotations

import math
from typing import Final

_FIRST: Final = 8
_AT_MOST: Final = 0.2


class Moments:
    """Says behind which of a script's steps its state is held, and behind which it is written; counted from 1.

    The first steps are all held, and measured. From there on so few are that holding takes at most a fifth of the
    time; `agreed` tells the numbers that worker 0 has found, and they are found anew whenever state is written.

    Args:
        begun: the step that the script goes on from.
        every_s: seconds from one that is written to the next.
        every_steps: steps from one that is written to the next, in place of seconds.
    """

    def __init__(self, begun: int, *, every_s: float, every_steps: int | None = None) -> None:
        self._every_s, self._every_steps = every_s, every_steps
        self._agreed_at = begun
        self._hold_every = 1
        self._write_every = every_steps or math.inf
        self._next_agreement = begun + _FIRST

    def holds(self, step: int) -> bool:
        """Whether the state behind `step` is held."""
        return (step - self._agreed_at) % self._hold_every == 0

    def writes(self, step: int) -> bool:
        """Whether it is written to disk."""
        return step > self._agreed_at and (step - self._agreed_at) % self._write_every == 0

    def agrees(self, step: int) -> bool:
        """Whether all workers agree behind `step` on the numbers from there on."""
        return step >= self._next_agreement

    def found(self, step_s: float, hold_s: float) -> tuple[int, int]:
        """The steps from one that is held to the next, and from one that is written, by what was measured.

        The first is odd: of two places for held steps the older one is written to then.

        Args:
            step_s: seconds of a step without holding.
            hold_s: of holding.
        """
        hold_every = max(1, math.ceil(hold_s / (_AT_MOST * step_s))) if step_s > 0 else 1
        hold_every += hold_every % 2 == 0
        all_s = step_s + hold_s / hold_every
        write_every = self._every_steps or max(1, round(self._every_s / all_s) if all_s > 0 else 1)
        return hold_every, write_every

    def agreed(self, step: int, hold_every: int, write_every: int) -> None:
        """Go on by these numbers behind `step`."""
        if self._every_steps is None:
            self._agreed_at = step
        self._hold_every, self._write_every = hold_every, write_every
        self._next_agreement = step + write_every
