"""Pixels of more than 8 bits as bytes: by formula, for every width, kind, byte order and container."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image
from support.reading import inputs_of

from taihu.core.base.errors import DataError
from taihu.core.settings import DataSettings
from taihu.worker.data.base.dataset import Dataset
from taihu.worker.data.base.depth import Depth, Values, depth_of
from taihu.worker.data.base.reading import AsTrained
from taihu.worker.data.load import load_dataset

GREY = np.random.default_rng(0).integers(0, 256, (10, 14), np.uint8)
GREY[0, :2] = 0, 255


def loaded(folder: Path, pictures: dict[str, NDArray[Any]], **saving: Any) -> Dataset:
    for each in "ab":
        (folder / each).mkdir()
        for name, pixels in pictures.items():
            Image.fromarray(pixels).save(folder / each / name, **saving)
    return load_dataset(DataSettings(name=str(folder), test_share=0.01))


@pytest.mark.parametrize(
    ("pixels", "ending", "note"),
    [
        (
            (GREY / np.float32(255)).astype(np.float32),
            "tif",
            "floating-point pixels up to 1 are taken for a range of 0 to 1",
        ),
        (GREY.astype(np.float32), "tif", "floating-point pixels up to 255 are taken for a range of 0 to 255"),
        (GREY.astype(np.int32), "tif", "32-bit pixels up to 255 are taken for a range of 0 to 255"),
        (GREY.astype(np.uint16), "png", "16-bit pixels up to 255 are taken for a range of 0 to 255"),
        (GREY.astype(np.uint16) * 16, "png", "16-bit pixels up to 4,080 are taken for a range of 0 to 4,095"),
        (GREY.astype(np.uint16) * 257, "png", ""),
        (GREY.astype(">u2") * np.array(257, ">u2"), "tif", ""),
        (GREY.astype(np.int32) * 257, "pgm", ""),
        (GREY.astype(np.int32) * 16, "pgm", "16-bit pixels up to 4,080 are taken for a range of 0 to 4,095"),
        (GREY.astype(np.int32) << 14, "tif", "32-bit pixels up to 4,177,920 are taken for a range of 0 to 4,194,303"),
    ],
)
def test_pixels_of_every_range_look_alike(tmp_path: Path, pixels: NDArray[Any], ending: str, note: str) -> None:
    dataset = loaded(tmp_path, {f"{number}.{ending}": pixels for number in range(2)})
    assert dataset.input_shape == (10, 14, 1)
    np.testing.assert_array_equal(inputs_of(dataset, dataset.train)[0, ..., 0], GREY)
    assert dataset.notes == ((f"{tmp_path}: {note}",) if note else ())


def test_a_file_that_tells_its_range_is_shown_by_it(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / name).mkdir()
        for number in range(2):
            values = (GREY.astype(np.uint16) >> 3).astype(">u2")  # dark, of 0 to 1,000
            (tmp_path / name / f"{number}.pgm").write_bytes(b"P5 14 10 1000\n" + values.tobytes())
    dataset = load_dataset(DataSettings(name=str(tmp_path)))
    seen = inputs_of(dataset, dataset.train)[0, ..., 0]
    np.testing.assert_allclose(seen, (GREY >> 3) * 0.255, atol=1)
    assert not dataset.told


def test_the_range_of_training_is_that_of_tests(tmp_path: Path) -> None:
    loaded(tmp_path, {f"{number}.png": GREY.astype(np.uint16) for number in range(2)})
    known = AsTrained(depth=Depth("16-bit pixels", 4095))
    dataset = load_dataset(DataSettings(name=str(tmp_path)), known=known)
    np.testing.assert_array_equal(inputs_of(dataset, dataset.train)[0, ..., 0], GREY >> 4)
    assert (dataset.depth, dataset.told) == (known.depth, ())


def test_white_may_be_zero(tmp_path: Path) -> None:
    dataset = loaded(tmp_path, {"1.tif": GREY.astype(np.uint16) * 257}, tiffinfo={262: 0})
    np.testing.assert_array_equal(inputs_of(dataset, dataset.train)[0, ..., 0], 255 - GREY)


@pytest.mark.parametrize(
    ("pictures", "fault"),
    [
        (
            {"1.tif": GREY.astype(np.float32) - 10},
            "floating-point pixels from -10 to 245; bring them to 0 to 1 or 0 to 255",
        ),
        ({"1.tif": GREY.astype(np.int32) - 1024}, "32-bit pixels from -1024 to -769; bring them to 0 to 255"),
        ({"1.tif": (GREY / np.float32(100))}, "floating-point pixels from 0 to 2.55; bring them to"),
        ({"1.tif": np.full((3, 3), np.nan, np.float32)}, "pixels that are not finite; replace them"),
        (
            {"1.tif": GREY.astype(np.float32), "2.tif": GREY.astype(np.float32), "3.tif": GREY / np.float32(255)},
            "floating-point pixels of 0 to 1, others are floating-point pixels of 0 to 255 or more",
        ),
        (
            {"1.tif": GREY.astype(np.int32), "2.tif": GREY.astype(np.uint16), "3.tif": GREY.astype(np.int32)},
            "16-bit pixels, others are 32-bit pixels",
        ),
    ],
)
def test_pixels_that_no_range_shows_are_named(tmp_path: Path, pictures: dict[str, NDArray[Any]], fault: str) -> None:
    with pytest.raises(DataError) as caught:
        loaded(tmp_path, pictures)
    assert all(part in str(caught.value) for part in fault.split("; "))
    assert f"{tmp_path}/a/{min(pictures) if len(pictures) == 1 else ''}" in str(caught.value)


@settings(max_examples=60)
@given(st.integers(8, 32), st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=9))
def test_whole_numbers_become_their_upper_bits(bits: int, drawn: list[int]) -> None:
    values = np.array([each >> (32 - bits) for each in drawn], np.int64)
    depth = depth_of(Values.of("32-bit pixels", values))
    assert depth.white >= values.max()
    assert values.max() < 256 or depth.white < 4 * values.max() + 4
    shown = depth.shown(values)
    np.testing.assert_allclose(shown, values * (256 / (depth.white + 1)), atol=1)
    assert (np.diff(shown[np.argsort(values)].astype(int)) >= 0).all()


def test_a_picture_beyond_the_range_of_others_is_refused(tmp_path: Path) -> None:
    depth = Depth("16-bit pixels", 4095)
    file = tmp_path / "far.png"
    Image.fromarray(np.full((3, 3), 5000, np.uint16)).save(file)
    from taihu.worker.data.own.images.pixels import read_image  # noqa: PLC0415

    with pytest.raises(DataError, match=r"far.png: 16-bit pixels from 5000 to 5000, expected 0 to 4095 as of others"):
        read_image(file, 1, depth=depth)
    assert read_image(file, 1)[0, 0, 0] == 5000 >> 8
