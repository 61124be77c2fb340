"""Groups that a kernel sums between real communicators: the bits of frames, and where frames take over."""

from __future__ import annotations

import socket
import threading
from collections.abc import Sequence
from itertools import chain, pairwise

import numpy as np
import pytest
from numpy.typing import NDArray
from support.cluster import layout_of
from support.daemons import wait_for
from support.peers import Peers

from taihu.allreduce.communicator import Communicator
from taihu.allreduce.order.operation import Operation, OperationKey
from taihu.allreduce.ring.kernel_ring import IS_POSSIBLE
from taihu.allreduce.ring.schedule import Ring, cut_chunks
from taihu.core.base.errors import RunError, StaleError, TaihuError
from taihu.core.planner.groups import Group
from taihu.core.planner.partition import FrameSpec
from taihu.core.wire.frames.headers import At, ValueType
from taihu.core.wire.links.frame_link import FrameLink

pytestmark = pytest.mark.skipif(not IS_POSSIBLE, reason="this machine's kernels cannot drive a ring")

LAYOUT = layout_of(30_000, 7, 200_000, 1, 500)
GROUPS = (Group(0, 0), Group(1, 3), Group(4, 4))


def values_of(rank: int) -> NDArray[np.float32]:
    return np.random.default_rng(rank).standard_normal(LAYOUT.elements, dtype=np.float32)


def operation_of(communicator: Communicator, arena: NDArray[np.float32], number: int, attempt: int = 0) -> Operation:
    chunks = cut_chunks(LAYOUT, GROUPS[number], communicator.size, 4)
    scale = 1.0 / communicator.size
    key = OperationKey(At(1, 1, attempt), number)
    return Operation(key, arena, ValueType.FP32, Ring(communicator.rank, chunks), scale=scale)


def means(communicator: Communicator, attempt: int = 0) -> bytes:
    """The means of a model's groups, summed one after the other, and of a call in between."""
    arena = values_of(communicator.rank)
    operations = [operation_of(communicator, arena, number, attempt) for number in range(len(GROUPS))]
    for operation in operations:
        communicator.start(operation)
    other = values_of(communicator.rank)[:100]
    communicator.allreduce(other)
    for operation in operations:
        communicator.wait(operation)
    return arena.tobytes() + other.tobytes()


def updated(communicator: Communicator, attempt: int = 0) -> bytes:
    """Three times the means of all groups, made of each part when that is there."""
    arena = values_of(communicator.rank)
    results = np.zeros_like(arena)
    told: list[tuple[int, int]] = []

    def update(frames: Sequence[FrameSpec]) -> None:
        for piece in chain.from_iterable(frame.pieces for frame in frames):
            results[piece.start : piece.stop] = 3.0 * arena[piece.start : piece.stop]
            told.append((piece.start, piece.stop))

    operations = [operation_of(communicator, arena, number, attempt) for number in range(len(GROUPS))]
    for operation in operations:
        operation.on_final = update
        communicator.start(operation)
    for operation in operations:
        communicator.wait(operation)
    ends = sorted(told)
    assert ends[0][0] == 0
    assert ends[-1][1] == LAYOUT.elements
    assert all(stop == start for (_, stop), (start, _) in pairwise(ends)), "each part is told of once"
    return results.tobytes()


def by_frames(size: int) -> list[bytes]:
    with Peers(size) as peers:
        return peers.run(means)


def bytes_of_frames(communicator: Communicator) -> int:
    """Bytes that a communicator's links have sent, without those of kernels."""
    return sum(link.sent_bytes for link in communicator._links.values())


@pytest.mark.parametrize("size", [2, 3, 4])
def test_kernels_give_the_bits_of_frames_and_send_nothing_by_them(size: int) -> None:
    def work(communicator: Communicator) -> tuple[bytes, int, int]:
        assert communicator.sum_by_kernel()
        before = bytes_of_frames(communicator), communicator.sent_bytes
        result = means(communicator)
        return result, bytes_of_frames(communicator) - before[0], communicator.sent_bytes - before[1]

    with Peers(size) as peers:
        found = peers.run(work)
    assert [result for result, _, _ in found] == by_frames(size)
    for _, in_frames, sent in found:
        # The call's 100 values and words about frames; the groups' chunks go 2 (P - 1) times.
        assert in_frames < 4000
        assert abs(sent - in_frames - 8 * LAYOUT.elements * (size - 1) / size) < 4 * 2 * size * len(LAYOUT.layers)


@pytest.mark.parametrize("size", [2, 3])
def test_parts_that_are_updated_when_they_are_there_have_the_bits_of_frames(size: int) -> None:
    def work(communicator: Communicator) -> tuple[bytes, int]:
        assert communicator.sum_by_kernel()
        before = bytes_of_frames(communicator)
        return updated(communicator), bytes_of_frames(communicator) - before

    with Peers(size) as peers:
        expected = peers.run(updated)
    with Peers(size) as peers:
        found = peers.run(work)
    assert [result for result, _ in found] == expected
    assert all(in_frames < 4000 for _, in_frames in found)


