"""Folders of images: what is read, what is left out and said, and all that is wrong in one answer."""

from __future__ import annotations

import itertools
import os
from pathlib import Path

import numpy as np
import pytest
import structlog
from PIL import Image
from structlog.testing import capture_logs
from support.reading import inputs_of, targets_of

from benchmarks.inputs.pictures import WAYS
from taihu.core.base.errors import DataError
from taihu.core.settings import DataSettings
from taihu.worker.data.base.dataset import Dataset
from taihu.worker.data.base.defects import Defects
from taihu.worker.data.base.depth import Depth
from taihu.worker.data.counting import count_training_samples
from taihu.worker.data.load import load_dataset
from taihu.worker.data.own.images.image_folder import ImageFolder
from taihu.worker.data.own.images.image_survey import survey


def picture(path: Path, value: int = 0, size: tuple[int, int] = (4, 3)) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.full(size, value, np.uint8)).save(path, "PNG")


def photos(folder: Path, parts: tuple[str, ...] = ("",), count: int = 3) -> Path:
    for part in parts:
        for number, name in enumerate(("cat", "dog")):
            for index in range(count):
                picture(folder / part / name / f"{index}.png", 100 * number + index)
    return folder


def loaded(folder: Path, **given: object) -> Dataset:
    settings = DataSettings.model_validate({"name": str(folder), **given})
    dataset = load_dataset(settings)
    if not settings.skip_bad:
        assert count_training_samples(settings) == len(dataset.train)
    return dataset


def failure(folder: Path, **given: object) -> str:
    with pytest.raises(DataError) as caught:
        loaded(folder, **given)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_folders_below_a_class_are_read_and_all_else_is_counted(tmp_path: Path) -> None:
    photos(tmp_path)
    picture(tmp_path / "cat" / "2024" / "may" / "7.png", 7)
    picture(tmp_path / "dog" / "no ending", 8)
    picture(tmp_path / "loose.png")
    for name in (
        "cat/a.txt",
        "cat/b.txt",
        "cat/.b.png",
        "dog/Thumbs.db",
        "notes",
        ".git/x.png",
        "__MACOSX/cat/1.png",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"no picture")
    os.mkfifo(tmp_path / "cat" / "pipe.png")
    dataset = loaded(tmp_path)
    values = {*inputs_of(dataset, dataset.train).ravel(), *inputs_of(dataset, dataset.test).ravel()}
    assert values == {0, 1, 2, 7, 8, 100, 101, 102}
    (note,) = dataset.told
    assert note.startswith(f"{tmp_path}: 9 files left out: ")
    kinds = (
        "4 hidden",
        "2 .txt",
        "1 images outside of classes",
        "1 without an ending",
        "1 no files (pipes, sockets)",
    )
    assert all(kind in note for kind in kinds)


def test_links_are_followed_once(tmp_path: Path) -> None:
    photos(tmp_path / "photos")
    picture(tmp_path / "far" / "9.png", 9)
    (tmp_path / "photos" / "cat" / "far").symlink_to(tmp_path / "far")
    (tmp_path / "photos" / "cat" / "again").symlink_to(tmp_path / "photos" / "cat")
    (tmp_path / "photos" / "dog" / "loop").symlink_to("loop")
    dataset = loaded(tmp_path / "photos")
    assert len(dataset.train) + len(dataset.test) == 7
    assert "1 folders linked again, 1 without an ending" in dataset.told[0]
    (tmp_path / "photos" / "dog" / "broken.png").symlink_to("nowhere.png")
    assert "dog/broken.png: cannot be read (No such file or directory)" in failure(tmp_path / "photos")


@pytest.mark.parametrize("names", [("train", "test"), ("Train", "val"), ("training", "Testing"), ("TRAIN", "valid")])
def test_parts_by_their_names(tmp_path: Path, names: tuple[str, str]) -> None:
    dataset = loaded(photos(tmp_path, names))
    assert (len(dataset.train), len(dataset.test), dataset.class_names) == (6, 6, ("cat", "dog"))


