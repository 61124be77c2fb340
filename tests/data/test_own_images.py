"""Folders of images: pixels as Pillow decodes them, classes by folder, and damage named by file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image
from support.reading import inputs_of, targets_of

from taihu.core.base.errors import DataError
from taihu.core.settings import DataSettings
from taihu.worker.data.base.dataset import Dataset
from taihu.worker.data.base.sources import check_sources
from taihu.worker.data.batches import Batches
from taihu.worker.data.load import load_dataset
from taihu.worker.data.own.images.pixels import read_image

CLASSES = ("ant", "bee", "cow")


def picture(seed: int, shape: tuple[int, ...] = (6, 5, 3)) -> NDArray[np.uint8]:
    return np.random.default_rng(seed).integers(0, 256, shape, np.uint8)


def written(folder: Path, count: int = 4, shape: tuple[int, ...] = (6, 5, 3), suffix: str = "png") -> Path:
    """`count` pictures of each class, of which number i of class c has the seed 100 c + i."""
    for number, name in enumerate(CLASSES):
        (folder / name).mkdir(parents=True)
        for index in range(count):
            Image.fromarray(picture(100 * number + index, shape)).save(folder / name / f"{index}.{suffix}")
    return folder


def loaded(folder: Path, **given: str | float) -> Dataset:
    return load_dataset(DataSettings.model_validate({"name": str(folder), **given}))


def failure(folder: Path) -> str:
    with pytest.raises(DataError) as caught:
        loaded(folder)
    message = str(caught.value)
    assert "\n" not in message
    return message


@pytest.mark.parametrize("part", ["test", "val"])
@pytest.mark.parametrize("shape", [(6, 5, 3), (6, 5)])
def test_pictures_are_read_by_class(tmp_path: Path, shape: tuple[int, ...], part: str) -> None:
    written(tmp_path / "train", 4, shape)
    written(tmp_path / part, 2, shape)
    check_sources(str(tmp_path), None)
    dataset = loaded(tmp_path)
    channels = 3 if len(shape) == 3 else 1
    assert (dataset.input_shape, dataset.outputs, dataset.class_names) == ((6, 5, channels), 3, CLASSES)
    raw = np.stack([picture(100 * number + index, shape) for number in range(3) for index in range(4)])
    raw = raw.reshape(12, 6, 5, channels)
    np.testing.assert_array_equal(inputs_of(dataset, dataset.train), raw)
    np.testing.assert_array_equal(targets_of(dataset.train), np.repeat(np.arange(3), 4))
    np.testing.assert_array_equal(targets_of(dataset.test), np.repeat(np.arange(3), 2))
    np.testing.assert_allclose(dataset.mean, raw.mean(axis=(0, 1, 2)), rtol=1e-5)
    np.testing.assert_allclose(dataset.scale, raw.std(axis=(0, 1, 2)), rtol=1e-5)


def test_a_share_of_the_pictures_is_set_apart(tmp_path: Path) -> None:
    dataset = loaded(written(tmp_path / "all"), test_share=0.25)
    assert (len(dataset.train), len(dataset.test)) == (9, 3)
    seen = np.concatenate([inputs_of(dataset, dataset.train), inputs_of(dataset, dataset.test)])
    raw = [picture(100 * number + index) for number in range(3) for index in range(4)]
    assert {image.astype(np.uint8).tobytes() for image in seen} == {image.tobytes() for image in raw}


@settings(deadline=None, max_examples=15)
@given(height=st.integers(1, 12), width=st.integers(1, 12))
def test_resized_pictures_are_those_of_pillow(
    tmp_path_factory: pytest.TempPathFactory, height: int, width: int
) -> None:
    folder = tmp_path_factory.mktemp("resized")
    written(folder / "a", 1)
    Image.fromarray(picture(7, (9, 4))).save(folder / "a" / "ant" / "9.png")
    dataset = loaded(folder / "a", resize=f"{height}x{width}", test_share=0.01)
    assert dataset.input_shape == (height, width, 3)
    files = [*(folder / "a" / "ant").iterdir(), folder / "a" / "bee" / "0.png", folder / "a" / "cow" / "0.png"]
    expected = {
        np.asarray(Image.open(file).convert("RGB").resize((width, height), Image.Resampling.BILINEAR)).tobytes()
        for file in files
    }
    seen = np.concatenate([inputs_of(dataset, dataset.train), inputs_of(dataset, dataset.test)])
    assert {image.astype(np.uint8).tobytes() for image in seen} == expected


def test_ranks_share_augmented_pictures(tmp_path: Path) -> None:
    dataset = loaded(written(tmp_path / "all"), test_share=0.1)
    whole = Batches(dataset, batch=9, workers=1, rank=0, seed=3, augment="crop-flip").batch(2)[0]
    parts = [Batches(dataset, batch=3, workers=3, rank=r, seed=3, augment="crop-flip").batch(2)[0] for r in range(3)]
    assert np.concatenate(parts).tobytes() == whole.tobytes()


def test_a_turned_photograph_is_shown_as_it_was_taken(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    pixels = np.repeat(np.arange(0, 240, 4, dtype=np.uint8), 40).reshape(60, 40)
    Image.fromarray(pixels).save(tmp_path / "a.jpg", exif=exif, quality=100)
    seen = read_image(tmp_path / "a.jpg", 1)
    np.testing.assert_allclose(seen[..., 0], np.rot90(pixels, -1), atol=4)
    small = read_image(tmp_path / "a.jpg", 1, (10, 15))
    assert small.shape == (10, 15, 1)
    assert small[5, 0] > small[5, 14]


def test_turned_photographs_have_the_shape_in_which_they_are_shown(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 8
    for name in CLASSES:
        (tmp_path / name).mkdir()
        for number in range(2):
            Image.fromarray(picture(number, (6, 9))).save(tmp_path / name / f"{number}.jpg", exif=exif)
    dataset = loaded(tmp_path)
    assert dataset.input_shape == (9, 6, 1)
    assert inputs_of(dataset, dataset.train).shape[1:] == (9, 6, 1)


@pytest.mark.parametrize("mode", ["1", "LA", "P", "RGBA", "CMYK", "I;16"])
def test_pictures_of_every_mode(tmp_path: Path, mode: str) -> None:
    grey = picture(3, (6, 5))
    if mode == "I;16":
        image = Image.fromarray((grey.astype(np.uint16) << 8) + 9)
    else:
        image = Image.fromarray(grey).convert("RGB" if mode == "CMYK" else "L").convert(mode)
    file = tmp_path / f"a.{'tif' if mode == 'CMYK' else 'png'}"
    image.save(file)
    expected = np.asarray(Image.fromarray(grey).convert("1").convert("L")) if mode == "1" else grey
    for channels in (1, 3):
        seen = read_image(file, channels)
        np.testing.assert_allclose(seen, np.repeat(expected[..., np.newaxis], channels, axis=2), atol=1)


def test_pictures_of_two_sizes_are_named(tmp_path: Path) -> None:
    folder = written(tmp_path / "all")
    Image.fromarray(picture(1, (7, 5, 3))).save(folder / "bee" / "2.png")
    message = failure(folder)
    assert f"image {folder}/bee/2.png: 7x5 (height x width), others are 6x5" in message
    assert "data.resize = '6x5'; or leave 1 image out with data.skip_bad = 1" in message


@pytest.mark.parametrize("damage", [b"", b"junk", "cut"])
def test_a_damaged_picture_is_named(tmp_path: Path, damage: bytes | str) -> None:
    folder = written(tmp_path / "all", shape=(40, 40, 3))
    file = folder / "cow" / "1.png"
    file.write_bytes(file.read_bytes()[:800] if isinstance(damage, str) else damage)

    def read_all() -> None:
        dataset = loaded(folder)
        for part in (dataset.train, dataset.test):
            inputs_of(dataset, part)

    with pytest.raises(DataError, match=r"image .*/cow/1.png: cannot be read \(.*\); replace or delete it; or leave"):
        read_all()


def test_folders_that_hold_no_classes(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert "no folders of classes; expected FOLDER/CLASS/*.png" in failure(tmp_path / "empty")
    folder = written(tmp_path / "all")
    (folder / "dog").mkdir()
    (folder / "dog" / "notes.txt").touch()
    assert f"data folder {folder}/dog: no images" in failure(folder)
    written(tmp_path / "parts" / "train")
    written(tmp_path / "parts" / "test")
    (tmp_path / "parts" / "test" / "bee").rename(tmp_path / "parts" / "test" / "wasp")
    assert "class 'wasp' has no images for training" in failure(tmp_path / "parts")


def test_files_that_are_no_pictures_are_left_out(tmp_path: Path) -> None:
    folder = written(tmp_path / "all")
    (folder / ".cache").mkdir()
    for name in ("Thumbs.db", ".hidden.png", "notes.txt"):
        (folder / "ant" / name).write_bytes(b"no picture")
    dataset = loaded(folder)
    assert len(dataset.train) + len(dataset.test) == 12


def test_without_pillow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("taihu.worker.data.base.sources.find_spec", lambda name: None)
    with pytest.raises(DataError, match=r"needs Pillow, which is not installed; pip install taihu\[images\]$"):
        check_sources(str(written(tmp_path / "all")), None)
