"""Rehearsed steps against real ones."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import pytest

from taihu.worker.engine import (
    MODELS,
    Auxiliary,
    AvgPool2d,
    BatchNorm,
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
    transformer,
)
from taihu.worker.engine.rehearsal import rehearsed_bytes

IMAGE = (9, 8, 3)


def images() -> Layer:
    branches = [Conv2d(3, 1), Sequential([Conv2d(4, 3, padding=1, groups=2), ReLU()]), MaxPool2d(3, 1, 1)]
    head = Sequential([AvgPool2d(2), ReLU(), Flatten(), Linear(5)])
    body = Sequential([Conv2d(6, 3, padding=1, bias=False), BatchNorm(), ReLU(), Dropout(0.2)])
    ends = [LocalResponseNorm(), Conv2d(8, 1, 2), GlobalAvgPool(), Linear(5)]
    return Sequential([Conv2d(6, 3, padding=1), ReLU(), Residual(body), Auxiliary(head), Concat(branches), *ends])


def tokens() -> Layer:
    return transformer(7, blocks=2, width=12, heads=3, dropout=0.1)


def build(root: Callable[[], Layer], shape: tuple[int, ...], outputs: int, ways: dict[str, object] | None) -> Model:
    model = Model(root(), shape, outputs)
    if ways is not None:
        model.recompute(**ways)  # type: ignore[arg-type]
    model.use_threads(2)
    return model


KINDS: dict[str, tuple[Callable[[], Layer], tuple[int, ...], int]] = {
    "images": (images, IMAGE, 5),
    "tokens": (tokens, (6,), 7),
    "resnet20": (partial(MODELS["resnet20"], (8, 8, 3), 10), (8, 8, 3), 10),
}


@pytest.mark.parametrize("ways", [None, {}, {"segments": 2}, {"spill": True}], ids=["none", "memory", "two", "spill"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_rehearsed_step_takes_what_a_real_one_takes(kind: str, ways: dict[str, object] | None) -> None:
    of = (*KINDS[kind], ways)
    real = build(*of)
    parameters, gradients = np.zeros((2, real.layout.elements), np.float32)
    real.bind(parameters, gradients)
    real.initialize(1)
    rng = np.random.default_rng(1)
    for batch, tested in ((2, 0), (5, 0), (5, 11)):
        x = rng.integers(0, 5, (batch, *real.input_shape)).astype(np.float32)
        labels = rng.integers(0, real.outputs, (batch, *real.output_shape[:-1]))
        for step in (1, 2):
            context = StepContext(training=True, seed=1, step=step, first_sample=0)
            real.train(x, labels, context, StepHooks())
        if tested:
            still = StepContext(training=False, seed=0, step=0, first_sample=0)
            real.forward(np.zeros((tested, *real.input_shape), np.float32), still)
        assert rehearsed_bytes(build(*of), batch, tested=tested, threads=2) == real.held_bytes


def test_a_front_is_rehearsed_alone() -> None:
    whole, front = (Model(MODELS["small_cnn"]((8, 8, 1), 10), (8, 8, 1), 10) for _ in range(2))
    stop = next(place for place, layer in enumerate(front.chain) if isinstance(layer, Linear))
    wider = Sequential(list(MODELS["small_cnn"]((8, 8, 1), 10).children[:stop]))
    alone = Model(wider, (8, 8, 1), 512)
    assert rehearsed_bytes(front, 4, stop=stop) == rehearsed_bytes(alone, 4) < rehearsed_bytes(whole, 4)


def test_nobody_works_in_a_rehearsal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not one product: neither kernels of convolutions nor BLAS are called."""

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError

    monkeypatch.setattr("numpy.matmul", refuse)
    monkeypatch.setattr("taihu.worker.engine.layers.convolution.convolve", refuse)
    assert rehearsed_bytes(build(*KINDS["images"], None), 3) > 0
    assert rehearsed_bytes(build(*KINDS["tokens"], None), 3) > 0