def test_other_parts_are_said(tmp_path: Path) -> None:
    photos(tmp_path, ("train", "val"))
    picture(tmp_path / "test" / "1.png")
    (tmp_path / "val" / "cow").mkdir()
    picture(tmp_path / "dev" / "cat" / "1.png")
    (tmp_path / "annotations").mkdir()
    dataset = loaded(tmp_path)
    assert (len(dataset.train), len(dataset.test)) == (6, 6)
    assert dataset.told == (
        f"{tmp_path}/test: no images in folders of classes; it is left out",
        f"{tmp_path}/dev: 1 image left out, another part is for testing",
        f"{tmp_path}: 1 folder beside train, test, val and dev left out: annotations",
        f"{tmp_path}: 1 file left out: 1 images outside of classes",
    )


def test_a_class_may_be_called_train(tmp_path: Path) -> None:
    for name in ("bus", "train"):
        picture(tmp_path / name / "1.png")
        picture(tmp_path / name / "2.png")
    assert loaded(tmp_path).class_names == ("bus", "train")
    for number in (1, 2):
        (tmp_path / "train" / f"{number}.png").unlink()
        picture(tmp_path / "train" / "2024" / f"{number}.png")
    assert "train has folders of images, and bus has images; if train is a class" in failure(tmp_path)


def test_classes_of_odd_names(tmp_path: Path) -> None:
    names = ("10", "2", "Katze mit Hut", "ähre", "猫")
    for number, name in enumerate(names):
        picture(tmp_path / name / "1.png", number)
        picture(tmp_path / name / "2.png", number)
    dataset = loaded(tmp_path)
    assert dataset.class_names == names
    np.testing.assert_array_equal(inputs_of(dataset, dataset.train)[:, 0, 0, 0], targets_of(dataset.train))


def test_fewer_than_two_classes(tmp_path: Path) -> None:
    photos(tmp_path / "unpacked")
    assert "one class, 'unpacked'; expected two at least: give the folder with those of classes" in failure(tmp_path)
    (tmp_path / "unpacked" / "dog").rename(tmp_path / "dog")
    (tmp_path / "unpacked" / "cat" / "1.heic").touch()
    for number in range(3):
        (tmp_path / "unpacked" / "cat" / f"{number}.png").unlink()
    assert "no images, but 1 .heic; expected FOLDER/CLASS" in failure(tmp_path / "unpacked")


def test_all_defects_in_one_answer(tmp_path: Path) -> None:
    photos(tmp_path, count=8)
    (tmp_path / "cat" / "1.png").write_bytes(b"")
    (tmp_path / "cat" / "2.png").write_bytes(b"junk")
    noise = np.random.default_rng(0).integers(0, 256, (4, 3), np.uint8)
    for number in range(3, 6):
        Image.fromarray(noise).save(tmp_path / "dog" / f"{number}.png", "BMP")
    (tmp_path / "dog" / "3.png").write_bytes((tmp_path / "dog" / "3.png").read_bytes()[:-5])
    picture(tmp_path / "dog" / "4.png", size=(9, 9))
    message = failure(tmp_path)
    for name in ("cat/1.png", "cat/2.png", "dog/3.png", "dog/4.png"):
        assert f"{tmp_path}/{name}" in message
    assert message.endswith("; or leave 4 images out with data.skip_bad = 4")
    assert "data.skip_bad = 4, which is 3" in failure(tmp_path, skip_bad=3)
    dataset = loaded(tmp_path, skip_bad=4)
    assert len(dataset.train) + len(dataset.test) == 12
    assert "4 images left out by data.skip_bad: " in dataset.told[-1]


def test_all_images_are_checked(tmp_path: Path) -> None:
    photos(tmp_path, count=8)
    for name in ("cat/1.png", "dog/6.png"):
        (tmp_path / name).write_bytes((tmp_path / name).read_bytes()[:-30])
    defects = Defects(str(tmp_path), "image")
    survey(ImageFolder.of(tmp_path).files, (2, 2), defects, decode_all=True)
    assert defects.bad == {f"{tmp_path}/cat/1.png", f"{tmp_path}/dog/6.png"}


