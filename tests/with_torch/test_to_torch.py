"""Exported modules, loaded and computed by PyTorch, against the engine."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.saved import loaded, raw

from taihu.core.base.errors import ModelError
from taihu.export.to_torch import torch_source, write_torch
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


def exported(model: LoadedModel, folder: Path) -> Any:
    """The module of the files, in evaluation mode."""
    _, source = write_torch(model, folder / "a-model.safetensors")
    spec = importlib.util.spec_from_file_location("exported", source)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.load()


def test_means_far_from_0_leave_in_float64(tmp_path: Path) -> None:
    far = {"mean": (1.7e9 + 1 / 3, 1.0), "scale": (170.0, 2.0), "offset": (1.7e9 + 1 / 3, 0.0)}
    model = loaded(Linear(3), (2,), 3, **far)
    x = raw((2,), 20) + np.array([1.7e9, 0.0])
    answers = exported(model, tmp_path).predict(torch.from_numpy(x)).numpy()
    np.testing.assert_allclose(answers, model.predict(x), rtol=1e-5, atol=1e-6)


def check(model: LoadedModel, folder: Path) -> None:
    x = raw(model.input_shape)
    answers = exported(model, folder).predict(torch.from_numpy(x)).numpy()
    np.testing.assert_allclose(answers, model.predict(x), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("mlp", (7,)),
        ("small_cnn", (8, 8, 1)),
        ("cifar10_quick", (28, 28, 1)),
        ("resnet20", (16, 16, 3)),
        ("vgg16_cifar", (32, 32, 3)),
        ("alexnet", (67, 67, 3)),
        ("alexnet_lrn", (67, 67, 3)),
        ("vgg16", (32, 32, 3)),
        ("googlenet", (96, 79, 3)),
        ("resnet50", (40, 33, 3)),
    ],
)
def test_every_model_of_the_zoo(name: str, shape: tuple[int, int, int], tmp_path: Path) -> None:
    check(loaded(MODELS[name](shape, 10), shape, 10), tmp_path)


@settings(deadline=None, max_examples=40)
@given(data=st.data())
def test_windows_of_every_kind(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    kernel, stride = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 4))
    padding, ceil_mode = data.draw(st.integers(0, kernel // 2)), data.draw(st.booleans())
    padding = min(padding, kernel - 1)
    shape = (data.draw(st.integers(4, 9)), data.draw(st.integers(4, 9)), 2)
    groups = data.draw(st.sampled_from([1, 2]))
    layer = data.draw(
        st.sampled_from(
            [
                MaxPool2d(kernel, stride, padding, ceil_mode=ceil_mode),
                AvgPool2d(kernel, stride, padding, ceil_mode=ceil_mode),
                Conv2d(4, kernel, stride, padding, groups=groups, bias=ceil_mode),
            ]
        )
    )
    model = loaded(Sequential([layer, GlobalAvgPool(), Linear(3)]), shape, 3)
    check(model, tmp_path_factory.mktemp("exported"))


@pytest.mark.parametrize(
    ("shape", "layers"),
    [
        ((7, 9, 3), [Conv2d(4, 3), Residual(ReLU()), Dropout(0.5), Flatten(), Linear(3)]),
        ((5, 5, 2), [Residual(Conv2d(4, 3, 2, 1), PaddedShortcut(4, 2)), GlobalAvgPool(), Linear(3, bias=False)]),
        ((4, 4, 2), [Flatten(), Flatten(), Linear(5), BatchNorm(epsilon=1e-3), ReLU(), Linear(3)]),
        ((6,), [Linear(5), Residual(Sequential([Linear(5), ReLU()])), Linear(3)]),
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
def test_layers_in_all_places(shape: tuple[int, ...], layers: list[Layer], tmp_path: Path) -> None:
    check(loaded(Sequential(layers), shape, 3), tmp_path)


@pytest.mark.parametrize("targets", ["values", "classes"])
@pytest.mark.parametrize("loss", ["mse", "bce"])
def test_other_losses(targets: str, loss: str, tmp_path: Path) -> None:
    if (targets, loss) != ("classes", "mse"):
        check(loaded(Linear(1), (4,), 1, targets=targets, loss=loss), tmp_path)


TOKENS = {"targets": "tokens", "mean": (0.0,) * 5, "scale": (1.0,) * 5}


@pytest.mark.parametrize("tied", [True, False])
def test_a_transformer(tied: bool, tmp_path: Path) -> None:
    check(
        loaded(transformer(256, blocks=2, width=12, heads=3, dropout=0.1, tied=tied), (5,), 256, **TOKENS), tmp_path
    )


@pytest.mark.parametrize(
    ("shape", "layers"),
    [
        ((5,), [Embedding(256, 6), GELU("tanh"), BatchNorm(), LayerNorm(1e-3), Flatten(), Linear(4)]),
        ((4, 5, 3), [Conv2d(6, 3), LayerNorm(), GELU(), GlobalAvgPool(), LayerNorm(), Linear(3)]),
    ],
)
def test_layers_of_transformers_in_other_places(shape: tuple[int, ...], layers: list[Layer], tmp_path: Path) -> None:
    said = {"mean": TOKENS["mean"], "scale": TOKENS["scale"]} if len(shape) == 1 else {}
    model = loaded(Sequential(layers), shape, layers[-1]._units, **said)  # type: ignore[attr-defined]
    check(model, tmp_path)


def test_the_module_trains_on(tmp_path: Path) -> None:
    layers = [Conv2d(3, 3), BatchNorm(momentum=0.9), ReLU(), GlobalAvgPool(), Linear(2)]
    module = exported(loaded(Sequential(layers), (6, 6, 2), 2), tmp_path).train()
    module(torch.from_numpy(raw((6, 6, 2)))).sum().backward()
    assert all(parameter.grad is not None for parameter in module.parameters())
    assert abs(module.norm1.momentum - 0.1) < 1e-12


def test_what_pytorch_cannot_pool_is_said() -> None:
    model = loaded(Sequential([MaxPool2d(3, 1, 2), GlobalAvgPool()]), (4, 4, 2), 2)
    with pytest.raises(ModelError, match="pool1: a padding of 2 for a kernel of 3, of which PyTorch's pools take"):
        torch_source(model, "state.safetensors", "module")
