"""Arenas, hooks, state and determinism of a model."""

import re
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from taihu.core.base.errors import ModelError
from taihu.worker.engine import Model, StepContext, build_model, softmax_cross_entropy

_SHAPE = (32, 32, 3)
_RUNNABLE = ["small_cnn", "cifar10_quick", "resnet20"]


def _bound(name: str, shape: tuple[int, int, int] = _SHAPE, dtype: Any = np.float32) -> tuple[Model, Any, Any]:
    model = build_model(name, shape, 10)
    parameters, gradients = (np.full(model.layout.elements, np.nan, dtype) for _ in range(2))
    model.bind(parameters, gradients)
    model.initialize(3)
    return model, parameters, gradients


def _batch(count: int, shape: tuple[int, int, int] = _SHAPE, seed: int = 0) -> tuple[NDArray[Any], NDArray[Any]]:
    generator = np.random.default_rng(seed)
    return generator.standard_normal((count, *shape), dtype=np.float32), generator.integers(0, 10, count)


def _training(step: int = 0, first_sample: int = 0) -> StepContext:
    return StepContext(training=True, seed=1, step=step, first_sample=first_sample)


def _evaluation() -> StepContext:
    return StepContext(training=False, seed=1, step=0, first_sample=0)


def _step(model: Model, images: NDArray[Any], labels: NDArray[Any]) -> float:
    loss, dlogits = softmax_cross_entropy(model.forward(images, _training()), labels)
    model.backward(dlogits)
    return loss


@pytest.mark.parametrize("name", _RUNNABLE)
def test_hooks_are_called_once_for_every_layer_in_order(name: str) -> None:
    model, _, gradients = _bound(name)
    images, labels = _batch(2)
    before: list[int] = []
    ready: list[int] = []
    logits = model.forward(images, _training(), before.append)
    model.backward(softmax_cross_entropy(logits, labels)[1], ready.append)
    layers = len(model.layout.layers)
    assert ready == list(range(layers))
    assert before == ready[::-1]
    assert np.isfinite(gradients).all()


@pytest.mark.parametrize("name", _RUNNABLE)
def test_parameters_are_read_after_their_announcement_only(name: str) -> None:
    model, parameters, gradients = _bound(name)
    images, labels = _batch(2)
    _step(model, images, labels)
    expected = gradients.copy()
    true_values, offsets = parameters.copy(), model.layout.offsets
    parameters[...] = np.nan

    def pull(index: int) -> None:
        part = slice(offsets[index], offsets[index + 1])
        parameters[part] = true_values[part]

    finished = np.zeros_like(gradients)

    def push(index: int) -> None:
        part = slice(offsets[index], offsets[index + 1])
        finished[part] = gradients[part]
        parameters[part] = np.nan  # the next step's parameters may already arrive

    dlogits = softmax_cross_entropy(model.forward(images, _training(), pull), labels)[1]
    model.backward(dlogits, push)
    assert np.array_equal(finished, expected)
    assert np.isnan(parameters).all()


def test_layers_keep_views_of_the_arenas() -> None:
    model, parameters, _ = _bound("resnet20")
    views = model.parameters_by_name()
    assert sum(view.size for view in views.values()) == parameters.size
    assert all(np.shares_memory(view, parameters) for view in views.values())
    assert np.array_equal(np.concatenate([view.reshape(-1) for view in views.values()]), parameters)
    names = [f"{layer.name}/{tensor.name}" for layer in model.layout.layers for tensor in layer.tensors]
    assert list(views) == names
    assert names[:2] == ["fc1/weight", "fc1/bias"]
    assert names[-3:] == ["norm1/scale", "norm1/shift", "conv1/weight"]
    assert len(set(names)) == len(names)


def test_layout_is_the_reverse_of_the_forward_order() -> None:
    names = [layer.name for layer in build_model("cifar10_quick", _SHAPE, 10).layout.layers]
    assert names == ["fc2", "fc1", "conv3", "conv2", "conv1"]


def test_initialize_depends_on_the_seed_alone() -> None:
    model, parameters, _ = _bound("small_cnn", (8, 8, 1))
    first = parameters.copy()
    parameters[...] = np.nan
    model.initialize(3)
    assert np.array_equal(parameters, first)
    model.initialize(4)
    assert not np.array_equal(parameters, first)
    other, other_parameters, _ = _bound("small_cnn", (8, 8, 1), np.float64)
    assert np.array_equal(other_parameters, first)
    for name, view in other.parameters_by_name().items():
        inputs = view[..., 0].size
        if name.endswith("bias"):
            assert not view.any()
        elif name != "fc2/weight":
            assert abs(view.std() * np.sqrt(inputs / 2) - 1) < 0.2