def test_the_next_sum_goes_on_beside_an_update() -> None:
    summed = threading.Barrier(2, timeout=120)

    def work(communicator: Communicator) -> str:
        assert communicator.sum_by_kernel()
        arena = values_of(communicator.rank)
        first, second = (operation_of(communicator, arena, number) for number in (1, 2))
        is_summed = threading.Event()
        first.on_final = lambda _: wait_for(is_summed.is_set, "the second sum waits for the first one's update")
        for operation in (first, second):
            communicator.start(operation)
        communicator.wait(second)
        assert not first.finished
        summed.wait()
        is_summed.set()
        communicator.wait(first)
        return "done"

    with Peers(2) as peers:
        assert peers.run(work) == ["done"] * 2


def test_nothing_is_updated_behind_the_end_of_an_attempt() -> None:
    going_back = threading.Barrier(2, timeout=120)

    def work(communicator: Communicator) -> bytes:
        assert communicator.sum_by_kernel()
        arena = values_of(communicator.rank)
        is_updating, may_end = threading.Event(), threading.Event()

        def update(frames: Sequence[FrameSpec]) -> None:
            is_updating.set()
            assert may_end.wait(120)
            arena[frames[0].pieces[0].start] = 7.0

        operations = [operation_of(communicator, arena, number) for number in (1, 2)]
        for operation in operations:
            operation.on_final = update
            communicator.start(operation)
        assert is_updating.wait(120)
        going_back.wait()
        ends = threading.Thread(target=communicator.abort, args=(1,))
        ends.start()
        # Whoever goes back waits for the updates of what has been summed.
        ends.join(0.1)
        assert ends.is_alive()
        may_end.set()
        ends.join(120)
        assert not ends.is_alive()
        left = arena.copy()
        with pytest.raises(StaleError):
            communicator.wait(operations[1])
        again = means(communicator, attempt=1)
        assert np.array_equal(left, arena)
        return again

    with Peers(2) as peers:
        assert peers.run(work) == by_frames(2)


@pytest.mark.parametrize("size", [1, 3])
def test_where_one_rank_cannot_all_send_frames(size: int) -> None:
    def work(communicator: Communicator) -> tuple[bytes, bool]:
        chosen = communicator.sum_by_kernel(is_possible=communicator.rank != size - 1)
        return means(communicator), chosen

    with Peers(size) as peers:
        found = peers.run(work)
    assert [result for result, _ in found] == by_frames(size)
    assert not any(chosen for _, chosen in found)


def test_frames_that_go_over_grpc_leave_nothing_to_kernels() -> None:
    def work(communicator: Communicator) -> tuple[bytes, int]:
        assert communicator.sum_by_kernel()
        communicator.carry("grpc")
        before = bytes_of_frames(communicator)
        return means(communicator), bytes_of_frames(communicator) - before

    with Peers(3) as peers:
        found = peers.run(work)
    assert [result for result, _ in found] == by_frames(3)
    assert all(sent > 4 * LAYOUT.elements for _, sent in found)


def test_when_the_run_goes_back_frames_take_over_on_all_ranks() -> None:
    aborted = threading.Barrier(3, timeout=120)

    def work(communicator: Communicator) -> bytes:
        assert communicator.sum_by_kernel()
        first = means(communicator)
        stale = values_of(communicator.rank)
        if communicator.rank != 2:  # which has gone back before it came to this
            operation = operation_of(communicator, stale, 1)
            communicator.start(operation)
        communicator.abort(1)
        if communicator.rank != 2:
            with pytest.raises(StaleError):
                communicator.wait(operation)
        # Nothing of the attempt that was given up is written to any more.
        left = stale.copy()
        aborted.wait()
        again = means(communicator, attempt=1)
        assert np.array_equal(stale, left)
        assert again == first
        return again

    with Peers(3) as peers:
        assert peers.run(work) == by_frames(3)


def test_a_ring_that_is_not_agreed_on_leaves_no_connection_open(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rank may fail when others have opened a connection for it, and wait for all to have done so."""
    opened: list[socket.socket] = []
    open_for_ring = FrameLink.open_for_ring

    def noted(link: FrameLink) -> socket.socket | None:
        connection = open_for_ring(link)
        if connection is not None:
            opened.append(connection)
        return connection

    def work(communicator: Communicator) -> str:
        if communicator.rank == 0:
            with pytest.raises(RunError, match="out of paper"):
                communicator.sum_by_kernel()
        else:
            wait_for(lambda: bool(opened), "no connection was opened")
            communicator.fail(RunError("out of paper"))
        return "done"

    monkeypatch.setattr(FrameLink, "open_for_ring", noted)
    with Peers(2) as peers:
        peers.run(work)
        assert [connection.fileno() for connection in opened] == [-1]


def test_a_rank_that_fails_ends_the_sums_of_the_others() -> None:
    connected = threading.Barrier(3)

    def work(communicator: Communicator) -> str:
        assert communicator.sum_by_kernel()
        connected.wait(120)
        arena = values_of(communicator.rank)
        operation = operation_of(communicator, arena, 1)
        if communicator.rank == 1:
            communicator.fail(RunError("out of paper"))
        try:
            communicator.start(operation)
            communicator.wait(operation)
        except TaihuError as error:
            return str(error)
        return "done"

    with Peers(3) as peers:
        assert all("out of paper" in result for result in peers.run(work))
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("kernel-ring")]
