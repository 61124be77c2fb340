"""The promises of a method that sends codes in place of gradients, each checked on a small model by three workers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from taihu.core.base.errors import ConfigError
from taihu.core.compression.coding import Coder, make_coder
from taihu.core.compression.conformance import BrokenPromiseError, Promise, Trial
from taihu.core.model.layout import LayerSpec, Layout, TensorSpec
from taihu.core.settings import CompressionSettings

Values = NDArray[np.float32]

_SHAPES: Final = ((16, 12), (9,), (1,), (5, 3, 4), (40, 7))
_LAYOUT: Final = Layout(tuple(LayerSpec(f"layer{i}", (TensorSpec("all", n),)) for i, n in enumerate(_SHAPES)))
_LAYERS: Final = len(_SHAPES)
_WORKERS: Final = 3
_STEPS: Final = 20
_PATIENCE: Final = 200
_LARGEST_HELD: Final = 0.5
_ROUNDING: Final = 1e-4


class _Workers:
    """The workers of a trial, in turns; the means of their codes are summed by rank, as servers do."""

    def __init__(self, trial: Trial, layout: Layout = _LAYOUT) -> None:
        settings = CompressionSettings(method=trial.method, rank=2)
        made = [make_coder(layout, settings, trial.seed) for _ in range(_WORKERS)]
        self.coders: list[Coder] = [coder for coder in made if coder is not None]
        codes = self.coders[0].layout
        self._offsets, self._trial = codes.offsets, trial
        self.codes = [np.zeros(codes.elements, dtype=np.float32) for _ in self.coders]

    @property
    def held(self) -> NDArray[np.float64]:
        """The mean of what is held back, shape (elements,)."""
        residuals = (coder.arrays()["residual"].astype(np.float64) for coder in self.coders)
        total = sum(residuals, np.zeros(_LAYOUT.elements))
        return total / _WORKERS

    def gradients(self, step: int) -> list[Values]:
        """One for each worker, shape (elements,)."""
        shape = (_WORKERS, _LAYOUT.elements)
        return list(np.random.default_rng([self._trial.seed, step]).standard_normal(shape, dtype=np.float32))

    def step(self, gradients: Sequence[Values], layers: Sequence[int] = range(_LAYERS)) -> list[Values]:
        """The mean gradient as each worker decodes it; `layers` come in this order."""
        for coder, gradient, codes in zip(self.coders, gradients, self.codes, strict=True):
            for layer in layers:
                coder.encode(layer, gradient[_part(layer)], codes)
        for layer in range(_LAYERS):
            self._average(layer)
        for late in range(len(self.coders[0].sources)):
            for coder, codes in zip(self.coders, self.codes, strict=True):
                coder.follow(late, codes)
            self._average(_LAYERS + late)
        decoded = [np.zeros(_LAYOUT.elements, dtype=np.float32) for _ in self.coders]
        for coder, codes, own in zip(self.coders, self.codes, decoded, strict=True):
            for layer in range(_LAYERS):
                coder.decode(layer, codes, own[_part(layer)])
        return decoded

    def _average(self, layer: int) -> None:
        part = slice(self._offsets[layer], self._offsets[layer + 1])
        mean = sum((codes[part] for codes in self.codes[1:]), self.codes[0][part]) / np.float32(_WORKERS)
        for codes in self.codes:
            codes[part] = mean


def _part(layer: int) -> slice:
    return slice(_LAYOUT.offsets[layer], _LAYOUT.offsets[layer + 1])


def _is_laid_out(trial: Trial) -> None:
    coder = _Workers(trial).coders[0]
    layers, sources = len(coder.layout.layers), tuple(coder.sources)
    if layers != _LAYERS + len(sources):
        raise BrokenPromiseError(
            f"its layout has {layers} layers: expected one for each of {_LAYERS}, and {len(sources)} late ones"
        )
    if sources != tuple(sorted(set(sources))) or not set(sources) <= set(range(_LAYERS)):
        raise BrokenPromiseError(f"its late layers follow {sources}: expected layers below {_LAYERS}, ascending")
    if coder.layout.elements >= _LAYOUT.elements:
        raise BrokenPromiseError(f"{coder.layout.elements} codes stand for {_LAYOUT.elements} values")


def _keeps_balance(trial: Trial) -> None:
    workers = _Workers(trial)
    brought, decoded = np.zeros(_LAYOUT.elements), np.zeros(_LAYOUT.elements)
    for step in range(1, _STEPS):
        gradients = workers.gradients(step)
        brought += np.mean(gradients, axis=0, dtype=np.float64)
        decoded += workers.step(gradients)[0]
        wrong = np.linalg.norm(decoded + workers.held - brought) / np.linalg.norm(brought)
        if not wrong <= _ROUNDING:
            raise BrokenPromiseError(
                f"behind step {step} what came back and what is held back are {wrong:.1%} away from what was brought"
            )


def _is_the_same_for_all(trial: Trial) -> None:
    workers = _Workers(trial)
    for step in range(1, _STEPS):
        if len({own.tobytes() for own in workers.step(workers.gradients(step))}) > 1:
            raise BrokenPromiseError(f"step {step}: workers decode the same codes to other bits")


def _is_the_same_again(trial: Trial) -> None:
    one, other, turned = _Workers(trial), _Workers(trial), _Workers(trial)
    for step in range(1, _STEPS):
        gradients = one.gradients(step)
        before = [each.copy() for each in gradients]
        expected = one.step(gradients)[0].tobytes()
        if any(each.tobytes() != was.tobytes() for each, was in zip(gradients, before, strict=True)):
            raise BrokenPromiseError(f"step {step}: encode changes the gradient that it is given")
        if other.step(gradients)[0].tobytes() != expected:
            raise BrokenPromiseError(f"step {step} of the same gradients brings something else the second time")
        if turned.step(gradients, range(_LAYERS)[::-1])[0].tobytes() != expected:
            raise BrokenPromiseError(f"step {step} brings something else where the last layer is encoded first")


def _goes_on(trial: Trial) -> None:
    whole, after = _Workers(trial), _Workers(trial)
    for step in range(1, 8):
        whole.step(whole.gradients(step))
    for one, other in zip(whole.coders, after.coders, strict=True):
        other.resume({name: array.copy() for name, array in one.arrays().items()})
    for step in range(8, _STEPS):
        gradients = whole.gradients(step)
        if whole.step(gradients)[0].tobytes() != after.step(gradients)[0].tobytes():
            raise BrokenPromiseError(
                f"step {step} brings something else behind a checkpoint of step 7: all that lasts from step to step "
                "must be in arrays()"
            )


def _goes_on_from_what_is_held_back(trial: Trial) -> None:
    before, after = _Workers(trial), _Workers(trial)
    for step in range(1, 8):
        before.step(before.gradients(step))
    held = before.held
    for one, other in zip(before.coders, after.coders, strict=True):
        other.resume({name: array if name == "residual" else array[:0] for name, array in one.arrays().items()})
    gradients = after.gradients(8)
    brought = held + np.mean(gradients, axis=0, dtype=np.float64)
    wrong = np.linalg.norm(after.step(gradients)[0] + after.held - brought) / np.linalg.norm(brought)
    if not wrong <= _ROUNDING:
        raise BrokenPromiseError(f"of what was held back {wrong:.1%} are lost where all other arrays have no values")


def _refuses_others(trial: Trial) -> None:
    other = Layout(_LAYOUT.layers[:-1])
    foreign, own = _Workers(trial, other).coders[0], _Workers(trial).coders[0]
    before = {name: array.copy() for name, array in own.arrays().items()}
    try:
        own.resume(foreign.arrays())
    except ConfigError:
        if any(before[name].tobytes() != array.tobytes() for name, array in own.arrays().items()):
            raise BrokenPromiseError("a state of other gradients was refused, and something of it stays") from None
        return
    raise BrokenPromiseError("it goes on from a state of other gradients; raise ConfigError, and change nothing")


def _follows_rates(trial: Trial) -> None:
    workers = _Workers(trial)
    coder = workers.coders[0]
    coder.follow_rates(np.full(_LAYERS, 0.25))
    workers.step(workers.gradients(1))
    held = coder.arrays()["residual"].copy()
    for rate, factor in ((0.125, 1.0), (0.5, 0.25)):
        coder.follow_rates(np.full(_LAYERS, rate))
        if not np.allclose(coder.arrays()["residual"], factor * held, rtol=1e-5):
            raise BrokenPromiseError(
                f"the rate came to {rate}: expected {factor} of what was held back; "
                "taihu.core.compression.state.lowered has the factors"
            )


def _tells_what_is_not_finite(trial: Trial) -> None:
    for odd in (np.nan, np.inf, -np.inf):
        for layer in range(_LAYERS):
            workers = _Workers(trial)
            workers.step(workers.gradients(1))
            gradients = workers.gradients(2)
            gradients[1][_LAYOUT.offsets[layer]] = odd
            with np.errstate(invalid="ignore", over="ignore"):
                decoded = workers.step(gradients)
            if any(np.isfinite(own[_part(layer)]).all() for own in decoded):
                raise BrokenPromiseError(f"a gradient with {odd} in layer {layer} does not reach all workers")
            if not np.isfinite(workers.held).all():
                raise BrokenPromiseError(f"of a gradient with {odd} in layer {layer} something stays held back")


def _forgets_nothing(trial: Trial) -> None:
    workers = _Workers(trial)
    gradients = workers.gradients(0)
    for _ in range(_PATIENCE):
        workers.step(gradients)
    brought = _PATIENCE * np.linalg.norm(np.mean(gradients, axis=0))
    held = np.linalg.norm(workers.held) / brought
    if not held <= _LARGEST_HELD:
        raise BrokenPromiseError(f"of the same gradient in {_PATIENCE} steps {held:.0%} are still held back")


CODER_PROMISES: Final = (
    Promise("each layer has its codes, late ones come behind, and all are fewer than values", _is_laid_out),
    Promise("what is brought comes back or is held back", _keeps_balance),
    Promise("all workers have the same bits", _is_the_same_for_all),
    Promise("the same gradients bring the same bits, in whatever order of layers", _is_the_same_again),
    Promise("a run goes on from a checkpoint with the same bits", _goes_on),
    Promise("it goes on by what was held back alone", _goes_on_from_what_is_held_back),
    Promise("a state of other gradients is refused", _refuses_others),
    Promise("what is held back counts for no more as rates rise", _follows_rates),
    Promise("values that are not finite reach all workers, and none of them stays", _tells_what_is_not_finite),
    Promise("nothing is held back for ever", _forgets_nothing),
)
"""All promises, each checked on its own; those before it need not be kept."""
