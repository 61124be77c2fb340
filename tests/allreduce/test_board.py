"""Sums on a board: those of NumPy, the same bits on all ranks; what does not belong together ends on all of them."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from support.peers import Peers
from support.shared_ranks import on_all_ranks, shared_buffers

from taihu.allreduce.communicator import Communicator
from taihu.allreduce.same_host.board import BOARD_BYTES, SharedBoard
from taihu.allreduce.small_sums import SmallSums
from taihu.core.base.errors import FrameError, MemberLostError

ROOM_BYTES = 4096


def never() -> None:
    return None


@settings(max_examples=15, deadline=None)
@given(size=st.integers(2, 4), lengths=st.lists(st.integers(0, 700), min_size=1, max_size=6), seed=st.integers(0, 99))
def test_sums_are_numpys_whatever_room_there_is(size: int, lengths: list[int], seed: int) -> None:
    values = [[np.random.default_rng([seed, rank, i]).standard_normal(n) for i, n in enumerate(lengths)]
              for rank in range(size)]  # fmt: skip
    with shared_buffers(size, ROOM_BYTES) as buffers:

        def sums(rank: int) -> list[NDArray[np.float64]]:
            board, own = SharedBoard(rank, buffers), [each.copy() for each in values[rank]]
            for each in own:
                board.write(each)
                board.add(each, never)
            return own

        answers = on_all_ranks(size, sums)
    for i in range(len(lengths)):
        expected = values[0][i].copy()
        for rank in range(1, size):
            expected += values[rank][i]
        for answer in answers:
            np.testing.assert_array_equal(answer[i], expected)


def test_other_numbers_are_refused_on_all_ranks() -> None:
    with shared_buffers(3, BOARD_BYTES) as buffers:

        def sum_own(rank: int) -> None:
            board, own = SharedBoard(rank, buffers), np.zeros(4 if rank == 2 else 3)
            board.write(own)
            board.add(own, never)

        answers = on_all_ranks(3, sum_own)
    assert [str(each) for each in answers] == [
        "the ranks add [3, 3, 4] numbers: expected the same call of all ranks"
    ] * 3
    assert {type(each) for each in answers} == {FrameError}


@pytest.mark.parametrize("transport", ["auto", "tcp"])
def test_small_sums_of_workers_count_as_calls(transport: str) -> None:
    def sums(communicator: Communicator) -> tuple[list[float], int]:
        small = SmallSums(communicator, transport)  # type: ignore[arg-type]
        before, own = communicator.begun[0], np.array([communicator.rank + 1.0, 10.0])
        wait = small.begin(own)
        wait()
        return own.tolist(), communicator.begun[0] - before

    with Peers(3) as peers:
        assert peers.run(sums) == [([6.0, 30.0], 1)] * 3
    assert not list(Path("/dev/shm").glob(f"taihu-*-{os.getpid()}-*"))  # noqa: S108


def test_who_waits_at_the_board_hears_of_who_has_left() -> None:
    def life(communicator: Communicator) -> str:
        small = SmallSums(communicator, "auto")
        own = np.ones(2)
        small.begin(own)()
        if communicator.rank == 1:
            communicator.close()
            return "left"
        with pytest.raises(MemberLostError) as seen:
            small.begin(own)()
        return str(seen.value)

    with Peers(2) as peers:
        assert peers.run(life) == ["worker 1 has left the run while this worker goes on", "left"]
