"""The optimizer of a script, which all workers bring alike, beside their layers."""

from __future__ import annotations

from typing import Any

import pytest
from support.cluster import layout_of

from taihu.core.base.errors import ConfigError, FrameError, ModelError
from taihu.core.coordination.control.ways import UPDATES
from taihu.core.coordination.membership.agreement import Agreement
from taihu.core.job.update_rules import UpdateRules
from taihu.core.settings import OptimizerSettings

LAYOUT = layout_of(3, 5)


def rules(groups: tuple[int, ...] = (0, 1), decays: tuple[float, ...] = (0.0, 0.1), **settings: Any) -> UpdateRules:
    return UpdateRules((OptimizerSettings(**settings),), decays, groups, (0,) * len(decays))


def agreement(first: UpdateRules | None) -> Agreement:
    """Worker 0 has brought its own."""
    agreed = Agreement("server 0", "", {})
    agreed.check_updates("worker 0", first, LAYOUT)
    agreed.check_layout("worker 0", LAYOUT)
    return agreed


@pytest.mark.parametrize(
    ("own", "words"),
    [
        (None, 'it says update="workers", expected "servers"'),
        (rules(name="adam"), "its optimizer is adam, expected sgd"),
        (rules(momentum=0.5), "sgd has momentum 0.5, expected 0.9"),
        (rules((0, 0)), "its parameter groups hold other parameters"),
        (rules((0, 0), (0.0,)), "parameter groups: 1, expected 2"),
        (UpdateRules.joined([rules((0,)), rules((0,))]), "it has optimizers: 2, expected 1"),
        (rules(decays=(0.0, 0.2)), "parameter group 1 has weight_decay 0.2, expected 0.1"),
    ],
    ids=str,
)
def test_the_difference_of_a_workers_optimizer_is_told(own: UpdateRules | None, words: str) -> None:
    first = rules(momentum=0.9)
    agreed = agreement(first)
    with pytest.raises(ConfigError, match=words):
        agreed.check_updates("worker 1", own, LAYOUT)
    agreed.check_updates("worker 2", first, LAYOUT)
    assert agreed.updates == first


def test_rules_of_several_optimizers_are_told_as_they_are() -> None:
    first, second = rules(nesterov=True), rules(name="adam", decays=(0.5, 0.0), beta1=0.5)
    both = UpdateRules.joined([first, second]).in_order((3, 0, 2, 1))
    assert both.parameter_groups == (3, 0, 2, 1)
    assert both.owners == (0, 0, 1, 1)
    message = UPDATES.to(both)
    assert message is not None
    seen = UPDATES.of(message)
    assert seen.difference(both) is None
    assert (seen.weight_decays, seen.owners) == ((0.0, 0.1, 0.5, 0.0), (0, 0, 1, 1))


@pytest.mark.parametrize("owners", [(0,), (0, 2), (0, 0, 1)])
def test_parameter_groups_of_no_optimizer_are_refused(owners: tuple[int, ...]) -> None:
    message = UPDATES.to(UpdateRules.joined([rules((0,), (0.0,)), rules((0,), (0.0,))]))
    assert message is not None
    message.owners[:] = owners
    with pytest.raises(FrameError, match="expected one of the optimizers for each group"):
        UPDATES.of(message)


@pytest.mark.parametrize("groups", [(), (0,), (0, 1, 1)])
def test_an_optimizer_is_for_all_layers_that_it_comes_with(groups: tuple[int, ...]) -> None:
    agreed = Agreement("server 0", "", {})
    with pytest.raises(ModelError, match=f"for {len(groups)} layers, expected one for its 2"):
        agreed.check_updates("worker 0", rules(groups), LAYOUT)
    assert agreed.updates is None
