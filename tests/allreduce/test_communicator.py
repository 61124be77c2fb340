"""Collective operations over real gRPC, against NumPy."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from itertools import pairwise
from queue import SimpleQueue

import grpc
import numpy as np
import pytest
from numpy.typing import NDArray
from support.cluster import layout_of
from support.frames import header_of
from support.peers import Peers

from taihu.allreduce.communicator import Communicator
from taihu.allreduce.order.operation import Operation, OperationKey
from taihu.allreduce.parts.messages import Receive
from taihu.allreduce.peer_service import PEER_SERVICE
from taihu.allreduce.ring.schedule import Ring, cut_chunks, summation_order
from taihu.core.base.errors import ExchangeError, RunError, TaihuError
from taihu.core.planner.groups import Group
from taihu.core.planner.partition import FrameSpec, slice_bounds
from taihu.core.settings import Transport
from taihu.core.wire.frames.format import message_of
from taihu.core.wire.frames.headers import At, ValueType
from taihu.core.wire.frames.identity import Sender, WorkerIdentity, identity_to_metadata
from taihu.core.wire.frames.kinds import Encoding, RingSegment, SparseMessage
from taihu.core.wire.links.direct_connection import DirectListener, open_connection
from taihu.core.wire.links.inbox import Origin
from taihu.core.wire.links.pipe import Carrier
from taihu.core.wire.links.shared_memory import SharedBuffer
from taihu.core.wire.serving.server import RpcServer

SIZES = (0, 1, 2, 7, 1000, 100_003)
Float = NDArray[np.floating]


def inputs(rank: int, elements: int) -> NDArray[np.float64]:
    return np.random.default_rng([rank, elements]).standard_normal(elements)


def ring_sum(values: list[Float], add: Callable[[Float, Float], Float]) -> Float:
    """The sum of every chunk in the order of the ring."""
    size, total = len(values), values[0].copy()
    for chunk in range(size):
        start, stop = slice_bounds(len(total), size, chunk)
        first, *others = summation_order(chunk, size)
        part = values[first][start:stop]
        for rank in others:
            part = add(part, values[rank][start:stop])
        total[start:stop] = part
    return total


def round_to_bf16(values: Float) -> Float:
    """Round fp32 values to the nearest bf16, ties to even, by arithmetic on their bits."""
    bits = values.astype(np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000).astype(np.uint32).view(np.float32)


@pytest.mark.parametrize("direct", [True, False], ids=["tcp", "grpc"])
@pytest.mark.parametrize("size", range(1, 10))
def test_every_rank_gets_the_same_sum(size: int, direct: bool) -> None:
    def work(communicator: Communicator) -> list[bytes]:
        results = []
        for elements in SIZES:
            for dtype, value_type in ((np.float32, ValueType.FP32), (np.float64, ValueType.FP64)):
                values = inputs(communicator.rank, elements).astype(dtype)
                communicator.allreduce(values, value_type)
                results.append(values.tobytes())
        return results

    with Peers(size, direct=direct) as peers:
        assert {communicator.path for communicator in peers.communicators} == {
            "none" if size == 1 else "tcp" if direct else "grpc"
        }
        results = peers.run(work)
    expected = [
        ring_sum([inputs(rank, n).astype(dtype) for rank in range(size)], np.add).tobytes()
        for n in SIZES
        for dtype in (np.float32, np.float64)
    ]
    assert results == [expected] * size


@pytest.mark.parametrize("size", [1, 2, 5])
def test_sums_and_means_of_16_bit_values_are_rounded_at_every_addition(size: int) -> None:
    def work(communicator: Communicator) -> tuple[Float, Float]:
        half = inputs(communicator.rank, 4099).astype(np.float16)
        communicator.allreduce(half.view(np.uint16), ValueType.FP16, mean=True)
        codes = (round_to_bf16(inputs(communicator.rank, 4099)).view(np.uint32) >> 16).astype(np.uint16)
        communicator.allreduce(codes, ValueType.BF16)
        return half, (codes.astype(np.uint32) << 16).view(np.float32)

    with Peers(size) as peers:
        results = peers.run(work)
    halves = [inputs(rank, 4099).astype(np.float16) for rank in range(size)]
    mean = ring_sum(halves, np.add)  # numpy rounds every half-precision sum
    mean = (mean.astype(np.float32) * np.float32(1 / size)).astype(np.float16)
    brains = [round_to_bf16(inputs(rank, 4099)) for rank in range(size)]
    total = ring_sum(brains, lambda a, b: round_to_bf16(a.astype(np.float32) + b.astype(np.float32)))
    for half, brain in results:
        np.testing.assert_array_equal(half, mean)
        np.testing.assert_array_equal(brain, total)


@pytest.mark.parametrize("size", [1, 2, 4])
def test_the_mean_is_the_sum_times_one_over_size(size: int) -> None:
    def work(communicator: Communicator) -> bytes:
        values = inputs(communicator.rank, 1001).astype(np.float32)
        communicator.allreduce(values, mean=True)
        return values.tobytes()

    with Peers(size) as peers:
        results = peers.run(work)
    total = ring_sum([inputs(rank, 1001).astype(np.float32) for rank in range(size)], np.add)
    assert results == [(total * np.float32(1 / size)).tobytes()] * size


@pytest.mark.parametrize("size", [1, 3])
def test_a_broadcast_brings_every_bit_of_the_root(size: int) -> None:
    def work(communicator: Communicator) -> bytes:
        values = np.full(70_001, np.nan, dtype=np.float32)
        if communicator.rank == size - 1:
            values[:] = inputs(9, len(values))
            values[0] = -0.0
        communicator.broadcast(values, root=size - 1)
        return values.tobytes()

    with Peers(size) as peers:
        results = peers.run(work)
    expected = inputs(9, 70_001).astype(np.float32)
    expected[0] = -0.0
    assert results == [expected.tobytes()] * size


def test_operations_overlap_and_frames_of_one_that_was_not_started_wait() -> None:
    sizes, size = (30_000, 7, 20_000, 1, 500), 3
    layout = layout_of(*sizes)

    def work(communicator: Communicator) -> tuple[bytes, list[tuple[int, int]]]:
        arena = inputs(communicator.rank, layout.elements).astype(np.float32)
        final: list[tuple[int, int]] = []

        def note(frames: Sequence[FrameSpec]) -> None:
            final.extend((piece.start, piece.stop) for frame in frames for piece in frame.pieces)

        operations = []
        for number, group in enumerate((Group(0, 0), Group(1, 3), Group(4, 4))):
            ring = Ring(communicator.rank, cut_chunks(layout, group, size, 4))
            operations.append(
                Operation(OperationKey(At(1, 7, 0), number), arena, ValueType.FP32, ring, on_final=note)
            )
        # Rank 0 starts everything at once, the others go group by group.
        for operation in operations:
            communicator.start(operation)
            if communicator.rank:
                communicator.wait(operation)
        for operation in reversed(operations):
            communicator.wait(operation)
        return arena.tobytes(), sorted(final)

    with Peers(size) as peers:
        results = peers.run(work)
    arenas = [inputs(rank, layout.elements).astype(np.float32) for rank in range(size)]
    bounds = list(pairwise(layout.offsets))
    expected = np.concatenate([ring_sum([arena[a:b] for arena in arenas], np.add) for a, b in bounds])
    for values, final in results:
        assert values == expected.tobytes()
        assert [start for start, _ in final] == [0, *(stop for _, stop in final[:-1])]
        assert final[-1][1] == layout.elements


def test_bytes_are_counted_with_their_headers() -> None:
    def work(communicator: Communicator) -> tuple[int, int]:
        communicator.allreduce(np.zeros(120_000, dtype=np.float32))
        return communicator.sent_bytes, communicator.received_bytes

    with Peers(3) as peers:
        for sent, received in peers.run(work):
            payload = 4 * 80_000 * 2
            assert payload < sent < payload * 1.01
            assert payload < received < payload * 1.01


def exchange(channel: grpc.Channel) -> grpc.StreamStreamMultiCallable[bytes, bytes]:
    return channel.stream_stream(f"/{PEER_SERVICE}/Exchange")


def held(message: bytes, until: threading.Event) -> Iterator[bytes]:
    """A message, and after it a stream that stays open."""
    yield message
    until.wait(120)


def outcome(communicator: Communicator, elements: int) -> str:
    try:
        communicator.allreduce(np.zeros(elements, dtype=np.float32))
    except TaihuError as error:
        return f"{type(error).__name__}: {error}"
    return "done"


def test_a_rank_that_fails_tells_the_others_why() -> None:
    with Peers(4) as peers:

        def work(communicator: Communicator) -> str:
            if communicator.rank == 2:
                communicator.fail(RunError("out of paper"))
            return outcome(communicator, 1000)

        results = peers.run(work)
    assert results[2] == "RunError: out of paper"
    assert all("out of paper" in result for result in results)


@pytest.mark.parametrize("path", ["tcp", "grpc", "same-host"])
@pytest.mark.parametrize(("told", "silent"), [("left", "right"), ("right", "left")])
@pytest.mark.parametrize("failing", range(3))
def test_each_neighbour_is_told_the_reason_by_the_rank_that_failed(
    failing: int, told: str, silent: str, path: Transport
) -> None:
    """Ranks of a ring of three are all neighbours: one passes nothing on, so that the other hears it first."""
    ranks = {"left": (failing - 1) % 3, "right": (failing + 1) % 3}
    heard = threading.Event()
    in_time: list[bool] = []
    with Peers(3, direct=path == "tcp") as peers, ExitStack() as stack:
        arenas = [np.zeros(1000, dtype=np.float32)] * 3
        if path == "same-host":
            buffers = [stack.enter_context(SharedBuffer.create(4000)) for _ in range(3)]
            peers.run(lambda communicator: communicator.choose_path(path, buffers[communicator.rank]))
            arenas = [buffer.array(np.float32, 1000) for buffer in buffers]
        peers.communicators[ranks[silent]].on_failure(lambda _: in_time.append(heard.wait(120)))

        def work(communicator: Communicator) -> str:
            rank = communicator.rank
            if rank == failing:
                communicator.fail(RunError("out of paper"))
            ring = Ring(rank, cut_chunks(layout_of(1000), Group(0, 0), 3, 4))
            try:
                operation = Operation(OperationKey(At(1, 1), 0), arenas[rank], ValueType.FP32, ring)
                communicator.start(operation)
                communicator.wait(operation)
            except TaihuError as error:
                if rank == ranks[told]:
                    heard.set()
                return str(error)
            return "done"

        results = peers.run(work)
    assert in_time == [True]
    assert results[ranks[told]] in {
        f"worker {failing}: out of paper",
        f"worker {failing} at {peers.addresses[failing]}: out of paper",
    }
    assert all("out of paper" in result for result in results), results


@pytest.mark.parametrize("path", ["tcp", "grpc"])
def test_all_are_told_of_a_mistake_of_whoever_takes_a_frame_in(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    raised: SimpleQueue[threading.ExceptHookArgs] = SimpleQueue()
    monkeypatch.setattr(threading, "excepthook", raised.put)
    started = threading.Event()

    def fail(frames: Sequence[FrameSpec]) -> None:
        raise KeyError("lost")

    def work(communicator: Communicator) -> str:
        rank = communicator.rank
        ring = Ring(rank, cut_chunks(layout_of(1000), Group(0, 0), 3, 4))
        operation = Operation(OperationKey(At(1, 1), 0), np.zeros(1000, dtype=np.float32), ValueType.FP32, ring)
        if rank == 1:
            operation.on_final = fail
        else:
            assert started.wait(120)
        try:
            communicator.start(operation)
            started.set()
            communicator.wait(operation)
        except TaihuError as error:
            return str(error)
        return "done"

    with Peers(3, direct=path == "tcp") as peers:
        results = peers.run(work)
    reason = "internal error while taking in a frame of worker 0: KeyError('lost')"
    assert results[1] == reason
    assert results[0] == results[2] == f"worker 1: {reason}"
    assert raised.get(timeout=120).exc_type is KeyError


def test_another_size_of_the_buffer_is_an_error_on_every_rank() -> None:
    with Peers(3) as peers:
        results = peers.run(lambda communicator: outcome(communicator, 1000 + (communicator.rank == 1)))
    assert all("segment [" in result for result in results), results


def test_a_peer_that_left_is_not_waited_for() -> None:
    with Peers(2) as peers:
        peers.run(lambda communicator: outcome(communicator, 10))

        def work(communicator: Communicator) -> str:
            if communicator.rank == 1:
                communicator.close()
                return ""
            return outcome(communicator, 10)

        # Whether it is known at once or by waiting, it is an error.
        told = peers.run(work)[0]
        assert told.startswith("MemberLostError: ")
        assert "has left the run" in told


def test_an_operation_that_nobody_joins_ends_with_its_timeout() -> None:
    with Peers(2, timeout_s=0.2) as peers:
        with pytest.raises(ExchangeError, match=r"operation 1 of step 0 did not end within 0.2 s"):
            peers.communicators[0].allreduce(np.zeros(10, dtype=np.float32))
        peers.communicators[1].fail(RunError("the test is over"))


@pytest.mark.parametrize(
    ("identity", "status", "message"),
    [
        (
            WorkerIdentity("other", 1, 1),
            grpc.StatusCode.FAILED_PRECONDITION,
            "belongs to job 'other', this is 'job'",
        ),
        (WorkerIdentity("job", 2, 1), grpc.StatusCode.FAILED_PRECONDITION, "worker 2 is no peer of worker 0 of 2"),
        (WorkerIdentity("job", 0, 1), grpc.StatusCode.FAILED_PRECONDITION, "worker 0 is no peer of worker 0 of 2"),
        (WorkerIdentity("job", 1, 1), grpc.StatusCode.FAILED_PRECONDITION, "or has another incarnation"),
        (WorkerIdentity("job", 1, 1001), grpc.StatusCode.FAILED_PRECONDITION, "worker 1 has an open stream already"),
        (None, grpc.StatusCode.INVALID_ARGUMENT, "exchange without the metadata"),
    ],
)
def test_strangers_are_refused_and_disturb_nobody(
    identity: WorkerIdentity | None, status: grpc.StatusCode, message: str
) -> None:
    with Peers(2) as peers:
        peers.run(lambda communicator: outcome(communicator, 10))
        with grpc.insecure_channel(peers.addresses[0]) as channel:
            metadata = identity_to_metadata(identity) if identity is not None else ()
            call = exchange(channel)(iter(()), metadata=metadata, timeout=120)
            with pytest.raises(grpc.RpcError) as caught:
                list(call)
        assert isinstance(caught.value, grpc.Call)
        assert caught.value.code() is status
        assert message in str(caught.value.details())
        assert peers.run(lambda communicator: outcome(communicator, 10)) == ["done", "done"]


@pytest.mark.parametrize("identity", [WorkerIdentity("job", 1, 1001), WorkerIdentity("job", 2, 7)])
def test_sums_of_who_is_not_the_left_neighbour_are_not_added(identity: WorkerIdentity) -> None:
    """A member that is no neighbour got a connection, as a stranger did, and what it sent was added."""
    ones = [np.ones(2, dtype=np.float32)]
    header = header_of(identity.incarnation, 0, 0, 1, 0, 2, identity.rank, kind=RingSegment(0))
    with Peers(3, silent=2) as peers, grpc.insecure_channel(peers.addresses[0]) as channel:
        origin = Origin("worker 0", Sender(1000, 0))
        assert open_connection(channel, PEER_SERVICE, peers.addresses[0], identity, origin) is None
        metadata = identity_to_metadata(identity)
        call = exchange(channel)(iter((message_of(header, ones),)), metadata=metadata, timeout=120)
        with pytest.raises(grpc.RpcError, match=f"worker {identity.rank} sends nothing to worker 0"):
            list(call)
        peers.communicators[2].connect(peers.addresses)
        sums = [np.arange(10, dtype=np.float32) for _ in range(3)]
        peers.run(lambda communicator: communicator.allreduce(sums[communicator.rank]))
        assert [each.tolist() for each in sums] == [[3.0 * value for value in range(10)]] * 3


def test_segments_of_a_mesh_come_from_the_left_neighbour_alone() -> None:
    header = header_of(1001, 0, 0, 1, 0, 2, 1, kind=RingSegment(0))
    with Peers(3, mesh=True) as peers:
        peers.communicators[1]._links[0].send(header, [np.ones(2, dtype=np.float32)])
        told = outcome(peers.communicators[0], 10)
        assert told == f"FrameError: worker 1 sent {header.label}: segments come from worker 2"


def test_what_is_no_frame_fails_its_receiver() -> None:
    with Peers(3, silent=2) as peers, grpc.insecure_channel(peers.addresses[0]) as channel:
        metadata = identity_to_metadata(WorkerIdentity("job", 2, 1002))
        call = exchange(channel)(iter((b"nonsense",)), metadata=metadata, timeout=120)
        told = outcome(peers.communicators[0], 10)
        assert told.startswith(
            "DamagedFrameError: the link from worker 2 to worker 0: frame 0 came damaged: 8 bytes: expected a header"
        )
        with pytest.raises(grpc.RpcError):
            list(call)


@pytest.mark.parametrize(
    "message",
    [
        message_of(header_of(1002, 0, 0, 1, 0, 2, 2, kind=RingSegment(9)), [np.zeros(2, dtype=np.float32)]),
        message_of(
            header_of(1002, 0, 0, 1, 5, 5, 2, kind=RingSegment(0), value_type=ValueType.FP16),
            [np.zeros(5, dtype=np.uint16)],
        ),
        # Gradients are for servers, and no array is so large.
        message_of(header_of(1002, 0, 0, 1, 0, 2, 2), [np.zeros(2, dtype=np.float32)]),
        message_of(header_of(1002, 0, 0, 1, 2**63, 2, 2, kind=SparseMessage(0), encoding=Encoding.SPARSE), ()),
    ],
)
def test_a_frame_that_does_not_belong_fails_its_receiver(message: bytes) -> None:
    with Peers(3, silent=2) as peers:
        receiver = peers.communicators[0]
        with grpc.insecure_channel(peers.addresses[0]) as channel:
            metadata = identity_to_metadata(WorkerIdentity("job", 2, 1002))
            refused = threading.Event()
            call = exchange(channel)(held(message, refused), metadata=metadata, timeout=120)
            assert outcome(receiver, 10).startswith("FrameError")
            refused.set()
            with pytest.raises(grpc.RpcError):
                list(call)


def test_who_has_failed_connects_to_nobody_who_is_gone() -> None:
    """A neighbour is killed when all begin: its loss is told before there are links, and no answer is waited for."""
    with Communicator(WorkerIdentity("job", 0, 1), 2, timeout_s=120) as communicator:
        communicator.fail(RunError("worker 1 was lost"))
        connecting = threading.Thread(target=communicator.connect, args=(["", "127.0.0.1:1"],), daemon=True)
        connecting.start()
        connecting.join(30)
        assert not connecting.is_alive()


def test_who_waits_to_be_let_in_is_turned_away() -> None:
    """A peer has heard that all are there; this worker's own call to join is answered by a failure."""
    communicator = Communicator(WorkerIdentity("job", 0, 1000), 2, listener=DirectListener("127.0.0.1"))
    server = RpcServer.create(threads=8)
    communicator.register(server.grpc_server)
    address = f"127.0.0.1:{server.listen('127.0.0.1:0')}"
    server.start((PEER_SERVICE,))
    try:
        with grpc.insecure_channel(address) as channel:
            metadata = identity_to_metadata(WorkerIdentity("job", 1, 1001))
            call = exchange(channel)(iter([]), metadata=metadata, timeout=60)
            communicator.turn_away()
            assert list(call) == []
    finally:
        communicator.close()
        server.stop(0.0)


@pytest.mark.parametrize("carrier", ["grpc", "tcp"])
def test_messages_of_one_tag_and_size_all_arrive(carrier: Carrier) -> None:
    """Over gRPC the second one passed for the first one's echo, and whoever received it waited for ever."""
    with Peers(2, mesh=True) as peers:
        sender, receiver = peers.communicators
        sender.prepare(carrier)
        sender.carry(carrier)
        came = [threading.Event() for _ in range(3)]
        taken = [np.zeros(4, dtype=np.uint16) for _ in came]
        for values, event in zip(taken, came, strict=True):
            receiver.receive(Receive(values, 0, 7, event.set))
        for number in range(3):
            sender.send(1, 7, np.full(4, number, dtype=np.uint16), lambda: None)
        assert all(event.wait(30) for event in came)
        assert [values.tolist() for values in taken] == [[number] * 4 for number in range(3)]
