"""Dynamic loss scaling: fp16 gradients are kept within what fp16 can hold. A pure object.

Micikevicius et al. 2018, section 3.2. All workers see the same steps skipped, so all have the same scale.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from taihu.core.base.errors import RunError

_LARGEST: Final = 2.0**32


class LossScale:
    """The factor of the loss before backward.

    It is halved after a step whose gradients overflowed, which is skipped, and doubled after `growth_steps` steps in
    a row that were not.
    """

    def __init__(self, initial: float, growth_steps: int) -> None:
        self.value = initial
        self.skipped_steps = 0
        self._growth_steps = growth_steps
        self._in_a_row = 0

    def facts(self) -> dict[str, Any]:
        """All that it remembers, as JSON holds it."""
        return {"value": self.value, "skipped_steps": self.skipped_steps, "in_a_row": self._in_a_row}

    def resume(self, facts: Mapping[str, Any]) -> None:
        """Go on from what `facts` gave."""
        self.value, self.skipped_steps = float(facts["value"]), int(facts["skipped_steps"])
        self._in_a_row = int(facts["in_a_row"])

    def update(self, *, skipped: bool) -> None:
        """A step has ended.

        Raises:
            RunError: gradients overflow even without being scaled.
        """
        if not skipped:
            self._in_a_row += 1
            if self._in_a_row == self._growth_steps:
                self.value = min(self.value * 2.0, _LARGEST)
                self._in_a_row = 0
            return
        self.skipped_steps += 1
        self._in_a_row = 0
        if self.value <= 1.0:
            raise RunError(
                "gradients do not fit into fp16 even with loss scale 1; lower optimizer.learning_rate or check the "
                "data, or set train.precision = 'bf16'"
            )
        self.value /= 2.0
