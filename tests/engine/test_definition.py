"""Layers to definitions and back: the same model, and nothing but the built-in layers."""

from __future__ import annotations

import inspect
import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import taihu.worker.engine
from taihu.core.base.errors import ModelError
from taihu.core.model.model_defaults import usual_input
from taihu.worker.engine import (
    MODELS,
    AvgPool2d,
    BatchNorm,
    Conv2d,
    Dropout,
    Flatten,
    GlobalAvgPool,
    Layer,
    Linear,
    MaxPool2d,
    Model,
    PaddedShortcut,
    ParameterLayer,
    ReLU,
    Residual,
    Run,
    Sequential,
    StepContext,
    build_from_definition,
)
from taihu.worker.engine.models.definition import BUILT_IN


def through_json(layer: Layer) -> Layer:
    return build_from_definition(json.loads(json.dumps(layer.definition())))


def outputs(root: Layer, shape: tuple[int, ...], classes: int) -> bytes:
    """The result of a training step, dropout and batch moments with it."""
    model = Model(root, shape, classes)
    arena = np.zeros(model.layout.elements, np.float32)
    model.bind(arena, np.zeros_like(arena))
    model.initialize(3)
    x = np.random.default_rng(1).standard_normal((3, *shape), dtype=np.float32)
    return model.forward(x, StepContext(training=True, seed=1, step=1, first_sample=0)).tobytes()


LEAVES = st.one_of(
    st.builds(
        Conv2d,
        st.integers(1, 3).map(lambda each: 2 * each),
        st.sampled_from([1, 3]),
        st.integers(1, 2),
        st.sampled_from([1, "same"]),
        bias=st.booleans(),
        groups=st.just(1),
    ),
    st.builds(BatchNorm, st.floats(0, 1), st.floats(1e-6, 1)),
    st.builds(ReLU),
    st.builds(Dropout, st.floats(0, 0.9)),
    st.builds(MaxPool2d, st.just(2), st.sampled_from([None, 1]), st.integers(0, 1), ceil_mode=st.booleans()),
    st.builds(AvgPool2d, st.just(2), st.sampled_from([None, 1]), st.integers(0, 1), ceil_mode=st.booleans()),
    st.builds(lambda body: Residual(Conv2d(8, 3, padding=1), body), st.builds(PaddedShortcut, st.just(8))),
    st.builds(lambda gain: Residual(Sequential([BatchNorm(), ReLU()]), None), st.just(0)),
)


LARGE_ENOUGH = (17, 16, 2)  # each of four layers may halve it, and the last pooling needs 2 x 2 pixels


@settings(deadline=None, max_examples=40)
@given(st.lists(LEAVES, max_size=4), st.sampled_from([Flatten, GlobalAvgPool]), st.booleans(), st.floats(0, 4))
def test_a_model_computes_the_same_after_a_round_trip(
    layers: list[Layer], end: type[Layer], bias: bool, gain: float
) -> None:
    root = Sequential([*layers, end(), Linear(3, bias=bias, gain=gain)])
    again = through_json(root)
    assert again.definition() == root.definition()
    assert outputs(again, LARGE_ENOUGH, 3) == outputs(root, LARGE_ENOUGH, 3)


@pytest.mark.parametrize("name", MODELS)
def test_the_zoo_is_made_of_definitions(name: str) -> None:
    shape, _ = usual_input(name)
    root = MODELS[name](shape, 10)
    assert Model(through_json(root), shape, 10).layout == Model(root, shape, 10).layout


def test_every_built_in_layer_has_a_definition() -> None:
    public = {
        name: each
        for name, each in vars(taihu.worker.engine).items()
        if isinstance(each, type) and issubclass(each, Layer) and not inspect.isabstract(each)
    }
    assert public == dict(BUILT_IN)


class Mine(Layer):
    """A layer of a user's own."""

    def build(self, name: str, input_shape: tuple[int, ...]) -> tuple[int, ...]:
        """The same shape."""
        self.name = name
        return input_shape

    def forward(self, x: np.ndarray, run: Run) -> np.ndarray:
        """Itself."""
        return x

    def backward(self, dy: np.ndarray, run: Run) -> np.ndarray:
        """Itself."""
        return dy


class MyLinear(Linear):
    """A built-in layer changed."""


@pytest.mark.parametrize("own", [Mine, lambda: MyLinear(3), lambda: Residual(Sequential([ReLU(), Mine()]))])
def test_a_layer_of_the_users_own_has_none(own: Any) -> None:
    assert own().definition() is None
    assert Sequential([Flatten(), own()]).definition() is None