@pytest.mark.parametrize("name", _RUNNABLE)
def test_steps_are_deterministic_and_an_evaluation_between_them_changes_nothing(name: str) -> None:
    images, labels = _batch(4)
    others = _batch(7, seed=1)[0]

    def run(*, evaluate: bool) -> tuple[float, bytes]:
        model, _, gradients = _bound(name)
        _step(model, images, labels)
        if evaluate:
            for count in (7, 1):
                model.forward(others[:count], _evaluation())
        return _step(model, images, labels), gradients.tobytes()

    assert run(evaluate=False) == run(evaluate=False) == run(evaluate=True)


def test_evaluation_does_not_depend_on_the_batch() -> None:
    model, _, _ = _bound("resnet20", (8, 8, 3))
    images, labels = _batch(6, (8, 8, 3))
    _step(model, images, labels)
    whole = model.forward(images, _evaluation()).copy()
    for i in range(6):
        single = model.forward(images[i : i + 1], _evaluation())
        np.testing.assert_allclose(single[0], whole[i], rtol=1e-4, atol=1e-5)


def test_the_mean_over_workers_is_the_gradient_of_the_global_batch() -> None:
    model, _, gradients = _bound("small_cnn", (8, 8, 1), np.float64)
    images, labels = _batch(6, (8, 8, 1))
    _step(model, images, labels)
    whole = gradients.copy()
    mean = np.zeros_like(whole)
    for rank in range(3):
        part = slice(2 * rank, 2 * rank + 2)
        _step(model, images[part], labels[part])
        mean += gradients / 3
    np.testing.assert_allclose(mean, whole, rtol=1e-9, atol=1e-12)


def test_buffers_round_trip() -> None:
    model, parameters, _ = _bound("resnet20", (8, 8, 3))
    images, labels = _batch(4, (8, 8, 3))
    live = model.buffers()
    fresh = {name: buffer.copy() for name, buffer in live.items()}
    _step(model, images, labels)
    saved = {name: buffer.copy() for name, buffer in live.items()}
    assert len(saved) == 2 * 19
    assert all(not np.array_equal(saved[name], fresh[name]) for name in saved)
    other = build_model("resnet20", (8, 8, 3), 10)
    other.bind(parameters, np.empty_like(parameters))
    other.load_buffers(saved)
    assert np.array_equal(other.forward(images, _evaluation()), model.forward(images, _evaluation()))
    model.initialize(0)
    assert all(np.array_equal(live[name], fresh[name]) for name in live)
    assert build_model("small_cnn", (8, 8, 1), 10).buffers() == {}


def test_buffers_of_another_model_are_refused_and_change_nothing() -> None:
    model, _, _ = _bound("resnet20", (8, 8, 3))
    good = {name: buffer + 1 for name, buffer in model.buffers().items()}
    fresh = {name: buffer.copy() for name, buffer in model.buffers().items()}
    name = "residual4.body.norm1/running_mean"
    cases = [
        ({key: value for key, value in good.items() if key != name}, f"buffer {name} is missing"),
        (good | {"norm9/mean": np.zeros(3)}, "buffer norm9/mean is not in this model"),
        (good | {name: np.zeros(3)}, f"buffer {name}: expected shape (32,), seen (3,)"),
    ]
    for buffers, message in cases:
        with pytest.raises(ModelError, match=re.escape(message)):
            model.load_buffers(buffers)
    assert all(np.array_equal(buffer, fresh[key]) for key, buffer in model.buffers().items())


def test_misuse_is_refused() -> None:
    images, labels = _batch(2, (8, 8, 1))
    unbound = build_model("small_cnn", (8, 8, 1), 10)
    with pytest.raises(ModelError, match="call bind"):
        unbound.forward(images, _training())
    good = np.zeros(unbound.layout.elements, np.float32)
    for wrong in (good[1:], good.astype(np.float16), np.zeros(2 * good.size, np.float32)[::2], good.reshape(1, -1)):
        with pytest.raises(ModelError, match="parameter arena: expected"):
            unbound.bind(wrong, good)
        with pytest.raises(ModelError, match="gradient arena: expected"):
            unbound.bind(good, wrong)
    with pytest.raises(ModelError, match="gradient arena: expected"):
        unbound.bind(good, good.astype(np.float64))
    model, _, _ = _bound("small_cnn", (8, 8, 1))
    with pytest.raises(ModelError, match=re.escape("expected inputs of (batch, 8, 8, 1), seen (2, 8, 8)")):
        model.forward(images[..., 0], _training())
    with pytest.raises(ModelError, match=re.escape("seen (0, 8, 8, 1)")):
        model.forward(images[:0], _training())
    dlogits = softmax_cross_entropy(model.forward(images, _evaluation()), labels)[1]
    with pytest.raises(ModelError, match="expected a training forward"):
        model.backward(dlogits)
    _step(model, images, labels)
    with pytest.raises(ModelError, match="expected a training forward"):
        model.backward(dlogits)
    with pytest.raises(
        ModelError, match=re.escape("inputs of (height, width, channels) or (features,), seen (8, 8)")
    ):
        build_model("small_cnn", (8, 8), 10)
