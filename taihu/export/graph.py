"""A trained model as a list of operations with their tensors, in the order of a forward: what exporters write."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from taihu.core.base.errors import ModelError
from taihu.worker.engine import (
    Array,
    Auxiliary,
    Concat,
    Layer,
    ParameterLayer,
    Residual,
    Sequential,
    build_from_definition,
)
from taihu.worker.engine.base.layer import Shape
from taihu.worker.saved.prediction import LoadedModel

INPUT = "normalised"


@dataclass(frozen=True)
class Node:
    """One operation.

    Attributes:
        kind: the class of the layer that computes it, or `Add`; auxiliary classifiers have no part in a graph.
        name: of the value that it makes, unique in the graph: the layer's.
        inputs: names of the values that it takes.
        input_shape: of one sample of the first of them, (height, width, channels), (features,) or (time, features).
        output_shape: likewise.
        arguments: of the layer's constructor.
        tensors: parameters and running statistics by name, float32.
    """

    kind: str
    name: str
    inputs: tuple[str, ...]
    input_shape: Shape
    output_shape: Shape
    arguments: Mapping[str, Any]
    tensors: Mapping[str, Array]


@dataclass(frozen=True)
class Graph:
    """Operations in forward order; the first takes `INPUT`, the normalised inputs, and `output` is the last value."""

    nodes: tuple[Node, ...]
    output: str


def graph_of(model: LoadedModel) -> Graph:
    """The operations of a model.

    Raises:
        ModelError: a layer is of the user's own: nobody else knows what it computes.
    """
    strange = next((layer for layer in model.network.leaves if layer.definition() is None), None)
    if strange is not None or model.network.definition() is None:
        what = "a container" if strange is None else f"{strange.name} ({type(strange).__name__})"
        raise ModelError(f"{what} is a layer of your own, which cannot be exported; only built-in layers can")
    walk = _Walk()
    name, shape = INPUT, model.input_shape
    for layer in model.network.chain:
        name, shape = walk.through(layer, name, shape)
    return Graph(tuple(walk.nodes), name)


class _Walk:
    """Collects nodes in forward order."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []

    def through(self, layer: Layer, name: str, shape: Shape) -> tuple[str, Shape]:
        """Name and shape of what `layer` makes of a value."""
        if isinstance(layer, Sequential):
            for child in layer.children:
                name, shape = self.through(child, name, shape)
            return name, shape
        if isinstance(layer, Residual):
            body, made = self.through(layer.children[0], name, shape)
            shortcut = self.through(layer.children[1], name, shape)[0] if len(layer.children) > 1 else name
            self.nodes.append(Node("Add", layer.name, (body, shortcut), made, made, {}, {}))
            return layer.name, made
        if isinstance(layer, Auxiliary):
            return name, shape
        if isinstance(layer, Concat):
            branches = [self.through(branch, name, shape) for branch in layer.children]
            sides, channels = branches[0][1][:-1], sum(made[-1] for _, made in branches)
            inputs = tuple(branch for branch, _ in branches)
            self.nodes.append(Node("Concat", layer.name, inputs, branches[0][1], (*sides, channels), {}, {}))
            return layer.name, (*sides, channels)
        made = build_from_definition(layer.definition()).build(layer.name, shape)
        self.nodes.append(_leaf(layer, name, shape, made))
        return layer.name, made


def _leaf(layer: Layer, name: str, shape: Shape, made: Shape) -> Node:
    arguments = dict(layer.definition() or {})
    kind = arguments.pop("layer")
    parameters = layer.parameters if isinstance(layer, ParameterLayer) else {}
    return Node(kind, layer.name, (name,), shape, made, arguments, {**parameters, **layer.buffers()})
