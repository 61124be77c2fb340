"""Merging against all groupings: exact ends first with the fewest groups, greedy is the paper's scan."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from taihu.core.model.layout import LayerSpec, Layout, TensorSpec
from taihu.core.planner.groups import Group, check_groups
from taihu.core.planner.merging import TIE, merge_exact, merge_greedy
from taihu.core.planner.model_shapes import TABLES
from taihu.core.planner.profile import Compression, LayerCost, LinearCost, LinkCost, Profile
from taihu.core.planner.timeline import simulate, step_costs
from taihu.core.traits.methods import METHODS
from taihu.kernels.group_search import Pipeline, allow_group, relax, run_pipeline, search

quick = settings(deadline=None, max_examples=150)
Array = NDArray[np.float64]


def all_ends(costs: Pipeline) -> tuple[Array, NDArray[np.int64]]:
    """Of all 2^(L-1) groupings the end of the step and the number of groups.

    Bit l of a grouping's number says that a group ends with layer l. All groupings are gone through at once.
    """
    stages, layers, _ = costs.seconds.shape
    cuts = np.arange(2 ** (layers - 1)) | 2 ** (layers - 1)
    clocks = np.full((stages, len(cuts)), costs.start)
    first = np.zeros(len(cuts), dtype=np.int64)
    for last in range(layers):
        ends = (cuts >> last & 1).astype(bool)
        begin = first[ends]
        if costs.inline:
            instant = clocks[0, ends] + costs.backward[last + 1] - costs.backward[begin]
        else:
            instant = np.full(len(begin), costs.start + costs.backward[last + 1])
        for stage in range(stages):
            instant = np.maximum(instant, clocks[stage, ends]) + costs.seconds[stage, begin, last]
            clocks[stage, ends] = instant
        first[ends] = last + 1
    counts = sum((cuts >> layer & 1 for layer in range(layers)), start=np.zeros(len(cuts), dtype=np.int64))
    return clocks[-1], counts


def holds_against_all(costs: Pipeline, slack: float = TIE) -> None:
    groups = merge_exact(costs, slack)
    layers = len(costs.backward) - 1
    check_groups(Layout(tuple(LayerSpec(str(i), (TensorSpec("w", (1,)),)) for i in range(layers))), groups)
    ends, counts = all_ends(costs)
    shortest = ends.min()
    assert simulate(costs, groups).seconds <= shortest * (1 + slack + 2 * TIE)
    assert len(groups) <= counts[ends <= shortest * (1 + slack - 0.1 * TIE)].min()
    assert simulate(costs, merge_greedy(costs)).seconds >= shortest * (1 - 1e-12)


def random_costs(rng: np.random.Generator, layers: int, stages: int, inline: bool) -> Pipeline:
    """Costs that a profile might give: in proportion to sizes over decades, with a price for each group."""
    sizes = 10.0 ** rng.uniform(0, 5, layers)
    until = np.concatenate(([0.0], np.cumsum(sizes)))
    elements = np.maximum(until[1:] - until[:-1, None], 0.0)
    base, slope = 10.0 ** rng.uniform(-3, 0, (stages, 1, 1)), 10.0 ** rng.uniform(-6, -4, (stages, 1, 1))
    seconds = base + slope * np.ceil(elements * 10.0 ** rng.uniform(-2, 0))
    backward = np.concatenate(([0.0], np.cumsum(rng.exponential(size=layers)))) * 10.0 ** rng.uniform(-2, 1)
    return Pipeline(seconds, backward, inline, float(rng.exponential()))


@pytest.mark.parametrize(("stages", "inline"), [(2, True), (3, False), (3, True), (2, False), (1, True)])
def test_no_grouping_ends_before_the_exact_one(stages: int, inline: bool) -> None:
    rng = np.random.default_rng(stages * 2 + inline)
    for _ in range(600):
        holds_against_all(random_costs(rng, int(rng.integers(1, 11)), stages, inline))


@pytest.mark.parametrize("slack", [0.001, 0.02, 0.3])
def test_no_fewer_groups_are_within_the_slack(slack: float) -> None:
    rng = np.random.default_rng(7)
    for _ in range(300):
        layers, inline = int(rng.integers(1, 11)), bool(rng.integers(2))
        holds_against_all(random_costs(rng, layers, 3, inline), slack)


@pytest.mark.parametrize("inline", [False, True])
def test_no_grouping_of_twelve_layers_ends_before_the_exact_one(inline: bool) -> None:
    rng = np.random.default_rng(12)
    for _ in range(60):
        holds_against_all(random_costs(rng, 12, 2 if inline else 3, inline))


@st.composite
def small_numbers(draw: st.DrawFn) -> Pipeline:
    """Small whole times in no order at all, which have many ties."""
    layers, stages = draw(st.integers(1, 7)), draw(st.integers(1, 3))
    # One number for up to 154 small ones, each of which would take a draw of its own.
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    most = draw(st.integers(1, 4))
    seconds = rng.integers(0, most, (stages, layers, layers), endpoint=True).astype(np.float64)
    own = rng.integers(0, most, layers, endpoint=True)
    return Pipeline(seconds, np.cumsum([0.0, *own]), draw(st.booleans()), float(draw(st.integers(0, 3))))


@settings(deadline=None, max_examples=400)
@given(small_numbers())
def test_of_ties_the_exact_one_has_the_fewest_groups(costs: Pipeline) -> None:
    holds_against_all(costs)


def test_one_group_may_cost_less_than_its_last_layers_alone() -> None:
    """Layers 0 and 1 take 1 s together, layer 2 takes 1 s, all together hardly more; other groups 100 s."""
    seconds = np.full((1, 3, 3), 100.0)
    seconds[0, 0, 1] = seconds[0, 2, 2] = 1.0
    seconds[0, 0, 2] = 2.01
    costs = Pipeline(seconds, np.zeros(4), False, 0.0)
    assert merge_exact(costs) == (Group(0, 1), Group(2, 2))
    assert merge_exact(costs, 0.02) == (Group(0, 2),)


@quick
@given(small_numbers())
def test_greedy_is_the_papers_scan(costs: Pipeline) -> None:
    """docs/methods.md section 1.3: for l = L..2, l is merged into l - 1 if that shortens the predicted step."""
    layers = len(costs.backward) - 1
    merged: set[int] = set()

    def groups(into_next: set[int]) -> tuple[Group, ...]:
        cuts = [0, *(number + 1 for number in range(layers) if number not in into_next)]
        return tuple(Group(first, following - 1) for first, following in itertools.pairwise(cuts))

    for index in range(layers - 1):
        trial = merged | {index}
        if simulate(costs, groups(trial)).seconds < simulate(costs, groups(merged)).seconds:
            merged = trial
    assert merge_greedy(costs) == groups(merged)


@quick
@given(small_numbers(), st.integers(1, 3), st.data())
def test_bounds_hold_for_every_way_to_go_on(costs: Pipeline, rows: int, data: st.DataObject) -> None:
    layers = len(costs.backward) - 1
    cuts = [place for place in range(1, layers) if data.draw(st.booleans())]
    bounds = np.array([0, *cuts, layers])
    groups = len(bounds) - 1
    times = np.empty((groups, 2, len(costs.seconds)))
    end = run_pipeline(costs, bounds, times)
    anyhow, limited = relax(costs, 0), relax(costs, rows)
    for row in range(1, rows + 1):
        allow_group(costs, limited, row)
    for number, first in enumerate(bounds[:-1]):
        clocks = times[number - 1, 1] if number else np.full(len(costs.seconds), costs.start)
        rest = groups - number
        relaxations: list[tuple[Any, int]] = [(anyhow, 0)]
        relaxations += [(limited, row) for row in range(rest, rows + 1)]
        for relaxation, row in relaxations:
            assert (clocks + relaxation.remaining[row, :, first]).max() <= end
            assert relaxation.end[row, first] <= end
            assert (relaxation.arrival[:, first] <= times[number, 0]).all()
            for q, s in itertools.combinations(range(len(costs.seconds)), 2):
                assert clocks[q] + relaxation.passage[q, s, first] <= times[number, 0, s]


@quick
@given(small_numbers(), st.integers(1, 3), st.integers(1, 7))
def test_a_limited_search_keeps_its_limits(costs: Pipeline, width: int, most: int) -> None:
    layers = len(costs.backward) - 1
    most = min(most, layers)
    relaxation = relax(costs, most if most < layers else 0)
    for row in range(1, len(relaxation.end)):
        allow_group(costs, relaxation, row)
    ends, counts = all_ends(costs)
    within = ends[counts <= most]
    bounds = search(costs, relaxation, 1e9, most, 2**40)
    times = np.empty((len(bounds) - 1, 2, len(costs.seconds)))
    assert run_pipeline(costs, bounds, times) == pytest.approx(within.min())
    assert len(bounds) - 1 <= most
    assert len(search(costs, relaxation, within.min() - 0.5, most, 2**40)) == 1
    if most == layers:
        narrow = search(costs, relaxation, 1e9, most, width)
        assert (narrow[0], narrow[-1]) == (0, layers)
        assert (np.diff(narrow) > 0).all()


@pytest.mark.parametrize("inline", [False, True])
def test_no_few_groups_end_before_those_of_a_limited_search(inline: bool) -> None:
    rng = np.random.default_rng(8)
    for _ in range(300):
        costs = random_costs(rng, int(rng.integers(7, 11)), 3, inline)
        ends, counts = all_ends(costs)
        most_of_all = len(costs.backward) - 2
        relaxation = relax(costs, most_of_all)
        for most in range(1, most_of_all + 1):
            allow_group(costs, relaxation, most)
            bounds = search(costs, relaxation, 1e9, most, 2**40)
            end = run_pipeline(costs, bounds, np.empty((len(bounds) - 1, 2, 3)))
            assert end == pytest.approx(ends[counts <= most].min(), rel=1e-12)
            assert len(bounds) - 1 <= most


def profile_of(name: str, rng: np.random.Generator) -> Profile:
    sizes = [layer.elements for layer in TABLES[name].layers]
    layers = tuple(LayerCost(str(i), n, float(rng.exponential(2e-3))) for i, n in enumerate(sizes))
    link = LinkCost(2e-4, 3.2e-8, 3.2e-8)
    return Profile(layers, 0.1, LinearCost(1e-5, 1e-9), LinearCost(3e-5, 5e-9), link, 4, 1)


@pytest.mark.parametrize("name", ["resnet50", "googlenet", "resnet20"])
@pytest.mark.parametrize("method", ["none", "lags", "dlgs"])
@pytest.mark.parametrize("inline", [False, True])
def test_the_exact_plan_of_a_real_model_beats_all_others(name: str, method: str, inline: bool) -> None:
    rng = np.random.default_rng(3)
    costs = step_costs(profile_of(name, rng), Compression(METHODS[method]), inline=inline, full_duplex=not inline)
    layers = len(costs.backward) - 1
    groups = merge_exact(costs)
    seconds = simulate(costs, groups).seconds
    assert groups == merge_exact(costs)
    assert seconds <= simulate(costs, merge_greedy(costs)).seconds * (1 + TIE)
    for share in np.geomspace(0.005, 1, 60):
        cuts = np.flatnonzero(rng.random(layers - 1) < share) + 1
        others = [Group(int(a), int(b) - 1) for a, b in itertools.pairwise([0, *cuts, layers])]
        assert seconds <= simulate(costs, others).seconds * (1 + TIE)
    # One group less than it has cannot be had for nothing.
    for number in range(len(groups) - 1):
        pair = Group(groups[number].first_layer, groups[number + 1].last_layer)
        fewer = (*groups[:number], pair, *groups[number + 2 :])
        assert simulate(costs, fewer).seconds > seconds


def test_two_hundred_layers_whose_groups_tie() -> None:
    """All groups pass while backward runs but the last, so that a few do for what two hundred would."""
    backward = np.linspace(0.0, 0.2, 201, dtype=np.float64)
    seconds = np.full((3, 200, 200), 1e-4) + 1e-6 * np.maximum(np.arange(200) - np.arange(200)[:, None], 0)
    groups = merge_exact(Pipeline(seconds, backward, False, 0.1))
    assert simulate(Pipeline(seconds, backward, False, 0.1), groups).seconds == pytest.approx(0.3 + 3e-4)
    assert len(groups) == 2
