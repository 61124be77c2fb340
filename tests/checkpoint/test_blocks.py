"""Ranges of arenas and columns of tensors as rectangles, beside NumPy's own indexing."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from taihu.core.checkpoint.blocks import Block, Held, blocks_of, column_block
from taihu.core.model.layout import LayerSpec, Layout, TensorSpec

SHAPES = st.lists(st.integers(0, 4), max_size=3).map(tuple)


@st.composite
def layouts(draw: st.DrawFn) -> Layout:
    layers = draw(st.lists(st.lists(SHAPES, min_size=1, max_size=3), min_size=1, max_size=4))
    return Layout(
        tuple(
            LayerSpec(f"layer{number}", tuple(TensorSpec(f"t{each}", shape) for each, shape in enumerate(shapes)))
            for number, shapes in enumerate(layers)
        )
    )


@st.composite
def ranges(draw: st.DrawFn, elements: int) -> NDArray[np.int64]:
    """Disjoint ranges in any order, some of them empty."""
    ends = sorted(draw(st.lists(st.integers(0, elements), max_size=8)))
    pairs = list(zip(ends[::2], ends[1::2], strict=False))
    return np.array(draw(st.permutations(pairs)), dtype=np.int64).reshape(-1, 2)


def matrices(layout: Layout) -> dict[str, NDArray[np.int64]]:
    """Each tensor's elements by their number in the arena, all axes but the last as one."""
    found, start = {}, 0
    for layer in layout.layers:
        for tensor in layer.tensors:
            numbers = np.arange(start, start + tensor.elements)
            width = tensor.shape[-1] if tensor.shape else 1
            found[f"{layer.name}/{tensor.name}"] = numbers.reshape(-1, width) if width else numbers.reshape(0, 1)
            start += tensor.elements
    return found


@settings(max_examples=200)
@given(data=st.data(), layout=layouts())
def test_blocks_of_ranges_are_the_values_in_their_order(data: st.DataObject, layout: Layout) -> None:
    bounds = data.draw(ranges(layout.elements))
    values = np.concatenate([np.zeros(0, np.int64), *(np.arange(start, stop) for start, stop in bounds)])
    blocks, of = list(blocks_of(layout, bounds)), matrices(layout)
    place = 0
    for block in blocks:
        expected = of[block.tensor][block.rows.start : block.rows.stop, block.columns.start : block.columns.stop]
        assert (block.place, block.elements, expected.size > 0) == (place, expected.size, True)
        np.testing.assert_array_equal(block.view(values, block.rows, block.columns), expected)
        place = block.stop
    assert place == len(values)
    # At most the rest of a row, whole rows and the beginning of one, of each tensor that a range touches.
    assert len(blocks) <= 3 * len(of) * max(1, len(bounds))


@settings(max_examples=200)
@given(data=st.data(), layout=layouts(), parts=st.integers(1, 5))
def test_what_is_wanted_and_held_is_found_once(data: st.DataObject, layout: Layout, parts: int) -> None:
    """Columns of some tensors, ranges of others: each element that both sides have, at its place in both."""
    of = matrices(layout)

    def side() -> tuple[list[Block], NDArray[np.int64]]:
        blocks, values, place = [], [np.zeros(0, np.int64)], 0
        if data.draw(st.booleans()):
            bounds = data.draw(ranges(layout.elements))
            numbers = [np.arange(start, stop) for start, stop in bounds]
            return list(blocks_of(layout, bounds)), np.concatenate([*values, *numbers])
        for layer in layout.layers:
            for tensor in layer.tensors:
                width = tensor.shape[-1] if tensor.shape else 1
                index = data.draw(st.integers(0, parts - 1))
                columns = range(width * index // parts, width * (index + 1) // parts)
                name = f"{layer.name}/{tensor.name}"
                blocks.append(column_block(name, tensor.shape, columns, place))
                place = blocks[-1].stop
                if tensor.elements:
                    values.append(of[name][:, columns.start : columns.stop].reshape(-1))
        return blocks, np.concatenate(values)

    (wanted, mine), (held, theirs) = side(), side()
    seen = np.full(len(mine), -1)
    for overlap in Held(held).overlaps(wanted):
        target = overlap.wanted.view(seen, overlap.rows, overlap.columns)
        assert (target == -1).all()
        target[...] = overlap.held.view(theirs, overlap.rows, overlap.columns)
    np.testing.assert_array_equal(seen, np.where(np.isin(mine, theirs), mine, -1))
