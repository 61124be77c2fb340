"""Exported graphs, checked by onnx and computed by onnxruntime, against the engine."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.saved import loaded, raw

from taihu.core.base.errors import ModelError, WriteError
from taihu.worker.engine import (
    GELU,
    MODELS,
    Auxiliary,
    AvgPool2d,
    BatchNorm,
    Concat,
    Conv2d,
    Dropout,
    Embedding,
    Flatten,
    GlobalAvgPool,
    Layer,
    LayerNorm,
    Linear,
    LocalResponseNorm,
    MaxPool2d,
    PaddedShortcut,
    ReLU,
    Residual,
    Sequential,
    transformer,
)
from taihu.worker.saved.prediction import LoadedModel


def computed(model: LoadedModel, x: np.ndarray, inputs: Any = "floats") -> dict[str, np.ndarray]:
    """All outputs of the exported graph, by onnxruntime."""
    import onnx  # noqa: PLC0415 - not in every process that collects this test
    import onnxruntime  # noqa: PLC0415

    from taihu.export.to_onnx import onnx_model  # noqa: PLC0415

    made = onnx_model(model, inputs)
    onnx.checker.check_model(made, full_check=True)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(made.SerializeToString(), options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, {"input": x}), strict=True))


def check(model: LoadedModel, name: str = "probabilities") -> dict[str, np.ndarray]:
    x = raw(model.input_shape)
    outputs = computed(model, x)
    np.testing.assert_allclose(outputs[name], model.predict(x), rtol=1e-5, atol=1e-5)
    return outputs


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("mlp", (7,)),
        ("small_cnn", (8, 8, 1)),
        ("cifar10_quick", (28, 28, 1)),
        ("resnet20", (16, 16, 3)),
        ("vgg16_cifar", (32, 32, 3)),
        ("alexnet", (67, 67, 3)),
    ],
)
def test_every_model_of_the_zoo(name: str, shape: tuple[int, int, int]) -> None:
    outputs = check(loaded(MODELS[name](shape, 10), shape, 10))
    assert set(outputs) == {"probabilities", "logits"}
    assert outputs["probabilities"].std() > 1e-3


@pytest.mark.parametrize(("name", "shape"), [("small_cnn", (8, 8, 3)), ("mlp", (7,))])
def test_bytes_are_taken_as_they_are(name: str, shape: tuple[int, ...]) -> None:
    model = loaded(MODELS[name](shape, 10), shape, 10)
    pixels = np.random.default_rng(5).integers(0, 256, (4, *shape), np.uint8)
    found = computed(model, pixels, "bytes")["probabilities"]
    np.testing.assert_allclose(found, model.predict(pixels), rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(found, computed(model, pixels.astype(np.float32))["probabilities"])


@settings(deadline=None, max_examples=40)
@given(st.data())
def test_windows_of_every_kind(data: st.DataObject) -> None:
    kernel, stride = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 4))
    padding = data.draw(st.integers(0, kernel - 1))
    shape = (data.draw(st.integers(4, 9)), data.draw(st.integers(4, 9)), 2)
    ceil_mode = data.draw(st.booleans())
    layers: dict[str, Callable[[], Layer]] = {
        "max": lambda: MaxPool2d(kernel, stride, padding, ceil_mode=ceil_mode),
        "average": lambda: AvgPool2d(kernel, stride, padding, ceil_mode=ceil_mode),
        "conv": lambda: Conv2d(4, kernel, stride, padding, groups=data.draw(st.sampled_from([1, 2])), bias=ceil_mode),
    }
    layer = layers[data.draw(st.sampled_from(sorted(layers)))]()
    check(loaded(Sequential([layer, GlobalAvgPool(), Linear(3)]), shape, 3))


def block(filters: int, stride: int) -> Layer:
    body = Sequential([Conv2d(filters, 3, stride, padding=1, bias=False), BatchNorm(epsilon=1e-3), ReLU()])
    return Residual(body, PaddedShortcut(filters, stride))


@pytest.mark.parametrize(
    ("shape", "layers"),
    [
        ((7, 9, 3), [Conv2d(4, 3), block(6, 2), ReLU(), Residual(ReLU()), Dropout(0.5), Flatten(), Linear(3)]),
        ((5, 5, 2), [block(2, 1), Residual(BatchNorm(), Conv2d(2, 1)), GlobalAvgPool(), Linear(3, bias=False)]),
        ((4, 4, 2), [Flatten(), Flatten(), Linear(5), BatchNorm(), ReLU(), Dropout(0.3), Linear(3)]),
        ((6,), [Linear(5), BatchNorm(), Residual(Sequential([Linear(5), ReLU()])), Linear(3)]),
        ((6, 2, 3), [Conv2d(3, 2), GlobalAvgPool()]),
        (
            (6, 5, 3),
            [
                LocalResponseNorm(3, 0.5),
                Auxiliary(Sequential([Flatten(), Linear(3)])),
                Concat([Conv2d(4, 1), Sequential([MaxPool2d(3, 1, 1), Conv2d(2, 1), ReLU()]), LocalResponseNorm()]),
                Flatten(),
                Linear(3),
            ],
        ),
    ],
)
def test_layers_in_all_places(shape: tuple[int, ...], layers: list[Layer]) -> None:
    check(loaded(Sequential(layers), shape, 3))


@pytest.mark.parametrize(
    ("said", "name", "others"),
    [
        ({"targets": "values", "loss": "mse"}, "values", set()),
        ({"targets": "values", "loss": "bce"}, "values", {"logits"}),
    ],
)
def test_values(said: dict[str, Any], name: str, others: set[str]) -> None:
    outputs = check(loaded(Linear(2), (4,), 2, **said), name)
    assert set(outputs) == {name} | others


TOKENS = {"targets": "tokens", "mean": (0.0,) * 5, "scale": (1.0,) * 5}


@pytest.mark.parametrize("tied", [True, False])
def test_a_transformer(tied: bool) -> None:
    model = loaded(transformer(256, blocks=2, width=12, heads=3, dropout=0.1, tied=tied), (5,), 256, **TOKENS)
    outputs = check(model)
    assert {name: each.shape for name, each in outputs.items()} == dict.fromkeys(
        ("probabilities", "logits"), (3, 5, 256)
    )


@pytest.mark.parametrize(
    ("shape", "layers"),
    [
        ((5,), [Embedding(256, 6), GELU("tanh"), BatchNorm(), LayerNorm(1e-3), Flatten(), Linear(4)]),
        ((4, 5, 3), [Conv2d(6, 3), LayerNorm(), GELU(), GlobalAvgPool(), LayerNorm(), Linear(3)]),
    ],
)
def test_layers_of_transformers_in_other_places(shape: tuple[int, ...], layers: list[Layer]) -> None:
    said = {"mean": TOKENS["mean"], "scale": TOKENS["scale"]} if len(shape) == 1 else {}
    check(loaded(Sequential(layers), shape, layers[-1]._units, **said))  # type: ignore[attr-defined]


def test_one_output_tells_two_classes() -> None:
    outputs = check(loaded(Linear(1), (4,), 1, loss="bce"))
    assert outputs["probabilities"].shape == (3, 2)


def test_means_far_from_0_leave_in_float64() -> None:
    far = {"mean": (1.7e9 + 1 / 3, 1.0), "scale": (170.0, 2.0), "offset": (1.7e9 + 1 / 3, 0.0)}
    model = loaded(Linear(3), (2,), 3, **far)
    x = raw((2,), 20) + np.array([1.7e9, 0.0])
    np.testing.assert_allclose(computed(model, x)["probabilities"], model.predict(x), rtol=1e-5, atol=1e-6)


def test_one_sample_and_many() -> None:
    model = loaded(Linear(2), (4,), 2)
    for count in (1, 7):
        assert computed(model, raw((4,), count))["probabilities"].shape == (count, 2)


class Mine(ReLU):
    """A layer of a user's own."""


def test_a_layer_of_the_users_own_is_named() -> None:
    from taihu.export.to_onnx import onnx_model  # noqa: PLC0415 - not in every process that collects this test

    model = loaded(Sequential([Linear(2), Mine()]), (4,), 2)
    with pytest.raises(ModelError, match=r"mine1 \(Mine\) is a layer of your own, which cannot be exported"):
        onnx_model(model)


def test_a_file_that_cannot_be_written(tmp_path: Path) -> None:
    import onnx  # noqa: PLC0415 - not in every process that collects this test

    from taihu.export.to_onnx import write_onnx  # noqa: PLC0415

    model = loaded(Linear(2), (4,), 2)
    assert write_onnx(model, tmp_path / "a.onnx") == (tmp_path / "a.onnx",)
    onnx.checker.check_model(str(tmp_path / "a.onnx"))
    with pytest.raises(WriteError, match=r"cannot write .*: No such file"):
        write_onnx(model, tmp_path / "none" / "a.onnx")
    assert [each.name for each in tmp_path.iterdir()] == ["a.onnx"]
