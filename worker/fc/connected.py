"""The fully connected end of a model: the layers there that can be spread over the workers."""

from __future__ import annotations

from dataclasses import dataclass

from taihu.core.planner.fc_mode import FcLayer
from taihu.worker.engine import Model
from taihu.worker.engine.layers.dense import Dropout, Linear, ReLU


@dataclass(frozen=True)
class Spreadable:
    """The layers of a model that can be spread, in forward order; `leave_one`: it has no others with parameters."""

    layers: tuple[FcLayer, ...] = ()
    leave_one: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        """Of the layers."""
        return tuple(layer.name for layer in self.layers)


def spreadable(model: Model) -> Spreadable:
    """The layers of `model` that the workers, or a plan of their memory, choose from."""
    layers = fully_connected_layers(model)
    shapes = [(layer.name, layer.tensors[0].shape) for layer in layers]
    found = tuple(FcLayer(name, inputs, outputs) for name, (inputs, outputs) in shapes)
    return Spreadable(found, leave_one=len(found) == len(model.layout.layers))


def fully_connected_layers(model: Model) -> tuple[Linear, ...]:
    """The layers at the end of `model` that can be sharded, in forward order; may be none.

    Where there are auxiliary classifiers, these need the whole loss.
    """
    if model.has_auxiliaries:
        return ()
    return tuple(layer for layer in model.chain[tail_start(model) :] if isinstance(layer, Linear))


def tail_start(model: Model) -> int:
    """The first layer of the longest end of the chain that is fully connected and elementwise layers only.

    Of sequences there is none: those layers compute every place for itself.
    """
    start = len(model.chain)
    if len(model.output_shape) > 1:
        return start
    for position in reversed(range(len(model.chain))):
        layer = model.chain[position]
        if isinstance(layer, Linear):
            start = position
        elif not isinstance(layer, ReLU | Dropout):
            break
    return start
