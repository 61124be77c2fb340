"""A model whose fully connected end is spread over the workers while the rest stays data-parallel."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import DTypeLike

from taihu.core.base.errors import ConfigError, ModelError, RunError
from taihu.core.checkpoint.part import SpreadLayer
from taihu.core.model.layout import LayerSpec, Layout
from taihu.core.trace import Tracer
from taihu.kernels.reduce import all_finite
from taihu.worker.engine import Model, StepContext
from taihu.worker.engine.base.layer import Array, Layer, ParameterLayer, Run
from taihu.worker.engine.layers.dense import Linear
from taihu.worker.engine.models.model import StepHooks
from taihu.worker.fc.connected import fully_connected_layers, tail_start
from taihu.worker.fc.own_inputs import InputsKept
from taihu.worker.fc.passes import Scheme
from taihu.worker.fc.shards import Shards
from taihu.worker.fc.stage import FcWeights, Stage, StagePart
from taihu.worker.fc.tail import Mover, Tail

Write = Callable[[Model, Iterator[Array]], None]


class ShardOptimizer(Protocol):
    """The optimizer of the shards, such as `taihu.core.optimization.OptimizerShard`."""

    def update(self, start: int, stop: int, gradient: Array, step: int, scale: float = 1.0) -> None:
        """Update elements [start, stop)."""
        ...


class _Copy:
    """A layer's parameters and gradients for a step, out of arenas that do not hold them all the time."""

    def __init__(self, layer: ParameterLayer, dtype: DTypeLike) -> None:
        self.parameters = {tensor.name: np.empty(tensor.shape, dtype=dtype) for tensor in layer.tensors}
        self.gradients = {tensor.name: np.empty(tensor.shape, dtype=dtype) for tensor in layer.tensors}
        self._layer = layer

    def read(self) -> None:
        for name, values in self._layer.parameters.items():
            self.parameters[name][...] = values

    def write_gradients(self) -> None:
        for name, gradient in self._layer.gradients.items():
            gradient[...] = self.gradients[name]


