"""Layouts to messages and back."""

from __future__ import annotations

from taihu.core.base.errors import FrameError
from taihu.core.model.layout import LayerSpec, Layout, TensorSpec
from taihu.protos import tensor_pb2


def layout_to_message(layout: Layout) -> tensor_pb2.Layout:
    """Convert a layout to its message."""
    return tensor_pb2.Layout(
        layers=[
            tensor_pb2.LayerSpec(
                name=layer.name,
                tensors=[tensor_pb2.TensorSpec(name=t.name, shape=t.shape) for t in layer.tensors],
                kind=layer.kind,
            )
            for layer in layout.layers
        ]
    )


def layout_from_message(message: tensor_pb2.Layout) -> Layout:
    """Convert a message to a layout.

    Raises:
        FrameError: a dimension is negative.
    """
    for layer in message.layers:
        for tensor in layer.tensors:
            if any(size < 0 for size in tensor.shape):
                raise FrameError(f"layout: {layer.name}/{tensor.name} has a negative dimension {list(tensor.shape)}")
    return Layout(
        tuple(
            LayerSpec(layer.name, tuple(TensorSpec(t.name, tuple(t.shape)) for t in layer.tensors), layer.kind)
            for layer in message.layers
        )
    )
