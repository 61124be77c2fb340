"""Resized images against Pillow's, and data sets of resized images."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image
from support.reading import inputs_of, targets_of

from taihu.core.settings import DataSettings
from taihu.worker.data.load import load_dataset
from taihu.worker.data.resize import resize_images

SIDES = st.integers(1, 40)


def resized_by_pillow(image: NDArray[np.float32], size: tuple[int, int]) -> NDArray[np.float32]:
    planes = [
        np.asarray(Image.fromarray(plane).resize(size[::-1], Image.Resampling.BILINEAR))
        for plane in np.moveaxis(image, -1, 0)
    ]
    return np.stack(planes, axis=-1)


@settings(deadline=None, max_examples=60)
@given(st.tuples(SIDES, SIDES), st.tuples(SIDES, SIDES), st.integers(1, 3), st.integers(0, 99))
def test_images_are_those_of_pillow(
    before: tuple[int, int], after: tuple[int, int], channels: int, seed: int
) -> None:
    images = np.random.default_rng(seed).uniform(0, 255, (2, *before, channels)).astype(np.float32)
    out = np.full((2, *after, channels), np.nan, np.float32)
    resize_images(images, after, out)
    for image, made in zip(images, out, strict=True):
        np.testing.assert_allclose(made, resized_by_pillow(image, after), rtol=1e-4, atol=1e-2)


def test_a_built_in_set_of_another_size() -> None:
    plain = load_dataset(DataSettings(name="digits"))
    large = load_dataset(DataSettings(name="digits", resize="20x12"))
    assert (large.input_shape, large.outputs) == ((20, 12, 1), 10)
    np.testing.assert_array_equal(targets_of(large.test), targets_of(plain.test))
    image = resized_by_pillow(inputs_of(plain, plain.test)[7], (20, 12))
    np.testing.assert_allclose(inputs_of(large, large.test)[7], image, rtol=1e-4, atol=1e-2)
    assert (large.mean, large.scale) == (plain.mean, plain.scale)


def test_nothing_is_taken_away_when_normalising_is_off() -> None:
    dataset = load_dataset(DataSettings(name="digits", normalise="none"))
    assert (dataset.mean.tolist(), dataset.scale.tolist()) == ([0.0], [1.0])


@pytest.mark.parametrize("size", ["64", "64x", "0x64", "64x64x3", "-1x4", "99999x1"])
def test_what_is_no_size(size: str) -> None:
    with pytest.raises(ValueError, match=r"expected HEIGHTxWIDTH in pixels.*for example '64x64'"):
        DataSettings(resize=size)


def test_the_images_own_size_changes_nothing() -> None:
    dataset = load_dataset(DataSettings(name="digits", resize="8x8"))
    assert type(dataset.train).__name__ == "ArrayExamples"
