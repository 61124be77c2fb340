"""A tree of layers bound to a parameter and a gradient arena."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from taihu.core.base.errors import ModelError
from taihu.core.model.layout import LayerSpec, Layout
from taihu.worker.engine.base.layer import Array, Layer, ParameterLayer, Run, Shape, StepContext, ignore_layer
from taihu.worker.engine.base.loss import CrossEntropy, Loss, TokenCrossEntropy
from taihu.worker.engine.base.team import SOLO, Team
from taihu.worker.engine.base.workspace import Workspace
from taihu.worker.engine.layers.branches import Auxiliary
from taihu.worker.engine.layers.containers import Sequential
from taihu.worker.engine.recompute.chain import SegmentedChain, segmented


@dataclass(frozen=True)
class StepHooks:
    """Calls that a training step makes on its way.

    Attributes:
        before_layer: called with i right before layout.layers[i] reads its parameters, for i = n-1, ..., 0.
        forwarded: called when all parameters have been read, with the loss if it is known already.
        gradient_ready: called with i = 0, 1, 2, ... when the gradient of layout.layers[i] is complete and its
            parameters are not needed any more in this step.
        before_backward: called with i = 0, 1, 2, ... right before the backward of layout.layers[i] reads its
            parameters and writes its gradient.
        before_recompute: called with i, between `forwarded` and the layer's `before_backward`, right before
            layout.layers[i] reads its parameters to compute its activations again; see `Model.recompute`. It is not
            `before_layer`, which may wait for parameters of a step that has not begun yet at that time.
        loss_scale: called after `forwarded`; all gradients are multiplied by what it returns.
        part_computed: called with a layer's name, a part of it and the examples of that, when it has been computed,
            in an end that is spread over workers; see `taihu.worker.fc.stage.ComputedPart`.
        wait_for_others: carries out a wait for the other workers in such an end.
    """

    before_layer: Callable[[int], None] = lambda layer: None
    forwarded: Callable[[float | None], None] = lambda loss: None
    gradient_ready: Callable[[int], None] = lambda layer: None
    before_backward: Callable[[int], None] = lambda layer: None
    before_recompute: Callable[[int], None] = lambda layer: None
    loss_scale: Callable[[], float] = lambda: 1.0
    part_computed: Callable[[str, str, int], None] = lambda layer, part, rows: None
    wait_for_others: Callable[[Callable[[], None]], None] = lambda wait: wait()


class Model:
    """A network for NHWC images, rows of features, or sequences of tokens.

    Args:
        root: the layers; a chain or any other layer.
        input_shape: of one sample: (height, width, channels) of an image, (features,), or (time,) tokens.
        outputs: how many the last layer must have: one for each class, or the values that are predicted. A model of
            sequences has them at every place: (time, outputs).

    Attributes:
        layout: the layers with parameters in backward order.
        reading_order: their indices in the order in which a forward reads them; one that is shared, more than once.

    Raises:
        ModelError: shapes do not fit, or a layer object occurs twice.
    """

    def __init__(self, root: Layer, input_shape: Shape, outputs: int) -> None:
        self._root = root if isinstance(root, Sequential) else Sequential([root])
        self._input_shape = tuple(input_shape)
        self._outputs = outputs
        if len(self._input_shape) not in {1, 3} or min(self._input_shape) < 1:
            raise ModelError(
                f"model: expected inputs of (height, width, channels) or (features,), seen {self._input_shape}"
            )
        output = self._root.build("", self._input_shape)
        if len(output) not in {1, 2} or output[-1] != outputs:
            raise ModelError(
                f"model: expected an output of ({outputs},) for {outputs} classes or values, seen {output}; "
                f"end it with Linear({outputs})"
            )
        self._auxiliaries = [layer for layer in self._root.tree() if isinstance(layer, Auxiliary)]
        for each in self._auxiliaries:
            if each.outputs != output:
                raise ModelError(
                    f"{each.name}: expected a head with the model's outputs, {output}, seen {each.outputs}; end it "
                    f"with Linear({outputs})"
                )
        leaves = list(self._root.leaves())
        if len({id(leaf) for leaf in leaves}) != len(leaves):
            raise ModelError("model: a layer object occurs twice; make one object for each place")
        self._leaves = leaves
        self._output_shape = output
        by_name = {leaf.name: leaf for leaf in leaves}
        for leaf in leaves:
            leaf.link(by_name)
        self._layers = [leaf for leaf in reversed(leaves) if isinstance(leaf, ParameterLayer)]
        for index, layer in enumerate(self._layers):
            layer.index = index
        readers = (by_name[leaf.borrows] if leaf.borrows else leaf for leaf in leaves)
        self.reading_order = tuple(leaf.index for leaf in readers if isinstance(leaf, ParameterLayer))
        self.layout = Layout(tuple(LayerSpec(layer.name, layer.tensors) for layer in self._layers))
        self._root.skip_input_gradient()
        self._runner: Sequential | SegmentedChain = self._root
        self._scratch = Workspace()
        self._dtype: np.dtype[np.floating] | None = None
        self._context: StepContext | None = None
        self._team = SOLO
        self._loss: Loss = CrossEntropy() if len(output) == 1 else TokenCrossEntropy()

    def use_loss(self, loss: Loss) -> None:
        """Train for `loss` from now on; a new model trains for cross-entropy.

        Raises:
            ModelError: its targets are of whole samples and the outputs of every place, or the other way round.
        """
        if loss.by_place and len(self._output_shape) == 1:
            raise ModelError(
                f"model: expected {self._outputs} outputs at every place of a sequence, seen {self._outputs} for a "
                "whole sample; for text use model small_gpt, or one of your own that ends with TiedLinear or Linear"
            )
        if len(self._output_shape) == 2 and not loss.by_place:
            raise ModelError(
                f"model: expected an output of ({self._outputs},) for a sample, seen {self._output_shape}; train it "
                f"on text, or put Flatten before the last Linear({self._outputs})"
            )
        self._loss = loss

    @property
    def loss(self) -> Loss:
        """The loss that it is trained for, and tested by."""
        return self._loss

    @property
    def input_shape(self) -> Shape:
        """The shape of one sample."""
        return self._input_shape

    @property
    def outputs(self) -> int:
        """The number of outputs of the last layer, for one sample; of a sequence, at each place."""
        return self._outputs

    @property
    def output_shape(self) -> Shape:
        """The shape of the outputs for one sample: (outputs,), or (time, outputs) of sequences."""
        return self._output_shape

    @property
    def takes_tokens(self) -> int:
        """Inputs are whole numbers below this one; 0 where they are any numbers."""
        return self._leaves[0].takes_tokens

    def use_threads(self, threads: int) -> None:
        """Compute with so many threads from now on, at least 1; results have the same bits with any number."""
        self.use_team(SOLO if threads == 1 else Team(threads))

    def use_team(self, team: Team) -> None:
        """Compute with these threads from now on."""
        self._team = team

    @property
    def team(self) -> Team:
        """The threads that compute."""
        return self._team

    def recompute(self, segments: int | None = None, *, spill: bool = False, stop: int | None = None) -> None:
        """Train with less memory for activations from now on, and the same results; before `bind`.

        The chain is cut into segments, of which a training forward keeps the inputs alone; all but the last one are
        computed again in backward (Chen et al. 2016; ZeRO-R, Rajbhandari et al. 2020, section 6).

        Args:
            segments: 1, which computes nothing again, to the number of layers in `chain`; where not given, the number
                up to about the square root of theirs that needs the least memory.
            spill: keep the inputs in a temporary file.
            stop: only `chain[:stop]` is run, by `forward_until`, and so trained.

        Raises:
            ModelError: there are not so many layers, or no segments.
            RunError: the file cannot be made; and in a step, when it cannot be written.
        """
        self._runner = segmented(self._root, segments, spill=spill, stop=stop)

    @property
    def run_again(self) -> tuple[tuple[int, int], ...]:
        """The first and the last layer of the layout in each segment whose forward backward runs again, in its order.

        Segments without parameters are left out; nothing is run again by a model that does not recompute.
        """
        if not isinstance(self._runner, SegmentedChain):
            return ()
        parts = (self.chain[start:stop] for start, stop in self._runner.run_again)
        leaves = ([leaf for layer in part for leaf in layer.leaves()] for part in parts)
        indices = ([leaf.index for leaf in part if isinstance(leaf, ParameterLayer)] for part in leaves)
        return tuple((min(part), max(part)) for part in indices if part)

    def bind(self, parameters: Array, gradients: Array) -> None:
        """Use two arenas, of which the layers keep views.

        Args:
            parameters: (layout.elements,), contiguous, float32 (float64 for gradient checks).
            gradients: like `parameters`, another array.

        Raises:
            ModelError: an arena has another shape or dtype.
        """
        self.bind_layers(self._layers, self.layout, parameters, gradients)

    def bind_layers(
        self, layers: Sequence[ParameterLayer], layout: Layout, parameters: Array, gradients: Array
    ) -> None:
        """Like `bind`, for `layers` only, which `layout` describes."""
        for name, arena in (("parameter", parameters), ("gradient", gradients)):
            fits = arena.shape == (layout.elements,) and arena.flags.c_contiguous
            if not fits or arena.dtype != parameters.dtype or arena.dtype not in (np.float32, np.float64):
                raise ModelError(
                    f"{name} arena: expected ({layout.elements},) contiguous float32, seen {arena.shape} "
                    f"{arena.dtype}; allocate it from this model's layout"
                )
        offsets = layout.offsets
        for layer, start, stop in zip(layers, offsets, offsets[1:], strict=False):
            layer.bind(parameters[start:stop], gradients[start:stop])
        self._dtype = parameters.dtype

    @property
    def chain(self) -> tuple[Layer, ...]:
        """The outermost layers, in forward order."""
        return self._root.children

    def tree(self) -> Iterator[Layer]:
        """All layers, containers before what they hold."""
        return self._root.tree()

    def definition(self) -> dict[str, Any] | None:
        """The layers as plain values, or None where one of them is the user's own; as `Layer.definition`."""
        return self._root.definition()

    @property
    def leaves(self) -> tuple[Layer, ...]:
        """The layers that are no containers, in forward order."""
        return tuple(self._leaves)

    @property
    def parameter_layers(self) -> tuple[ParameterLayer, ...]:
        """The layers of the layout."""
        return tuple(self._layers)

    def initialize(self, seed: int) -> None:
        """Write the bound parameters and reset the buffers; the same seed gives the same bits."""
        for layer in self._layers:
            layer.initialize(seed)

    def forward(
        self, inputs: Array, context: StepContext, before_layer: Callable[[int], None] | None = None
    ) -> Array:
        """Compute the outputs.

        Args:
            inputs: (B, *input_shape); converted to the dtype of the arenas, left alone until `backward`.
            context: the step.
            before_layer: called with i right before layout.layers[i] reads its parameters, for i = n-1, ..., 0.

        Returns:
            (B, *output_shape), valid until the next forward; that of a model that recomputes, until `backward`.

        Raises:
            ModelError: no arena is bound, or the inputs have another shape.
        """
        x = self._checked(inputs)
        self._context = context
        return self._runner.forward(x, Run(context, self._scratch, before_layer or ignore_layer, team=self._team))

    def train(self, inputs: Array, targets: Array, context: StepContext, hooks: StepHooks) -> float:
        """Forward, mean loss, and backward into the gradient arena; returns the loss.

        Raises:
            ModelError: see `forward`.
            DataError: the targets do not fit the loss, see `Loss`.
        """
        outputs = self.forward(inputs, context, hooks.before_layer)
        loss, gradients = self.differentiated_loss(outputs, targets)
        hooks.forwarded(loss)
        if (scale := hooks.loss_scale()) != 1.0:
            for gradient in gradients:
                np.multiply(gradient, gradient.dtype.type(scale), out=gradient)
        self.backward(gradients[0], hooks.gradient_ready, hooks.before_backward, hooks.before_recompute)
        return loss

    def differentiated_loss(self, outputs: Array, targets: Array) -> tuple[float, list[Array]]:
        """The loss of the latest training forward, with those of auxiliary classifiers, and its gradients.

        Returns:
            The loss; and the gradient of the outputs, which `backward` takes, and those of auxiliary classifiers,
            which they keep: all may be scaled.

        Raises:
            DataError: the targets do not fit the loss.
        """
        loss, doutputs = self._loss(outputs, targets)
        gradients = [doutputs]
        for layer in self._auxiliaries:
            part, gradient = layer.learn(self._loss, targets)
            loss += part
            gradients.append(gradient)
        return loss, gradients

    @property
    def has_auxiliaries(self) -> bool:
        """Whether parts of it learn from auxiliary classifiers."""
        return bool(self._auxiliaries)

    def forward_until(self, stop: int, inputs: Array, context: StepContext, hooks: StepHooks) -> tuple[Array, Run]:
        """The input of `chain[stop]`, and what the layers from there on may know of the step.

        A model that recomputes does so until `stop` alone, see `recompute`.

        Raises:
            ModelError: as `forward`.
        """
        run = Run(
            context,
            self._scratch,
            hooks.before_layer,
            hooks.before_backward,
            hooks.gradient_ready,
            team=self._team,
            part_computed=hooks.part_computed,
            wait_for_others=hooks.wait_for_others,
        )
        x = self._checked(inputs)
        if isinstance(self._runner, SegmentedChain):
            return self._runner.forward(x, run), run
        for layer in self.chain[:stop]:
            x = layer.forward(x, run)
        return x, run

    def backward_from(self, stop: int, dy: Array, run: Run, before_recompute: Callable[[int], None]) -> None:
        """Go on with the gradient of what `forward_until` returned; see `StepHooks` for `before_recompute`."""
        if isinstance(self._runner, SegmentedChain):
            self._runner.backward(dy, replace(run, before_layer=before_recompute))
            return
        for layer in reversed(self.chain[self._root.first_differentiated : stop]):
            dy = layer.backward(dy, run)

    def _checked(self, inputs: Array) -> Array:
        if self._dtype is None:
            raise ModelError("model: expected bound arenas, seen none; call bind() first")
        if inputs.shape[1:] != self._input_shape or not len(inputs):
            expected = ", ".join(map(str, self._input_shape))
            raise ModelError(f"model: expected inputs of (batch, {expected}), seen {inputs.shape}; convert the data")
        return np.ascontiguousarray(inputs, dtype=self._dtype)

    def backward(
        self,
        doutputs: Array,
        gradient_ready: Callable[[int], None] | None = None,
        before_backward: Callable[[int], None] | None = None,
        before_recompute: Callable[[int], None] | None = None,
    ) -> None:
        """Write the gradients of the latest forward, which must have been a training one, into the gradient arena.

        Args:
            doutputs: (B, *output_shape), gradient of the loss.
            gradient_ready: called with i = 0, 1, 2, ... when the gradient of layout.layers[i] is complete and its
                parameters are not needed any more in this step.
            before_backward: see `StepHooks`.
            before_recompute: see `StepHooks`.

        Raises:
            ModelError: there was no training forward to differentiate.
        """
        context = self._context
        if context is None or not context.training:
            raise ModelError("model: expected a training forward before backward, seen none; run forward() first")
        self._context = None
        dy = np.ascontiguousarray(doutputs, dtype=self._dtype)
        run = Run(
            context,
            self._scratch,
            before_recompute or ignore_layer,
            before_backward or ignore_layer,
            gradient_ready or ignore_layer,
            team=self._team,
        )
        self._runner.backward(dy, run)

    @property
    def activations(self) -> int:
        """Activations of all layers, in values for a sample, with the weights of attention."""
        return sum(layer.output_elements + layer.inner_elements for layer in self.tree())

    @property
    def held_bytes(self) -> int:
        """Memory of the buffers that steps and evaluations have taken: activations, their gradients, scratch."""
        beside = self._scratch.held_bytes + sum(layer.lasting_bytes for layer in self._root.tree())
        if isinstance(self._runner, SegmentedChain):
            return beside + self._runner.held_bytes
        return beside + sum(layer.workspace.held_bytes for layer in self._root.tree())

    def buffers(self) -> dict[str, Array]:
        """Live views of the running statistics, "layer/buffer" -> array."""
        return dict(self._buffers())

    def _buffers(self) -> Iterator[tuple[str, Array]]:
        for leaf in self._leaves:
            for name, buffer in leaf.buffers().items():
                yield f"{leaf.name}/{name}", buffer

    def load_buffers(self, buffers: Mapping[str, Array]) -> None:
        """Copy saved running statistics into the layers, all or none.

        Raises:
            ModelError: a name is missing or unknown, or a shape differs.
        """
        own = self.buffers()
        if difference := sorted(own.keys() ^ buffers.keys()):
            where = "missing" if difference[0] in own else "not in this model"
            raise ModelError(f"buffer {difference[0]} is {where}; load a file of the same model")
        for name, buffer in own.items():
            if buffers[name].shape != buffer.shape:
                raise ModelError(
                    f"buffer {name}: expected shape {buffer.shape}, seen {buffers[name].shape}; "
                    "load a file of the same model"
                )
        for name, buffer in own.items():
            buffer[...] = buffers[name]

    def parameters_by_name(self) -> dict[str, Array]:
        """Views of the bound parameters, "layer/tensor" -> array, in layout order."""
        return {
            f"{layer.name}/{name}": parameter
            for layer in self._layers
            for name, parameter in layer.parameters.items()
        }
