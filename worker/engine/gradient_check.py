"""Layers and models against central differences, and against what `Layer` promises."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from taihu.core.base.errors import ModelError
from taihu.worker.engine.base.layer import Array, Layer, ParameterLayer, Run, Shape, StepContext
from taihu.worker.engine.models.model import Model

# Kinks and rounding disturb differences of one width each; a right gradient is met by one of them.
_WIDTHS: Final = (1e-6, 1e-5, 1e-7)
_FEW_BATCHES: Final = 1e-9
_OF_FLOAT32: Final = 1e-3


@dataclass(frozen=True)
class CheckOptions:
    """Thoroughness of a check.

    Attributes:
        batch: samples, at least 2.
        elements: of every parameter and of the input that are compared with differences, drawn at random.
        seed: of parameters, inputs and that draw: the same seed checks the same.
        tolerance: of a gradient, relative to it and to the largest of its tensor.
    """

    batch: int = 3
    elements: int = 12
    seed: int = 0
    tolerance: float = 1e-5


def check_gradients(
    subject: Layer | Model, input_shape: Shape | None = None, options: CheckOptions | None = None
) -> None:
    """Check that `subject` computes what it says, in float64; for tests of a layer of one's own.

    Gradients of parameters and inputs are compared with central differences. A layer must also keep the promises of
    `Layer`: the same output for the same batch, also when it is computed again; in evaluation no sample that depends
    on the others; the dtype of the input; inputs and gradients that it receives left alone.

    Args:
        subject: a new layer, which is built here, or a model, which is bound to other arenas here.
        input_shape: of one sample; for a layer.
        options: how thoroughly.

    Raises:
        ModelError: the first thing that is wrong, with layer, tensor, index, expected and seen.
    """
    options = options or CheckOptions()
    if isinstance(subject, Model):
        faults = model_faults(subject, options)
    elif input_shape is None:
        raise ModelError("check_gradients: expected the shape of one input of the layer, for example (8, 8, 3)")
    else:
        faults = layer_faults(subject, f"{subject.kind}1", input_shape, options)
    for fault in faults:
        raise ModelError(fault)


def layer_faults(layer: Layer, name: str, input_shape: Shape, options: CheckOptions) -> Iterator[str]:
    """Build `layer` alone and yield what is wrong with it, a line each; what follows from a fault may follow it."""
    output_shape = layer.build(name, input_shape)
    if not isinstance(output_shape, tuple) or not all(isinstance(side, int) for side in output_shape):
        yield f"{name}: build: expected a tuple of whole numbers, seen {output_shape!r}"
        return
    if layer.name != name:
        yield f"{name}: build: expected that it sets self.name, seen {layer.name!r}"
        return
    trial = _Trial(layer, name, input_shape, output_shape, options)
    for promise in (_outputs, _repeats, _gradients_are_written, _differences, _samples, _sharing, _float32):
        # Later promises need what earlier ones have found.
        for fault in promise(trial):
            yield f"{name}: {fault}"
            return


def model_faults(model: Model, options: CheckOptions) -> Iterator[str]:
    """Yield where gradients of the whole model differ from central differences, a line for each element."""
    parameters, gradients = (np.full(model.layout.elements, math.nan) for _ in range(2))
    model.bind(parameters, gradients)
    model.initialize(options.seed)
    rng = np.random.default_rng((options.seed, 1))
    _roughen(parameters, rng)
    x = _inputs(rng, (options.batch, *model.input_shape), model.takes_tokens)
    direction = rng.standard_normal((options.batch, *model.output_shape))
    context = _training(options)
    ready: list[int] = []
    model.forward(x, context)
    model.backward(direction, ready.append)
    expected = list(range(len(model.layout.layers)))
    if ready != expected:
        yield f"model: expected gradients of layers {expected} to be ready in this order, seen {ready}"
        return
    difference = _Difference(lambda: model.forward(x, context), direction, options.tolerance)
    places = [(layer, tensor) for layer in model.parameter_layers for tensor in layer.parameters]
    each = max(1, 4 * options.elements // max(1, len(places)))
    for place in rng.permutation(len(places))[: 2 * options.elements]:
        layer, tensor = places[place]
        for fault in difference.of(tensor, layer.parameters[tensor], layer.gradients[tensor], each, rng):
            yield f"{layer.name}: {fault}"


class _Trial:
    """One layer with arenas, a batch, and what it made of both."""

    def __init__(
        self, layer: Layer, name: str, input_shape: Shape, output_shape: Shape, options: CheckOptions
    ) -> None:
        self.layer, self.name, self.options = layer, name, options
        self.own = [leaf for leaf in layer.leaves() if isinstance(leaf, ParameterLayer)]
        for index, leaf in enumerate(reversed(self.own)):
            leaf.index = index
        self.rng = np.random.default_rng((options.seed, 2))
        self.x = _inputs(self.rng, (options.batch, *input_shape), layer.takes_tokens)
        self.dy = self.rng.standard_normal((options.batch, *output_shape))
        self.read: list[int] = []
        self.ready: list[int] = []
        context = _training(options)
        self.run = Run(context, before_layer=self.read.append, gradient_ready=self.ready.append)
        self.arenas: list[tuple[Array, Array]] = []
        self.bind(np.float64)
        self.y = self.dx = np.empty(0)
        self.gradients: list[Array] = []

    def bind(self, dtype: type[np.floating]) -> None:
        """Give the layers new arenas with initial values, from which biases and scales differ a little."""
        self.arenas.clear()
        for leaf in self.own:
            elements = sum(tensor.elements for tensor in leaf.tensors)
            parameters, gradients = (np.full(elements, math.nan, dtype) for _ in range(2))
            leaf.bind(parameters, gradients)
            leaf.initialize(self.options.seed)
            _roughen(parameters, np.random.default_rng((self.options.seed, 3)))
            self.arenas.append((parameters, gradients))

    def forward(self) -> Array:
        """A copy of the output for the batch."""
        return self.layer.forward(self.x, self.run).copy()

    def step(
        self, x: Array, dy: Array, spoil: Callable[[Array], None] = lambda y: None
    ) -> tuple[Array, Array, list[Array]]:
        """Copies of output, input gradient and parameter gradients; `spoil` gets the output before backward."""
        for _, gradients in self.arenas:
            gradients[:] = math.nan
        y = self.layer.forward(x, self.run)
        kept = y.copy()
        spoil(y)
        dx = self.layer.backward(dy, self.run).copy()
        return kept, dx, [gradients.copy() for _, gradients in self.arenas]

    def buffers(self) -> dict[str, Array]:
        """Copies of the state that is not trained."""
        found = {}
        for leaf in self.layer.leaves():
            for name, buffer in leaf.buffers().items():
                found[f"{leaf.name}/{name}"] = buffer.copy()
        return found


def _outputs(trial: _Trial) -> Iterator[str]:
    """Parameters are initialised; the output has its shape and dtype, and the input is as it was."""
    for leaf, (parameters, _) in zip(trial.own, trial.arenas, strict=True):
        if not np.isfinite(parameters).all():
            yield f"fill: expected finite values in all of {', '.join(leaf.parameters)}, seen some left out"
            return
    kept = trial.x.copy()
    y = trial.layer.forward(trial.x, trial.run)
    if not isinstance(y, np.ndarray) or y.shape != trial.dy.shape:
        yield f"forward: expected an output of {trial.dy.shape}, as build said, seen {getattr(y, 'shape', type(y))}"
    elif y.dtype != np.float64:
        yield f"forward: expected the dtype of the input, float64, seen {y.dtype}"
    elif not y.flags.c_contiguous:
        yield "forward: expected a C-contiguous output; take it from self.workspace"
    elif not np.array_equal(kept, trial.x):
        yield f"forward: expected its input left alone, seen it written at {_where(kept, trial.x)}"
    elif not np.isfinite(y).all():
        yield "forward: expected finite outputs of finite inputs, seen others"
    elif sorted(trial.read) != list(range(len(trial.own))):
        yield "forward: expected that it calls run.before_layer once; write compute, not forward"
    trial.y = y.copy()


def _repeats(trial: _Trial) -> Iterator[str]:
    """The same batch has the same output, also when it is computed again for backward."""
    again = trial.forward()
    if not np.array_equal(trial.y, again):
        yield f"forward: expected the same output for the same batch and step, seen {_change(trial.y, again)}"
        return
    before = trial.buffers()
    recomputed = trial.layer.forward(trial.x, Run(trial.run.context, recompute=True))
    if not np.array_equal(trial.y, recomputed):
        yield f"forward with run.recompute: expected the same bits, seen {_change(trial.y, recomputed)}"
    for name, buffer in trial.buffers().items():
        if not np.array_equal(before[name], buffer):
            yield f"forward with run.recompute: expected {name} left alone, seen it changed"


def _gradients_are_written(trial: _Trial) -> Iterator[str]:
    """Backward writes all gradients, the same ones each time, and leaves alone what it gets."""
    kept, dy = trial.x.copy(), trial.dy.copy()
    trial.ready.clear()
    _, trial.dx, trial.gradients = trial.step(trial.x, dy)
    if trial.dx.shape != trial.x.shape or trial.dx.dtype != trial.x.dtype:
        yield (
            f"backward: expected the gradient of the input, float64 {trial.x.shape}, seen {trial.dx.dtype} "
            f"{trial.dx.shape}"
        )
    elif not np.array_equal(dy, trial.dy):
        yield f"backward: expected the gradient it gets left alone, seen it written at {_where(dy, trial.dy)}"
    elif not np.array_equal(kept, trial.x):
        yield f"backward: expected the input left alone, seen it written at {_where(kept, trial.x)}"
    elif sorted(trial.ready) != list(range(len(trial.own))):
        yield "backward: expected that it calls run.gradient_ready once; write differentiate, not backward"
    for leaf, gradients in zip(trial.own, trial.gradients, strict=True):
        for tensor, values in _views(leaf, gradients):
            unwritten = np.argwhere(~np.isfinite(values))
            if len(unwritten):
                at = tuple(unwritten[0])
                yield (
                    f"gradient of {tensor}{_index(at)}: expected a finite value in the place of what was there, seen "
                    f"{values[at]}; write gradients with =, not +="
                )
                return


def _differences(trial: _Trial) -> Iterator[str]:
    """Gradients are those of central differences."""
    difference = _Difference(lambda: trial.layer.forward(trial.x, trial.run), trial.dy, trial.options.tolerance)
    for leaf, gradients in zip(trial.own, trial.gradients, strict=True):
        for tensor, values in _views(leaf, gradients):
            name = tensor if leaf is trial.layer else f"{leaf.name} {tensor}"
            yield from difference.of(name, leaf.parameters[tensor], values, trial.options.elements, trial.rng)
    yield from difference.of("the input", trial.x, trial.dx, trial.options.elements, trial.rng)


def _samples(trial: _Trial) -> Iterator[str]:
    """Faults of samples: in evaluation a sample's output is its own."""
    run = Run(StepContext(training=False, seed=trial.options.seed, step=0, first_sample=0))
    together = trial.layer.forward(trial.x, run).copy()
    for sample in range(len(trial.x)):
        alone = trial.layer.forward(np.ascontiguousarray(trial.x[sample : sample + 1]), run)[0]
        if not _close(together[sample], alone, _FEW_BATCHES):
            yield (
                f"forward in evaluation: expected sample {sample} not to depend on the others, seen "
                f"{_change(alone, together[sample])}"
            )
            return


