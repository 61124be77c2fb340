"""Concatenated branches, auxiliary classifiers and response norms: gradients, promises and what is refused."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from taihu.core.base.errors import ModelError
from taihu.worker.engine import (
    Auxiliary,
    AvgPool2d,
    Concat,
    Conv2d,
    Dropout,
    Flatten,
    GlobalAvgPool,
    Layer,
    Linear,
    LocalResponseNorm,
    MaxPool2d,
    Model,
    ReLU,
    Residual,
    Sequential,
    StepContext,
    StepHooks,
    check_gradients,
)
from taihu.worker.fc.connected import fully_connected_layers

_TRAINING = StepContext(training=True, seed=3, step=1, first_sample=0)
_LABELS = np.array([0, 2, 1])
_IMAGES = np.random.default_rng(0).standard_normal((3, 6, 5, 2))


def _inception() -> Layer:
    return Concat(
        [
            Conv2d(3, 1),
            Sequential([Conv2d(2, 1), ReLU(), Conv2d(5, 3, padding=1)]),
            Sequential([MaxPool2d(3, 1, 1), LocalResponseNorm(3, 0.5), Conv2d(4, 1)]),
        ]
    )


def _head() -> Layer:
    return Sequential([AvgPool2d(2), Conv2d(3, 1), ReLU(), Dropout(0.3), Flatten(), Linear(3)])


def _layers(weights: tuple[float, ...] = (0.3, 0.7)) -> list[Layer]:
    middle = [layer for weight in weights for layer in (Auxiliary(_head(), weight), _inception(), ReLU())]
    return [Conv2d(4, 3, padding=1), ReLU(), *middle, GlobalAvgPool(), Linear(3)]


def _bound(layers: list[Layer], segments: int | None = 1) -> tuple[Model, NDArray[Any], NDArray[Any]]:
    model = Model(Sequential(layers), (6, 5, 2), 3)
    if segments != 1:
        model.recompute(segments)
    parameters, gradients = (np.full(model.layout.elements, np.nan) for _ in range(2))
    model.bind(parameters, gradients)
    model.initialize(1)
    # Where biases are zero, rectified zeros end up at the next rectifier's kink.
    parameters += 0.1 * np.random.default_rng(2).standard_normal(parameters.shape)
    return model, parameters, gradients


@pytest.mark.parametrize(
    "make",
    [
        _inception,
        lambda: Concat([Residual(Conv2d(2, 3, padding=1)), MaxPool2d(3, 1, 1)]),
        lambda: Concat([Sequential([Flatten(), Linear(3)]), GlobalAvgPool()]),
        lambda: Sequential([Concat([Conv2d(2, 1)]), ReLU(), Concat([ReLU(), LocalResponseNorm()])]),
        lambda: LocalResponseNorm(3, 0.8, 0.6, 1.5),
        lambda: Auxiliary(_head()),
    ],
)
def test_gradients_and_promises(make: Callable[[], Layer]) -> None:
    check_gradients(make(), (6, 5, 2))


def test_the_loss_counts_auxiliary_classifiers_by_their_weight() -> None:
    """The gradient of the whole loss, by central differences in every 31st parameter."""
    model, parameters, gradients = _bound(_layers())
    seen: list[float | None] = []

    def loss() -> float:
        return model.train(_IMAGES, _LABELS, _TRAINING, StepHooks(forwarded=seen.append))

    total = loss()
    assert seen == [total]
    kept = gradients.copy()
    for i in range(0, parameters.size, 31):
        value, losses = parameters[i], []
        for moved in (value + 1e-6, value - 1e-6):
            parameters[i] = moved
            losses.append(loss())
        parameters[i] = value
        assert kept[i] == pytest.approx((losses[0] - losses[1]) / 2e-6, abs=1e-7)


def test_weights_of_zero_learn_nothing_and_leave_the_rest_alone() -> None:
    model, _, gradients = _bound(_layers((0.0, 0.0)))
    model.train(_IMAGES, _LABELS, _TRAINING, StepHooks())
    heads, others = 0.0, []
    for layer, start, stop in zip(model.layout.layers, model.layout.offsets, model.layout.offsets[1:], strict=False):
        if ".head." in layer.name:
            heads += float(np.abs(gradients[start:stop]).sum())
        else:
            others.append(gradients[start:stop].copy())
    assert heads == 0.0
    logits = model.forward(_IMAGES, _TRAINING)
    model.backward(model.loss(logits, _LABELS)[1])
    plain = [g for name, g in _by_layer(model, gradients) if ".head." not in name]
    assert all(np.array_equal(one, other) for one, other in zip(plain, others, strict=True))


def _by_layer(model: Model, gradients: NDArray[Any]) -> list[tuple[str, NDArray[Any]]]:
    bounds = zip(model.layout.layers, model.layout.offsets, model.layout.offsets[1:], strict=False)
    return [(layer.name, gradients[start:stop]) for layer, start, stop in bounds]


def test_a_loss_scale_reaches_all_gradients() -> None:
    model, _, gradients = _bound(_layers())
    model.train(_IMAGES, _LABELS, _TRAINING, StepHooks())
    unscaled = gradients.copy()
    model.train(_IMAGES, _LABELS, _TRAINING, StepHooks(loss_scale=lambda: 64.0))
    assert np.array_equal(gradients, 64.0 * unscaled)


@pytest.mark.parametrize("segments", [2, 4, None])
def test_recomputed_heads_have_the_same_bits(segments: int | None) -> None:
    model, _, expected = _bound(_layers())
    loss = model.train(_IMAGES, _LABELS, _TRAINING, StepHooks())
    again, _, gradients = _bound(_layers(), segments=segments)
    assert again.train(_IMAGES, _LABELS, _TRAINING, StepHooks()) == loss
    assert np.array_equal(gradients, expected)


def test_in_a_test_there_are_no_heads_but_every_layer_is_asked_for() -> None:
    model, _, _ = _bound(_layers())
    for name, view in model.parameters_by_name().items():
        if ".head." in name:
            view[...] = np.nan
    read: list[int] = []
    context = StepContext(training=False, seed=0, step=0, first_sample=0)
    assert np.isfinite(model.forward(_IMAGES, context, read.append)).all()
    assert read == list(reversed(range(len(model.layout.layers))))


def test_layers_with_auxiliary_classifiers_are_not_spread_over_workers() -> None:
    assert fully_connected_layers(_bound(_layers(()))[0])
    assert not fully_connected_layers(_bound(_layers())[0])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Concat([]), r"Concat: expected layers, at least one, seen \[\]"),
        (lambda: Concat("ab"), "Concat: expected layers, at least one, seen 'ab'"),  # type: ignore[arg-type]
        (lambda: Auxiliary(ReLU(), -1.0), "Auxiliary: expected a weight of at least 0, seen -1.0"),
        (lambda: LocalResponseNorm(4), "LocalResponseNorm: expected an odd size"),
        (lambda: LocalResponseNorm(k=0.0), "k above 0, seen size=5, alpha=0.0001, beta=0.75, k=0.0"),
        (
            lambda: Concat([Conv2d(2, 1), Conv2d(2, 3)]).build("concat1", (6, 5, 2)),
            "concat1: expected branches whose",
        ),
        (lambda: LocalResponseNorm().build("lrn1", (6,)), r"lrn1: expected an input of \(height, width, channels\)"),
        (
            lambda: Model(
                Sequential([Auxiliary(Sequential([Flatten(), Linear(2)])), Flatten(), Linear(3)]), (2, 2, 1), 3
            ),
            r"auxiliary1: expected a head with the model's outputs, \(3,\), seen \(2,\); end it with Linear\(3\)",
        ),
    ],
)
def test_what_does_not_fit_is_told(make: Callable[[], object], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        make()