class HybridModel:
    """`model` with the fully connected layers named in `sharded` split by output columns over `size` ranks.

    The layers that are not sharded make up `layout` and are exchanged as always; their arenas are bound with `bind`.
    The shards are this object's own, with their optimizer state (ZeRO: nobody else has them); their gradients are
    there for `gradient_bytes` of one layer at a time, or a row.

    Where arenas give memory back group by group (ZeRO stages 2 and 3), fully connected layers at the end that are not
    sharded, which all passes read, are `copied` for the step.

    Raises:
        ConfigError: a name is none of the fully connected layers at the end, a layer has fewer columns than there are
            ranks, or every layer with parameters would be sharded.
    """

    def __init__(
        self,
        model: Model,
        sharded: Collection[str],
        *,
        rank: int,
        size: int,
        copied: bool = False,
        gradient_bytes: int = 16 << 20,
        dtype: DTypeLike = np.float32,
    ) -> None:
        known = {layer.name: layer for layer in fully_connected_layers(model)}
        for name in sharded:
            if name not in known:
                raise ConfigError(
                    f"layer {name} cannot be sharded; expected one of the fully connected layers at the model's end: "
                    f"{', '.join(known) or 'it has none'}"
                )
        self._model = model
        self._rank, self._size = rank, size
        self._start = tail_start(model)
        spread = [layer for name, layer in known.items() if name in sharded]
        self._shards = Shards(spread, rank=rank, size=size, gradient_bytes=gradient_bytes, dtype=dtype)
        kept = [each for each in model.parameter_layers if each.name not in self._shards]
        if not kept:
            raise ConfigError("every layer with parameters would be sharded; leave one to the exchange")
        for index, each in enumerate(kept):
            each.index = index
        self._kept = kept
        self._kept_in_tail = [each for each in kept if each.name in known]
        self.layout = Layout(tuple(LayerSpec(layer.name, layer.tensors) for layer in kept))
        self._copies = {each.index: _Copy(each, dtype) for each in self._kept_in_tail if copied}
        self._attached: tuple[Tail, _Updates] | None = None

    @property
    def front(self) -> int:
        """The number of layers of `Model.chain` that run as always, before the fully connected end."""
        return self._start

    @property
    def sharded(self) -> tuple[str, ...]:
        """Names of the sharded layers, in forward order."""
        return self._shards.names

    @property
    def shards(self) -> Array:
        """This rank's part of the sharded layers' parameters, shape (elements,)."""
        return self._shards.values

    @property
    def spread(self) -> tuple[SpreadLayer, ...]:
        """The sharded layers, as `shards` has them."""
        positions = {layer.name: position for position, layer in enumerate(self._model.layout.layers)}
        return tuple(
            SpreadLayer(LayerSpec(layer.name, layer.tensors), positions[layer.name], columns)
            for layer, columns in self._shards.parts()
        )

    def end_parts(self, batch: int) -> tuple[StagePart, ...]:
        """The share of this rank in each fully connected layer of the end, for `batch` examples a worker."""
        return self._attachment[0].parts(batch)

    @property
    def tail_bytes(self) -> int:
        """Bytes of the activations that steps have taken behind `front`."""
        return self._attachment[0].held_bytes

    @property
    def _attachment(self) -> tuple[Tail, _Updates]:
        if self._attached is None:
            raise ModelError("hybrid model: expected a way to the other workers, seen none; call attach() first")
        return self._attached

    def bind(self, parameters: Array, gradients: Array) -> None:
        """Use two arenas for what is not sharded, see `Model.bind`."""
        self._model.bind_layers(self._kept, self.layout, parameters, gradients)

    def initialize(self, seed: int) -> None:
        """Write the bound parameters: those that `Model.initialize` would."""
        for layer in self._kept:
            layer.initialize(seed)

    def initialize_layer(self, layer: int, seed: int) -> None:
        """Like `initialize`, for layer `layer` of `layout` alone."""
        self._kept[layer].initialize(seed)

    def initialize_shards(self, seed: int) -> None:
        """Write this rank's columns of what `Model.initialize` would write."""
        self._shards.initialize(seed)

    def attach(
        self,
        mover: Mover,
        optimizer: ShardOptimizer,
        *,
        scheme: Scheme = "gather",
        update_each_pass: bool = False,
        inputs: InputsKept = "all",
        check_finite: bool = False,
        tracer: Tracer | None = None,
    ) -> None:
        """Train the end of the model over `mover`; `bind` came before. `optimizer` updates `shards`.

        With `check_finite`, a step raises RunError instead of updating a layer by what is not finite.
        """
        updates = _Updates(self._shards, optimizer, self._size, at_each_pass=update_each_pass, checks=check_finite)
        tail = Tail(
            list(self._stages()),
            mover,
            self._model.loss,
            scheme=scheme,
            update_each_pass=update_each_pass,
            inputs=inputs,
            on_gradient=updates.update,
            tracer=tracer,
        )
        self._attached = tail, updates

    def train(self, inputs: Array, targets: Array, context: StepContext, hooks: StepHooks) -> float:
        """One step's forward and backward, see `Model.train`; the shards are updated within."""
        tail, updates = self._attachment
        updates.step = context.step
        features, run = self._model.forward_until(self._start, inputs, context, hooks)
        self._read_tail(hooks.before_layer)
        hooks.forwarded(None)
        result = tail.train(features, targets, run)
        self._tell_of_tail(hooks)
        self._model.backward_from(self._start, result.feature_gradient, run, hooks.before_recompute)
        return result.loss

    def _read_tail(self, before_layer: Callable[[int], None]) -> None:
        for layer in reversed(self._kept_in_tail):
            before_layer(layer.index)
            if copied := self._copies.get(layer.index):
                copied.read()

    def _tell_of_tail(self, hooks: StepHooks) -> None:
        """The gradients of layers that are not sharded are complete."""
        for layer in self._kept_in_tail:
            hooks.before_backward(layer.index)
            if copied := self._copies.get(layer.index):
                copied.write_gradients()
            hooks.gradient_ready(layer.index)

    def outputs(
        self, inputs: Array | None, examples: int, context: StepContext, before_layer: Callable[[int], None]
    ) -> Array | None:
        """The outputs for `examples` that rank 0 has, on rank 0; all ranks call this.

        Args:
            inputs: (examples, *input_shape) on rank 0, None on the others.
            examples: their number, at least 1.
            context: no training one.
            before_layer: called for every layer of `layout`, in forward order.

        Returns:
            (examples, outputs), valid until the next step; None where there are no inputs.
        """
        tail, _ = self._attachment
        if inputs is None:
            for layer in reversed(self._kept):
                before_layer(layer.index)
            features, run = tail.no_features(self.shards.dtype), Run(context)
        else:
            features, run = self._model.forward_until(self._start, inputs, context, StepHooks(before_layer))
            self._read_tail(before_layer)
        counts = [examples, *[0] * (self._size - 1)]
        outputs = tail.outputs(features, counts, run)
        return None if inputs is None else outputs

    def save(self, mover: Mover, write: Write, read_layer: Callable[[int], None]) -> None:
        """Have rank 0 write the whole model; all ranks call this.

        Args:
            mover: moves the shards to rank 0.
            write: called on rank 0 with the model and all its parameters, in the order of the model's own layout and
                of the tensors, in pieces: one is valid until the next is asked for. It takes them all.
            read_layer: called with the index in `layout` before the parameters of a layer that is exchanged are read.
        """
        pieces = self._pieces(mover, read_layer)
        if self._rank == 0:
            write(self._model, pieces)
        else:
            for _ in pieces:
                pass

    def _pieces(self, mover: Mover, read_layer: Callable[[int], None]) -> Iterator[Array]:
        for layer in self._model.parameter_layers:
            if layer.name in self._shards:
                yield from self._shards.collect(layer.name, mover)
            else:
                read_layer(layer.index)
                yield from layer.parameters.values()

    def _stages(self) -> Iterator[Stage]:
        chain = self._model.chain[self._start :]
        for position, layer in enumerate(chain):
            if not isinstance(layer, Linear):
                continue
            yield Stage(layer.name, *self._placed(layer), _behind(chain[position + 1 :]))

    def _placed(self, layer: Linear) -> tuple[FcWeights, tuple[int, ...] | None]:
        """The tensors of a layer that this rank has, and the columns if they are a part."""
        if layer.name in self._shards:
            return self._shards.weights(layer.name), self._shards.columns(layer.name)
        copied = self._copies.get(layer.index)
        parameters = layer.parameters if copied is None else copied.parameters
        gradients = layer.gradients if copied is None else copied.gradients
        bias = parameters.get("bias")
        return FcWeights(parameters["weight"], bias, gradients["weight"], gradients.get("bias")), None


