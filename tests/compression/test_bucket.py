"""A bucket of parameters: what it holds back moves with them into other buckets."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from taihu.core.compression import Compressor
from taihu.core.compression.bucket import Bucket, HeldBack
from taihu.core.traits.methods import METHODS

SIZES = (30, 1, 200, 7)


def compressor(method: str = "dlgs", **options: Any) -> Compressor:
    return Compressor(METHODS[method], 0.1, refresh_every=4, **options)


def nothing_held(*sizes: int) -> list[HeldBack]:
    return [HeldBack(np.zeros(size, dtype=np.float32)) for size in sizes]


def exchanged(bucket: Bucket, step: int) -> None:
    """As if all ranks had selected the same."""
    bucket.select(step)
    bucket.received[:] = bucket.parcel
    bucket.mean()


def test_parameters_that_change_their_buckets_go_on_as_if_they_had_not() -> None:
    generator = np.random.default_rng(5)
    gradients = [[generator.standard_normal(size).astype(np.float32) for size in SIZES] for _ in range(9)]
    whole = np.empty(sum(SIZES), dtype=np.float32)
    stays = Bucket(compressor(), whole, nothing_held(*SIZES), 2)
    places = [[0, 1, 2, 3], [3, 1], [2, 0]]
    moved = [(places[0], np.empty(sum(SIZES), dtype=np.float32))]
    buckets = [Bucket(compressor(), moved[0][1], nothing_held(*SIZES), 2)]
    for step, drawn in enumerate(gradients, start=1):
        if step == 6:
            held = buckets[0].held_back()
            moved = [(some, np.empty(sum(SIZES[each] for each in some), dtype=np.float32)) for some in places[1:]]
            buckets = [Bucket(compressor(), array, [held[each] for each in some], 2, step) for some, array in moved]
        whole[:] = np.concatenate(drawn)
        exchanged(stays, step)
        for bucket, (some, array) in zip(buckets, moved, strict=True):
            array[:] = np.concatenate([drawn[each] for each in some])
            exchanged(bucket, step)
        there = {}
        for some, array in moved:
            parts = np.split(array, np.cumsum([SIZES[each] for each in some])[:-1])
            there.update(dict(zip(some, parts, strict=True)))
        np.testing.assert_array_equal(whole, np.concatenate([there[each] for each in range(4)]))
        assert 0 < np.count_nonzero(whole) < 0.2 * len(whole)
    ages = {each.age for each in stays.held_back()}
    assert ages <= {0, 1, 2, 3}


@pytest.mark.parametrize("kind", ["fp32", "fp16", "int4"])
@pytest.mark.parametrize("method", ["topk", "dlgs"])
def test_a_gradient_of_zeros_sends_nothing_and_forgets_nothing(method: str, kind: Any) -> None:
    gradients = np.random.default_rng(2).standard_normal(50).astype(np.float32)
    bucket = Bucket(compressor(method, value_type=kind), gradients, nothing_held(40, 10), 1)
    exchanged(bucket, 1)
    before = bucket.held_back()[0].residual
    assert before.any()
    gradients[:40] = 0.0
    gradients[40:] = 1.0
    exchanged(bucket, 2)
    assert not gradients[:40].any()
    np.testing.assert_array_equal(bucket.held_back()[0].residual, before)


@pytest.mark.parametrize("kind", ["fp32", "fp16"])
@pytest.mark.parametrize("method", ["topk", "dlgs"])
def test_all_hear_of_a_gradient_that_is_not_finite_though_equal_values_take_its_room(method: str, kind: Any) -> None:
    gradients = np.zeros(60, dtype=np.float32)
    bucket = Bucket(compressor(method, value_type=kind), gradients, nothing_held(40, 20), 1)
    gradients[:40] = 5.0
    exchanged(bucket, 1)
    before = np.count_nonzero(bucket.held_back()[0].residual == 5.0)
    gradients[:40] = 0.0
    gradients[40:] = [1.0] * 19 + [np.inf]
    exchanged(bucket, 2)
    assert not gradients[:40].any()
    assert not np.isfinite(gradients[40:]).all()
    # Of the second parameter three are selected where it has a threshold of its own, else none.
    assert np.count_nonzero(gradients[40:]) == (1 if method == "topk" else 3)
    still, forgotten = (each.residual for each in bucket.held_back())
    assert np.count_nonzero(still == 5.0) == before - 1  # one gave its place to the mark
    assert np.isfinite(still).all()
    assert np.isfinite(forgotten).all()
    gradients[:] = 1.0
    exchanged(bucket, 3)
    assert np.isfinite(gradients).all()


@pytest.mark.parametrize("method", ["topk", "dlgs"])
def test_all_hear_of_a_gradient_that_is_not_finite_by_steps_that_are_none(method: str) -> None:
    gradients = np.zeros(60, dtype=np.float32)
    bucket = Bucket(compressor(method, value_type="int4"), gradients, nothing_held(40, 20), 1)
    gradients[:40] = 5.0
    exchanged(bucket, 1)
    before = bucket.held_back()[0].residual
    gradients[:40] = 0.0
    gradients[40:] = [1.0] * 19 + [np.inf]
    exchanged(bucket, 2)
    assert not np.isfinite(gradients[40:]).all()
    still, forgotten = (each.residual for each in bucket.held_back())
    np.testing.assert_array_equal(still, before)
    assert np.isfinite(forgotten).all()
    gradients[:] = 1.0
    exchanged(bucket, 3)
    assert np.isfinite(gradients).all()


def test_the_room_of_a_parcel_falls_with_the_density_and_is_the_same_for_a_bucket_that_comes_later() -> None:
    rooms = []
    gradients = np.ones(1000, dtype=np.float32)
    bucket = Bucket(compressor(density_warmup_steps=3), gradients, nothing_held(1000), 2)
    for step in range(1, 7):
        gradients[:] = np.random.default_rng(step).standard_normal(1000)
        exchanged(bucket, step)
        rooms.append(len(bucket.parcel))
        late = Bucket(compressor(density_warmup_steps=3), gradients.copy(), nothing_held(1000), 2, step)
        assert len(late.parcel) == rooms[-1]
    assert rooms[0] > rooms[1] > rooms[2] > rooms[3] == rooms[5]
    assert rooms[5] < 1.25 * 100 * 6
