"""The layout of a model's parameters in an arena.

An arena is one contiguous fp32 buffer for all parameters, or for all gradients. Layers lie in it in backward
order (output side first), so that the layers whose gradients are ready at any moment are one range.
"""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import dataclass
from functools import cached_property

from taihu.core.base.words import counted


@dataclass(frozen=True)
class TensorSpec:
    """One parameter tensor of a layer, for example `weight` of shape (3, 3, 16, 32)."""

    name: str
    shape: tuple[int, ...]

    @property
    def elements(self) -> int:
        """Number of values."""
        return math.prod(self.shape)


@dataclass(frozen=True)
class LayerSpec:
    """One layer with parameters; its tensors lie one after another.

    Layers of different `kind` are never exchanged together: a step may bring gradients of one kind alone.
    """

    name: str
    tensors: tuple[TensorSpec, ...]
    kind: int = 0

    @cached_property
    def elements(self) -> int:
        """Number of values over all tensors."""
        return sum(tensor.elements for tensor in self.tensors)


@dataclass(frozen=True)
class Layout:
    """The layers of a model in backward order.

    `offsets[i]` is the first element of layer i in the arena; `offsets[-1] == elements`.
    """

    layers: tuple[LayerSpec, ...]

    @cached_property
    def offsets(self) -> tuple[int, ...]:
        """Prefix sums of the layer sizes, one longer than `layers`."""
        offsets = [0]
        for layer in self.layers:
            offsets.append(offsets[-1] + layer.elements)
        return tuple(offsets)

    @property
    def elements(self) -> int:
        """Number of values in the arena."""
        return self.offsets[-1]

    def by_tensor(self) -> Layout:
        """The same arena with each tensor as a layer of its own, named LAYER.TENSOR."""
        return Layout(
            tuple(
                LayerSpec(f"{layer.name}.{tensor.name}", (tensor,), layer.kind)
                for layer in self.layers
                for tensor in layer.tensors
            )
        )

    @cached_property
    def digest(self) -> str:
        """SHA-256 over names and shapes: equal digests mean interchangeable arenas."""
        text = json.dumps([[layer.name, [[t.name, t.shape] for t in layer.tensors]] for layer in self.layers])
        return hashlib.sha256(text.encode()).hexdigest()

    def difference(self, other: Layout) -> str | None:
        """Describe the first place where `other` differs from this layout, or None when they are equal."""
        for mine, theirs in zip(self.layers, other.layers, strict=False):
            if mine != theirs:
                return f"layer {_describe(mine)} here, {_describe(theirs)} there"
        if len(self.layers) != len(other.layers):
            return f"{counted(len(self.layers), 'layer')} here, {len(other.layers)} there"
        return None


def _describe(layer: LayerSpec) -> str:
    tensors = ", ".join(f"{t.name} {'x'.join(map(str, t.shape))}" for t in layer.tensors)
    return f"{layer.name} ({tensors})"
