"""A rank that leaves in good order: who waits for it is told, and nothing new begins without it."""

from __future__ import annotations

import threading
from queue import Queue

import numpy as np
import pytest
from support.peers import Peers

from taihu.allreduce.communicator import Communicator
from taihu.allreduce.order.operation import OperationKey
from taihu.allreduce.parts.mesh import Transfer
from taihu.allreduce.parts.messages import Receive
from taihu.allreduce.sparse.exchange import RankOrderSum, Slice, SparseAllgather
from taihu.allreduce.sparse.mesh import SparseOperation
from taihu.core.base.errors import MemberLostError
from taihu.core.wire.frames.headers import At

LEFT = "worker [0-9] has left the run while this worker goes on"


def parts_from(rank: int, size: int, sender: int) -> Transfer:
    """Four values from `sender` to every other rank."""
    values = np.ones(4, dtype=np.float32)
    sends = [[values] if rank == sender and to != sender else [] for to in range(size)]
    receives = [[np.zeros(4, dtype=np.float32)] if each == sender and rank != sender else [] for each in range(size)]
    return Transfer(sends, receives)


def test_a_rank_that_leaves_during_a_transfer_of_parts_is_not_waited_for() -> None:
    """Rank 1 comes behind rank 0, and is no neighbour on its left: only the transfer waits for it."""
    begun = threading.Barrier(3)

    def work(communicator: Communicator) -> None:
        if communicator.rank == 1:
            begun.wait(120)
            communicator.close()
            return
        operation = communicator.start_parts(parts_from(communicator.rank, 3, sender=1))
        begun.wait(120)
        with pytest.raises(MemberLostError, match=LEFT):
            communicator.wait(operation)

    with Peers(3, mesh=True) as peers:
        peers.run(work)


def sparse_of(communicator: Communicator) -> tuple[SparseOperation, SparseAllgather]:
    own = Slice(np.array([1], dtype=np.int32), np.ones(1, dtype=np.float32))
    rank, size = communicator.rank, communicator.size
    exchange = SparseAllgather(own, rank=rank, size=size, elements=4, summation=RankOrderSum())
    return SparseOperation(OperationKey(At(1, 1, 0), 0), lambda _: None), exchange


def test_a_rank_that_leaves_during_a_sparse_operation_is_not_waited_for() -> None:
    begun = threading.Barrier(3)

    def work(communicator: Communicator) -> None:
        if communicator.rank == 1:
            begun.wait(120)
            communicator.close()
            return
        operation, exchange = sparse_of(communicator)
        communicator.start_sparse(operation, exchange)
        begun.wait(120)
        with pytest.raises(MemberLostError, match=LEFT):
            communicator.wait(operation)

    with Peers(3, mesh=True) as peers:
        peers.run(work)


@pytest.mark.parametrize("kind", ["sum", "sparse", "parts"])
def test_nothing_begins_after_somebody_has_left(kind: str) -> None:
    """Not even what would wait for nothing: nobody is there to take it."""
    left = threading.Event()

    def work(communicator: Communicator) -> None:
        if communicator.rank == 1:
            # Everything that this rank had to send is there when its last word is.
            communicator.close()
            left.set()
            return
        assert left.wait(120)
        with pytest.raises(MemberLostError, match=LEFT):
            begin(communicator, kind)

    with Peers(2, mesh=True) as peers:
        peers.run(work)


def begin(communicator: Communicator, kind: str) -> None:
    if kind == "sum":
        communicator.allreduce(np.ones(4, dtype=np.float32))
    elif kind == "sparse":
        operation, exchange = sparse_of(communicator)
        communicator.start_sparse(operation, exchange)
        communicator.wait(operation)
    else:
        communicator.wait(communicator.start_parts(parts_from(communicator.rank, 2, sender=0)))


@pytest.mark.parametrize("is_waiting", [True, False], ids=["waits already", "asks later"])
def test_a_message_of_anybody_is_not_waited_for_when_all_others_have_left(is_waiting: bool) -> None:
    """One of two that leaves is no reason to give up: the other one may send something."""
    posted, one_left, all_left = (threading.Event() for _ in range(3))
    received = threading.Event()

    def work(communicator: Communicator) -> None:
        place = np.zeros(2, dtype=np.uint16)
        if communicator.rank == 2:
            assert posted.wait(120)
            communicator.close()
            one_left.set()
        elif communicator.rank == 1:
            assert one_left.wait(120)
            sent = threading.Event()
            communicator.send(0, 7, place, sent.set)
            assert sent.wait(120)
            assert received.wait(120)
            communicator.close()
            all_left.set()
        else:
            communicator.receive(Receive(place, None, 7, received.set))
            posted.set()
            assert received.wait(120)
            failed: Queue[BaseException] = Queue()
            communicator.on_failure(failed.put)
            if not is_waiting:
                assert all_left.wait(120)
            communicator.receive(Receive(place, None, 7))
            with pytest.raises(MemberLostError, match=LEFT):
                raise failed.get(timeout=120)

    with Peers(3, mesh=True) as peers:
        peers.run(work)
