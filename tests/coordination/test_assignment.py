"""The ranks of agents, against all assignments that there are."""

from __future__ import annotations

from collections import Counter
from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from taihu.core.coordination.agents.assignment import balanced, filled, longest_s

COSTS = st.dictionaries(st.integers(1, 4), st.sampled_from([0.5, 1.0, 1.0, 2.0, 3.0]), min_size=1)


@st.composite
def worlds(draw: st.DrawFn) -> tuple[range, dict[int, int], list[int], dict[int, float]]:
    """Ranks, some of which agents hold; the agents that are there, and the costs of all."""
    ranks = range(draw(st.integers(1, 5)))
    costs = draw(COSTS)
    held = draw(st.dictionaries(st.sampled_from(ranks), st.sampled_from(sorted(costs))))
    agents = draw(st.lists(st.sampled_from(sorted(costs)), min_size=1, unique=True))
    return ranks, held, agents, costs


def every(ranks: range, agents: list[int]) -> list[dict[int, int]]:
    return [dict(zip(ranks, each, strict=True)) for each in product(agents, repeat=len(ranks))]


def moves(before: dict[int, int], after: dict[int, int]) -> int:
    return sum(before[rank] != after[rank] for rank in before)


@given(worlds())
def test_no_assignment_makes_shorter_steps(world: tuple[range, dict[int, int], list[int], dict[int, float]]) -> None:
    ranks, held, agents, costs = world
    found = balanced(ranks, held, agents, costs)
    assert set(found) == set(ranks)
    assert set(found.values()) <= set(agents)
    assert longest_s(found, costs) == min(longest_s(each, costs) for each in every(ranks, agents))


@given(worlds())
def test_no_assignment_with_as_many_ranks_for_each_moves_fewer(
    world: tuple[range, dict[int, int], list[int], dict[int, float]],
) -> None:
    ranks, held, agents, costs = world
    found = balanced(ranks, held, agents, costs)
    alike = [each for each in every(ranks, agents) if Counter(each.values()) == Counter(found.values())]
    assert moves(held, found) == min(moves(held, each) for each in alike)


@given(worlds())
def test_a_balanced_assignment_stays(world: tuple[range, dict[int, int], list[int], dict[int, float]]) -> None:
    ranks, held, agents, costs = world
    found = balanced(ranks, held, agents, costs)
    assert balanced(ranks, found, agents, costs) == found


@given(worlds())
def test_what_is_held_stays_where_others_are_filled_in(
    world: tuple[range, dict[int, int], list[int], dict[int, float]],
) -> None:
    ranks, held, agents, costs = world
    found = filled(ranks, held, agents, costs)
    others = [each for each in every(ranks, agents) if all(each[r] == held[r] for r in held if held[r] in agents)]
    kept = {rank: agent for rank, agent in held.items() if agent in agents}
    assert {rank: found[rank] for rank in held} == held
    assert set(found) == set(ranks)
    mine = {rank: agent for rank, agent in found.items() if rank in kept or rank not in held}
    wanted = [{rank: each[rank] for rank in mine} for each in others]
    assert longest_s(mine, costs) == min(longest_s(each, costs) for each in wanted)


def test_the_lowest_ranks_stay_with_who_gives_some_away() -> None:
    assert balanced(range(4), {0: 1, 1: 1, 2: 1, 3: 1}, [1, 2], {1: 1.0, 2: 1.0}) == {0: 1, 1: 1, 2: 2, 3: 2}


def test_a_slow_agent_gets_fewer() -> None:
    assert Counter(balanced(range(12), {}, [1, 2, 3], {1: 3.0, 2: 1.0, 3: 1.0}).values()) == {1: 2, 2: 5, 3: 5}
