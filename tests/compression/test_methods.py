"""The methods against plain NumPy: nothing is lost, what is sent is bounded, thresholds are as printed."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, replace
from decimal import Decimal
from random import Random
from typing import Literal, get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from taihu.core.base.errors import CheckpointError
from taihu.core.compression import (
    CompressionState,
    Compressor,
    Unit,
    make_compressor,
    units_of_plan,
)
from taihu.core.model.layout import LayerSpec, Layout, TensorSpec
from taihu.core.planner.groups import Group
from taihu.core.settings import CompressionSettings, OptimizerSettings
from taihu.core.settings.compression import ValueName
from taihu.core.traits.methods import METHODS
from taihu.kernels.base.half import HALF_KINDS, from_half
from taihu.kernels.packing.few_bits import FEW_BITS

quick = settings(deadline=None, max_examples=60)

Values = NDArray[np.float32]

SIZES = st.lists(st.integers(1, 60), min_size=1, max_size=5)
DENSITIES = st.sampled_from([0.01, 0.1, 0.34, 0.5, 1.0])


OF_UNIT = ("elements", "kept", "selected", "used", "thresholds", "drifts", "refreshed")


def units_of(sizes: list[int]) -> tuple[Unit, ...]:
    stops = np.cumsum(sizes)
    return tuple(
        Unit(int(stop) - size, int(stop), i) for i, (size, stop) in enumerate(zip(sizes, stops, strict=True))
    )


def gradients_of(seed: int, elements: int, steps: int, zeros: bool) -> list[Values]:
    random = np.random.default_rng(seed)
    gradients = [random.standard_normal(elements).astype(np.float32) for _ in range(steps)]
    if zeros:
        for gradient in gradients:
            gradient[random.random(elements) < 0.5] = 0.0
    return gradients


@dataclass(frozen=True)
class UnitReport:
    """The outcome of the update of one unit."""

    step: int
    unit: Unit
    elements: int
    kept: int
    selected: int
    age: int
    threshold: float
    drift: float
    refreshed: bool


class Run:
    """Drives a compressor over an arena and keeps what was sent."""

    def __init__(self, compressor: Compressor, units: tuple[Unit, ...]) -> None:
        self.compressor = compressor
        self.elements = units[-1].stop
        self.state: CompressionState = compressor.init(self.elements, units)
        self.parameters = np.zeros(self.elements, dtype=np.float32)

    def update(self, unit: int, step: int, gradient: Values) -> tuple[UnitReport, NDArray[np.int32], Values]:
        room = self.compressor.most_selected(self.state.units[unit].elements)
        indices = np.full(room, -1, dtype=np.int32)
        values = np.zeros(room, dtype=self.compressor.value_dtype)
        outcome = self.compressor.update(
            self.state,
            range(unit, unit + 1),
            step,
            gradient=gradient,
            parameters=self.parameters,
            indices=indices,
            values=values,
        )
        (of_unit,) = outcome.units
        arrays = (getattr(outcome, name) for name in OF_UNIT)
        report = UnitReport(outcome.step, of_unit, *(array.item() for array in arrays))
        sent, kind = values[: report.selected], self.compressor.value_type
        if kind in FEW_BITS:
            multiples = sent.astype(np.float64) - (2 ** (FEW_BITS[kind] - 1) - 1)
            sent = (multiples * self.state.steps[unit]).astype(np.float32)
        elif kind in HALF_KINDS:
            decoded = np.empty(len(sent), dtype=np.float32)
            from_half(sent, kind, decoded)
            sent = decoded
        return report, indices[: report.selected], sent


@quick
@given(
    method=st.sampled_from(["topk", "lags", "dlgs", "none"]),
    sizes=SIZES,
    density=DENSITIES,
    value_type=st.sampled_from(get_args(ValueName)),
    refresh=st.integers(1, 5),
    seed=st.integers(0, 2**32),
    zeros=st.booleans(),
)
def test_what_is_sent_and_what_stays_is_the_gradient_bit_for_bit(
    *,
    method: str,
    sizes: list[int],
    density: float,
    value_type: ValueName,
    refresh: int,
    seed: int,
    zeros: bool,
) -> None:
    units = units_of(sizes)
    run = Run(Compressor(METHODS[method], density, refresh, value_type), units)
    for step, gradient in enumerate(gradients_of(seed, run.elements, 6, zeros), 1):
        for index, unit in enumerate(units):
            part = slice(unit.start, unit.stop)
            owed = run.state.residual[part] + gradient[part]
            _, indices, sent = run.update(index, step, gradient)
            kept = run.state.residual[part].copy()
            # What fewer bits take away stays; what they hold goes.
            lost = float(run.state.steps[index]) / 2 if value_type in FEW_BITS else 1e-7
            np.testing.assert_allclose(sent, owed[indices - unit.start], rtol=1 / 128, atol=lost)
            kept[indices - unit.start] += sent
            np.testing.assert_array_equal(kept.view(np.uint32) & 0x7FFFFFFF, owed.view(np.uint32) & 0x7FFFFFFF)
            assert (np.sign(kept) == np.sign(owed)).all()


@quick
@given(
    sizes=SIZES,
    density=DENSITIES,
    refresh=st.integers(1, 6),
    warmup=st.sampled_from([0, 0, 9]),
    slack=st.sampled_from([0.25, 0.0, 0.1, 1.0, 2.5, math.inf]),
    seed=st.integers(0, 2**32),
)
def test_thresholds_and_selections_follow_the_printed_algorithm(
    *, sizes: list[int], density: float, refresh: int, warmup: int, slack: float, seed: int
) -> None:
    """docs/methods.md section 1.1 in NumPy, with the bound of the count; another density makes the threshold anew."""
    units = units_of(sizes)
    run = Run(Compressor(METHODS["dlgs"], density, refresh, density_warmup_steps=warmup, slack=slack), units)
    residual = np.zeros(run.elements, dtype=np.float32)
    thresholds: dict[int, float] = {}
    ages: dict[int, int] = {}
    made_for: dict[int, int] = {}
    for step, gradient in enumerate(gradients_of(seed, run.elements, 12, zeros=False), 1):
        for index, unit in enumerate(units):
            part = slice(unit.start, unit.stop)
            share = density if step > warmup else density ** ((step - 1) / warmup)
            k = max(1, math.ceil(share * unit.elements))
            g = residual[part] + gradient[part]
            due = index not in ages or ages[index] + 1 == refresh or made_for[index] != k
            used_before = ages.get(index, -1) + 1
            hits = 0 if due else int((np.abs(g) >= thresholds[index]).sum())
            most = math.inf if slack == math.inf else k + max(1, math.floor(k * slack))
            if due or hits < k - math.floor(k * min(slack, 1)) or hits > most:
                thresholds[index], ages[index], made_for[index] = float(np.sort(np.abs(g))[-k]), 0, k
                refreshed = True
            else:
                ages[index] += 1
                refreshed = False
            expected = np.flatnonzero(np.abs(g) >= thresholds[index])
            assert len(expected) <= run.compressor.most_selected_at(unit.elements, step)
            report, indices, sent = run.update(index, step, gradient)
            np.testing.assert_array_equal(indices, expected + unit.start)
            np.testing.assert_array_equal(sent, g[expected])
            assert (report.refreshed, report.kept, report.selected) == (refreshed, k, len(expected))
            assert (report.step, report.unit, report.elements) == (step, unit, unit.elements)
            assert (report.threshold, report.age) == (thresholds[index], used_before)
            g[expected] = 0.0
            residual[part] = g
    np.testing.assert_array_equal(run.state.residual, residual)


@quick
@given(st.integers(1, 200), DENSITIES, st.integers(0, 2**32))
def test_equal_values_are_selected_up_to_a_quarter_more_than_the_density_asks_for(
    elements: int, density: float, seed: int
) -> None:
    run = Run(Compressor(METHODS["dlgs"], density), units_of([elements]))
    k = max(1, math.ceil(density * elements))
    sign = np.random.default_rng(seed).choice(np.array([-1, 1], dtype=np.float32), elements)
    report, indices, _ = run.update(0, 1, sign)
    assert report.selected == min(elements, k + max(1, k // 4))
    np.testing.assert_array_equal(indices, np.arange(report.selected))


def test_a_threshold_is_not_reused_for_another_density() -> None:
    """Although it would select few enough: a count may be a quarter off."""
    run = Run(Compressor(METHODS["dlgs"], 0.5, 99, density_warmup_steps=20), units_of([1000]))
    gradient = np.arange(1, 1001, dtype=np.float32)
    kept = []
    for step in range(1, 24):
        run.state.residual[:] = 0.0
        report, _, _ = run.update(0, step, gradient)
        assert report.refreshed == (step <= 21)
        kept.append(report.selected)
    assert kept == [max(1, math.ceil(0.5 ** (min(step, 20) / 20) * 1000)) for step in range(23)]


@pytest.mark.parametrize(("method", "unit", "refreshes"), [("topk", 1, 6), ("lags", 3, 6), ("dlgs", 3, 2)])
def test_methods_differ_in_what_shares_a_threshold_and_for_how_long(method: str, unit: int, refreshes: int) -> None:
    """docs/methods.md section 1.5: over the model, or every layer; only DLGS uses a threshold again."""
    settings_ = CompressionSettings.model_validate({"method": method, "density": 0.1, "refresh_every": 3})
    compressor = make_compressor(settings_, OptimizerSettings(momentum=0.0), workers=1, momentum_here=True)
    sizes = (100, 200, 300)
    layout = Layout(tuple(LayerSpec(f"l{i}", (TensorSpec("w", (size,)),)) for i, size in enumerate(sizes)))
    groups = (Group(0, 2),) if method == "topk" else (Group(0, 1), Group(2, 2))
    units = units_of_plan(compressor.unit, layout, groups)
    assert len(units) == unit
    run = Run(compressor, units)
    gradient = np.arange(1, run.elements + 1, dtype=np.float32)
    made_anew = 0
    for step in range(1, 7):
        run.state.residual[:] = 0.0
        made_anew += run.update(0, step, gradient)[0].refreshed
    assert made_anew == refreshes


def test_without_compression_everything_of_each_group_is_sent() -> None:
    settings_ = CompressionSettings(method=METHODS["none"], density=0.01)
    compressor = make_compressor(settings_, OptimizerSettings(momentum=0.0), workers=1, momentum_here=True)
    units = units_of_plan(compressor.unit, LAYOUT, (Group(0, 1), Group(2, 3)))
    assert (len(units), compressor.refresh_every, compressor.most_selected(70)) == (2, 1, 70)
    assert Run(compressor, units_of([70])).update(0, 1, np.ones(70, dtype=np.float32))[0].selected == 70


def test_zeros_are_never_sent() -> None:
    run = Run(Compressor(METHODS["dlgs"], 0.5), units_of([8]))
    gradient = np.zeros(8, dtype=np.float32)
    for step in (1, 2, 3):
        assert run.update(0, step, gradient)[0].selected == 0
    gradient[5] = 1e-30
    report, indices, _ = run.update(0, 4, gradient)
    assert (report.selected, indices.tolist()) == (1, [5])


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("step", [1, 2])
def test_a_value_that_is_not_finite_is_sent_so_that_the_server_can_refuse_it(bad: float, step: int) -> None:
    run = Run(Compressor(METHODS["dlgs"], 0.1, refresh_every=8), units_of([100]))
    gradient = np.linspace(1, 2, 100, dtype=np.float32)
    if step == 2:
        run.update(0, 1, gradient)
    gradient[17] = bad
    _, indices, sent = run.update(0, step, gradient)
    assert 17 in indices
    np.testing.assert_array_equal(sent[indices.tolist().index(17)], np.float32(bad))


@quick
@given(
    elements=st.integers(2, 60),
    density=DENSITIES,
    momentum=st.floats(0, 0.99),
    decay=st.floats(0, 0.1),
    nesterov=st.booleans(),
    masking=st.booleans(),
    seed=st.integers(0, 2**32),
)
def test_momentum_correction_and_factor_masking_are_those_of_dgc(
    *, elements: int, density: float, momentum: float, decay: float, nesterov: bool, masking: bool, seed: int
) -> None:
    """Lin et al. 2018, equations 4 and 5, and section 3.3, in float64."""
    compressor = Compressor(
        METHODS["dlgs"],
        density,
        refresh_every=4,
        momentum=momentum,
        weight_decay=decay,
        nesterov=nesterov,
        factor_masking=masking,
    )
    run = Run(compressor, units_of([elements]))
    run.parameters[:] = np.random.default_rng(seed + 1).standard_normal(elements)
    u, v = np.zeros(elements), np.zeros(elements)
    for step, gradient in enumerate(gradients_of(seed, elements, 5, zeros=False), 1):
        _, indices, sent = run.update(0, step, gradient)
        d = gradient.astype(np.float64) + decay * run.parameters
        u = momentum * u + d
        v += d + momentum * u if nesterov else u
        np.testing.assert_allclose(sent, v[indices], rtol=1e-4, atol=1e-5)
        v[indices] = 0.0
        if masking:
            u[indices] = 0.0
        if momentum or decay:
            np.testing.assert_allclose(run.state.residual, v, rtol=1e-4, atol=1e-5)
            np.testing.assert_allclose(run.state.velocity, u, rtol=1e-4, atol=1e-5)


@given(st.integers(1, 10**7), st.floats(1e-4, 1), st.integers(0, 50))
def test_the_warm_up_falls_exponentially_from_everything_to_the_density(
    elements: int, density: float, steps: int
) -> None:
    """By 28 digits instead of 16: what is kept is the least number that is not below the share."""
    compressor = Compressor(METHODS["dlgs"], density, density_warmup_steps=steps)
    for step in range(1, steps + 3):
        share = Decimal(density) ** (Decimal(min(step - 1, steps)) / steps if steps else 1)
        least = share * elements
        kept = compressor.kept(elements, step)
        # 16 digits may lie on the other side of a whole number.
        assert kept - 1 - Decimal("1e-6") < least <= kept + Decimal("1e-6")
        assert 1 <= kept <= elements
    assert compressor.kept(elements, 1) == elements or not steps
    assert compressor.kept(elements, steps + 1) == compressor.kept(elements, steps + 2)


@quick
@given(st.integers(1, 60), st.floats(0.01, 10), st.integers(0, 2**32))
def test_a_clipped_gradient_has_the_norm_of_the_bound(elements: int, clip: float, seed: int) -> None:
    run = Run(Compressor(METHODS["dlgs"], 1.0, clip_norm=clip), units_of([elements]))
    gradient = gradients_of(seed, elements, 1, zeros=False)[0]
    norm = float(np.linalg.norm(gradient))
    _, _, sent = run.update(0, 1, gradient.copy())
    np.testing.assert_allclose(np.linalg.norm(sent), min(norm, clip), rtol=1e-4)


@quick
@given(SIZES, st.floats(0.1, 10), st.integers(0, 2**32), st.randoms(use_true_random=False))
def test_a_whole_gradient_is_clipped_by_the_norm_of_the_step_before(
    sizes: list[int], bound: float, seed: int, order: Random
) -> None:
    """In the first step each unit by its own; whichever unit comes first, and through other units or a checkpoint."""
    compressor = Compressor(METHODS["lags"], 1.0, clip_norm=bound, clip="whole")
    run = Run(compressor, units_of(sizes))
    before = 0.0
    for step, drawn in enumerate(gradients_of(seed, run.elements, 6, zeros=False), 1):
        gradient = drawn * np.float32(step)
        for place in order.sample(range(len(run.state.units)), len(run.state.units)):
            unit = run.state.units[place]
            part = gradient[unit.start : unit.stop]
            norm = before or float(np.linalg.norm(part.astype(np.float64)))
            _, indices, sent = run.update(place, step, gradient.copy())
            expected = np.float32(min(1.0, bound / norm)) * gradient[indices]
            np.testing.assert_allclose(sent, expected, rtol=1e-6)
        before = float(np.linalg.norm(gradient.astype(np.float64)))
        if step == 2:
            run.state.rebind((Unit(0, run.elements, 0),))
        if step == 4:
            kept = {name: array.copy() for name, array in run.state.arrays().items()}
            run = Run(compressor, units_of(sizes))
            run.state.resume(kept)


def test_a_velocity_of_before_is_left_out_and_one_that_is_missing_is_told() -> None:
    velocities = [Compressor(METHODS["lags"], 1.0, momentum=m).init(3, units_of([3])) for m in (0.9, 0.0)]
    with_one, without = velocities
    with_one.residual[:], with_one.velocity[:] = 2.0, 5.0
    without.resume(with_one.arrays())
    assert (without.residual.tolist(), without.velocity.tolist()) == ([2.0] * 3, [])
    with_one.residual[:] = 7.0
    with pytest.raises(CheckpointError, match="no momentum was applied"):
        with_one.resume(without.arrays())
    assert with_one.residual.tolist() == [7.0] * 3


def test_norms_of_no_number_and_those_of_before_there_were_any_do_not_count() -> None:
    run = Run(Compressor(METHODS["lags"], 1.0, clip_norm=1.0, clip="whole"), units_of([2, 1]))
    run.update(0, 1, np.array([np.inf, 3.0, 4.0], dtype=np.float32))
    run.update(1, 1, np.array([np.inf, 3.0, 4.0], dtype=np.float32))
    run.state.residual[:] = 0.0
    _, _, sent = run.update(0, 2, np.array([8.0, 16.0, 0.0], dtype=np.float32))
    assert sent.tolist() == [2.0, 4.0]
    old = {name: array for name, array in run.state.arrays().items() if name != "squares"}
    fresh = Run(run.compressor, units_of([2, 1]))
    fresh.state.resume(old)
    assert fresh.state.norm_before(3) == 0.0


def test_units_that_are_there_still_keep_their_thresholds() -> None:
    """A plan that merges layers otherwise changes nothing of thresholds by layer, nor of when they are due."""
    random = np.random.default_rng(1)
    run = Run(Compressor(METHODS["dlgs"], 0.1, refresh_every=4), units_of([50, 50, 20]))
    gradients = random.choice(np.array([-1, 1], dtype=np.float32), (5, 120)) * np.arange(1, 121, dtype=np.float32)
    for step in (1, 2):
        for unit in (0, 1, 2):
            run.state.residual[:] = 0.0
            run.update(unit, step, gradients[step])
    before = [array.tolist() for array in (run.state.thresholds, run.state.ages, run.state.kept)]
    run.state.rebind((Unit(50, 100, 0), Unit(0, 50, 1), Unit(100, 110, 1), Unit(110, 120, 1)))
    after = (run.state.thresholds, run.state.ages, run.state.kept)
    for kind, fresh in enumerate((0, -1, 0)):
        assert after[kind].tolist() == [before[kind][1], before[kind][0], fresh, fresh]
    seen = []
    for step in (3, 4, 5):
        run.state.residual[:] = 0.0
        seen.append(run.update(0, step, gradients[0])[0].refreshed)
    assert seen == [False, False, True]


def test_other_units_keep_the_residual_and_make_thresholds_anew() -> None:
    run = Run(Compressor(METHODS["dlgs"], 0.1, refresh_every=100), units_of([50, 50]))
    gradient = gradients_of(3, 100, 1, zeros=False)[0]
    for unit in (0, 1):
        run.update(unit, 1, gradient)
    owed = run.state.residual + gradient
    run.state.rebind(units_of([100]))
    kinds = (run.state.thresholds.dtype, run.state.ages.dtype, run.state.kept.dtype)
    assert [str(kind) for kind in kinds] == ["float32", "int64", "int64"]
    report, indices, sent = run.update(0, 2, gradient)
    assert report.refreshed
    assert math.isnan(report.drift)
    kept = run.state.residual.copy()
    kept[indices] += sent
    np.testing.assert_array_equal(kept, owed)


def test_the_drift_is_the_relative_change_of_the_threshold() -> None:
    run = Run(Compressor(METHODS["lags"], 1 / 4), units_of([4]))
    assert math.isnan(run.update(0, 1, np.array([1, 2, 3, 4], dtype=np.float32))[0].drift)
    assert run.update(0, 2, np.array([0, 0, 0, 5], dtype=np.float32))[0].drift == pytest.approx(1 / 4)
    # Behind a threshold of 0 there is nothing to compare with, behind a small one there is.
    for step, (largest, drift) in enumerate([(0.0, 1.0), (0.25, math.nan), (0.125, 0.5)], 3):
        run.state.residual[:] = 0.0
        report = run.update(0, step, np.array([0, 0, 0, largest], dtype=np.float32))[0]
        assert report.drift == pytest.approx(drift, nan_ok=True)


LAYOUT = Layout(tuple(LayerSpec(f"l{i}", (TensorSpec("w", (size,)),)) for i, size in enumerate((3, 0, 5, 7))))


def test_units_are_the_model_the_layers_or_the_groups() -> None:
    groups = (Group(0, 1), Group(2, 3))
    assert units_of_plan("group", LAYOUT, groups) == (Unit(0, 3, 0), Unit(3, 15, 1))
    assert units_of_plan("layer", LAYOUT, groups) == (Unit(0, 3, 0), Unit(3, 8, 1), Unit(8, 15, 1))
    assert units_of_plan("model", LAYOUT, (Group(0, 3),)) == (Unit(0, 15, 0),)
    assert [unit.name for unit in units_of_plan("group", LAYOUT, groups)] == ["l0 to l1", "l2 to l3"]
    assert [unit.name for unit in units_of_plan("layer", LAYOUT, groups)] == ["l0", "l2", "l3"]


def test_a_job_says_what_shares_a_threshold_of_dlgs_and_of_nothing_else() -> None:
    def unit(**values: str) -> str:
        settings_ = CompressionSettings.model_validate(values)
        return settings_.method.unit_by(settings_.threshold)

    assert unit(method="dlgs") == unit(method="dlgs", threshold="layer") == "layer"
    assert unit(method="dlgs", threshold="group") == "group"
    assert unit(method="lags", threshold="group") == "layer"
    assert unit(method="topk", threshold="group") == "model"


def test_a_job_gives_momentum_to_the_side_that_applies_it() -> None:
    settings_ = CompressionSettings(method=METHODS["dlgs"], density=0.25, refresh_every=7, clip_norm=3.0)
    optimizer = OptimizerSettings(momentum=0.5, weight_decay=0.1)
    here = make_compressor(settings_, optimizer, workers=9, momentum_here=True)
    assert (here.momentum, here.weight_decay, here.refresh_every, here.clip_norm) == (0.5, 0.1, 7, 1.0)
    assert (here.density, here.factor_masking, here.nesterov) == (0.25, settings_.factor_masking, False)
    there = make_compressor(settings_, optimizer, workers=9, momentum_here=False)
    assert there == replace(here, momentum=0.0, weight_decay=0.0)
    assert len(there.init(10, ()).velocity) == 0
    state = here.init(10, ())
    assert str(state.velocity.dtype) == str(state.residual.dtype) == "float32"
    assert len(replace(here, momentum=0.0).init(10, ()).velocity) == 10
    ahead = optimizer.model_copy(update={"nesterov": True})
    assert make_compressor(settings_, ahead, workers=1, momentum_here=True).nesterov
    assert not make_compressor(settings_, ahead, workers=1, momentum_here=False).nesterov
    sixteen = settings_.model_copy(update={"value_type": "bf16", "density_warmup_steps": 5, "factor_masking": True})
    other = make_compressor(sixteen, optimizer, workers=1, momentum_here=True)
    assert (str(other.value_dtype), other.density_warmup_steps, other.factor_masking) == ("uint16", 5, True)
    exact = make_compressor(
        settings_.model_copy(update={"method": METHODS["lags"]}), optimizer, workers=1, momentum_here=True
    )
    assert exact.refresh_every == 1
    whole = settings_.model_copy(update={"clip": "whole"})
    clipping = make_compressor(whole, optimizer, workers=9, momentum_here=True)
    assert (clipping.clip, clipping.clip_norm, here.clip) == ("whole", 3.0, "unit")


@quick
@given(
    SIZES,
    DENSITIES,
    st.sampled_from(["fp32", "fp16", "bf16"]),
    st.sampled_from([0.0, 0.9]),
    st.none() | st.floats(0.5, 3),
    st.integers(0, 2**32),
)
def test_units_that_are_updated_together_come_out_as_each_by_itself(  # noqa: PLR0917 - drawn by place
    sizes: list[int],
    density: float,
    value_type: Literal["fp32", "fp16", "bf16"],
    momentum: float,
    clip: float | None,
    seed: int,
) -> None:
    """Bit for bit: what is sent, what stays, thresholds and reports."""
    units = units_of(sizes)
    compressor = Compressor(
        METHODS["dlgs"],
        density,
        3,
        value_type,
        momentum=momentum,
        factor_masking=momentum > 0,
        clip_norm=clip,
        density_warmup_steps=3,
    )
    one, together = Run(compressor, units), Run(compressor, units)
    for step, gradient in enumerate(gradients_of(seed, one.elements, 6, zeros=False), 1):
        alone = [one.update(unit, step, gradient.copy()) for unit in range(len(units))]
        indices = np.full(one.elements, -1, dtype=np.int32)
        values = np.zeros(one.elements, dtype=compressor.value_dtype)
        outcome = compressor.update(
            together.state,
            range(len(units)),
            step,
            gradient=gradient.copy(),
            parameters=together.parameters,
            indices=indices,
            values=values,
        )
        count = sum(report.selected for report, _, _ in alone)
        assert outcome.units == units
        assert indices[:count].tolist() == [index for _, each, _ in alone for index in each.tolist()]
        sent = np.concatenate([each for _, _, each in alone])
        decoded = values[:count]
        if value_type != "fp32":
            decoded = np.empty(count, dtype=np.float32)
            from_half(values[:count], value_type, decoded)
        assert decoded.tobytes() == sent.tobytes()
        for place, name in enumerate(OF_UNIT):
            told = [
                [r.elements, r.kept, r.selected, r.age, r.threshold, r.drift, r.refreshed][place] for r, *_ in alone
            ]
            np.testing.assert_array_equal(getattr(outcome, name), told)
        assert one.state.residual.tobytes() == together.state.residual.tobytes()
        assert one.state.velocity.tobytes() == together.state.velocity.tobytes()


@pytest.mark.parametrize(
    ("value_type", "digest"),
    [
        ("fp32", "1094663955b8f29c0135edca877dfea57b28d2de3df8f5079e5b0311f8125c63"),
        ("fp16", "1a1b9678ee8bc05284e80eff7ea480f6c028815e46d05937bbb3c1485530f618"),
        ("bf16", "9fe5beb1d2daa853710e077a4fbeb1cac1ad68b5d1c026e230de3b10dbdb44f5"),
    ],
)
def test_with_thresholds_by_group_bits_are_those_from_before_there_were_others(value_type: str, digest: str) -> None:
    """Recorded by the commit before `compression.threshold`, docs/adr/0032."""
    settings_ = CompressionSettings.model_validate(
        {
            "method": "dlgs",
            "threshold": "group",
            "density": 0.05,
            "refresh_every": 4,
            "value_type": value_type,
            "density_warmup_steps": 5,
        }
    )
    compressor = make_compressor(settings_, OptimizerSettings(momentum=0.0), workers=1, momentum_here=True)
    sizes = (100, 200, 1500, 100, 60, 40)
    layout = Layout(tuple(LayerSpec(f"l{i}", (TensorSpec("w", (size,)),)) for i, size in enumerate(sizes)))
    units = units_of_plan(compressor.unit, layout, (Group(0, 1), Group(2, 3), Group(4, 5)))
    state, told = compressor.init(2000, units), hashlib.sha256()
    for step in range(1, 15):
        whole = (np.arange(2000, dtype=np.uint64) * 2654435761 + step * 40503) % np.uint64(65521)
        gradient = (whole.astype(np.float32) - np.float32(32760)) * np.float32(1 / 4096)
        for unit in range(3):
            indices, values = np.empty(2000, dtype=np.int32), np.empty(2000, dtype=compressor.value_dtype)
            outcome = compressor.update(
                state,
                range(unit, unit + 1),
                step,
                gradient=gradient,
                parameters=gradient,
                indices=indices,
                values=values,
            )
            count = outcome.selected.item()
            told.update(indices[:count].tobytes() + values[:count].tobytes())
    told.update(state.residual.tobytes() + state.thresholds.tobytes())
    assert told.hexdigest() == digest