def _sharing(trial: _Trial) -> Iterator[str]:
    """Arrays declared free may be overwritten, and what the container allows to be overwritten changes nothing."""
    layer = trial.layer
    expected = (trial.y, trial.dx, trial.gradients)
    if layer.output_is_free:
        if not _same(trial.step(trial.x, trial.dy, lambda y: y.fill(math.nan)), expected):
            yield "output_is_free: expected a backward that does not read the output, seen another gradient; drop it"
        if np.isnan(trial.x).any():
            yield "output_is_free: expected an output of its own, seen the memory of the input; drop it"
            return
    layer.may_overwrite_input = layer.may_overwrite_gradient = True
    try:
        if not _same(trial.step(trial.x.copy(), trial.dy.copy()), expected):
            yield "may_overwrite_input: expected the same results where it is set, seen others"
    finally:
        layer.may_overwrite_input = layer.may_overwrite_gradient = False


def _float32(trial: _Trial) -> Iterator[str]:
    """Faults in float32, where everything stays float32 and is the same to rounding."""
    trial.bind(np.float32)
    y, dx, _ = trial.step(trial.x.astype(np.float32), trial.dy.astype(np.float32))
    for what, seen, wide in (("forward", y, trial.y), ("backward", dx, trial.dx)):
        if seen.dtype != np.float32:
            yield f"{what}: expected float32 for inputs of float32, seen {seen.dtype}"
        elif not _close(wide, seen, _OF_FLOAT32):
            yield f"{what} in float32: expected what float64 gives, to rounding, seen {_change(wide, seen)}"