def test_a_long_look_tells_how_far_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = itertools.count()
    monkeypatch.setattr("taihu.worker.data.own.images.image_survey.monotonic", lambda: float(next(clock)))
    photos(tmp_path, count=6)
    structlog.configure()
    try:
        with capture_logs() as logs:
            survey(ImageFolder.of(tmp_path).files, None, Defects(str(tmp_path), "image"), decode_all=True)
    finally:
        structlog.reset_defaults()
    assert {line["event"] for line in logs} == {"looking images over"}
    assert {line["of"] for line in logs} == {12}
    done = [line["done"] for line in logs]
    assert done == sorted(set(done))
    assert 2 <= len(done) <= 6


def test_colours_of_which_the_lower_bits_alone_are_used_are_refused(tmp_path: Path) -> None:
    write = WAYS["png colours of 16 bits"].write
    for name in ("a/1.png", "a/2.png", "b/1.png", "b/2.png"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        write(np.random.default_rng(0), np.full((3, 3, 4), 15, np.uint8), 1, tmp_path / name)
    assert "16-bit colours of which at most 12 bits are used; the upper 8 would be read, 4 images" in failure(
        tmp_path
    )
    write(np.random.default_rng(0), np.full((3, 3, 4), 16, np.uint8), 1, tmp_path / "a" / "1.png")
    assert loaded(tmp_path).input_shape == (3, 3, 3)


def test_one_image_far_above_the_others_does_not_make_these_black(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / name).mkdir()
        for number in range(3):
            Image.fromarray(np.full((3, 3), 200, np.int32)).save(tmp_path / name / f"{number}.tif")
    Image.fromarray(np.full((3, 3), 1 << 20, np.int32)).save(tmp_path / "a" / "7.tif")
    message = failure(tmp_path)
    assert f"image {tmp_path}/a/7.tif" in message
    assert "32-bit pixels far above those of others" in message
    assert loaded(tmp_path, skip_bad=1).depth == Depth("32-bit pixels", 255)


def test_damage_beyond_the_header_is_told_of_all(tmp_path: Path) -> None:
    photos(tmp_path, count=1)
    noise = np.random.default_rng(0).integers(0, 256, (60, 60), np.uint8)
    for number in range(8):
        file = tmp_path / "cat" / f"{number}.jpg"
        Image.fromarray(noise).save(file, quality=95)
        if number % 4 == 0:
            file.write_bytes(file.read_bytes()[:2000])
    message = failure(tmp_path, resize="5x5", test_share=0.01)
    assert "cannot be read (image file is truncated), 2 images" in message


def test_what_is_transparent_is_white(tmp_path: Path) -> None:
    for name in ("a", "b"):
        for number in range(2):
            strokes = np.zeros((6, 6, 4), np.uint8)
            strokes[2, :, 3] = 255
            strokes[3, :] = (200, 100, 0, 128)
            (tmp_path / name).mkdir(exist_ok=True)
            Image.fromarray(strokes).save(tmp_path / name / f"{number}.png")
    seen = inputs_of(loaded(tmp_path), loaded(tmp_path).train)[0]
    assert seen[0, 0].tolist() == [255, 255, 255]
    assert seen[2, 0].tolist() == [0, 0, 0]
    np.testing.assert_allclose(seen[3, 0], [227, 177, 127], atol=1)


def test_a_picture_that_is_far_too_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 40)
    picture(photos(tmp_path) / "cat" / "1.png", size=(10, 10))
    assert "cat/1.png: cannot be read (Image size (100 pixels) exceeds limit of 80" in failure(tmp_path)


def test_several_frames_are_said(tmp_path: Path) -> None:
    photos(tmp_path)
    grey = [Image.fromarray(np.full((4, 3), value, np.uint8)) for value in (50, 90)]
    grey[0].save(tmp_path / "cat" / "5.gif", save_all=True, append_images=grey[1:])
    dataset = loaded(tmp_path)
    assert f"{tmp_path}: 1 image of several frames or pages: the first is read" in dataset.told
    values = {*inputs_of(dataset, dataset.train).ravel(), *inputs_of(dataset, dataset.test).ravel()}
    assert 50 in values
    assert 90 not in values
