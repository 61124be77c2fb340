"""PowerSGD beside the algorithm in NumPy, and its promises: nothing is lost, and a state goes on."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from taihu.core.base.errors import ConfigError
from taihu.core.compression.low_rank import LowRank, matrix_of
from taihu.core.model.layout import LayerSpec, Layout, TensorSpec

Values = NDArray[np.float32]
SHAPES = st.lists(
    st.one_of(
        st.tuples(st.integers(0, 9)),
        st.tuples(st.integers(1, 12), st.integers(1, 12)),
        st.tuples(st.integers(1, 8), st.integers(1, 5), st.integers(1, 3)),
    ),
    min_size=1,
    max_size=5,
)


def layout_of(shapes: list[tuple[int, ...]]) -> Layout:
    return Layout(tuple(LayerSpec(f"l{i}", (TensorSpec("gradient", shape),)) for i, shape in enumerate(shapes)))


class Workers:
    """Some workers, whose codes are summed as a dense exchange does."""

    def __init__(self, layout: Layout, rank: int, count: int) -> None:
        self.layout = layout
        self.own = [LowRank(layout, rank, 7) for _ in range(count)]
        self.codes = [np.zeros(self.own[0].layout.elements, dtype=np.float32) for _ in range(count)]

    def step(self, gradients: list[Values]) -> list[Values]:
        """The mean gradients that each comes to."""
        offsets = self.layout.offsets
        parts = [slice(*each) for each in pairwise(offsets)]
        for own, codes, gradient in zip(self.own, self.codes, gradients, strict=True):
            for layer, part in enumerate(parts):
                own.encode(layer, gradient[part], codes)
        first = self.own[0]
        bounds = first.layout.offsets
        self._mean(slice(0, bounds[len(parts)]))
        for late in range(len(first.sources)):
            for own, codes in zip(self.own, self.codes, strict=True):
                own.follow(late, codes)
        self._mean(slice(bounds[len(parts)], None))
        decoded = [np.empty(self.layout.elements, dtype=np.float32) for _ in self.own]
        for own, codes, into in zip(self.own, self.codes, decoded, strict=True):
            for layer, part in enumerate(parts):
                own.decode(layer, codes, into[part])
        return decoded

    def _mean(self, part: slice) -> None:
        mean = np.mean([codes[part] for codes in self.codes], axis=0, dtype=np.float64).astype(np.float32)
        for codes in self.codes:
            codes[part] = mean


class Plain:
    """Algorithms 1 and 2 of one matrix, in fp64, by Gram and Schmidt."""

    def __init__(self, right: NDArray[np.float64], workers: int, shape: tuple[int, int]) -> None:
        self.right = right
        self.held = [np.zeros(shape) for _ in range(workers)]

    def step(self, gradients: list[NDArray[np.float64]]) -> NDArray[np.float64]:
        owed = [held + gradient for held, gradient in zip(self.held, gradients, strict=True)]
        left = np.mean([each @ self.right for each in owed], axis=0)
        for column in range(left.shape[1]):
            left[:, column] /= np.linalg.norm(left[:, column])
            for later in range(column + 1, left.shape[1]):
                left[:, later] -= (left[:, column] @ left[:, later]) * left[:, column]
        rights = [each.T @ left for each in owed]
        self.held = [each - left @ right.T for each, right in zip(owed, rights, strict=True)]
        self.right = np.mean(rights, axis=0)
        mean: NDArray[np.float64] = left @ self.right.T
        return mean


@settings(max_examples=40, deadline=None)
@given(
    rows=st.integers(6, 30),
    columns=st.integers(6, 30),
    rank=st.integers(1, 2),
    count=st.integers(1, 4),
    seed=st.integers(0, 2**32),
)
def test_it_is_the_algorithm_of_the_paper(*, rows: int, columns: int, rank: int, count: int, seed: int) -> None:
    layout = layout_of([(rows, columns)])
    workers = Workers(layout, rank, count)
    (first,) = (each.arrays()["right"].reshape(rank, columns).T.astype(np.float64) for each in workers.own[:1])
    plain, random = Plain(first, count, (rows, columns)), np.random.default_rng(seed)
    for _ in range(4):
        gradients = [random.standard_normal(rows * columns).astype(np.float32) for _ in range(count)]
        seen = workers.step(gradients)
        expected = plain.step([each.reshape(rows, columns).astype(np.float64) for each in gradients])
        assert len({each.tobytes() for each in seen}) == 1
        np.testing.assert_allclose(seen[0].reshape(rows, columns), expected, rtol=1e-2, atol=1e-3)
        for own, held in zip(workers.own, plain.held, strict=True):
            np.testing.assert_allclose(own.arrays()["residual"].reshape(rows, columns), held, rtol=1e-2, atol=2e-3)


@settings(max_examples=60, deadline=None)
@given(shapes=SHAPES, rank=st.integers(1, 4), count=st.integers(1, 3), seed=st.integers(0, 2**32))
def test_what_is_decoded_and_what_is_held_back_are_the_gradients(
    *, shapes: list[tuple[int, ...]], rank: int, count: int, seed: int
) -> None:
    layout, random = layout_of(shapes), np.random.default_rng(seed)
    workers, owed, had = Workers(layout, rank, count), np.zeros(layout.elements), np.zeros(layout.elements)
    for _ in range(5):
        gradients = [random.standard_normal(layout.elements).astype(np.float32) for _ in range(count)]
        owed += np.mean(gradients, axis=0)
        had += workers.step(gradients)[0]
    held = np.mean([own.arrays()["residual"] for own in workers.own], axis=0)
    np.testing.assert_allclose(had + held, owed, rtol=1e-3, atol=1e-3)


@given(shapes=SHAPES, rank=st.integers(1, 4))
def test_codes_are_fewer_and_what_is_no_matrix_goes_as_it_is(shapes: list[tuple[int, ...]], rank: int) -> None:
    layout = layout_of(shapes)
    low = LowRank(layout, rank, 1)
    assert low.layout.elements <= layout.elements
    for layer, shape in enumerate(shapes):
        codes = low.layout.layers[layer].elements
        if layer in low.sources:
            rows, columns = matrix_of(shape, rank) or (0, 0)
            late = low.layout.layers[len(shapes) + low.sources.index(layer)]
            assert (codes, late.elements) == (rows * rank, columns * rank)
            assert rows * columns == layout.layers[layer].elements > codes + late.elements
            assert late.kind not in {each.kind for each in layout.layers}
        else:
            assert codes == layout.layers[layer].elements


def test_a_matrix_of_so_low_a_rank_comes_as_it_is() -> None:
    random = np.random.default_rng(5)
    gradient = (random.standard_normal((20, 2)) @ random.standard_normal((2, 30))).astype(np.float32)
    workers = Workers(layout_of([(20, 30)]), 2, 1)
    np.testing.assert_allclose(workers.step([gradient.ravel()])[0].reshape(20, 30), gradient, rtol=1e-4, atol=1e-4)


def test_behind_zeros_there_is_something_again() -> None:
    random, workers = np.random.default_rng(3), Workers(layout_of([(20, 30)]), 2, 2)
    zeros = np.zeros(600, dtype=np.float32)
    for _ in range(3):
        assert not workers.step([zeros, zeros])[0].any()
    gradient = np.outer(random.standard_normal(20), random.standard_normal(30)).astype(np.float32).ravel()
    for _ in range(2):
        seen = workers.step([gradient, gradient])[0]
    np.testing.assert_allclose(seen, gradient, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("odd", [np.nan, np.inf])
def test_what_is_not_finite_on_one_reaches_all_and_does_not_stay(odd: float) -> None:
    random, workers = np.random.default_rng(3), Workers(layout_of([(20, 30), (7,)]), 2, 2)

    def gradients() -> list[Values]:
        return [random.standard_normal(607).astype(np.float32) for _ in range(2)]

    workers.step(gradients())
    bad = gradients()
    bad[1][17] = odd
    assert all(np.isnan(seen[:600]).all() for seen in workers.step(bad))
    assert all(np.isfinite(own.arrays()["residual"]).all() for own in workers.own)
    assert all(np.isfinite(seen).all() for seen in workers.step(gradients()))


def test_a_state_goes_on_with_the_same_bits_and_another_ones_is_refused() -> None:
    random, layout = np.random.default_rng(3), layout_of([(20, 30), (7,), (9, 8)])
    whole = Workers(layout, 2, 2)
    steps = [[random.standard_normal(layout.elements).astype(np.float32) for _ in range(2)] for _ in range(6)]
    for gradients in steps[:3]:
        whole.step(gradients)
    after = Workers(layout, 2, 2)
    for own, former in zip(after.own, whole.own, strict=True):
        own.resume({name: array.copy() for name, array in former.arrays().items()})
    for gradients in steps[3:]:
        assert [each.tobytes() for each in whole.step(gradients)] == [
            each.tobytes() for each in after.step(gradients)
        ]
    with pytest.raises(ConfigError, match=r"compression\.rank"):
        LowRank(layout, 3, 7).resume(whole.own[0].arrays())
