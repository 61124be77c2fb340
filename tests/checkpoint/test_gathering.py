"""The newest step that all hold and can write is found, whoever says so first, and however often."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taihu.core.base.errors import StaleError
from taihu.core.checkpoint.files import PartFile
from taihu.core.checkpoint.gathering import Gathering, WrittenPart
from taihu.core.checkpoint.held_steps import Label

KEEPERS = ("server 0", "server 1", "worker 0")
LABELS = st.frozensets(st.builds(Label, st.just(7), st.integers(1, 5)), max_size=3)


def gathering() -> Gathering:
    return Gathering(KEEPERS, replaced_after_s=2.0)


def part_of(member: str, label: Label) -> WrittenPart:
    return WrittenPart(label, PartFile(f"{member}.safetensors", label.step, "0" * 64), "{}")


@given(
    held=st.fixed_dictionaries(dict.fromkeys(KEEPERS, LABELS)),
    broken=st.sets(st.tuples(st.sampled_from(KEEPERS), st.integers(1, 5))),
    turns=st.lists(st.sampled_from((*KEEPERS, "worker 1")), min_size=60, max_size=60),
)
def test_it_ends_with_the_newest_step_that_all_hold_and_can_write(
    held: dict[str, frozenset[Label]], broken: set[tuple[str, int]], turns: list[str]
) -> None:
    """Against a search through all steps; members ask in any order, and do what they are told."""
    found = gathering()
    asked: set[str] = set()
    for now, member in enumerate((*turns, *KEEPERS * 6)):
        if found.is_over:
            break
        asked.add(member)
        found.holds(member, 1, held.get(member, frozenset()), now)
        label = found.wanted_of(member, 1)
        if label is None:
            continue
        assert asked >= set(KEEPERS)  # nobody writes for nothing
        if (member, label.step) in broken:
            found.left_out(member, 1, label)
        else:
            found.written(member, 1, part_of(member, label))
    common = frozenset.intersection(*held.values())
    good = [each for each in common if not any((member, each.step) in broken for member in KEEPERS)]
    assert found.is_over
    expected = max(good, default=None)
    if expected is None:
        assert found.parts is None
    else:
        assert found.parts == {member: part_of(member, expected) for member in KEEPERS}


def test_nobody_is_waited_for_when_no_step_can_be_held_by_all() -> None:
    found = gathering()
    assert not found.is_over
    found.holds("worker 1", 1, frozenset(), 0.0)  # has nothing to keep
    assert not found.is_over
    found.holds("server 1", 1, frozenset({Label(7, 3)}), 0.0)
    assert not found.is_over
    assert found.missing == ("server 0", "worker 0")
    found.holds("worker 0", 1, frozenset({Label(8, 3)}), 0.0)
    assert found.is_over
    assert found.parts is None


def test_a_process_in_the_place_of_another_writes_its_part_again() -> None:
    found, label = gathering(), Label(7, 3)
    for member in KEEPERS:
        found.holds(member, 1, frozenset({label}), 0.0)
        found.written(member, 1, part_of(member, label))
    assert found.is_over
    found.holds("worker 0", 2, frozenset({label}), 1.0)
    assert found.is_over  # the first one lives
    assert found.wanted_of("worker 0", 2) is None
    found.holds("worker 0", 2, frozenset({label}), 2.5)
    assert not found.is_over
    assert found.awaited == ("worker 0",)
    found.written("worker 0", 1, part_of("worker 0", label))  # it is late
    found.left_out("worker 0", 1, label)
    assert not found.is_over
    assert found.wanted_of("worker 0", 2) == label
    found.written("worker 0", 2, part_of("worker 0", label))
    assert found.is_over
    assert found.parts is not None


def test_who_asks_again_and_again_keeps_its_place() -> None:
    found, label = gathering(), Label(7, 3)
    for now in range(10):
        found.holds("worker 0", 1, frozenset({label}), float(now))
        found.holds("worker 0", 2, frozenset(), float(now))
    assert not found.is_over
    moves = found.moves
    found.holds("worker 0", 1, frozenset({label}), 10.0)
    assert found.moves == moves  # nothing new


def test_a_part_of_a_step_that_is_not_held_is_refused() -> None:
    found = gathering()
    found.holds("worker 0", 1, frozenset({Label(7, 3)}), 0.0)
    with pytest.raises(StaleError, match="worker 0 has written step 4, which it does not hold"):
        found.written("worker 0", 1, part_of("worker 0", Label(7, 4)))
