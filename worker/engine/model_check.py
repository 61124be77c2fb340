"""All layers of a model, each checked alone, and the model as a whole."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from taihu.core.base.errors import ModelError
from taihu.core.process.programs.user_code import user_line
from taihu.worker.engine.base.layer import Layer, ParameterLayer, Shape
from taihu.worker.engine.gradient_check import CheckOptions, layer_faults, model_faults
from taihu.worker.engine.models.model import Model


@dataclass(frozen=True)
class PlacedLayer:
    """A layer without children at its place in a model; `output_shape` is of one sample."""

    name: str
    kind: str
    input_shape: Shape
    output_shape: Shape
    parameters: int


class CheckedModel:
    """A model as its builder makes it, twice: once whole, once to take its layers apart.

    Args:
        make: returns the outermost layer, new ones each time.
        input_shape: of one sample.
        outputs: that the model must have.

    Raises:
        ModelError: the layers do not fit, see `Model`.
    """

    def __init__(self, make: Callable[[], Layer], input_shape: Shape, outputs: int) -> None:
        root = make()
        self._places: list[tuple[str, Shape, Shape]] = []
        for leaf in root.leaves():
            leaf.build = self._noting(leaf.build)  # type: ignore[method-assign, assignment]
        self.model = Model(root, input_shape, outputs)
        self._alone = list(make().leaves())

    def _noting(self, build: Callable[[str, Shape], Shape]) -> Callable[[str, Shape], Shape]:
        def noted(name: str, input_shape: Shape) -> Shape:
            output_shape = build(name, input_shape)
            self._places.append((name, input_shape, output_shape))
            return output_shape

        return noted

    @property
    def layers(self) -> tuple[PlacedLayer, ...]:
        """The layers in forward order."""
        return tuple(
            PlacedLayer(name, leaf.kind, input_shape, output_shape, _parameters(leaf))
            for leaf, (name, input_shape, output_shape) in zip(self.model.leaves, self._places, strict=True)
        )

    def layer_faults(self, index: int, options: CheckOptions) -> tuple[str, ...]:
        """Faults of a layer, built anew and alone; to be called once for each."""
        placed = self.layers[index]
        leaf = self._alone[index] if index < len(self._alone) else None
        if leaf is None or leaf.kind != placed.kind:
            raise ModelError(
                f"{placed.name}: expected a {placed.kind} here again when the model is built a second time, seen "
                f"{'nothing' if leaf is None else leaf.kind}; build the same layers each time"
            )
        if leaf.borrows:
            # Alone it has nothing to compute with: the check of the whole model covers it.
            return ()
        return tuple(_told(placed.name, layer_faults(leaf, placed.name, placed.input_shape, options)))

    def model_faults(self, options: CheckOptions) -> tuple[str, ...]:
        """Faults in the gradients of the whole model."""
        return tuple(_told("model", model_faults(self.model, options)))


def _told(name: str, faults: Iterator[str]) -> Iterator[str]:
    """The faults, and as the last one an exception of the layer's."""
    try:
        yield from faults
    except ModelError as error:
        yield str(error)
    except Exception as error:  # whatever a layer of the user's raises
        yield f"{name}: {_line(error)}"


def _line(error: Exception) -> str:
    return user_line(error) or f"{type(error).__name__}: {' '.join(str(error).split())}"


def _parameters(leaf: Layer) -> int:
    return sum(tensor.elements for tensor in leaf.tensors) if isinstance(leaf, ParameterLayer) else 0
