"""Workers on one machine: the same bits through shared memory as over the network, or the network if one cannot."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from support.cluster import layout_of
from support.peers import Peers

from taihu.allreduce.communicator import Communicator
from taihu.allreduce.order.operation import Operation, OperationKey
from taihu.allreduce.ring.schedule import Ring, cut_chunks
from taihu.allreduce.same_host.path import DESCRIPTOR_BYTES, decode_descriptor, encode_descriptor
from taihu.core.base.errors import ConfigError, ExchangeError, RunError, SharedMemoryError, TaihuError
from taihu.core.planner.groups import Group
from taihu.core.planner.partition import FrameSpec
from taihu.core.wire.frames.headers import At, ValueType
from taihu.core.wire.links.shared_memory import SharedBuffer

LAYERS = (3000, 7, 20_000, 1, 500)


def values_of(rank: int, elements: int) -> NDArray[np.float32]:
    return np.random.default_rng([rank, elements]).standard_normal(elements, dtype=np.float32)


def reduced(communicator: Communicator, *, shared: bool) -> tuple[bytes, list[tuple[int, int]], str]:
    """The sums of a model's groups and of a plain buffer, and which parts were told to be final."""
    layout = layout_of(*LAYERS)
    elements = layout.elements
    final: list[tuple[int, int]] = []

    def note(frames: Sequence[FrameSpec]) -> None:
        final.extend((piece.start, piece.stop) for frame in frames for piece in frame.pieces)

    with SharedBuffer.create(4 * elements) as buffer:
        communicator.choose_path("auto" if shared else "tcp", buffer)
        arena = buffer.array(np.float32, elements)
        arena[:] = values_of(communicator.rank, elements)
        operations = [
            Operation(
                OperationKey(At(1, 1, 0), number),
                arena,
                ValueType.FP32,
                Ring(communicator.rank, cut_chunks(layout, group, communicator.size, 4)),
                on_final=note,
            )
            for number, group in enumerate((Group(0, 0), Group(1, 3), Group(4, 4)))
        ]
        for operation in operations:
            communicator.start(operation)
        for operation in operations:
            communicator.wait(operation)
        sums = arena.tobytes()
        communicator.allreduce(arena[:1000], mean=True)
        # What does not lie in the buffer goes over the network.
        other = values_of(communicator.rank, 100)
        communicator.allreduce(other)
        return sums + arena.tobytes() + other.tobytes(), sorted(final), communicator.path


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_shared_memory_gives_the_bits_of_the_ring(size: int) -> None:
    with Peers(size) as peers:
        over_network = peers.run(lambda communicator: reduced(communicator, shared=False))
    with Peers(size) as peers:
        in_memory = peers.run(lambda communicator: reduced(communicator, shared=True))
    assert {path for _, _, path in over_network} == {"none" if size == 1 else "tcp"}
    assert {path for _, _, path in in_memory} == {"none" if size == 1 else "same-host"}
    assert {result for result, _, _ in in_memory} == {result for result, _, _ in over_network}
    for _, final, _ in [*in_memory, *over_network]:
        assert [start for start, _ in final] == [0, *(stop for _, stop in final[:-1])]
        assert final[-1][1] == sum(LAYERS)


def files() -> set[str]:
    """The names of this process's shared memory; other tests run beside it."""
    return {path.name for path in Path("/dev/shm").glob(f"taihu-*-{os.getpid()}-*")}  # noqa: S108


def test_no_file_is_left_behind() -> None:
    before = files()
    for size in (1, 2):
        with Peers(size) as peers:
            peers.run(lambda communicator: reduced(communicator, shared=True))
    assert files() <= before


def test_one_rank_without_shared_memory_is_enough_for_the_network() -> None:
    before = files()

    def work(communicator: Communicator) -> tuple[str, str]:
        # Another machine's boot id, another size, no buffer at all: none of them is an error.
        with SharedBuffer.create(64 if communicator.rank == 1 else 128) as buffer:
            shared = communicator.share(None if communicator.rank == 2 else buffer)
            assert not shared
            try:
                communicator.choose_path("same-host", None)
            except ConfigError as error:
                return communicator.path, str(error)
            return communicator.path, ""

    with Peers(3) as peers:
        for path, message in peers.run(work):
            assert path == "tcp"
            assert message.startswith("exchange.transport 'same-host': the workers do not all share")
    assert files() <= before


def test_a_rank_that_fails_ends_the_wait_of_the_others() -> None:
    def work(communicator: Communicator) -> str:
        with SharedBuffer.create(4000) as buffer:
            try:
                assert communicator.share(buffer)
                communicator.allreduce(buffer.array(np.float32, 1000))
                if communicator.rank == 1:
                    communicator.fail(RunError("out of paper"))
                communicator.allreduce(buffer.array(np.float32, 1000))
            except TaihuError as error:
                return str(error)
        return "done"

    with Peers(3) as peers:
        assert all("out of paper" in result for result in peers.run(work))
    assert not [thread for thread in threading.enumerate() if thread.name == "same-host"]


