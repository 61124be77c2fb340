"""Calibration recovers the costs that measurements were made from, whatever the clocks, waiting and outliers."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from taihu.core.base.errors import FrameError
from taihu.core.planner.calibration import (
    Transfers,
    calibrate,
    fit_linear,
    fit_link,
    with_measured_bytes,
)
from taihu.core.planner.groups import Group
from taihu.core.planner.measurement import GroupMeasurement, StepMeasurement
from taihu.core.planner.profile import Compression, LinearCost, LinkCost, Profile
from taihu.core.traits.methods import METHODS

Array = NDArray[np.float64]
quick = settings(deadline=None, max_examples=80)
SIZES = st.lists(st.integers(1, 10**6), min_size=3, max_size=12).filter(lambda sizes: max(sizes) > 2 * min(sizes))
SCAN, TOP_K = LinearCost(2e-5, 1e-9), LinearCost(5e-5, 6e-9)
LINK = LinkCost(3e-3, 2e-8, 5e-8)
NAMES = [f"l{i}" for i in range(4)]
ELEMENTS = [100, 250_000, 3_000, 1_000_000]


def measure(
    rng: np.random.Generator,
    step: int,
    *,
    serial: bool,
    workers: int = 3,
    refreshed: bool = False,
    clocks: tuple[float, ...] = (-80.0, 5e3, 0.0),
) -> list[StepMeasurement]:
    """One step of each worker, a group for each layer; all but one of them wait for the others."""
    late = rng.integers(workers)
    cost = TOP_K if refreshed else SCAN
    measured = []
    for rank in range(workers):
        groups = []
        for elements in ELEMENTS:
            up, down = elements // 10, elements // 3
            waiting = 0.0 if rank == late else float(rng.uniform(0.01, 0.5))
            groups.append(
                GroupMeasurement(
                    elements=elements,
                    compress_seconds=cost.base_seconds + cost.seconds_per_element * elements,
                    refreshed=refreshed,
                    bytes_up=up,
                    bytes_down=down,
                    up_seconds=waiting + 2e-3 + LINK.up_seconds_per_byte * up - clocks[rank],
                    down_seconds=1e-3 + LINK.down_seconds_per_byte * down + clocks[rank],
                )
            )
        measured.append(StepMeasurement(step, serial, 0.5, (0.1, 0.2, 0.0, 0.3), tuple(groups)))
    return measured


def reports_of(*steps: list[StepMeasurement]) -> list[list[StepMeasurement]]:
    return [list(own) for own in zip(*steps, strict=True)]


def whole(up_bytes: Array, down_bytes: Array, up_seconds: Array, down_seconds: Array) -> Transfers:
    """Groups of one frame each."""
    count = len(up_bytes)
    return Transfers(up_bytes, down_bytes, up_seconds, down_seconds, np.zeros(count), np.ones(count))


def same_costs(profile: Profile, *, scan: LinearCost = SCAN, top_k: LinearCost = TOP_K) -> None:
    assert (profile.scan.base_seconds, profile.scan.seconds_per_element) == pytest.approx(
        (scan.base_seconds, scan.seconds_per_element)
    )
    assert (profile.top_k.base_seconds, profile.top_k.seconds_per_element) == pytest.approx(
        (top_k.base_seconds, top_k.seconds_per_element)
    )


def scaled(cost: LinearCost, factor: float) -> LinearCost:
    return LinearCost(cost.base_seconds * factor, cost.seconds_per_element * factor)


@pytest.mark.parametrize("seed", range(5))
def test_costs_are_recovered(seed: int) -> None:
    rng = np.random.default_rng(seed)
    reports = reports_of(
        measure(rng, 2, serial=False, refreshed=True),
        measure(rng, 3, serial=False),
        measure(rng, 4, serial=True),
        measure(rng, 5, serial=True),
    )
    profile = calibrate(NAMES, ELEMENTS, reports, servers=2)
    assert [(layer.name, layer.elements) for layer in profile.layers] == list(zip(NAMES, ELEMENTS, strict=True))
    assert (profile.workers, profile.servers) == (3, 2)
    assert profile.forward_seconds == pytest.approx(0.5)
    assert [layer.backward_seconds for layer in profile.layers] == pytest.approx([0.1, 0.2, 0.0, 0.3])
    same_costs(profile)
    link = (profile.link.alpha_seconds, profile.link.up_seconds_per_byte, profile.link.down_seconds_per_byte)
    assert link == pytest.approx((3e-3, 2e-8, 5e-8), rel=1e-4)


@pytest.mark.parametrize("refreshed", [False, True])
def test_one_kind_of_compression_tells_the_other(refreshed: bool) -> None:
    rng = np.random.default_rng(1)
    reports = reports_of(measure(rng, 2, serial=False, refreshed=refreshed), measure(rng, 3, serial=True))
    profile = calibrate(NAMES, ELEMENTS, reports, servers=1)
    if refreshed:
        same_costs(profile, scan=scaled(TOP_K, 1 / 4))
    else:
        same_costs(profile, top_k=scaled(SCAN, 4.0))


def test_what_serial_steps_slow_down_does_not_count() -> None:
    rng = np.random.default_rng(2)
    slow = [replace(one, forward_seconds=9.0) for one in measure(rng, 3, serial=True, refreshed=True)]
    usual = measure(rng, 2, serial=False)
    profile = calibrate(NAMES, ELEMENTS, reports_of(usual, slow), servers=1)
    assert profile.forward_seconds == 0.5
    same_costs(profile, top_k=scaled(SCAN, 4.0))
    assert calibrate(NAMES, ELEMENTS, reports_of(slow), servers=1).forward_seconds == 9.0


def test_without_serial_steps_links_are_free() -> None:
    rng = np.random.default_rng(2)
    profile = calibrate(NAMES, ELEMENTS, reports_of(measure(rng, 2, serial=False)), servers=1)
    assert profile.link == LinkCost(0.0, 0.0, 0.0)


def test_what_has_no_sample_is_free() -> None:
    nothing = [StepMeasurement(2, False, 0.5, (0.1,) * len(NAMES), ())]
    profile = calibrate(NAMES, ELEMENTS, [nothing, nothing], servers=1)
    assert (profile.scan, profile.top_k) == (LinearCost(0.0, 0.0), LinearCost(0.0, 0.0))
    assert profile.link == LinkCost(0.0, 0.0, 0.0)


def test_empty_groups_say_nothing_about_links() -> None:
    rng = np.random.default_rng(3)

    def with_empty_groups(one: StepMeasurement) -> StepMeasurement:
        empty = replace(one.groups[0], elements=0, bytes_up=0, bytes_down=0, up_seconds=7.0, down_seconds=7.0)
        return replace(one, groups=(empty, one.groups[1], empty, one.groups[3]))

    steps = [list(map(with_empty_groups, measure(rng, step, serial=True))) for step in (2, 3)]
    link = calibrate(NAMES, ELEMENTS, reports_of(*steps), servers=1).link
    assert link.alpha_seconds == pytest.approx(LINK.alpha_seconds, rel=1e-4)


@quick
@given(
    st.lists(
        st.lists(
            st.tuples(st.floats(0, 2), st.lists(st.floats(0, 2), min_size=4, max_size=4)), min_size=3, max_size=3
        ),
        min_size=1,
        max_size=6,
    )
)
def test_a_layer_is_ready_when_the_slowest_worker_has_it(times: list[list[tuple[float, list[float]]]]) -> None:
    reports: list[list[StepMeasurement]] = [[], [], []]
    for step, workers in enumerate(times):
        for rank, (forward, backward) in enumerate(workers):
            group = GroupMeasurement(1, 0.0, False, 4, 4, 0.0, 0.0)
            reports[rank].append(StepMeasurement(step, False, forward, tuple(backward), (group,)))
    profile = calibrate(NAMES, ELEMENTS, reports, servers=1)
    ready = profile.forward_seconds
    for layer in range(-1, 4):
        if layer >= 0:
            ready += profile.layers[layer].backward_seconds
            assert profile.layers[layer].backward_seconds >= 0
        slowest = [max(forward + sum(backward[: layer + 1]) for forward, backward in workers) for workers in times]
        assert ready == pytest.approx(float(np.median(slowest)))


def test_steps_that_a_worker_did_not_measure_are_left_out() -> None:
    rng = np.random.default_rng(4)
    reports = reports_of(measure(rng, 2, serial=False), measure(rng, 3, serial=True))
    reports[0].append(replace(reports[0][0], step=9, forward_seconds=50.0))
    assert calibrate(NAMES, ELEMENTS, reports, servers=1).forward_seconds == 0.5
    with pytest.raises(FrameError, match="no step in common"):
        calibrate(NAMES, ELEMENTS, [reports[0][:1], reports[1][1:]], servers=1)


@quick
@given(SIZES, st.floats(0, 10), st.floats(1e-6, 10))
def test_a_line_is_found(sizes: list[int], base: float, slope: float) -> None:
    elements = np.array(sizes, dtype=np.float64)
    cost = fit_linear(elements, base + slope * elements)
    assert cost.seconds_per_element == pytest.approx(slope, rel=1e-6)
    assert cost.base_seconds == pytest.approx(base, rel=1e-4, abs=1e-6 * slope * elements.max())


@quick
@given(SIZES, st.lists(st.floats(0, 5), min_size=12, max_size=12))
def test_the_slope_is_the_weighted_median_of_all_pairs(sizes: list[int], seconds: list[float]) -> None:
    """Half the weight of all pairs lies at most at it, and half at least."""
    cost = fit_linear(np.array(sizes, dtype=np.float64), np.array(seconds[: len(sizes)]))
    pairs = [
        ((seconds[i] - seconds[j]) / (sizes[i] - sizes[j]), abs(sizes[i] - sizes[j]))
        for i in range(len(sizes))
        for j in range(i)
        if sizes[i] != sizes[j]
    ]
    total = sum(weight for _, weight in pairs)
    median = next(s for s, _ in sorted(pairs) if 2 * sum(w for t, w in pairs if t <= s) >= total)
    slope = max(0.0, median)
    rest = float(np.median([y - slope * x for x, y in zip(sizes, seconds, strict=False)]))
    assume(abs(rest) > 1e-9)
    if rest >= 0:
        assert (cost.seconds_per_element, cost.base_seconds) == pytest.approx((slope, rest))
    else:
        ratio = float(np.median([y / x for x, y in zip(sizes, seconds, strict=False)]))
        assert (cost.seconds_per_element, cost.base_seconds) == pytest.approx((ratio, 0.0))


def test_a_few_outliers_change_little() -> None:
    rng = np.random.default_rng(5)
    elements = rng.uniform(1e3, 1e6, 60)
    seconds = 1e-4 + 2e-9 * elements
    seconds[::5] += rng.exponential(0.5, 12)
    cost = fit_linear(elements, seconds)
    assert cost.seconds_per_element == pytest.approx(2e-9, rel=0.1)
    assert cost.base_seconds == pytest.approx(1e-4, rel=0.1)


@pytest.mark.parametrize("elements", [[500.0], [500.0] * 4, [500.0, 480.0, 510.0]])
def test_one_size_gives_a_cost_in_proportion(elements: list[float]) -> None:
    sizes = np.array(elements)
    cost = fit_linear(sizes, sizes * 2e-6)
    assert cost.base_seconds == 0.0
    assert cost.seconds_per_element == pytest.approx(2e-6)


def test_costs_are_never_negative() -> None:
    sizes = np.array([1e3, 1e4, 1e5])
    assert fit_linear(sizes, np.array([3.0, 2.0, 1.0])) == LinearCost(2.0, 0.0)
    steep = fit_linear(sizes, np.array([0.0, 0.0, 9.0]))
    assert (steep.base_seconds, steep.seconds_per_element) == (0.0, 0.0)
    falling = Transfers(
        sizes, sizes, np.array([3.0, 2.0, 1.0]), np.array([-9.0, -9.0, -9.0]), np.zeros(3), np.ones(3)
    )
    assert fit_link(falling) == LinkCost(0.0, 0.0, 0.0)


@quick
@given(SIZES, st.floats(0, 1), st.floats(1e-7, 1e-3), st.floats(1e-7, 1e-3), st.floats(-1e4, 1e4))
def test_links_are_found_whatever_the_clocks(
    sizes: list[int], alpha: float, up: float, down: float, offset: float
) -> None:
    bytes_up = np.array(sizes, dtype=np.float64)
    bytes_down = bytes_up * 3
    link = fit_link(
        whole(
            bytes_up,
            bytes_down,
            alpha * 0.4 + up * bytes_up - offset,
            alpha * 0.6 + down * bytes_down + offset,
        )
    )
    assert link.up_seconds_per_byte == pytest.approx(up, rel=1e-3, abs=1e-9)
    assert link.down_seconds_per_byte == pytest.approx(down, rel=1e-3, abs=1e-9)
    assert link.alpha_seconds == pytest.approx(alpha, abs=1e-4 + 1e-5 * (up + down) * bytes_up.max())


def test_a_direction_of_one_size_is_as_fast_as_the_other() -> None:
    sizes = np.array([1e4, 1e5, 1e6])
    alike = np.array([1e5, 1.01e5, 1.02e5])
    up = fit_link(whole(sizes, alike, 0.5 + 2e-6 * sizes - 100.0, 2e-6 * alike + 100.0))
    down = fit_link(
        Transfers(alike, sizes, 0.5 + 2e-6 * alike - 100.0, 2e-6 * sizes + 100.0, np.zeros(3), np.ones(3))
    )
    for link in (up, down):
        assert (link.up_seconds_per_byte, link.down_seconds_per_byte) == pytest.approx((2e-6, 2e-6))
        assert link.alpha_seconds == pytest.approx(0.5)


@quick
@given(st.lists(st.integers(10**4, 10**6), min_size=1, max_size=6), st.floats(1e-9, 1e-6), st.floats(0, 1e-2))
def test_in_a_ring_bytes_come_while_others_go(sizes: list[int], per_byte: float, alpha: float) -> None:
    """The rate is that of one direction, from one size as from several."""
    sent = np.array(sizes, dtype=np.float64)
    tells = max(sizes) - min(sizes) > 0.1 * max(sizes)
    link = fit_link(whole(sent, sent, alpha * tells + per_byte * sent, np.zeros(len(sent))), in_ring=True)
    assert link.up_seconds_per_byte == pytest.approx(per_byte, rel=1e-6)
    assert link.down_seconds_per_byte == 0.0
    assert link.alpha_seconds == pytest.approx(alpha * tells, abs=1e-9)


def test_a_ring_of_one_group_is_calibrated_by_the_bytes_that_go() -> None:
    group = GroupMeasurement(1000, 0.0, False, 8000, 8000, 0.4, 0.0)
    reports = [[StepMeasurement(1, True, 0.1, (0.2,), (group,))] for _ in range(3)]
    assert calibrate(["only"], [1000], reports, servers=0).link == LinkCost(0.0, 0.4 / 8000, 0.0)


def test_answers_without_values_do_not_tell_what_bytes_cost() -> None:
    """As in stage 3 of ZeRO, where one header more comes for every frame, and what it takes is a start-up."""
    frames = np.array([1.0, 2.0, 4.0, 8.0])
    up = 5e5 * frames
    link = fit_link(whole(up, 64 * frames, 1e-3 + 1e-8 * up, 2e-3 * frames))
    assert (link.up_seconds_per_byte, link.down_seconds_per_byte) == pytest.approx((1e-8, 1e-8))


def test_times_that_fall_with_size_leave_a_rate_in_proportion() -> None:
    sizes = np.array([1e5, 2e5, 4e5])
    link = fit_link(whole(sizes, sizes, np.array([0.3, 0.2, 0.1]), np.zeros(3)))
    assert (link.alpha_seconds, link.up_seconds_per_byte) == pytest.approx((0.0, 0.2 / 4e5))
    assert link.down_seconds_per_byte == link.up_seconds_per_byte


@pytest.mark.parametrize("count", [1, 3])
def test_exchanges_of_one_size_are_put_down_to_bytes(count: int) -> None:
    up, down = np.full(count, 2e6), np.full(count, 6e6)
    link = fit_link(
        Transfers(up, down, np.full(count, 0.3 - 50.0), np.full(count, 0.5 + 50.0), np.zeros(count), np.ones(count))
    )
    assert link.alpha_seconds == pytest.approx(0.0, abs=1e-12)
    assert (link.up_seconds_per_byte, link.down_seconds_per_byte) == pytest.approx((1e-7, 1e-7))


@pytest.mark.parametrize("downlink", ["exact", "doublesqueeze", "dense"])
def test_predicted_bytes_are_the_measured_ones(downlink: Literal["exact", "doublesqueeze", "dense"]) -> None:
    reports = reports_of(*(measure(np.random.default_rng(step), step, serial=True) for step in (1, 2, 3)))
    profile = calibrate(NAMES, ELEMENTS, reports, servers=1)
    groups = [Group(layer, layer) for layer in range(len(ELEMENTS))]
    layers = np.arange(len(ELEMENTS))
    compression = Compression(METHODS["dlgs"], 0.05, downlink=downlink)
    before = replace(profile, sparse_up_ratio=7.0, sparse_down_ratio=9.0)
    after = with_measured_bytes(before, compression, groups, reports)
    sizes = compression.sizes(after, layers, layers)
    assert compression.up_bytes(after, sizes).sum() == pytest.approx(sum(n // 10 for n in ELEMENTS))
    down = sum(n // 3 for n in ELEMENTS) if downlink != "dense" else compression.down_bytes(profile, sizes).sum()
    assert compression.down_bytes(after, sizes).sum() == pytest.approx(down)


def test_where_nothing_was_measured_bytes_are_those_expected() -> None:
    reports = reports_of(measure(np.random.default_rng(1), 1, serial=True))
    silent = [
        [replace(step, groups=tuple(replace(g, bytes_up=0, bytes_down=0) for g in step.groups)) for step in report]
        for report in reports
    ]
    profile = replace(calibrate(NAMES, ELEMENTS, reports, servers=1), sparse_up_ratio=7.0, sparse_down_ratio=9.0)
    groups = [Group(layer, layer) for layer in range(len(ELEMENTS))]
    after = with_measured_bytes(profile, Compression(METHODS["dlgs"], 0.05, downlink="exact"), groups, silent)
    assert (after.sparse_up_ratio, after.sparse_down_ratio) == (1.0, 1.0)
    dense = with_measured_bytes(profile, Compression(METHODS["dlgs"], 0.05, downlink="dense"), groups, reports)
    assert dense.sparse_down_ratio == 1.0
    assert dense.sparse_up_ratio != 1.0


def test_the_share_of_exact_selections_is_measured_by_elements() -> None:
    """Thresholds that are made anew early cost what they cost, whatever `refresh_every` says."""
    rng = np.random.default_rng(1)
    reports = reports_of(measure(rng, 1, serial=False), measure(rng, 2, serial=False, refreshed=True))
    for report in reports:  # In step 1 the largest layer alone, 1,000,000 of 1,253,100.
        first = report[0]
        report[0] = replace(first, groups=(*first.groups[:3], replace(first.groups[3], refreshed=True)))
    groups = [Group(layer, layer) for layer in range(len(ELEMENTS))]
    profile = calibrate(NAMES, ELEMENTS, reports, servers=1)
    assert profile.refresh_ratio == 0.0
    after = with_measured_bytes(profile, Compression(METHODS["dlgs"], 0.05), groups, reports)
    assert after.refresh_ratio == pytest.approx((1 + 1_000_000 / 1_253_100) / 2)
    assert with_measured_bytes(profile, Compression(METHODS["lags"], 0.05), groups, reports).refresh_ratio == 0.0


def test_dense_bytes_are_known_without_measuring() -> None:
    reports = reports_of(measure(np.random.default_rng(1), 1, serial=True))
    profile = calibrate(NAMES, ELEMENTS, reports, servers=1)
    assert with_measured_bytes(profile, Compression(METHODS["none"]), [Group(0, 3)], reports) == profile


@pytest.mark.parametrize("factor", [0.5, 1.0, 3.0])
def test_few_sizes_only_scale_the_link_that_was_known(factor: float) -> None:
    slower = LinkCost(
        LINK.alpha_seconds * factor, LINK.up_seconds_per_byte * factor, LINK.down_seconds_per_byte * factor
    )
    up, down = np.array([4e6, 5e6, 9e6]), np.array([8e6, 7e6, 3e6])
    up_s = slower.alpha_seconds + slower.up_seconds_per_byte * up - 70.0
    down_s = slower.down_seconds_per_byte * down + 70.0
    rows = zip(up.tolist(), down.tolist(), up_s.tolist(), down_s.tolist(), strict=True)
    groups = tuple(GroupMeasurement(1000, 0.0, False, int(u), int(d), us, ds) for u, d, us, ds in rows)
    reports = [[StepMeasurement(9, True, 0.5, (0.1, 0.2, 0.0, 0.3), groups)]]
    known = replace(calibrate(NAMES, ELEMENTS, reports, servers=1), link=LINK)
    link = calibrate(NAMES, ELEMENTS, reports, servers=1, previous=known).link
    assert link.alpha_seconds == pytest.approx(slower.alpha_seconds)
    assert link.up_seconds_per_byte == pytest.approx(slower.up_seconds_per_byte)
    assert link.down_seconds_per_byte == pytest.approx(slower.down_seconds_per_byte)


def test_the_same_few_groups_of_several_steps_are_few_sizes() -> None:
    rng = np.random.default_rng(3)
    steps = []
    for number in range(4):
        up, down = np.array([4e6, 5e6]) * rng.uniform(0.9, 1.1), np.array([8e6, 7e6]) * rng.uniform(0.9, 1.1)
        up_s = LINK.alpha_seconds + LINK.up_seconds_per_byte * up + rng.uniform(0, 0.2, 2)
        rows = zip(
            up.tolist(), down.tolist(), up_s.tolist(), (LINK.down_seconds_per_byte * down).tolist(), strict=True
        )
        groups = tuple(GroupMeasurement(1000, 0.0, False, int(u), int(d), us, ds) for u, d, us, ds in rows)
        steps.append(StepMeasurement(number, True, 0.5, (0.1, 0.2, 0.0, 0.3), groups))
    known = replace(calibrate(NAMES, ELEMENTS, [steps], servers=1), link=LINK)
    link = calibrate(NAMES, ELEMENTS, [steps], servers=1, previous=known).link
    factor = link.alpha_seconds / LINK.alpha_seconds
    assert link.up_seconds_per_byte == pytest.approx(LINK.up_seconds_per_byte * factor)
    assert link.down_seconds_per_byte == pytest.approx(LINK.down_seconds_per_byte * factor)


@pytest.mark.parametrize("factor", [0.5, 1.0, 3.0])
def test_a_group_of_many_frames_does_not_look_like_a_slower_link(factor: float) -> None:
    frames, servers, up_bytes, down_bytes = 20, 2, 4e6, 8e6
    alpha, up_s, down_s = (
        factor * seconds
        for seconds in (
            LINK.alpha_seconds,
            LINK.up_seconds_per_byte * up_bytes,
            LINK.down_seconds_per_byte * down_bytes,
        )
    )
    # The first frame is complete after its own way up; the last one, held back by the window, shortly before the end.
    whole = alpha + up_s / frames + down_s
    completed = 0.8 * whole
    first_completed = alpha + up_s / frames
    group = GroupMeasurement(
        elements=frames * servers * 1000,
        compress_seconds=0.0,
        refreshed=False,
        bytes_up=int(up_bytes),
        bytes_down=int(down_bytes),
        up_seconds=completed,
        down_seconds=whole - first_completed,
        overlap_seconds=completed - first_completed,
    )
    reports = [[StepMeasurement(9, True, 0.5, (0.1, 0.2, 0.0, 0.3), (group,))]]
    known = replace(calibrate(NAMES, ELEMENTS, reports, servers=servers), link=LINK)
    link = calibrate(NAMES, ELEMENTS, reports, servers=servers, frame_elements=1000, previous=known).link
    assert link.alpha_seconds == pytest.approx(LINK.alpha_seconds * factor)
    assert link.up_seconds_per_byte == pytest.approx(LINK.up_seconds_per_byte * factor)
    assert link.down_seconds_per_byte == pytest.approx(LINK.down_seconds_per_byte * factor)


def test_many_sizes_are_fitted_anew() -> None:
    rng = np.random.default_rng(5)
    up, down = rng.uniform(1e4, 1e6, 8), rng.uniform(1e4, 1e6, 8)
    up_s = LINK.alpha_seconds + LINK.up_seconds_per_byte * up
    rows = zip(up.tolist(), down.tolist(), up_s.tolist(), (LINK.down_seconds_per_byte * down).tolist(), strict=True)
    groups = tuple(GroupMeasurement(1000, 0.0, False, round(u), round(d), us, ds) for u, d, us, ds in rows)
    reports = [[StepMeasurement(9, True, 0.5, (0.1, 0.2, 0.0, 0.3), groups)]]
    wrong = replace(calibrate(NAMES, ELEMENTS, reports, servers=1), link=LinkCost(9.0, 9.0, 9.0))
    link = calibrate(NAMES, ELEMENTS, reports, servers=1, previous=wrong).link
    assert link.alpha_seconds == pytest.approx(LINK.alpha_seconds, rel=0.01)
    assert link.up_seconds_per_byte == pytest.approx(LINK.up_seconds_per_byte, rel=0.01)
    assert link.down_seconds_per_byte == pytest.approx(LINK.down_seconds_per_byte, rel=0.01)


def test_a_line_through_0_has_no_base() -> None:
    """Its slope counts, not what a pass took in proportion: half of 25 / 12."""
    sizes = np.array([100.0, 200.0, 300.0, 400.0])
    assert fit_linear(sizes, np.array([0.0, 300.0, 400.0, 300.0])) == LinearCost(0.0, 1.0)


def test_two_sizes_make_a_line() -> None:
    assert fit_linear(np.array([100.0, 300.0]), np.array([7.0, 11.0])) == LinearCost(5.0, 0.02)


def test_sizes_a_tenth_apart_make_none() -> None:
    assert fit_linear(np.array([9.0, 10.0]), np.array([9.0, 12.0])) == LinearCost(0.0, 1.1)
    assert fit_linear(np.array([8.0, 10.0]), np.array([9.0, 10.0])) == LinearCost(5.0, 0.5)


def test_one_element_costs_what_its_pass_took() -> None:
    assert fit_linear(np.array([1.0]), np.array([0.5])) == LinearCost(0.0, 0.5)
    one, none = np.array([1.0]), np.array([0.0])
    assert fit_link(whole(one, none, np.array([0.5]), np.array([0.25]))) == LinkCost(0.0, 0.75, 0.75)


@pytest.mark.parametrize("overlaps", [(0.5, 0.5, 0.5, 0.5), (2.0, 2.0, 2.0, 2.0)])
def test_what_both_ways_hold_counts_once(overlaps: tuple[float, ...]) -> None:
    up, down, overlap = np.array([1e4, 2e5, 4e5, 9e5]), np.array([5e5, 1e5, 7e5, 3e5]), np.array(overlaps)
    up_s = LINK.up_seconds_per_byte * up + overlap
    link = fit_link(Transfers(up, down, up_s, 3e-3 + LINK.down_seconds_per_byte * down, overlap, np.full(4, 2.0)))
    assert link.alpha_seconds == pytest.approx(LINK.alpha_seconds)


def test_where_some_groups_went_whole_they_tell_the_start_up() -> None:
    """Their samples need no guess of how long both ways were busy."""
    up, down = np.array([1e4, 2e5, 4e5, 9e5, 6e5]), np.array([5e5, 1e5, 7e5, 3e5, 2e5])
    guessed = np.array([0.0, 0.001, 0.001, 0.001, 0.0])
    up_s, down_s = LINK.up_seconds_per_byte * up, 3e-3 + LINK.down_seconds_per_byte * down
    assert fit_link(Transfers(up, down, up_s, down_s, guessed, np.ones(5))).alpha_seconds == pytest.approx(3e-3)


def by_groups_of(sizes: list[int], link: LinkCost, *, elements: int = 1000) -> list[list[StepMeasurement]]:
    """The report of one worker of a serial step of whole groups, which took what `link` says."""
    groups = tuple(
        GroupMeasurement(
            elements=elements,
            compress_seconds=0.0,
            refreshed=False,
            bytes_up=size,
            bytes_down=2 * size,
            up_seconds=link.alpha_seconds + link.up_seconds_per_byte * size,
            down_seconds=link.down_seconds_per_byte * 2 * size,
        )
        for size in sizes
    )
    return [[StepMeasurement(9, True, 0.5, (0.1, 0.2, 0.0, 0.3), groups)]]


def calibrated(reports: list[list[StepMeasurement]], previous: LinkCost, frame_elements: int | None) -> LinkCost:
    """The link by `reports`, where `previous` was calibrated before."""
    known = replace(calibrate(NAMES, ELEMENTS, reports, servers=1), link=previous)
    return calibrate(NAMES, ELEMENTS, reports, servers=1, frame_elements=frame_elements, previous=known).link


@pytest.mark.parametrize(("count", "is_fitted"), [(5, False), (6, True), (7, True)])
def test_six_sizes_tell_of_a_link(count: int, is_fitted: bool) -> None:
    """A start-up five times as long as before scales a link that is kept, bytes too."""
    reports = by_groups_of([size * 10_000 for size in range(1, count + 1)], replace(LINK, alpha_seconds=15e-3))
    link = calibrated(reports, LINK, None)
    assert (link.up_seconds_per_byte == pytest.approx(LINK.up_seconds_per_byte)) == is_fitted


def test_a_group_of_less_than_a_frame_is_one_frame() -> None:
    link = calibrated(by_groups_of([10_000, 50_000], LINK, elements=10), LINK, 1000)
    assert (link.alpha_seconds, link.up_seconds_per_byte, link.down_seconds_per_byte) == pytest.approx(
        (LINK.alpha_seconds, LINK.up_seconds_per_byte, LINK.down_seconds_per_byte)
    )


def test_a_link_that_was_free_is_fitted_anew() -> None:
    reports = by_groups_of([10_000, 50_000], LINK)
    fitted = calibrate(NAMES, ELEMENTS, reports, servers=1).link
    assert calibrated(reports, LinkCost(0.0, 0.0, 0.0), None) == fitted != LinkCost(0.0, 0.0, 0.0)


def test_without_serial_steps_no_link_is_kept() -> None:
    usual = [[replace(step, serial=False) for step in report] for report in by_groups_of([10_000], LINK)]
    assert calibrated(usual, LINK, None) == LinkCost(0.0, 0.0, 0.0)


@pytest.mark.parametrize(("exact", "tell"), [((100,), False), ((100, 249_999), False), ((250_000,), True)])
def test_groups_below_a_quarter_of_the_largest_say_nothing(exact: tuple[int, ...], tell: bool) -> None:
    """A kind of compression of which there are only small ones costs what the other one tells."""
    reused = [(size, SCAN) for size in (100, 300_000, 1_000_000)]
    groups = tuple(
        GroupMeasurement(n, cost.base_seconds + cost.seconds_per_element * n, cost == TOP_K, 4, 4, 0.0, 0.0)
        for n, cost in [*reused, *((size, TOP_K) for size in exact)]
    )
    report = [StepMeasurement(2, False, 0.5, (0.1, 0.2, 0.0, 0.3), groups)]
    top_k = calibrate(NAMES, ELEMENTS, [report], servers=1).top_k
    at_large = (TOP_K if tell else scaled(SCAN, 4.0)).seconds_per_element
    # Of one size alone the whole cost is put down to its elements.
    own = TOP_K.base_seconds / 250_000 if tell else 0.0
    assert top_k.seconds_per_element == pytest.approx(at_large + own)


def test_names_elements_and_measured_layers_are_as_many() -> None:
    reports = reports_of(measure(np.random.default_rng(1), 1, serial=True))
    for names, elements in ((NAMES[1:], ELEMENTS), (NAMES, ELEMENTS[1:]), (NAMES[1:], ELEMENTS[1:])):
        with pytest.raises(ValueError, match="zip"):
            calibrate(names, elements, reports, servers=1)


def test_without_groups_bytes_are_those_expected() -> None:
    reports = [[StepMeasurement(1, False, 0.5, (0.1, 0.2, 0.0, 0.3), ())]]
    profile = replace(calibrate(NAMES, ELEMENTS, reports, servers=1), sparse_up_ratio=7.0, sparse_down_ratio=9.0)
    after = with_measured_bytes(profile, Compression(METHODS["dlgs"], 0.05, downlink="exact"), [], reports)
    assert (after.sparse_up_ratio, after.sparse_down_ratio, after.refresh_ratio) == (1.0, 1.0, 0.0)
