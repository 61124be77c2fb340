"""Stages of ZeRO: what is divided among servers or workers (Rajbhandari et al. 2020; docs/methods.md section 5)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from taihu.core.traits.registry import Registry


@dataclass(frozen=True, repr=False)
class Stage:
    """One stage.

    Attributes:
        key: its number in a job file.
        divides_optimizer: each part of the optimizer state is at one server, or in a ring at one worker, which
            updates what belongs to it; else every worker updates everything.
        divides_gradients: workers give the memory of a group's gradients back as soon as they have been summed.
        divides_parameters: workers fetch a group's parameters when they need them, twice in a step.
        keeps_halves: 16-bit parameters stay at the workers where they are exchanged, so that each group is fetched
            once.
    """

    key: int
    divides_optimizer: bool = False
    divides_gradients: bool = False
    divides_parameters: bool = False
    keeps_halves: bool = True

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.key!r})"

    def __str__(self) -> str:
        return str(self.key)

    @property
    def divided(self) -> tuple[bool, bool, bool]:
        """Whether optimizer state, gradients and parameters are divided."""
        return self.divides_optimizer, self.divides_gradients, self.divides_parameters


STAGES: Final = Registry(
    Stage,
    "taihu.stages",
    (
        Stage(0),
        Stage(1, divides_optimizer=True),
        Stage(2, divides_optimizer=True, divides_gradients=True),
        Stage(3, divides_optimizer=True, divides_gradients=True, divides_parameters=True, keeps_halves=False),
    ),
    words="an integer from 0 to 3",
)


def stage_of(key: int) -> Stage:
    """The stage of a number that is known to be one."""
    return STAGES[key]
