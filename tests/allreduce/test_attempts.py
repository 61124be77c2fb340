"""A step that is replayed holds nothing of the attempt that was given up."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from support.cluster import layout_of
from support.frames import header_of
from support.peers import Peers

from taihu.allreduce.communicator import Communicator
from taihu.allreduce.order.fence import Fence, Held
from taihu.allreduce.order.operation import Operation, OperationKey
from taihu.allreduce.parts.mesh import PartsMesh, PartsOperation, Transfer
from taihu.allreduce.ring.schedule import Ring, cut_chunks
from taihu.allreduce.sparse.exchange import RankOrderSum, Slice, SparseAllgather
from taihu.allreduce.sparse.mesh import SparseOperation
from taihu.core.base.errors import FrameError, StaleError
from taihu.core.planner.groups import Group
from taihu.core.wire.frames.headers import At, FrameHeader, ValueType
from taihu.core.wire.frames.identity import WorkerIdentity
from taihu.core.wire.frames.kinds import ActivationPart, RingSegment
from taihu.core.wire.links.shared_memory import SharedBuffer

SIZE = 3
ELEMENTS = 600_000
LAYOUT = layout_of(ELEMENTS)


def frame(*, plan: int = 2, step: int = 5, attempt: int = 1) -> FrameHeader:
    return header_of(7, plan, step, 0, 0, 4, 1, attempt=attempt, kind=RingSegment(0))


def test_a_fence_drops_what_was_undone_and_refuses_an_earlier_plan() -> None:
    fence = Fence(1)
    fence.begin(OperationKey(At(2, 7, 0), 0))
    assert fence.admits(frame(step=7, attempt=0))
    fence.abort(1)
    assert not fence.admits(frame(attempt=0))
    # Whoever was a step ahead has undone that too.
    assert not fence.admits(frame(step=8, attempt=0))
    assert not fence.admits(frame(plan=9, attempt=0))
    # By what plan the replay goes on is told by the first operation of it.
    assert fence.admits(frame(plan=1))
    fence.begin(OperationKey(At(2, 5, 1), 0))
    assert fence.admits(frame())
    assert fence.admits(frame(step=6))
    assert fence.admits(frame(plan=3))
    assert fence.admits(frame(plan=0))
    assert fence.admits(frame(plan=1, attempt=2))
    with pytest.raises(
        FrameError, match="worker 1 sent a segment of a ring, group 0, step 5, by plan 1: plan 2 is in use"
    ):
        fence.admits(frame(plan=1))


def test_operations_belong_to_the_present_attempt_which_never_falls() -> None:
    fence = Fence(1)
    fence.abort(2)
    for attempt in (1, 2):
        with pytest.raises(StaleError, match=f"attempt {attempt} after attempt 2: expected a higher one"):
            fence.abort(attempt)
    for attempt in (1, 3):
        with pytest.raises(StaleError, match=f"operation 0 of step 6, attempt {attempt}: this rank is at attempt 2"):
            fence.begin(OperationKey(At(1, 6, attempt), 0))
    fence.begin(OperationKey(At(1, 6, 2), 0))


def values_of(rank: int, attempt: int) -> NDArray[np.float32]:
    return np.random.default_rng([rank, attempt]).integers(-99, 99, ELEMENTS).astype(np.float32)


def sum_of(attempt: int) -> NDArray[np.float32]:
    """Integers: exact in any order."""
    total: NDArray[np.float32] = np.sum([values_of(rank, attempt) for rank in range(SIZE)], axis=0)
    return total


def dense(communicator: Communicator, step: int, attempt: int) -> tuple[Operation, NDArray[np.float32]]:
    values = values_of(communicator.rank, attempt)
    ring = Ring(communicator.rank, cut_chunks(LAYOUT, Group(0, 0), SIZE, 4))
    return Operation(OperationKey(At(1, step, attempt), 0), values, ValueType.FP32, ring), values


def sparse(communicator: Communicator, attempt: int) -> SparseOperation:
    own = Slice(np.arange(5, dtype=np.int32), values_of(communicator.rank, attempt)[:5])
    exchange = SparseAllgather(own, rank=communicator.rank, size=SIZE, elements=5, summation=RankOrderSum())
    operation = SparseOperation(OperationKey(At(1, 5, attempt), 1))
    communicator.start_sparse(operation, exchange)
    return operation


def transfer(rank: int, attempt: int) -> Transfer:
    sends: list[list[NDArray[Any]]] = [[values_of(rank, attempt)] if to != rank else [] for to in range(SIZE)]
    receives: list[list[NDArray[Any]]]
    receives = [[np.zeros(ELEMENTS, np.float32)] if sender != rank else [] for sender in range(SIZE)]
    return Transfer(sends, receives)


@pytest.mark.parametrize("direct", [True, False], ids=["tcp", "grpc"])
def test_a_replay_takes_nothing_of_the_attempt_before(direct: bool) -> None:
    """Rank 2 never took part in the first attempt; rank 0 goes back first, and frames of both are under way."""
    replayed = threading.Event()

    def begin_in_vain(communicator: Communicator) -> None:
        operations = [dense(communicator, step, 0)[0] for step in (5, 6)]
        for operation in operations:
            communicator.start(operation)
        sparse(communicator, 0)
        communicator.start_parts(transfer(communicator.rank, 0))
        threading.Thread(target=communicator.abort, args=(1,)).start()
        with pytest.raises(StaleError, match="given up"):
            communicator.wait(operations[0])
        with pytest.raises(StaleError, match="operation 0 of step 6, attempt 0, was given up"):
            communicator.wait(operations[1])

    def work(communicator: Communicator) -> None:
        if communicator.rank == 1:
            replayed.wait(120)
        if communicator.rank != 2:
            begin_in_vain(communicator)
        else:
            communicator.abort(1)
        operation, values = dense(communicator, 5, 1)
        moved = transfer(communicator.rank, 1)
        communicator.start(operation)
        selected = sparse(communicator, 1)
        parts = communicator.start_parts(moved)
        replayed.set()
        for each in (operation, selected, parts):
            communicator.wait(each)
        np.testing.assert_array_equal(values, sum_of(1))
        assert selected.exchange is not None
        np.testing.assert_array_equal(selected.exchange.result().values, sum_of(1)[:5])
        for sender, pieces in enumerate(moved.receives):
            for piece in pieces:
                np.testing.assert_array_equal(piece, values_of(sender, 1))
        # Calls are counted anew.
        flags = np.array([1.0])
        communicator.allreduce(flags, ValueType.FP64)
        assert flags[0] == SIZE

    with Peers(SIZE, mesh=True, direct=direct) as peers:
        peers.run(work)


def test_sums_in_shared_memory_are_given_up_and_replayed() -> None:
    """Rank 2 never took part; rank 0 gives up first, while rank 1 still waits for both."""
    aborting = threading.Event()

    def work(communicator: Communicator) -> None:
        rank = communicator.rank
        with SharedBuffer.create(4 * ELEMENTS) as buffer:
            communicator.choose_path("same-host", buffer)
            arena = buffer.array(np.float32, ELEMENTS)
            done = dense(communicator, 4, 0)[0]
            done.values = arena
            arena[:] = values_of(rank, 0)
            communicator.start(done)
            communicator.wait(done)
            np.testing.assert_array_equal(arena, sum_of(0))
            final: list[int] = []
            given_up = [dense(communicator, step, 0)[0] for step in (5, 6)]
            for operation in given_up:
                operation.values = arena
                operation.on_final = lambda frames: final.extend(frame.offset for frame in frames)
                if rank != 2:
                    communicator.start(operation)
            if rank:
                aborting.wait(120)
            else:
                aborting.set()
            communicator.abort(1)
            assert not final
            if rank != 2:
                with pytest.raises(StaleError, match="given up"):
                    communicator.wait(given_up[0])
            replayed = dense(communicator, 5, 1)[0]
            replayed.values = arena
            arena[:] = values_of(rank, 1)
            communicator.start(replayed)
            communicator.wait(replayed)
            np.testing.assert_array_equal(arena, sum_of(1))

    with Peers(SIZE) as peers:
        peers.run(work)


def test_an_operation_of_another_attempt_fails_the_run_that_starts_it() -> None:
    with Peers(2) as peers:
        peers.run(lambda communicator: communicator.abort(1))
        first = peers.communicators[0]
        operation = Operation(
            OperationKey(At(1, 6, 0), 0), np.zeros(2, np.float32), ValueType.FP32, Ring(0, [(), ()])
        )
        first.start(operation)
        with pytest.raises(StaleError, match="this rank is at attempt 1; abort before a step is replayed"):
            first.wait_until(lambda: False, lambda: "nothing")
        with pytest.raises(StaleError, match="this rank is at attempt 1"):
            first.abort(2)


def test_early_parts_of_the_next_attempt_outlive_an_abort() -> None:
    def send(rank: int, header: FrameHeader, pieces: Any, *, urgent: bool) -> None:
        """Nobody looks at it."""

    def after(rank: int, callback: Any, *, urgent: bool) -> None:
        callback()

    mesh = PartsMesh(WorkerIdentity("job", 0, 1), send, after, Held())
    for attempt in (0, 1):
        header = header_of(1, 0, 0, 1, 0, 2, 1, attempt=attempt, kind=ActivationPart(1))
        assert mesh.take(header, np.full(2, attempt, dtype=np.float32)) is None
    mesh.abort(1)
    room = np.full(2, -1, dtype=np.float32)
    mesh.begin(PartsOperation(Transfer([[], []], [[], [room]]), ValueType.FP32), lambda _: None)
    np.testing.assert_array_equal(room, [1, 1])
