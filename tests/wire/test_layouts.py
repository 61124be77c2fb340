"""Layouts of any shape come back from their messages, and ones that are none are refused."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.strategies import CHARACTERS

from taihu.core.base.errors import FrameError
from taihu.core.model.layout import LayerSpec, Layout, TensorSpec
from taihu.core.wire.frames.layouts import layout_from_message, layout_to_message
from taihu.protos import tensor_pb2

quick = settings(deadline=None)
NAMES = st.text(CHARACTERS, min_size=1, max_size=8)
TENSORS = st.builds(TensorSpec, NAMES, st.lists(st.integers(0, 2**40), max_size=4).map(tuple))
LAYERS = st.builds(LayerSpec, NAMES, st.lists(TENSORS, max_size=3).map(tuple), st.integers(0, 3))
LAYOUTS = st.lists(LAYERS, max_size=5).map(lambda layers: Layout(tuple(layers)))


@quick
@given(LAYOUTS)
def test_layouts_come_back_equal(layout: Layout) -> None:
    again = layout_from_message(tensor_pb2.Layout.FromString(layout_to_message(layout).SerializeToString()))
    assert again == layout
    assert again.digest == layout.digest
    assert layout.difference(again) is None


@quick
@given(st.lists(st.integers(0, 9), max_size=3), st.integers(-(2**63), -1), st.integers(0, 3))
def test_a_negative_dimension_is_refused(shape: list[int], negative: int, at: int) -> None:
    shape.insert(at, negative)
    spec = tensor_pb2.TensorSpec(name="weight", shape=shape)
    message = tensor_pb2.Layout(layers=[tensor_pb2.LayerSpec(name="conv1", tensors=[spec])])
    with pytest.raises(FrameError, match=r"conv1/weight.*-"):
        layout_from_message(message)
