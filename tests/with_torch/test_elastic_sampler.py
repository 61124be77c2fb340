"""Batches of an ElasticSampler: each sample once, whoever comes and goes; the oracle is the order itself."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from taihu.core.base.errors import ConfigError
from taihu.torch.kept.elastic_sampler import ElasticSampler
from taihu.torch.kept.loops import Loops, Position

SEED, EPOCH = 7, 3


def live(
    sizes: dict[str, Any], count: int, workers: int, place: Position | None, steps: int | None
) -> tuple[list[tuple[list[int], ...]], list[Position], list[float]]:
    """The batches of one life by step and worker, the places where its workers end, and their weights."""
    shares, ends, weights = [], [], []
    for rank in range(workers):
        sampler = ElasticSampler(range(count), rank, workers, seed=SEED, **sizes)
        sampler.set_epoch(EPOCH)
        loops = Loops(goes_on=None if place is None else place.on_others(1, workers))
        left = loops.batches(DataLoader(range(count), batch_sampler=sampler))
        share = []
        for batch in itertools.islice(left, steps):
            share.append(batch.tolist())
            loops.passed(sampler.batch)
        shares.append(share)
        ends.append(loops.place)
        weights.append(sampler.weight)
    return list(zip(*shares, strict=True)), ends, weights


@given(
    sizes=st.tuples(st.integers(1, 4), st.booleans()),
    count=st.integers(20, 60),
    drops_last=st.booleans(),
    lives=st.lists(st.tuples(st.integers(1, 4), st.integers(1, 3)), max_size=3),
    last=st.integers(1, 4),
)
def test_workers_that_come_and_go_see_each_sample_once(
    sizes: tuple[int, bool], count: int, drops_last: bool, lives: list[tuple[int, int]], last: int
) -> None:
    share, is_of_worker = sizes
    words = {"batch_of_worker": share} if is_of_worker else {"batch": 4 * share}
    seen: list[int] = []
    place: Position | None = None
    for workers, steps in [*lives, (last, None)]:
        batches, ends, weights = live({**words, "drop_last": drops_last}, count, workers, place, steps)
        for batch in batches:
            together = [sample for each in batch for sample in each]
            assert len(together) == (share * workers if is_of_worker else 4 * share)
            # The mean of all samples is that of the workers' means by their weights.
            means = [weight * np.mean(each) for weight, each in zip(weights, batch, strict=True)]
            assert np.mean(means) == pytest.approx(np.mean(together))
            seen += together
        assert len(set(ends)) == 1
        place = ends[0]
    order = np.random.default_rng([SEED, EPOCH]).permutation(count).tolist()
    assert seen[:count] == order[: len(seen)]
    left_out = count - len(seen)
    if drops_last:
        assert 0 <= left_out < (share * last if is_of_worker else 4 * share)
    else:
        assert left_out <= 0
        assert seen[count:] == order[:-left_out] if left_out else True


@pytest.mark.parametrize("sizes", [{}, {"batch": 4, "batch_of_worker": 2}, {"batch": 2}, {"batch": 20}])
def test_batches_that_cannot_be_divided_are_refused(sizes: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="ElasticSampler"):
        ElasticSampler(10, 0, 3, **sizes)


def test_a_loader_with_processes_draws_again_as_long_as_batches_are_as_large() -> None:
    seeks: list[int] = []

    class Watched(ElasticSampler):
        def seek(self, samples: int) -> None:
            seeks.append(samples)

    for batch, expected in ((4, []), (8, [8])):
        seeks.clear()
        loader = DataLoader(range(40), batch_sampler=Watched(40, 0, 1, batch=batch), num_workers=1)
        loops = Loops(goes_on=Position(batches=2, samples=8))
        next(iter(loops.batches(loader)))
        assert seeks == expected