class _Difference:
    """Central differences of the scalar <direction, outputs>."""

    def __init__(self, outputs: Callable[[], Array], direction: Array, tolerance: float) -> None:
        self._outputs, self._direction, self._tolerance = outputs, direction, tolerance

    def of(self, name: str, values: Array, gradient: Array, elements: int, rng: np.random.Generator) -> Iterator[str]:
        """Compare a few elements, which are put back; yields the one that differs most, if any does."""
        largest = float(np.abs(gradient).max(initial=0.0))
        worst, message = 0.0, ""
        for flat in rng.permutation(values.size)[:elements]:
            at = tuple(int(place) for place in np.unravel_index(flat, values.shape))
            seen = float(gradient[at])
            off, expected = min(
                (abs(seen - numeric) / self._bound(seen, numeric, largest, size / width), numeric)
                for width in _WIDTHS
                for numeric, size in [self._numeric(values, at, width)]
            )
            if off > max(1.0, worst):
                worst = off
                message = (
                    f"gradient of {name}{_index(at)}: expected {expected:.6g} by central differences, seen {seen:.6g}"
                )
        if message:
            yield message

    def _numeric(self, values: Array, at: tuple[int, ...], width: float) -> tuple[float, float]:
        """The central difference, and the size of what was added up for it."""
        value = values[at]
        step = width * max(1.0, abs(float(value)))
        sums = []
        for moved in (value + step, value - step):
            values[at] = moved
            sums.append(self._sum())
        values[at] = value
        return (sums[0][0] - sums[1][0]) / (2 * step), sums[1][1]

    def _sum(self) -> tuple[float, float]:
        products = self._outputs() * self._direction
        return float(products.sum()), float(np.abs(products).sum())

    def _bound(self, seen: float, numeric: float, largest: float, size: float) -> float:
        rounding = 8 * np.finfo(np.float64).eps * size
        return self._tolerance * (max(abs(seen), abs(numeric)) + 1e-2 * largest) + rounding