def test_a_descriptor_travels_and_nothing_else_is_taken_for_one() -> None:
    with SharedBuffer.create(100) as buffer:
        data = encode_descriptor(buffer.descriptor)
        assert data.shape == (DESCRIPTOR_BYTES,)
        assert decode_descriptor(data) == buffer.descriptor
        buffer.unlink()
        bad = [
            np.zeros(DESCRIPTOR_BYTES, dtype=np.uint8),
            np.frombuffer(b"{}".ljust(DESCRIPTOR_BYTES), dtype=np.uint8),
            np.frombuffer(b"[1]".ljust(DESCRIPTOR_BYTES), dtype=np.uint8),
            encode_descriptor(replace(buffer.descriptor, size_bytes=-1)),
            encode_descriptor(replace(buffer.descriptor, path="x" * 600)),
        ]
    for data in bad:
        with pytest.raises(SharedMemoryError, match="not a descriptor"):
            decode_descriptor(data)


@pytest.mark.parametrize("before", [0, 2])
def test_the_last_sum_is_carried_out_by_who_waits_unless_something_is_before_it(before: int) -> None:
    """A sum before it that another rank has not begun yet cannot have ended: the other thread has both then."""
    begins = threading.Barrier(2)

    def life(communicator: Communicator) -> tuple[list[float], bool]:
        told: list[int] = []
        with SharedBuffer.create(4 * 8) as buffer:
            assert communicator.share(buffer)
            arena = buffer.array(np.float32, 8)
            arena[:] = communicator.rank + 1
            layout = layout_of(*[2] * 4)
            operations = [
                Operation(
                    OperationKey(At(1, 1, 0), group),
                    arena,
                    ValueType.FP32,
                    Ring(communicator.rank, cut_chunks(layout, Group(group, group), communicator.size, 4)),
                    on_finished=lambda: told.append(threading.get_ident()),
                )
                for group in range(before + 1)
            ]
            if communicator.rank:
                begins.wait(10)
            for operation in operations[:-1]:
                communicator.start(operation)
            communicator.hold_next()
            communicator.start(operations[-1])
            if communicator.rank == 0:
                threading.Timer(0.05, begins.wait, [10]).start()
            communicator.help()
            for operation in operations:
                communicator.wait(operation)
            return arena.tolist(), told[-1] == threading.get_ident()

    with Peers(2) as peers:
        answers = peers.run(life)
    expected = [3.0] * 2 * (before + 1)
    assert [values[: len(expected)] for values, _ in answers] == [expected] * 2
    assert [is_here for _, is_here in answers][:1] == [not before]


def test_what_is_held_begins_with_the_next_sum() -> None:
    def life(communicator: Communicator) -> list[float]:
        with SharedBuffer.create(4 * 4) as buffer:
            assert communicator.share(buffer)
            arena = buffer.array(np.float32, 4)
            arena[:] = communicator.rank + 1
            communicator.hold_next()
            held = communicator.begin_allreduce(arena[:2])
            communicator.allreduce(arena[2:])
            held()
            return list(map(float, arena))

    with Peers(2) as peers:
        assert peers.run(life) == [[3.0] * 4] * 2


def test_a_sum_that_cannot_begin_holds_up_no_other() -> None:
    def work(communicator: Communicator) -> float:
        with SharedBuffer.create(4000) as buffer:
            assert communicator.share(buffer)
            values = buffer.array(np.float32, 1000)
            values[:] = 1.0
            with pytest.raises(TypeError):
                communicator.allreduce(None)  # type: ignore[arg-type]
            communicator.begin_allreduce(values)()
            return float(values.sum())

    with Peers(2, timeout_s=5.0) as peers:
        assert peers.run(work) == [2000.0, 2000.0]


def test_a_sum_that_a_rank_does_not_join_ends_with_its_timeout() -> None:
    """Whoever only waits for a sum carries it out itself, and looks at the clock meanwhile."""
    ended = threading.Event()

    def work(communicator: Communicator) -> str:
        with SharedBuffer.create(4000) as buffer:
            assert communicator.share(buffer)
            communicator.allreduce(buffer.array(np.float32, 1000))
            if communicator.rank == 1:
                assert ended.wait(60.0)
                return ""
            try:
                communicator.allreduce(buffer.array(np.float32, 1000))
            except ExchangeError as error:
                return str(error)
            finally:
                ended.set()
        return "done"

    with Peers(2, timeout_s=2.0) as peers:
        told = peers.run(work)[0]
    assert re.fullmatch(r"operation \d+ of step 0 did not end within 2 s; another worker is slow or stuck, .*", told)
