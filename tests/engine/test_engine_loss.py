"""Losses, and what a test counts beside them, against formulas and scikit-learn."""

from __future__ import annotations

import importlib
import re
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from taihu.core.base.errors import ConfigError, DataError
from taihu.core.job import load_job
from taihu.core.model.losses import LossName, TargetKind
from taihu.worker.engine import Flatten, Linear, Model, ReLU, Sequential, StepContext, StepHooks
from taihu.worker.engine.base.loss import (
    BinaryCrossEntropy,
    CrossEntropy,
    Loss,
    MeanSquaredError,
    make_loss,
    outputs_of_model,
    softmax_cross_entropy,
)
from taihu.worker.engine.base.scores import Deviations, RightBits, RightClasses, Tally

LOSSES: tuple[Loss, ...] = (CrossEntropy(), CrossEntropy(0.3), MeanSquaredError(), BinaryCrossEntropy())


def draw_targets(loss: Loss, rng: np.random.Generator, batch: int, width: int) -> NDArray[Any]:
    return rng.integers(0, width, batch) if isinstance(loss, CrossEntropy) else rng.random((batch, width))


@settings(deadline=None, max_examples=40)
@given(st.sampled_from(LOSSES), st.integers(1, 5), st.integers(1, 6), st.integers(0, 99))
def test_the_gradient_is_that_of_central_differences(loss: Loss, batch: int, width: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    outputs, targets = rng.standard_normal((batch, width)), draw_targets(loss, rng, batch, width)
    _, gradient = loss(outputs, targets)
    for place in np.ndindex(outputs.shape):
        step = np.zeros_like(outputs)
        step[place] = 1e-6
        numeric = (loss(outputs + step, targets)[0] - loss(outputs - step, targets)[0]) / 2e-6
        assert gradient[place] == pytest.approx(numeric, abs=1e-8)


@settings(deadline=None, max_examples=40)
@given(st.sampled_from(LOSSES), st.integers(2, 9), st.integers(1, 4), st.data())
def test_the_parts_of_a_batch_add_up(loss: Loss, batch: int, width: int, data: st.DataObject) -> None:
    cut = data.draw(st.integers(1, batch - 1))
    rng = np.random.default_rng(batch)
    outputs, targets = rng.standard_normal((batch, width)), draw_targets(loss, rng, batch, width)
    whole, gradient = loss(outputs, targets)
    parts = [loss(outputs[rows], targets[rows]) for rows in (slice(cut), slice(cut, batch))]
    shares = (cut / batch, 1 - cut / batch)
    assert whole == pytest.approx(sum(share * part for share, (part, _) in zip(shares, parts, strict=True)))
    together = np.concatenate([share * part for share, (_, part) in zip(shares, parts, strict=True)])
    np.testing.assert_allclose(together, gradient, atol=1e-15)


def test_cross_entropy_without_smoothing_has_the_bits_it_always_had() -> None:
    rng = np.random.default_rng(0)
    logits, labels = rng.standard_normal((7, 5), dtype=np.float32), rng.integers(0, 5, 7)
    for made in (make_loss("auto", "classes", 5), make_loss("cross-entropy", "classes", 5, 0.0)):
        loss, gradient = made(logits, labels)
        expected = softmax_cross_entropy(logits, labels)
        assert (loss, gradient.tobytes()) == (expected[0], expected[1].tobytes())
    assert make_loss("auto", "classes", 5, 0.1)(logits, labels)[0] != loss


@pytest.mark.parametrize(
    ("name", "targets", "outputs", "expected", "model_outputs"),
    [
        ("auto", "classes", 7, CrossEntropy(), 7),
        ("auto", "values", 7, MeanSquaredError(), 7),
        ("bce", "values", 7, BinaryCrossEntropy(), 7),
        ("bce", "classes", 2, BinaryCrossEntropy(), 1),
    ],
)
def test_the_loss_of_the_data(
    name: LossName, targets: TargetKind, outputs: int, expected: Loss, model_outputs: int
) -> None:
    loss = make_loss(name, targets, outputs)
    assert loss == expected
    assert outputs_of_model(loss, targets, outputs) == model_outputs


@pytest.mark.parametrize(
    ("name", "targets", "outputs", "smoothing", "message"),
    [
        ("mse", "classes", 10, 0, "train.loss 'mse': expected values (floats), the data set's targets are classes"),
        ("cross-entropy", "values", 1, 0, "train.loss 'cross-entropy': expected classes (integers)"),
        ("bce", "classes", 10, 0, "expected 2 classes, or values of 0 and 1, the data set has 10 classes; use"),
        ("auto", "values", 1, 0.1, "train.label_smoothing 0.1: only cross-entropy has it, this run's loss is mse"),
    ],
)
def test_a_loss_that_does_not_suit_the_data_is_refused(
    name: LossName, targets: TargetKind, outputs: int, smoothing: float, message: str
) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)) as caught:
        make_loss(name, targets, outputs, smoothing)
    assert "\n" not in str(caught.value)


def test_the_job_refuses_smoothing_that_cannot_be_meant() -> None:
    with pytest.raises(ConfigError, match=r"label_smoothing 0\.1 is for cross-entropy, not for train\.loss 'mse'"):
        load_job(None, {"train": {"loss": "mse", "label_smoothing": 0.1}})
    with pytest.raises(ConfigError, match="label_smoothing"):
        load_job(None, {"train": {"label_smoothing": 1.0}})


