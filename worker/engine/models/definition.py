"""Layers from the definitions in a file: nothing is executed but the constructors of the built-in layers."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from types import MappingProxyType, NoneType, UnionType
from typing import Any, Final, Literal, Union, get_args, get_origin, get_type_hints

from taihu.core.base.errors import ModelError
from taihu.worker.engine.base.layer import Layer
from taihu.worker.engine.layers.attention import CausalAttention
from taihu.worker.engine.layers.batch_norm import BatchNorm
from taihu.worker.engine.layers.branches import Auxiliary, Concat
from taihu.worker.engine.layers.containers import PaddedShortcut, Residual, Sequential
from taihu.worker.engine.layers.convolution import Conv2d
from taihu.worker.engine.layers.dense import Dropout, Flatten, Linear, ReLU
from taihu.worker.engine.layers.embedding import Embedding, PositionEmbedding, TiedLinear
from taihu.worker.engine.layers.gelu import GELU
from taihu.worker.engine.layers.layer_norm import LayerNorm
from taihu.worker.engine.layers.pooling import AvgPool2d, GlobalAvgPool, MaxPool2d
from taihu.worker.engine.layers.response_norm import LocalResponseNorm

BUILT_IN: Final[Mapping[str, type[Layer]]] = MappingProxyType(
    {
        layer.__name__: layer
        for layer in (
            Auxiliary,
            AvgPool2d,
            BatchNorm,
            CausalAttention,
            Concat,
            Conv2d,
            Dropout,
            Embedding,
            Flatten,
            GELU,
            GlobalAvgPool,
            LayerNorm,
            Linear,
            LocalResponseNorm,
            MaxPool2d,
            PaddedShortcut,
            PositionEmbedding,
            ReLU,
            Residual,
            Sequential,
            TiedLinear,
        )
    }
)
_KIND: Final = "layer"
_MOST_LAYERS: Final = 10_000
_DEEPEST: Final = 50
_LARGEST: Final = 1 << 24
_LONGEST_NAME: Final = 1000


def build_from_definition(definition: object) -> Layer:
    """Make the layer that `Layer.definition` described.

    Args:
        definition: of a layer, as JSON has it: whatever a file holds.

    Raises:
        ModelError: it does not describe a built-in layer: an unknown kind or argument, a value of another type or
            beyond 2**24, more than 10,000 layers, or more than 50 inside of each other.
    """
    return _Builder().build(definition, 0)


class _Builder:
    """Counts layers while it makes them."""

    def __init__(self) -> None:
        self._layers = 0

    def build(self, definition: object, depth: int) -> Layer:
        self._layers += 1
        if self._layers > _MOST_LAYERS or depth > _DEEPEST:
            raise ModelError(
                f"layer definitions: expected at most {_MOST_LAYERS} layers, {_DEEPEST} inside of each other; seen "
                "more"
            )
        if not isinstance(definition, dict) or not isinstance(definition.get(_KIND), str):
            raise ModelError("layer definitions: expected a table that names a layer, seen something else")
        kind = definition[_KIND]
        if kind not in BUILT_IN:
            raise ModelError(f"layer definitions: unknown layer {kind[:40]!r}; known are {', '.join(BUILT_IN)}")
        given = {name: value for name, value in definition.items() if name != _KIND}
        return self._make(BUILT_IN[kind], given, depth)

    def _make(self, kind: type[Layer], given: Mapping[str, object], depth: int) -> Layer:
        hints = get_type_hints(kind.__init__)
        parameters = inspect.signature(kind).parameters
        # A file of before has no argument that was not there then.
        needed = {name for name, each in parameters.items() if each.default is inspect.Parameter.empty}
        if wrong := sorted((given.keys() - parameters.keys()) | (needed - given.keys())):
            name = wrong[0]
            where = "missing" if name in parameters else "unknown"
            raise ModelError(f"layer definitions: argument {name[:40]!r} of {kind.__name__} is {where}")
        arguments: dict[str, Any] = {}
        for name, value in given.items():
            arguments[name] = self._resolved(value, depth + 1)
            if not _fits(arguments[name], hints[name]):
                raise ModelError(
                    f"layer definitions: {kind.__name__}: {name} is {_shown(value)}; expected what its constructor "
                    "takes"
                )
        return kind(**arguments)

    def _resolved(self, value: object, depth: int) -> object:
        if isinstance(value, dict):
            return self.build(value, depth)
        if isinstance(value, list):
            return [self.build(each, depth) for each in value]
        return value


def _fits(value: object, hint: Any) -> bool:
    """Whether a value from JSON is what the constructor's annotation says."""
    origin = get_origin(hint)
    if origin in (Union, UnionType):
        return any(_fits(value, each) for each in get_args(hint))
    if origin is Literal:
        return isinstance(value, str) and value in get_args(hint)
    if origin is Sequence:
        return isinstance(value, list) and all(_fits(each, get_args(hint)[0]) for each in value)
    if hint in (int, float, bool):
        number = isinstance(value, (int, float) if hint is float else int) and abs(value) <= _LARGEST
        return number and (hint is not bool or value in (0, 1))
    if hint is str:
        return isinstance(value, str) and len(value) <= _LONGEST_NAME
    return hint in (NoneType, Layer) and isinstance(value, hint)


def _shown(value: object) -> str:
    return repr(value)[:40]
