"""Gradients of ResNet-50, and of its blocks, against PyTorch's from the same parameters."""

import numpy as np
import pytest

from benchmarks.engine.resnet50 import distance, gradients, torch_gradients
from taihu.worker.engine import MODELS, GlobalAvgPool, Linear, Model, Sequential


def _batch(side: int, channels: int, images: int, classes: int) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(0)
    x = generator.standard_normal((images, side, side, channels), dtype=np.float32)
    return x, generator.integers(0, classes, images)


def test_gradients_of_the_whole_model() -> None:
    """In float64: in float32 a rounding that turns a rectifier moves both by some percent from that."""
    shape = (64, 64, 3)
    model = Model(MODELS["resnet50"](shape, 1000), shape, 1000)
    batch = _batch(64, 3, 4, 1000)
    loss, ours = gradients(model, *batch, np.float64)
    expected, theirs = torch_gradients(model, *batch)
    assert loss == pytest.approx(expected, rel=1e-12)
    assert (
        max(np.abs(one - other).max() / np.abs(other).max() for one, other in zip(ours, theirs, strict=True)) < 1e-9
    )

    narrow, exact = gradients(model, *batch, np.float32)[1], theirs
    assert distance(narrow, exact) < 2 * distance(torch_gradients(model, *batch)[1], exact)


@pytest.mark.parametrize(("first", "side", "channels"), [(4, 28, 64), (10, 28, 256), (18, 14, 512), (30, 7, 1024)])
def test_gradients_of_blocks_in_float32(first: int, side: int, channels: int) -> None:
    """The first block of every stage, which has a projection, and its rectifier."""
    block = MODELS["resnet50"]((224, 224, 3), 10).children[first : first + 2]
    model = Model(Sequential([*block, GlobalAvgPool(), Linear(10)]), (side, side, channels), 10)
    batch = _batch(side, channels, 8, 10)
    ours = gradients(model, *batch, np.float32)[1]
    assert distance(ours, torch_gradients(model, *batch)[1]) < 1e-4
