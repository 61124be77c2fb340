"""Rounds of the bench between ranks: how often a buffer is summed in each."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray
from support.peers import Peers

from taihu.allreduce.bench import calls_of_a_round, elements_of, time_allreduce


@pytest.mark.parametrize(("megabytes", "calls"), [(1e-9, 200), (0.004, 200), (0.1, 200), (1, 20), (10, 2), (244, 1)])
def test_calls_move_twenty_megabytes_but_are_not_more_than_two_hundred(megabytes: float, calls: int) -> None:
    assert calls_of_a_round(elements_of(megabytes)) == calls


def test_a_small_buffer_is_summed_as_often_as_a_round_says() -> None:
    sums: list[int] = []

    def count(values: NDArray[np.float32]) -> None:
        sums.append(len(values))

    with Peers(1) as peers:
        (row,) = time_allreduce(peers.communicators[0], [0.004], {"counted": count}, rounds=3)
    assert sums == [1000] * (2 + 3) * 200
    assert row.seconds["counted"]["min"] >= 0
