"""Layouts: offsets, the digest that stands for a layout, and the words for where two differ."""

from __future__ import annotations

from itertools import accumulate

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taihu.core.model.layout import LayerSpec, Layout, TensorSpec

quick = settings(deadline=None)

# few names, made of what a text form could use between them, so that different layouts look alike
NAMES = st.text(alphabet="a/:,\n", max_size=3)
TENSORS = st.builds(TensorSpec, NAMES, st.lists(st.integers(0, 3), max_size=3).map(tuple))
LAYERS = st.builds(LayerSpec, NAMES, st.lists(TENSORS, max_size=2).map(tuple))
LAYOUTS = st.lists(LAYERS, max_size=3).map(lambda layers: Layout(tuple(layers)))


def one_layer(name: str, *tensors: TensorSpec) -> LayerSpec:
    return LayerSpec(name, tensors)


@quick
@given(LAYOUTS)
def test_sizes_and_offsets_are_those_of_real_arrays(layout: Layout) -> None:
    sizes = [sum(np.empty(tensor.shape).size for tensor in layer.tensors) for layer in layout.layers]
    assert [layer.elements for layer in layout.layers] == sizes
    assert layout.offsets == tuple(accumulate(sizes, initial=0))
    assert layout.elements == sum(sizes)


@quick
@given(LAYOUTS)
def test_tensors_that_are_layers_lie_where_they_lay(layout: Layout) -> None:
    cut = layout.by_tensor()
    tensors = [tensor for layer in layout.layers for tensor in layer.tensors]
    assert [layer.tensors for layer in cut.layers] == [(tensor,) for tensor in tensors]
    assert cut.elements == layout.elements
    assert set(layout.offsets) <= set(cut.offsets)


@quick
@given(LAYOUTS, LAYOUTS)
def test_equal_digests_mean_equal_layouts(left: Layout, right: Layout) -> None:
    assert (left.digest == right.digest) == (left == right)
    assert (left.difference(right) is None) == (left == right)


WEIGHT, BIAS = TensorSpec("w", (3,)), TensorSpec("b", (3,))


@pytest.mark.parametrize(
    ("left", "right"),
    [
        # the slices of one layer of six values are not those of two layers of three
        ([one_layer("a", WEIGHT, BIAS)], [one_layer("a", WEIGHT), one_layer("a", BIAS)]),
        ([one_layer("a", TensorSpec("b/c", (3,)))], [one_layer("a/b", TensorSpec("c", (3,)))]),
        ([one_layer("a")], []),
        ([one_layer("a", WEIGHT)], [one_layer("a", WEIGHT), one_layer("b")]),
        ([one_layer("a", TensorSpec("w", (2, 3)))], [one_layer("a", TensorSpec("w", (3, 2)))]),
        ([one_layer("a", TensorSpec("w", ()))], [one_layer("a", TensorSpec("w", (1,)))]),
        ([one_layer("a", WEIGHT), one_layer("b", BIAS)], [one_layer("b", BIAS), one_layer("a", WEIGHT)]),
    ],
)
def test_layouts_that_are_not_interchangeable_have_other_digests(
    left: list[LayerSpec], right: list[LayerSpec]
) -> None:
    assert Layout(tuple(left)).digest != Layout(tuple(right)).digest


@quick
@given(LAYOUTS)
def test_the_digest_is_that_of_an_equal_layout_made_anew(layout: Layout) -> None:
    again = Layout(
        tuple(LayerSpec(x.name, tuple(TensorSpec(t.name, t.shape) for t in x.tensors)) for x in layout.layers)
    )
    assert again.digest == layout.digest
    assert len(layout.digest) == 64


def test_the_first_difference_is_described_with_names_and_shapes() -> None:
    mine = Layout((one_layer("fc", WEIGHT), one_layer("conv1", TensorSpec("weight", (3, 3, 1, 8)))))
    other = Layout((one_layer("fc", WEIGHT), one_layer("conv1", TensorSpec("weight", (5, 5, 1, 8)))))
    assert mine.difference(other) == "layer conv1 (weight 3x3x1x8) here, conv1 (weight 5x5x1x8) there"
    shorter = Layout(mine.layers[:1])
    assert mine.difference(shorter) == "2 layers here, 1 there"
    assert shorter.difference(mine) == "1 layer here, 2 there"
