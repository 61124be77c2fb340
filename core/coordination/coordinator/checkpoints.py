"""Steps that are kept, and checkpoints that are complete. Pure; time comes in as an argument.

All workers ask behind the same steps and are told the same: whether this one is kept, and behind which step they ask
next. No message is needed in between: that step is chosen such that an interval will have passed by then.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from taihu.core.base.errors import StaleError
from taihu.core.checkpoint.files import PartFile
from taihu.core.coordination.control.asks import Decision

_FIRST_ASKED: Final = 10
_MOST_GROWTH: Final = 10


class CheckpointBook:
    """The checkpoints of one run.

    Args:
        members: names of those that have something to keep.
        every_s: seconds from one checkpoint to the next one.
        every_steps: steps from one to the next, in place of seconds.
        begun_after: the step that the run went on from, 0 for a new one.
    """

    def __init__(
        self, members: Collection[str], *, every_s: float, every_steps: int | None = None, begun_after: int = 0
    ) -> None:
        self._members = frozenset(members)
        self._every_s = every_s
        self._every_steps = every_steps
        self._kept_s: float | None = None
        self._begun_after = begun_after
        self._asked = (begun_after, 0.0)
        self._decisions: dict[int, Decision] = {}
        self._files: dict[int, dict[str, PartFile]] = {}
        self._left_out: set[int] = set()
        # Steps to be kept of which members may be writing yet.
        self._awaited: set[int] = set()
        self._first = 0
        self._complete = begun_after

    def decide(self, step: int, now: float, *, is_last: bool = False) -> Decision:
        """The decision for `step`, the same for all that ask; they do so before the first step, too.

        The last step is kept.
        """
        if step not in self._decisions:
            self._decisions = {step: Decision(True, step) if is_last else self._decided(step, now)}
            if self._decisions[step].keep:
                self._awaited.add(step)
        return self._decisions[step]

    def stored(self, member: str, step: int, file: PartFile) -> dict[str, PartFile] | None:
        """A member's part is durable; returns all files of the step when this was the last one, once.

        A member that was not answered says so again.

        Raises:
            StaleError: the member has nothing to keep in this run.
        """
        if member not in self._members:
            raise StaleError(
                f"{member} has stored a part of step {step}: expected parts of {', '.join(sorted(self._members))}"
            )
        if step < self._first or step <= self._complete or step in self._left_out:
            return None
        files = self._files.setdefault(step, {})
        files[member] = file
        # Members store one part after another: of an earlier step this one has stored its part, or never will.
        self._awaited = {each for each in self._awaited if each >= step or member in self._files.get(each, {})}
        if files.keys() != self._members:
            return None
        # What is older will not be complete any more: a member that left a part out goes on with a later one.
        self._complete = step
        self._awaited = {other for other in self._awaited if other > step}
        self._files = {other: known for other, known in self._files.items() if other > step}
        return files

    def left_out(self, step: int) -> None:
        """A member's part of `step` cannot be had: the checkpoint will not be complete."""
        self._left_out.add(step)
        self._awaited.discard(step)
        self._files.pop(step, None)

    def give_up(self, before: int) -> int:
        """Give up checkpoints of steps before `before`, or before the first one that may be complete yet.

        Members whose disks are slow store their parts when later steps have been decided, which they leave out
        meanwhile. Of what is given up no part counts any more; returns the step before which that is.
        """
        self._first = min((step for step in self._awaited | self._files.keys() if step < before), default=before)
        self._left_out = {step for step in self._left_out if step >= self._first}
        return self._first

    def _decided(self, step: int, now: float) -> Decision:
        if step == self._begun_after:
            return Decision(False, step + (self._every_steps or _FIRST_ASKED))
        if self._every_steps is not None:
            return Decision(True, step + self._every_steps)
        (last, last_s), self._asked = self._asked, (step, now)
        if self._kept_s is None:
            # The first steps compile, and measure: they tell what a step takes, and little is lost without them.
            self._kept_s = now
            return Decision(False, step + _FIRST_ASKED)
        keep = now - self._kept_s >= self._every_s
        if keep:
            self._kept_s = now
        seconds = max(1e-9, (now - last_s) / (step - last))
        left = self._every_s - (now - self._kept_s)
        ahead = min(max(1, round(left / seconds)), _MOST_GROWTH * (step - last))
        return Decision(keep, step + ahead)
