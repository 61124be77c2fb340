"""Parts from every rank to every other one over real connections: they arrive, and mistakes are told."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from support.frames import header_of
from support.peers import Peers

from taihu.allreduce.communicator import Communicator
from taihu.allreduce.order.fence import Held
from taihu.allreduce.parts.mesh import PartsMesh, Transfer
from taihu.core.base.errors import FrameError, TaihuError
from taihu.core.wire.frames.headers import ValueType
from taihu.core.wire.frames.identity import WorkerIdentity
from taihu.core.wire.frames.kinds import ActivationPart

DRAWN = np.random.default_rng(0).standard_normal(800_000)


def values_of(sender: int, to: int, count: int, dtype: Any = np.float32) -> NDArray[Any]:
    """Others for every pair."""
    start = 1000 * (10 * sender + to)
    return DRAWN[start : start + count].astype(dtype)


def transfer_of(rank: int, size: int, counts: dict[tuple[int, int], int], dtype: Any = np.float32) -> Transfer:
    """Parts of different lengths; received in two pieces, which a frame may cover both."""
    nothing: list[NDArray[Any]] = []
    sends = [nothing if to == rank else [values_of(rank, to, counts.get((rank, to), 0), dtype)] for to in range(size)]
    receives = []
    for sender in range(size):
        room = np.full(counts.get((sender, rank), 0), np.nan, dtype=dtype)
        receives.append(nothing if sender == rank else [room[: len(room) // 3], room[len(room) // 3 :]])
    return Transfer(sends, receives)


def check(rank: int, transfer: Transfer, dtype: Any = np.float32) -> None:
    for sender, pieces in enumerate(transfer.receives):
        if sender != rank:
            received = np.concatenate(pieces)
            assert received.tobytes() == values_of(sender, rank, len(received), dtype).tobytes()


@pytest.mark.parametrize("direct", [True, False])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_every_part_arrives(size: int, dtype: Any, direct: bool) -> None:
    rng = np.random.default_rng(size)
    counts = {(a, b): int(rng.choice([0, 1, 5, 300_000, 700_001])) for a in range(size) for b in range(size)}
    value_type = ValueType.FP32 if dtype is np.float32 else ValueType.FP64

    def work(communicator: Communicator) -> None:
        transfers = [transfer_of(communicator.rank, size, counts, dtype) for _ in range(3)]
        running = [communicator.start_parts(transfer, value_type) for transfer in transfers]
        for operation, transfer in zip(running, transfers, strict=True):
            communicator.wait(operation)
            check(communicator.rank, transfer, dtype)

    with Peers(size, mesh=True, direct=direct) as peers:
        peers.run(work)


def test_what_comes_early_waits() -> None:
    counts = {(0, 1): 600_000, (1, 0): 3}
    received = threading.Event()

    def work(communicator: Communicator) -> None:
        transfer = transfer_of(communicator.rank, 2, counts)
        if communicator.rank == 1:
            # The ring's sum follows what rank 0 sent on the same connection: once it is there, the parts have come.
            total = np.ones(4, dtype=np.float32)
            communicator.allreduce(total)
            communicator.wait(communicator.start_parts(transfer))
            check(1, transfer)
        else:
            operation = communicator.start_parts(transfer)
            communicator.allreduce(np.ones(4, dtype=np.float32))
            communicator.wait(operation)
            check(0, transfer)
        received.set()

    with Peers(2, mesh=True) as peers:
        peers.run(work)


@pytest.mark.parametrize("count", [4, 6, 600_000])
def test_other_shapes_are_one_clear_error_on_every_rank(count: int) -> None:
    counts = {(a, b): 5 for a in range(3) for b in range(3)}

    def work(communicator: Communicator) -> str:
        mine = {**counts, **({(1, 0): count, (1, 2): count} if communicator.rank == 1 else {})}
        try:
            communicator.wait(communicator.start_parts(transfer_of(communicator.rank, 3, mine)), timeout_s=120)
            communicator.allreduce(np.ones(3, dtype=np.float32))
        except TaihuError as error:
            return str(error)
        return "done"

    with Peers(3, mesh=True) as peers:
        for told in peers.run(work):
            assert "give every worker the same model, batch and scheme" in told


def test_a_rank_that_fails_is_told_to_those_that_wait_for_it() -> None:
    counts = {(a, b): 5 for a in range(3) for b in range(3)}

    def work(communicator: Communicator) -> str:
        try:
            if communicator.rank == 2:
                raise TaihuError("worker 2: out of paper")
            communicator.wait(communicator.start_parts(transfer_of(communicator.rank, 3, counts)), timeout_s=120)
        except TaihuError as error:
            communicator.fail(error)
            return str(error)
        return "done"

    with Peers(3, mesh=True) as peers:
        assert peers.run(work) == ["worker 2: out of paper"] * 3


@pytest.mark.parametrize(("step", "ahead"), [(0, 0), (0, 5000), (1, 1)])
def test_parts_of_transfers_that_nobody_will_begin_are_refused(step: int, ahead: int) -> None:
    mesh = PartsMesh(WorkerIdentity("job", 0, 1), Unsent(), Unsent(), Held())
    mesh.next_key()
    header = header_of(1, 0, step, 1 + ahead, 0, 2, 1, kind=ActivationPart(1))
    with pytest.raises(FrameError, match="worker 1 sent a part of transfer"):
        mesh.take(header, np.zeros(2, dtype=np.float32))


class Unsent:
    """The arguments of a mesh that sends nothing."""

    def __call__(self, *arguments: object, **options: object) -> None:
        raise AssertionError("nothing is sent")