def test_numpys_numbers_are_plain_in_a_definition() -> None:
    layer = Conv2d(np.int64(4), np.int32(3), bias=np.bool_(False))  # type: ignore[arg-type]
    assert json.loads(json.dumps(layer.definition())) == Conv2d(4, 3, bias=False).definition()


CONV = Conv2d(4, 3).definition()
assert CONV is not None


def nested(depth: int) -> dict[str, Any]:
    definition: dict[str, Any] = {"layer": "ReLU"}
    for _ in range(depth):
        definition = {"layer": "Sequential", "layers": [definition]}
    return definition


@pytest.mark.parametrize(
    ("definition", "message"),
    [
        (None, "expected a table that names a layer"),
        ([], "expected a table that names a layer"),
        ({}, "expected a table that names a layer"),
        ({"layer": 3}, "expected a table that names a layer"),
        ({"layer": "os.system"}, "unknown layer 'os.system'; known are Auxiliary, AvgPool2d, "),
        ({"layer": "Layer"}, "unknown layer 'Layer'"),
        ({"layer": "TiedLinear", "units": 3, "weights": 3}, "TiedLinear: weights is 3; expected what its constr"),
        ({"layer": "TiedLinear", "units": 3, "weights": "x" * 1001}, "TiedLinear: weights is 'xxx"),
        ({"layer": "GELU", "approximate": "erf"}, "GELU: approximate is 'erf'; expected what its constructor takes"),
        ({"layer": "Embedding", "tokens": 1 << 25, "width": 1}, "Embedding: tokens is 33554432"),
        ({"layer": "Conv2d"}, "argument 'filters' of Conv2d is missing"),
        (CONV | {"command": "ls"}, "argument 'command' of Conv2d is unknown"),
        (CONV | {"filters": 4.0}, "Conv2d: filters is 4.0; expected what its constructor takes"),
        (CONV | {"filters": "4"}, "Conv2d: filters is '4'"),
        (CONV | {"filters": [4]}, "expected a table that names a layer"),
        (CONV | {"filters": 1 << 25}, "Conv2d: filters is 33554432"),
        (CONV | {"filters": {"layer": "ReLU"}}, "Conv2d: filters is {'layer': 'ReLU'}"),
        (CONV | {"bias": None}, "Conv2d: bias is None"),
        (CONV | {"filters": 0}, "Conv2d: expected positive filters"),
        ({"layer": "Dropout", "rate": float("nan")}, "Dropout: rate is nan"),
        ({"layer": "Dropout", "rate": 10**400}, "Dropout: rate is 1000"),
        ({"layer": "PaddedShortcut", "channels": 3, "stride": 0}, "PaddedShortcut: expected at least 1 channel"),
        ({"layer": "BatchNorm", "momentum": 0.9, "epsilon": -1.0}, "BatchNorm: expected a momentum of 0 to 1"),
        ({"layer": "Linear", "units": 3, "bias": True, "gain": -1.0}, "Linear: expected a gain of at least 0"),
        ({"layer": "Sequential", "layers": {"layer": "ReLU"}}, "Sequential: layers is"),
        ({"layer": "Sequential", "layers": [1]}, "expected a table that names a layer"),
        (nested(60), "at most 10000 layers, 50 inside of each other"),
        ({"layer": "Sequential", "layers": [{"layer": "ReLU"}] * 10_001}, "at most 10000 layers"),
    ],
)
def test_what_is_no_definition_is_refused_in_one_line(definition: object, message: str) -> None:
    with pytest.raises(ModelError) as caught:
        build_from_definition(definition)
    assert message in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


def test_parameter_layers_bind_before_they_have_state() -> None:
    """Shapes alone are inferred: a definition of any size takes no memory before it is bound."""
    root = through_json(Sequential([Flatten(), Linear(1 << 24), BatchNorm(), Linear(2)]))
    model = Model(root, (1, 1, 1), 2)
    assert all(buffer.size == 0 for buffer in model.buffers().values())
    assert isinstance(model.parameter_layers[1], ParameterLayer)


def test_a_file_of_before_has_fewer_arguments() -> None:
    """Layers have got initial values since."""
    full = Conv2d(4, 3).definition()
    assert full is not None
    before = {key: value for key, value in full.items() if key not in ("gain", "deviation", "bias_value")}
    assert build_from_definition(before).definition() == full
