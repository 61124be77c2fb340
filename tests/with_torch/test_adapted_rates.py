"""Learning rates that follow the number of workers, against schedules that began with them."""

from __future__ import annotations

import pytest
import torch

from taihu.core.base.errors import ConfigError
from taihu.torch.rates import change_rates

STEPS = 7


def rates(first: float, changed_behind: int | None, rule: str, ratio: float) -> list[float]:
    """The rates of a schedule by step, which changes behind one of them."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=first)
    scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, [2, 4], 0.5)
    told = []
    for step in range(STEPS):
        if step == changed_behind:
            change_rates([torch.nn.Linear(1, 1), optimizer, scheduler], rule, ratio)
        told.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return told


@pytest.mark.parametrize(
    ("rule", "ratio", "factor"), [("linear", 2.0, 2.0), ("linear", 0.75, 0.75), ("sqrt", 4.0, 2.0)]
)
@pytest.mark.parametrize("behind", [0, 1, 3, 5])
def test_rates_are_those_of_a_schedule_that_began_with_them(
    rule: str, ratio: float, factor: float, behind: int
) -> None:
    before, after = rates(0.1, None, rule, 1.0), rates(0.1 * factor, None, rule, 1.0)
    assert rates(0.1, behind, rule, ratio) == pytest.approx(before[:behind] + after[behind:])


def test_other_rules_are_refused() -> None:
    with pytest.raises(ConfigError, match="expected 'linear' or 'sqrt'"):
        change_rates([], "cube", 2.0)