@pytest.mark.parametrize(
    ("loss", "targets", "message"),
    [
        (
            MeanSquaredError(),
            np.zeros((2, 3)),
            "expected 1 values for each of the 2 samples",
        ),
        (MeanSquaredError(), np.zeros(2), "seen float64 of shape (2,)"),
        (MeanSquaredError(), np.zeros(2, np.int64), "seen int64 of shape (2,)"),
        (BinaryCrossEntropy(), np.array([[0.0], [1.5]]), "expected targets of 0 to 1, seen 0 to 1.5"),
        (BinaryCrossEntropy(), np.array([[np.nan], [1.0]]), "expected targets of 0 to 1"),
        (BinaryCrossEntropy(), np.array([0, 2]), "expected targets of 0 to 1, seen 0 to 2"),
    ],
)
def test_targets_that_do_not_fit_are_refused(loss: Loss, targets: NDArray[Any], message: str) -> None:
    with pytest.raises(DataError, match=re.escape(message)):
        loss(np.zeros((2, 1)), targets)


def test_labels_of_two_classes_are_values_of_one_output() -> None:
    logits, labels = np.array([[0.5], [-2.0], [3.0]]), np.array([1, 0, 0])
    loss, gradient = BinaryCrossEntropy()(logits, labels)
    expected = BinaryCrossEntropy()(logits, labels.reshape(-1, 1).astype(float))
    assert loss == expected[0]
    assert np.array_equal(gradient, expected[1])


def _count(tally: Tally, outputs: NDArray[Any], targets: NDArray[Any], cuts: list[int]) -> dict[str, float]:
    for start, stop in zip([0, *cuts], [*cuts, len(outputs)], strict=True):
        if start < stop:
            tally.add(outputs[start:stop], targets[start:stop])
    return tally.metrics()


@pytest.fixture(scope="module")
def oracle() -> ModuleType:
    """scikit-learn's scores, which take seconds to import: not in every process that collects these tests."""
    return importlib.import_module("sklearn.metrics")


@pytest.mark.xdist_group("scikit-learn")
@settings(deadline=None, max_examples=40)
@given(
    samples=st.integers(2, 12),
    width=st.integers(1, 4),
    mean=st.sampled_from([0.0, 1e6]),
    constant=st.booleans(),
    data=st.data(),
)
def test_scores_of_values_are_those_of_scikit_learn(
    *, oracle: ModuleType, samples: int, width: int, mean: float, constant: bool, data: st.DataObject
) -> None:
    rng = np.random.default_rng(samples)
    targets = rng.standard_normal((samples, width)) + mean
    outputs = targets + rng.standard_normal((samples, width))
    if constant:
        targets[:, 0] = 3.0
    cuts = sorted(data.draw(st.lists(st.integers(1, samples), max_size=3)))
    scores = _count(Deviations(), outputs, targets, cuts)
    assert list(scores) == ["rmse", "mae", "r2"]
    # its rmse would be the mean of each output's
    assert scores["rmse"] == pytest.approx(oracle.root_mean_squared_error(targets.ravel(), outputs.ravel()))
    assert scores["mae"] == pytest.approx(oracle.mean_absolute_error(targets, outputs))
    assert scores["r2"] == pytest.approx(oracle.r2_score(targets, outputs), rel=1e-6, abs=1e-9)


def test_constant_targets_that_are_met_have_an_r2_of_one() -> None:
    targets = np.full((4, 1), 0.1)
    assert _count(Deviations(), targets.copy(), targets, [])["r2"] == 1
    assert _count(Deviations(), targets + 1, targets, [])["r2"] == 0


@pytest.mark.xdist_group("scikit-learn")
@settings(deadline=None, max_examples=40)
@given(st.integers(1, 12), st.integers(1, 4), st.data())
def test_scores_of_classes_and_bits(oracle: ModuleType, samples: int, width: int, data: st.DataObject) -> None:
    rng = np.random.default_rng(samples)
    outputs = rng.standard_normal((samples, width))
    cuts = sorted(data.draw(st.lists(st.integers(1, samples), max_size=3)))
    labels, bits = rng.integers(0, width, samples), rng.integers(0, 2, (samples, width))
    expected = oracle.accuracy_score(labels, outputs.argmax(axis=1))
    assert _count(RightClasses(), outputs, labels, cuts) == {"accuracy": pytest.approx(expected)}
    expected = oracle.accuracy_score(bits.ravel(), (outputs > 0).ravel())
    assert _count(RightBits(), outputs, bits.astype(np.float32), cuts) == {"accuracy": pytest.approx(expected)}
    if width == 1:
        assert _count(RightBits(), outputs, bits[:, 0], cuts) == {"accuracy": pytest.approx(expected)}


def test_rows_of_features_are_learned_by_their_squared_error() -> None:
    rng = np.random.default_rng(0)
    inputs = rng.standard_normal((256, 5), dtype=np.float32)
    targets = np.stack((inputs[:, 0] * 2 - 1, np.abs(inputs[:, 1])), axis=1)
    model = Model(Sequential([Flatten(), Linear(32), ReLU(), Linear(2, gain=1.0)]), (5,), 2)
    model.use_loss(MeanSquaredError())
    parameters, gradients = np.zeros((2, model.layout.elements), np.float32)
    model.bind(parameters, gradients)
    model.initialize(0)
    losses = []
    for step in range(200):
        losses.append(model.train(inputs, targets, StepContext(True, 0, step, 0), StepHooks()))
        parameters -= np.float32(0.1) * gradients
    assert losses[0] > 1
    assert losses[-1] < 0.05
