"""Learning rates that rise do not enlarge what is held back, whatever plan, checkpoint or script there is."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from taihu.core.compression import Compressor, GroupCompressor
from taihu.core.model.layout import LayerSpec, Layout, TensorSpec
from taihu.core.planner.groups import Group
from taihu.core.traits.methods import DLGS

LAYOUT = Layout(tuple(LayerSpec(f"l{i}", (TensorSpec("w", (size,)),)) for i, size in enumerate((7, 0, 12, 5, 20))))
LAYERS = len(LAYOUT.layers)
PLANS = ((Group(0, 1), Group(2, 4)), (Group(0, 0), Group(1, 1), Group(2, 2), Group(3, 4)), (Group(0, 4),))
Exact = NDArray[np.float64]
RATES = st.sampled_from([0.0, 1e-3, 0.1, 0.25, 1.0, 3.0])


class _Owed:
    """Every gradient that has not been sent: its weight falls by as much as the rate rises."""

    def __init__(self) -> None:
        self._held: list[tuple[Exact, Exact]] = []
        self._rates: Exact | None = None

    def add(self, gradient: Exact, rates: Exact) -> None:
        if self._rates is not None:
            rises = np.divide(rates, self._rates, out=np.full_like(rates, np.inf), where=self._rates > 0)
            rises = np.where(rates > self._rates, rises, 1.0)
            self._held = [(values, weights / rises) for values, weights in self._held]
        self._held.append((gradient.copy(), np.ones_like(rates)))
        self._rates = rates

    def total(self) -> Exact:
        total = np.zeros_like(self._held[0][0])
        for values, weights in self._held:
            total += values * weights
        return total

    def send(self, places: NDArray[np.int32]) -> None:
        for values, _ in self._held:
            values[places] = 0.0


def _compressor(plan: int, gradients: NDArray[np.float32]) -> GroupCompressor:
    return GroupCompressor(
        Compressor(DLGS, 0.1, 3),
        LAYOUT,
        PLANS[plan],
        gradients=gradients,
        parameters=np.zeros_like(gradients),
    )


@settings(max_examples=40, deadline=None)
@given(
    plans=st.tuples(st.integers(0, 2), st.integers(0, 2), st.integers(0, 2)),
    rates=st.lists(st.lists(RATES, min_size=LAYERS, max_size=LAYERS), min_size=6, max_size=6),
    by_layer=st.booleans(),
    seed=st.integers(0, 2**32),
)
def test_what_is_held_back_counts_for_no_more_as_rates_rise(
    *, plans: tuple[int, int, int], rates: list[list[float]], by_layer: bool, seed: int
) -> None:
    random = np.random.default_rng(seed)
    gradients = np.empty(LAYOUT.elements, dtype=np.float32)
    compressor, owed = _compressor(plans[0], gradients), _Owed()
    for step, drawn in enumerate(rates, 1):
        row = drawn if by_layer else [drawn[0]] * LAYERS
        if step == 3:
            compressor.adopt(PLANS[plans[1]])
        if step == 5:
            kept = {name: array.copy() for name, array in compressor.state.arrays().items()}
            compressor = _compressor(plans[2], gradients)
            compressor.state.resume(kept)
        gradients[:] = random.standard_normal(LAYOUT.elements)
        by_element = np.repeat(row, np.diff(LAYOUT.offsets))
        owed.add(gradients.astype(np.float64), by_element)
        expected, sent = owed.total(), np.zeros(LAYOUT.elements)
        for group in range(len(PLANS[plans[(step > 2) + (step > 4)]])):
            selection = compressor.compress(group, step, rates=np.array(row))
            sent[selection.indices] = selection.values
            owed.send(selection.indices)
        np.testing.assert_allclose(sent + compressor.state.residual, expected, rtol=1e-5, atol=1e-5)


def test_what_is_sent_and_held_back_is_the_gradient_bit_for_bit_behind_a_rise() -> None:
    gradients = np.arange(1, LAYOUT.elements + 1, dtype=np.float32) / np.float32(7)
    compressor = _compressor(2, gradients)
    for step, rate in enumerate((0.1, 0.3, 0.3), 1):
        before = compressor.state.residual.copy()
        selection = compressor.compress(0, step, rates=np.full(LAYERS, rate))
        own = compressor.state.residual.copy()
        own[selection.indices] += selection.values
        factor = np.float32(0.1 / 0.3) if step == 2 else np.float32(1.0)
        assert own.tobytes() == (before * factor + gradients).tobytes()


def test_an_unknown_rate_changes_nothing() -> None:
    gradients = np.ones(LAYOUT.elements, dtype=np.float32)
    follows, plain = _compressor(2, gradients), _compressor(2, gradients)
    for step, rate in enumerate((-1.0, 0.5, -1.0, 3.0), 1):
        for compressor, rates in ((follows, np.full(LAYERS, rate)), (plain, None)):
            compressor.compress(0, step, rates=rates)
    assert follows.state.residual.tobytes() == plain.state.residual.tobytes()


def test_a_state_of_before_has_no_rates() -> None:
    gradients = np.ones(LAYOUT.elements, dtype=np.float32)
    first, second = _compressor(2, gradients), _compressor(2, gradients)
    first.compress(0, 1, rates=np.full(LAYERS, 0.1))
    second.state.resume({name: array for name, array in first.state.arrays().items() if name != "rates"})
    before = second.state.residual.copy()
    selection = second.compress(0, 2, rates=np.full(LAYERS, 0.5))
    before += gradients
    before[selection.indices] = 0.0
    assert second.state.residual.tobytes() == before.tobytes()


def test_falling_rates_leave_it_alone() -> None:
    gradients = np.ones(LAYOUT.elements, dtype=np.float32)
    falls, stays = _compressor(2, gradients), _compressor(2, gradients)
    for step, rate in enumerate((1.0, 0.5, 0.1, 0.01), 1):
        one = falls.compress(0, step, rates=np.full(LAYERS, rate))
        other = stays.compress(0, step, rates=np.ones(LAYERS))
        assert one.values.tobytes() == other.values.tobytes()
