"""The timeline against the paper's equations, and against queues that are worked off one by one."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taihu.core.planner.groups import Group
from taihu.core.planner.profile import Compression, LayerCost, LinearCost, LinkCost, Profile
from taihu.core.planner.timeline import Schedule, costs_as, simulate, step_costs
from taihu.core.traits.methods import METHODS
from taihu.kernels.group_search import Pipeline, warm_up

quick = settings(deadline=None, max_examples=150)


def groups_of(bounds: list[int]) -> tuple[Group, ...]:
    return tuple(Group(first, following - 1) for first, following in itertools.pairwise(bounds))


@st.composite
def steps(draw: st.DrawFn, stages: int) -> tuple[Pipeline, tuple[Group, ...]]:
    """Costs of up to 9 layers without any order among them, and a grouping."""
    layers = draw(st.integers(1, 9))
    rng = np.random.default_rng(draw(st.integers(0, 2**31)))
    scale = 10.0 ** rng.integers(-3, 2, size=(stages, 1, 1))
    seconds = rng.exponential(size=(stages, layers, layers)) * scale
    backward = np.concatenate(([0.0], np.cumsum(rng.exponential(size=layers))))
    cuts = [place for place in range(1, layers) if draw(st.booleans())]
    costs = Pipeline(seconds, backward, draw(st.booleans()), float(rng.exponential()))
    return costs, groups_of([0, *cuts, layers])


@quick
@given(steps(stages=2).filter(lambda step: step[0].inline))
def test_inline_is_the_papers_equations(step: tuple[Pipeline, tuple[Group, ...]]) -> None:
    """docs/methods.md section 1.2: layers L..1; a merged one hands its gradient on and costs nothing itself."""
    costs, groups = step
    count = len(costs.backward) - 1
    t_b = {count - index: costs.backward[index + 1] - costs.backward[index] for index in range(count)}
    t_s = dict.fromkeys(t_b, 0.0)
    t_c = dict.fromkeys(t_b, 0.0)
    for group in groups:
        number = count - group.last_layer
        t_s[number], t_c[number] = costs.seconds[:, group.first_layer, group.last_layer]
    tau_b = {count: costs.start}
    tau_s: dict[int, float] = {}
    tau_c: dict[int, float] = {}
    for number in range(count, 0, -1):
        if number < count:
            tau_b[number] = tau_s[number + 1] + t_s[number + 1]
        tau_s[number] = tau_b[number] + t_b[number]
        tau_c[number] = tau_s[number] + t_s[number]
        if number < count:
            tau_c[number] = max(tau_c[number], tau_c[number + 1] + t_c[number + 1])
    timeline = simulate(costs, groups)
    assert timeline.seconds == pytest.approx(tau_c[1] + t_c[1])
    assert timeline.compress_seconds == pytest.approx(sum(t_s.values()))
    for times in timeline.groups:
        number = count - times.group.last_layer
        assert times.ready == pytest.approx(tau_s[number])
        assert times.starts == pytest.approx((tau_s[number], tau_c[number]))


@quick
@given(st.integers(1, 4).flatmap(steps))
def test_every_stage_is_a_queue(step: tuple[Pipeline, tuple[Group, ...]]) -> None:
    costs, groups = step
    timeline = simulate(costs, groups)
    times = timeline.groups
    free = costs.start
    for index, group in enumerate(groups):
        own = costs.backward[group.last_layer + 1] - costs.backward[group.first_layer]
        begin = costs.start + costs.backward[group.first_layer]
        if costs.inline and index:
            begin = times[index - 1].ends[0]
        assert times[index].ready == pytest.approx(begin + own)
    arrivals = [one.ready for one in times]
    for stage in range(len(costs.seconds)):
        free = 0.0
        for index, group in enumerate(groups):
            start = max(arrivals[index], free)
            free = start + costs.seconds[stage, group.first_layer, group.last_layer]
            assert times[index].starts[stage] == pytest.approx(start)
            assert times[index].ends[stage] == pytest.approx(free)
            arrivals[index] = free
    assert [one.group for one in times] == list(groups)
    assert timeline.seconds == times[-1].ends[-1]


@quick
@given(st.integers(1, 4).flatmap(steps))
def test_the_parts_make_up_the_step(step: tuple[Pipeline, tuple[Group, ...]]) -> None:
    costs, groups = step
    timeline = simulate(costs, groups)
    assert timeline.compute_seconds == pytest.approx(costs.start + costs.backward[-1])
    assert min(timeline.compress_seconds, timeline.wait_seconds) > -1e-9
    parts = timeline.compute_seconds + timeline.compress_seconds + timeline.wait_seconds
    assert parts == pytest.approx(timeline.seconds)


def test_compression_that_backward_hides_is_no_part_of_the_step() -> None:
    seconds = np.zeros((3, 2, 2))
    seconds[0] = 1.0
    costs = Pipeline(seconds, np.array([0.0, 5.0, 10.0]), False, 2.0)
    timeline = simulate(costs, groups_of([0, 1, 2]))
    assert (timeline.compute_seconds, timeline.compress_seconds, timeline.wait_seconds) == (12.0, 1.0, 0.0)


PROFILE = Profile(
    layers=tuple(LayerCost(f"l{i}", elements, 0.1 * (i + 1)) for i, elements in enumerate((1000, 20, 300_000))),
    forward_seconds=0.25,
    scan=LinearCost(1e-4, 1e-7),
    top_k=LinearCost(2e-4, 9e-7),
    link=LinkCost(1e-2, 3e-6, 7e-6),
    workers=3,
    servers=2,
)


@pytest.mark.parametrize("method", ["none", "lags", "dlgs"])
@pytest.mark.parametrize("inline", [False, True])
@pytest.mark.parametrize("full_duplex", [False, True])
@pytest.mark.parametrize(("up_s", "down_s"), [(3e-6, 7e-6), (7e-6, 3e-6), (5e-6, 5e-6)])
def test_costs_are_the_groups_compression_and_transfers(
    method: str, inline: bool, full_duplex: bool, up_s: float, down_s: float
) -> None:
    profile = replace(PROFILE, link=LinkCost(1e-2, up_s, down_s))
    compression = Compression(METHODS[method], 0.05)
    costs = step_costs(profile, compression, inline=inline, full_duplex=full_duplex)
    assert (costs.start, costs.inline) == (0.25, inline)
    assert costs.backward == pytest.approx([0.0, 0.1, 0.3, 0.6])
    for first, last in itertools.combinations_with_replacement(range(3), 2):
        sizes = compression.sizes(profile, np.array([first]), np.array([last]))
        up = up_s * compression.up_bytes(profile, sizes)[0]
        down = down_s * compression.down_bytes(profile, sizes)[0]
        frames = math.ceil(sizes.elements[0] * 4 / profile.servers / compression.frame_bytes)
        # Frames of a group stream: of the shorter way, one frame is not hidden by the longer one. Of equal ways it is
        # the answers, which follow, that are hidden.
        streamed = (1e-2 + up / frames, down) if up < down else (1e-2 + up, down / frames)
        expected = [compression.seconds(profile, sizes)[0], *(streamed if full_duplex else (1e-2 + up + down,))]
        assert costs.seconds[:, first, last] == pytest.approx(expected)


@pytest.mark.parametrize(
    ("schedule", "inline", "stages"), [("overlapped", False, 3), ("inline", True, 3), ("paper", True, 2)]
)
def test_a_schedule_says_where_compression_runs_and_how_values_travel(
    schedule: Schedule, inline: bool, stages: int
) -> None:
    costs = costs_as(schedule, PROFILE, Compression(METHODS["dlgs"], 0.05))
    assert (costs.inline, len(costs.seconds)) == (inline, stages)


def test_the_kernels_can_be_compiled_ahead() -> None:
    warm_up()
