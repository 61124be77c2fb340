"""The wrong changes by which the explorer is proved: each fits the code as it is."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

import pytest

from benchmarks.recovery.explored_mutants.changes import AREAS, Change, chosen, read_changes
from taihu.core.base.errors import ConfigError

CHANGES = read_changes()
ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.name)
def test_its_text_stands_in_its_module_once_and_the_changed_module_can_be_compiled(change: Change) -> None:
    source = ROOT.joinpath(*change.module.split(".")).with_suffix(".py").read_text()
    assert source.count(change.old) == 1
    changed = source.replace(change.old, change.new)
    assert ast.dump(ast.parse(changed)) != ast.dump(ast.parse(source))


def test_there_are_many_of_different_names_and_some_of_every_area() -> None:
    assert len({change.name for change in CHANGES}) == len(CHANGES) == 68
    assert min(Counter(change.area for change in CHANGES)[area] for area in AREAS) >= 6


def test_they_are_chosen_by_names_and_areas() -> None:
    some = chosen(CHANGES, ["links", "frame-taken-twice"])
    assert {change.area for change in some} == {"links", "protocol"}
    assert chosen(CHANGES, []) == CHANGES
    with pytest.raises(ConfigError, match="nowhere"):
        chosen(CHANGES, ["nowhere"])