def _inputs(rng: np.random.Generator, shape: Shape, tokens: int) -> Array:
    return rng.integers(0, tokens, shape).astype(np.float64) if tokens else rng.standard_normal(shape)


def _training(options: CheckOptions) -> StepContext:
    return StepContext(training=True, seed=options.seed, step=1, first_sample=0)


def _roughen(parameters: Array, rng: np.random.Generator) -> None:
    # Zero biases and unit scales would hide mistakes; signs stay.
    parameters += 0.1 * (np.abs(parameters) + 0.1) * rng.standard_normal(parameters.shape).astype(parameters.dtype)


def _views(leaf: ParameterLayer, flat: Array) -> Iterator[tuple[str, Array]]:
    offset = 0
    for tensor in leaf.tensors:
        yield tensor.name, flat[offset : offset + tensor.elements].reshape(tensor.shape)
        offset += tensor.elements


def _index(at: Sequence[int]) -> str:
    return f"[{', '.join(str(int(place)) for place in at)}]"


def _close(expected: Array, seen: Array, tolerance: float) -> bool:
    room = tolerance * (1.0 + float(np.abs(expected).max(initial=0.0)))
    return bool((np.abs(expected - seen) <= room).all())


def _same(seen: tuple[Array, Array, list[Array]], expected: tuple[Array, Array, list[Array]]) -> bool:
    arrays = zip([*seen[:2], *seen[2]], [*expected[:2], *expected[2]], strict=True)
    return all(np.array_equal(one, other) for one, other in arrays)


def _where(before: Array, after: Array) -> str:
    return _index(np.argwhere(before != after)[0])


def _change(expected: Array, seen: Array) -> str:
    """The first element that differs, with both values."""
    at = tuple(np.argwhere(expected != seen)[0]) if expected.shape == seen.shape else ()
    if expected.shape != seen.shape:
        return f"shape {seen.shape} instead of {expected.shape}"
    return f"{seen[at]:.6g} instead of {expected[at]:.6g} at {_index(at)}"