class _Updates:
    """Updates of the shards by parts of gradients, as they are there; `step` is the present one.

    Args:
        shards: of one rank.
        optimizer: of them.
        ranks: their number.
        at_each_pass: whether a part is what one pass makes up, and not of all.
        checks: whether what is not finite is an error.
    """

    def __init__(
        self, shards: Shards, optimizer: ShardOptimizer, ranks: int, *, at_each_pass: bool, checks: bool
    ) -> None:
        self.step = 0
        self._shards = shards
        self._optimizer = optimizer
        self._ranks = ranks
        self._at_each_pass = at_each_pass
        self._checks = checks

    def update(self, name: str, start: int, gradient: Array, passes: int) -> None:
        """A part of a layer's gradient is there."""
        if self._checks and not all_finite(gradient):
            raise RunError(
                f"gradients of {name} are not finite at step {self.step}; lower optimizer.learning_rate or check "
                "the data, or set exchange.non_finite = 'allow'"
            )
        # The gradient is the sum over ranks of those of mean losses, or the part of it that one pass makes up.
        scale = (passes if self._at_each_pass else 1) / self._ranks
        start += self._shards.offset(name)
        self._optimizer.update(start, start + len(gradient), gradient, self.step, scale=scale)


def _behind(layers: Sequence[Layer]) -> list[Layer]:
    behind: list[Layer] = []
    for layer in layers:
        if isinstance(layer, Linear):
            break
        behind.append(layer)
    return behind
