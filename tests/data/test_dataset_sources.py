"""Embedded and synthetic data sets, finding a set by its name, and the statistics that normalise."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from support.reading import inputs_of, targets_of

from taihu.core.base.errors import DataError
from taihu.core.model.names import check_data_name, parse_synthetic
from taihu.core.settings import DataSettings
from taihu.worker.data.base.dataset import Dataset, Examples, build_dataset, standardise
from taihu.worker.data.base.sources import check_sources
from taihu.worker.data.built_in.digits import load_digits
from taihu.worker.data.load import load_dataset


def normalised(dataset: Dataset, examples: Examples) -> NDArray[np.float32]:
    inputs = inputs_of(dataset, examples)
    standardise(dataset, inputs)
    return inputs


@pytest.mark.xdist_group("scikit-learn")
def test_digits_are_scikit_learns_digits() -> None:
    from sklearn.datasets import load_digits  # noqa: PLC0415 - takes a second to import

    source = load_digits()
    dataset = load_dataset(DataSettings(name="digits"))
    assert (dataset.input_shape, dataset.outputs) == ((8, 8, 1), 10)
    assert (len(dataset.train), len(dataset.test)) == (1437, 360)
    images = np.concatenate([inputs_of(dataset, dataset.train), inputs_of(dataset, dataset.test)])
    labels = np.concatenate([targets_of(dataset.train), targets_of(dataset.test)])
    assert images.max() == 255
    back = np.rint(images[..., 0] * (16 / 255))
    ours = sorted(zip(map(bytes, back.astype(np.uint8)), labels.tolist(), strict=True))
    theirs = sorted(zip(map(bytes, source.images.astype(np.uint8)), source.target.tolist(), strict=True))
    assert ours == theirs
    assert set(targets_of(dataset.test).tolist()) == set(range(10))


def test_the_split_of_digits_is_fixed() -> None:
    first, second = load_dataset(DataSettings(name="digits")), load_dataset(DataSettings(name="digits"))
    np.testing.assert_array_equal(inputs_of(first, first.train), inputs_of(second, second.train))
    np.testing.assert_array_equal(targets_of(first.test), targets_of(second.test))


def test_digits_without_scikit_learn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn", None)
    load_digits.cache_clear()
    with pytest.raises(DataError, match=r"^digits: needs scikit-learn; pip install taihu\[demo\]$"):
        load_dataset(DataSettings(name="digits"))


def test_synthetic_shape_and_options() -> None:
    dataset = load_dataset(DataSettings(name="synthetic:3x7x5:classes=4:samples=40"))
    assert (dataset.input_shape, dataset.outputs) == ((7, 5, 3), 4)
    assert (inputs_of(dataset, dataset.train).shape, inputs_of(dataset, dataset.test).shape) == (
        (40, 7, 5, 3),
        (10, 7, 5, 3),
    )
    assert targets_of(dataset.train).dtype == np.int64
    assert 0 <= targets_of(dataset.train).min() <= targets_of(dataset.train).max() < 4


def test_synthetic_defaults_and_repeatability() -> None:
    first, second = (load_dataset(DataSettings(name="synthetic:1x4x4")) for _ in range(2))
    assert (len(first.train), len(first.test), first.outputs) == (2048, 512, 10)
    np.testing.assert_array_equal(inputs_of(first, first.train), inputs_of(second, second.train))
    np.testing.assert_array_equal(inputs_of(first, first.test), inputs_of(second, second.test))
    assert len(np.unique(inputs_of(first, first.train).reshape(2048, -1), axis=0)) == 2048


def test_synthetic_classes_can_be_learned() -> None:
    """The nearest class mean of the training images names the class of most test images."""
    dataset = load_dataset(DataSettings(name="synthetic:1x8x8"))
    train, test = (normalised(dataset, part).reshape(len(part), -1) for part in (dataset.train, dataset.test))
    means = np.stack([train[targets_of(dataset.train) == label].mean(axis=0) for label in range(10)])
    nearest = ((test[:, None] - means) ** 2).sum(axis=2).argmin(axis=1)
    assert (nearest == targets_of(dataset.test)).mean() > 0.95


@pytest.mark.parametrize(
    ("name", "fragment"),
    [
        ("synthetic", "no image shape"),
        ("synthetic:", "no image shape"),
        ("synthetic:3x32", "no image shape"),
        ("synthetic:3x32x-1", "no image shape"),
        ("synthetic:3x8x8:class=3", "unknown option 'class=3'"),
        ("synthetic:3x8x8:samples=", "unknown option 'samples='"),
        ("synthetic:3x0x8", "at least 1"),
        ("synthetic:3x8x8:samples=0", "at least 1"),
    ],
)
def test_synthetic_names_that_are_none(name: str, fragment: str) -> None:
    with pytest.raises(DataError, match=fragment) as caught:
        parse_synthetic(name)
    assert str(caught.value).startswith(f"{name}: ")
    assert "synthetic:CxHxW[:classes=K][:samples=N]" in str(caught.value)


def test_a_synthetic_set_that_would_fill_the_memory() -> None:
    with pytest.raises(DataError, match=r"MiB of images, at most 4096; try samples=\d+$"):
        parse_synthetic("synthetic:3x2000x2000:classes=10:samples=2048")


@pytest.mark.parametrize(
    ("name", "suggestion"),
    [
        ("digit", "digits"),
        ("digits:", "digits"),
        ("fashion_mnist", "fashion-mnist"),
        ("CIFAR-10", "cifar10"),
        ("syntetic:3x8x8", "synthetic:CxHxW"),
    ],
)
def test_the_nearest_name_is_suggested(name: str, suggestion: str) -> None:
    with pytest.raises(DataError) as caught:
        check_data_name(name)
    message = str(caught.value)
    assert f"did you mean {suggestion}?" in message
    assert "; known: digits, fashion-mnist, cifar10, python-source, synthetic:CxHxW; your own: FILE.npz" in message


def test_a_name_near_to_nothing_lists_the_names() -> None:
    with pytest.raises(DataError, match=r"^unknown data set 'qqqq'; known: digits"):
        check_data_name("qqqq")


@settings(deadline=None, max_examples=40)
@given(
    count=st.integers(1, 1200),
    channels=st.integers(1, 4),
    seed=st.integers(0, 99),
    low=st.integers(0, 254),
)
def test_statistics_and_normalise_follow_the_formula(count: int, channels: int, seed: int, low: int) -> None:
    rng = np.random.default_rng(seed)
    images = rng.integers(low, 256, (count, 2, 3, channels), np.uint8)
    images[..., 0] = low
    labels = np.zeros(count, np.int64)
    dataset = build_dataset("random", (images, labels), (images[:1], labels[:1]), classes=1)
    exact = images.astype(np.float64).reshape(-1, channels)
    std = exact.std(axis=0)
    scale = np.where(np.ptp(exact, axis=0) == 0, 1.0, std)
    np.testing.assert_allclose(dataset.mean, exact.mean(axis=0), rtol=1e-6)
    np.testing.assert_allclose(dataset.scale, scale, rtol=1e-6)
    assert dataset.mean.dtype == dataset.scale.dtype == np.float32
    np.testing.assert_allclose(
        normalised(dataset, dataset.train), (images - exact.mean(axis=0)) / scale, rtol=1e-4, atol=1e-4
    )


@pytest.mark.parametrize("name", ["digits", "synthetic:1x4x4"])
def test_what_needs_no_files_has_its_sources(name: str) -> None:
    check_sources(name, None)


def test_sources_without_a_folder_or_a_file_are_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"^cifar10: no folder given; .* --data-path$"):
        check_sources("cifar10", None)
    for number in range(1, 6):
        (tmp_path / f"data_batch_{number}.bin").touch()
    with pytest.raises(DataError, match=r"test_batch\.bin: not found; .* --data-path$"):
        check_sources("cifar10", tmp_path)
    (tmp_path / "test_batch.bin").mkdir()
    with pytest.raises(DataError, match=r"test_batch\.bin: cannot be read \(Is a directory\)"):
        check_sources("cifar10", tmp_path)


def test_files_plain_or_gzipped_are_sources(tmp_path: Path) -> None:
    names = [f"{part}-{kind}-ubyte" for part in ("train", "t10k") for kind in ("images-idx3", "labels-idx1")]
    for place, name in enumerate(names):
        with pytest.raises(DataError, match=f"{name}.gz: not found"):
            check_sources("fashion-mnist", tmp_path)
        (tmp_path / (name if place % 2 else f"{name}.gz")).touch()
    check_sources("fashion-mnist", tmp_path)
