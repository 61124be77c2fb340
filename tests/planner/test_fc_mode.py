"""The choice for fully connected layers: the published cells, and the best of all combinations."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taihu.planner.fc_mode import FcJob, FcLayer, FcLinks, choose_fc, printed_rule, step_seconds

FC1, FC2, FC3 = FcLayer("fc1", 25088, 4096), FcLayer("fc2", 4096, 4096), FcLayer("fc3", 4096, 1000)
layers = st.lists(
    st.builds(FcLayer, st.just("fc"), st.integers(1, 30_000), st.integers(1, 5000)), min_size=1, max_size=4
)
jobs = st.builds(FcJob, st.integers(1, 256), st.integers(1, 8), st.integers(0, 3))
links = st.builds(FcLinks, st.floats(0, 1e-2), st.floats(0, 1e-2), st.floats(1e-10, 1e-6))


def alone(layer: FcLayer, batch: int, workers: int) -> tuple[float, float]:
    """Data-parallel and sharded seconds on a ring with the constants that fit the paper (methods section 3)."""
    start = 0.36e-3 * (workers - 1) ** 0.84
    there = FcLinks(transfer_seconds=7 * start / 4, exchange_seconds=start, seconds_per_byte=1 / 4.46e9)
    choice = choose_fc([layer], FcJob(batch, workers, 0), there)[0]
    return choice.data_seconds, choice.shard_seconds


@pytest.mark.parametrize(("workers", "batch"), list(product((2, 4, 8), (1, 2, 4, 8, 16, 32, 64, 128))))
def test_the_largest_layer_is_always_faster_sharded(workers: int, batch: int) -> None:
    data, shard = alone(FC1, batch, workers)
    assert shard < data


def test_the_published_extremes_are_met() -> None:
    data, shard = alone(FC1, 1, 2)
    assert data / shard > 33
    data, shard = alone(FC2, 1, 2)
    assert data / shard > 6
    data, shard = alone(FC3, 128, 8)
    assert shard > data


def test_volumes_are_the_lean_ones() -> None:
    batch, workers = 32, 4
    per_byte = FcLinks(0.0, 0.0, 1.0)
    job = FcJob(batch, workers, 0)
    moved = 2 * (workers - 1) * batch * 4096 + 2 * batch * 1000 * (workers - 1) / workers
    assert step_seconds([FC3], ["shard"], job, per_byte) == pytest.approx(4 * moved)
    assert step_seconds([FC3], ["data"], job, per_byte) == pytest.approx(4 * 2 * 3 / 4 * 4097 * 1000)
    # Behind a sharded layer only columns are gathered: the way over the examples' owners is saved, there and back.
    row = step_seconds([FC2, FC3], ["shard", "shard"], job, per_byte)
    apart = step_seconds([FC2], ["shard"], job, per_byte) + step_seconds([FC3], ["shard"], job, per_byte)
    assert apart - row == pytest.approx(4 * 2 * batch * 4096 * (workers - 1) / workers)
    # The link of one of two servers carries half of the gradients of all four workers.
    assert step_seconds([FC3], ["data"], FcJob(batch, workers, 2), per_byte) == pytest.approx(4 * 2 * 4097 * 1000)


@settings(deadline=None)
@given(layers, jobs, links)
def test_no_combination_is_faster(layers: list[FcLayer], job: FcJob, links: FcLinks) -> None:
    choices = choose_fc(layers, job, links)
    modes = [choice.choice for choice in choices]
    possible = [("data", "shard") if 1 < job.workers <= layer.outputs else ("data",) for layer in layers]
    assert all(mode in allowed for mode, allowed in zip(modes, possible, strict=True))
    best = min(step_seconds(layers, combination, job, links) for combination in product(*possible))
    assert step_seconds(layers, modes, job, links) == best


def test_the_printed_inequality() -> None:
    # M P < (K + 1) N / (3 K + 2 N): 1232 for FC1, 819 for FC2, 287 for FC3.
    for layer, most in ((FC1, 1231), (FC2, 819), (FC3, 286)):
        assert printed_rule(layer, FcJob(most, 1, 0)) == "shard"
        assert printed_rule(layer, FcJob(most + 1, 1, 0)) == "data"


def test_of_many_layers_each_is_chosen_alone() -> None:
    choices = choose_fc([FC1, FC3] * 6, FcJob(32, 4, 0), FcLinks(0.0, 0.0, 1e-8))
    assert [choice.choice for choice in choices] == ["shard"] * 12
