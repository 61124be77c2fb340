"""Steps that are held beyond a worker's process as its exchange ends them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from taihu.core.checkpoint.held_steps import HeldSteps
from taihu.core.checkpoint.part import State
from taihu.core.coordination.plans.plan import Plan


@dataclass(frozen=True)
class Holding:
    """The place of a worker's steps, and who the worker is.

    Attributes:
        held: takes what each step leads to.
        complete: adds to the state of an exchange all else that the worker holds; arrays are live.
        is_first: whether it is worker 0, which brings what all workers have alike.
    """

    held: HeldSteps
    complete: Callable[[State], State]
    is_first: bool


Hold = Callable[[Plan], Holding | None]
"""Makes what holds the steps of an exchange that begins with a plan; None where nobody does."""


def hold_nothing(plan: Plan) -> None:
    """Hold no steps."""
