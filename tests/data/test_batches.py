"""Batches: every split of the global batch gives the same samples, once per epoch, augmented alike."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from taihu.core.base.errors import ConfigError, DataError
from taihu.worker.data.base.dataset import ArrayExamples, Dataset, build_dataset, standardise
from taihu.worker.data.batches import Augment, Batches

AUGMENTS = st.sampled_from(["none", "flip", "crop-flip"])


def numbered(count: int, height: int = 3, width: int = 2, channels: int = 2) -> Dataset:
    """Random images whose label is their number, so that a sample can be recognised."""
    images = np.random.default_rng(0).integers(0, 256, (count, height, width, channels), np.uint8)
    labels = np.arange(count)
    return build_dataset("numbered", (images, labels), (images[:1], labels[:1]), classes=count)


def images_of(dataset: Dataset) -> NDArray[np.uint8]:
    assert isinstance(dataset.train, ArrayExamples)
    return dataset.train.inputs


def normalise(dataset: Dataset, images: NDArray[np.uint8]) -> NDArray[np.float32]:
    normalised = images.astype(np.float32)
    standardise(dataset, normalised)
    return normalised


@settings(deadline=None, max_examples=60)
@given(data=st.data(), workers=st.integers(1, 5), batch=st.integers(1, 6), augment=AUGMENTS)
def test_the_ranks_share_the_single_workers_batch(
    data: st.DataObject, workers: int, batch: int, augment: Augment
) -> None:
    count = data.draw(st.integers(workers * batch, 80))
    seed = data.draw(st.integers(0, 2**63 - 1))
    step = data.draw(st.integers(1, 200))
    dataset = numbered(count)
    whole = Batches(dataset, batch=workers * batch, workers=1, rank=0, seed=seed, augment=augment)
    parts = [
        Batches(dataset, batch=batch, workers=workers, rank=rank, seed=seed, augment=augment).batch(step)
        for rank in range(workers)
    ]
    images, labels = whole.batch(step)
    assert images.dtype == np.float32
    assert labels.dtype == np.int64
    assert np.concatenate([part[0] for part in parts]).tobytes() == images.tobytes()
    np.testing.assert_array_equal(np.concatenate([part[1] for part in parts]), labels)


@settings(deadline=None, max_examples=40)
@given(data=st.data(), workers=st.integers(1, 4), batch=st.integers(1, 6), seed=st.integers(0, 99))
def test_every_sample_comes_at_most_once_per_epoch(data: st.DataObject, workers: int, batch: int, seed: int) -> None:
    count = data.draw(st.integers(workers * batch, 80))
    epoch = data.draw(st.integers(0, 5))
    dataset = numbered(count)
    ranks = [Batches(dataset, batch=batch, workers=workers, rank=r, seed=seed) for r in range(workers)]
    steps = ranks[0].steps_per_epoch
    assert steps == count // (workers * batch)
    first = 1 + epoch * steps
    seen = np.concatenate([one.batch(step)[1] for step in range(first, first + steps) for one in ranks])
    assert len(seen) == steps * workers * batch
    assert len(np.unique(seen)) == len(seen)


def test_epochs_and_seeds_have_different_orders() -> None:
    dataset = numbered(64)
    orders = {
        Batches(dataset, batch=64, workers=1, rank=0, seed=seed).batch(step)[1].tobytes()
        for seed in range(4)
        for step in range(1, 5)
    }
    assert len(orders) == 16


@settings(deadline=None, max_examples=40)
@given(steps=st.lists(st.integers(1, 40), min_size=2, max_size=8), seed=st.integers(0, 99), augment=AUGMENTS)
def test_a_batch_does_not_depend_on_what_was_asked_before(steps: list[int], seed: int, augment: Augment) -> None:
    dataset = numbered(23)
    lasting = Batches(dataset, batch=3, workers=2, rank=1, seed=seed, augment=augment)
    for step in steps:
        images, labels = lasting.batch(step)
        fresh = Batches(dataset, batch=3, workers=2, rank=1, seed=seed, augment=augment).batch(step)
        assert images.tobytes() == fresh[0].tobytes()
        np.testing.assert_array_equal(labels, fresh[1])


def test_plain_batches_are_the_normalised_training_images() -> None:
    dataset = numbered(30)
    images, labels = Batches(dataset, batch=7, workers=2, rank=1, seed=5).batch(3)
    assert images.tobytes() == normalise(dataset, images_of(dataset)[labels]).tobytes()


@pytest.mark.parametrize("augment", ["none", "flip", "crop-flip"])
def test_out_is_filled_and_returned(augment: Augment) -> None:
    batches = Batches(numbered(30), batch=4, workers=2, rank=0, seed=5, augment=augment)
    out = np.full((4, 3, 2, 2), np.nan, np.float32)
    images, _ = batches.batch(2, out)
    assert images is out
    assert out.tobytes() == batches.batch(2)[0].tobytes()


def naive_variants(image: NDArray[np.uint8], pad: int) -> dict[tuple[int, int, bool], NDArray[np.uint8]]:
    """Every crop of the image padded with black, plain and mirrored, pixel by pixel."""
    height, width, _ = image.shape
    variants = {}
    for top in range(2 * pad + 1):
        for left in range(2 * pad + 1):
            crop = np.zeros_like(image)
            for y in range(height):
                for x in range(width):
                    source_y, source_x = y + top - pad, x + left - pad
                    if 0 <= source_y < height and 0 <= source_x < width:
                        crop[y, x] = image[source_y, source_x]
            mirrored = np.zeros_like(crop)
            for x in range(width):
                mirrored[:, x] = crop[:, width - 1 - x]
            variants[top, left, False], variants[top, left, True] = crop, mirrored
    return variants


@pytest.mark.parametrize(("augment", "pad", "shape"), [("flip", 0, (4, 5, 3)), ("crop-flip", 4, (7, 6, 2))])
def test_augmented_images_are_crops_of_the_padded_image(
    augment: Augment, pad: int, shape: tuple[int, int, int]
) -> None:
    dataset = numbered(2, *shape)
    oracles = [
        {normalise(dataset, variant[None]).tobytes(): key for key, variant in naive_variants(image, pad).items()}
        for image in images_of(dataset)
    ]
    assert all(len(oracle) == 2 * (2 * pad + 1) ** 2 for oracle in oracles)
    batches = Batches(dataset, batch=2, workers=1, rank=0, seed=9, augment=augment)
    drawn = set()
    for step in range(1, 1001):
        images, labels = batches.batch(step)
        drawn |= {oracles[label][image.tobytes()] for image, label in zip(images, labels, strict=True)}
    assert drawn == set(oracles[0].values())


@settings(deadline=None, max_examples=40)
@given(height=st.integers(1, 9), width=st.integers(1, 9), step=st.integers(1, 50))
def test_images_smaller_than_the_padding(height: int, width: int, step: int) -> None:
    dataset = numbered(6, height, width, 1)
    images, labels = Batches(dataset, batch=6, workers=1, rank=0, seed=1, augment="crop-flip").batch(step)
    for image, label in zip(images, labels, strict=True):
        padded = np.pad(images_of(dataset)[label], ((4, 4), (4, 4), (0, 0)))
        crops = [padded[y : y + height, x : x + width] for y in range(9) for x in range(9)]
        candidates = {normalise(dataset, c[None]).tobytes() for crop in crops for c in (crop, crop[:, ::-1])}
        assert image.tobytes() in candidates


@pytest.mark.parametrize(
    ("batch", "workers", "rank", "augment", "fragment"),
    [
        (0, 1, 0, "none", "batch 0: must be at least 1"),
        (1, 0, 0, "none", "workers 0: must be at least 1"),
        (1, 3, 3, "none", r"rank 3: must be in 0\.\.2"),
        (1, 3, -1, "none", r"rank -1: must be in 0\.\.2"),
        (1, 1, 0, "crop", "augment 'crop': must be one of none, flip, crop-flip"),
    ],
)
def test_settings_out_of_range(batch: int, workers: int, rank: int, augment: Augment, fragment: str) -> None:
    with pytest.raises(ConfigError, match=fragment):
        Batches(numbered(10), batch=batch, workers=workers, rank=rank, seed=1, augment=augment)


def test_a_global_batch_larger_than_the_training_set() -> None:
    with pytest.raises(DataError) as caught:
        Batches(numbered(10), batch=4, workers=3, rank=0, seed=1)
    assert str(caught.value) == (
        "numbered: batch 4 of 3 workers needs 12 samples, the training set has 10; the largest batch that fits is 3"
    )
    assert Batches(numbered(10), batch=3, workers=3, rank=0, seed=1).steps_per_epoch == 1


def test_more_workers_than_images() -> None:
    with pytest.raises(DataError, match="use at most 10 workers"):
        Batches(numbered(10), batch=1, workers=11, rank=0, seed=1)


def test_vectors_are_not_augmented() -> None:
    rows = np.zeros((10, 3), np.float32), np.zeros(10, np.int64)
    examples, flat = ArrayExamples(*rows), np.ones(3, np.float32)
    dataset = Dataset("table", examples, examples, (3,), 1, "classes", flat, flat)
    Batches(dataset, batch=2, workers=1, rank=0, seed=1)
    with pytest.raises(
        DataError, match=r"^table: data.augment 'flip' moves images .* vectors of 3; set data.augment"
    ):
        Batches(dataset, batch=2, workers=1, rank=0, seed=1, augment="flip")


def test_steps_count_from_one() -> None:
    with pytest.raises(ValueError, match="step 0: steps count from 1"):
        Batches(numbered(10), batch=2, workers=1, rank=0, seed=1).batch(0)


@pytest.mark.parametrize("out", [np.empty((2, 3, 2, 1), np.float32), np.empty((2, 3, 2, 2), np.float64)])
def test_an_out_that_does_not_fit(out: NDArray[np.float32]) -> None:
    with pytest.raises(ValueError, match=r"out is float.* expected float32 \(2, 3, 2, 2\)"):
        Batches(numbered(10), batch=2, workers=1, rank=0, seed=1).batch(1, out)
