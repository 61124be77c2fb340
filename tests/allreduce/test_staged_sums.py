"""Sums through small shared buffers, in many parts, beside those of a ring."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.shared_ranks import PeerDiedError, expected_result, on_all_ranks, shared_buffers
from support.value_kinds import random_values, same_bits

from taihu.allreduce.staged import StagedSums
from taihu.core.base.errors import ExchangeError
from taihu.kernels.sums import REDUCE_KINDS, ReduceKind

pytestmark = pytest.mark.usefixtures("all_cores")

_MOST_RANKS = 6
# Three places with room for one value of each rank.
_SMALLEST_STAGE_BYTES = 3 * _MOST_RANKS * 8


@settings(deadline=None, max_examples=60)
@given(
    st.integers(1, _MOST_RANKS),
    st.lists(st.integers(0, 3000), min_size=1, max_size=3),
    st.sampled_from(REDUCE_KINDS),
    st.booleans(),
    st.integers(_SMALLEST_STAGE_BYTES, 4096),
    st.integers(0, 99),
)
def test_all_ranks_hold_the_sums_of_a_ring(  # noqa: PLR0917 - what is drawn
    size: int, sizes: list[int], kind: ReduceKind, mean: bool, stage_bytes: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    given_values = [[random_values(rng, elements, kind) for _ in range(size)] for elements in sizes]
    values = [[each.copy() for each in call] for call in given_values]
    with shared_buffers(size, stage_bytes // 16 * 16) as buffers:

        def work(rank: int) -> None:
            sums = StagedSums(rank, buffers)
            for call in values:
                sums.allreduce(call[rank], kind, lambda: None, mean=mean)

        assert on_all_ranks(size, work) == [None] * size
    for call, before in zip(values, given_values, strict=True):
        expected = expected_result(before, (0, len(before[0]), kind, mean))
        assert all(same_bits(*pair) for pair in zip(call, expected, strict=True))


def test_ranks_that_sum_different_numbers_of_values_are_refused() -> None:
    with shared_buffers(2, 256) as buffers:

        def work(rank: int) -> None:
            values = np.ones(500 + rank, dtype=np.float32)
            StagedSums(rank, buffers).allreduce(values, "fp32", lambda: None, mean=False)

        assert [type(outcome) for outcome in on_all_ranks(2, work)] == [ExchangeError] * 2


def test_who_waits_in_a_later_part_for_one_that_has_died_ends_with_that() -> None:
    with shared_buffers(2, 256) as buffers:

        def work(rank: int) -> None:
            values = np.ones(500, dtype=np.float32)
            sums = StagedSums(rank, buffers)
            if rank:
                sums._sums.begin(0, 500, "fp32")
                return
            sums.allreduce(values, "fp32", lambda: PeerDiedError("rank 1"), mean=False)

        died, gone = on_all_ranks(2, work)
        assert isinstance(died, PeerDiedError)
        assert gone is None
