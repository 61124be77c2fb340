"""All pipes keep the promises of `core.wire.links.pipe`: order, ownership, and an end that everybody hears of."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from queue import SimpleQueue
from typing import Any

import grpc
import numpy as np
import pytest
from numpy.typing import NDArray
from support.frames import header_of
from support.memory_pipe import MemoryPipe, join_by_memory

from taihu.core.base.errors import DamagedFrameError, FrameError, MemberLostError, TaihuError
from taihu.core.chaos.faults import fault_from
from taihu.core.chaos.frames import FaultyFrames
from taihu.core.wire.frames.frame_faults import FrameFaults
from taihu.core.wire.frames.headers import Frame, FrameHeader
from taihu.core.wire.frames.identity import Sender
from taihu.core.wire.frames.kinds import Encoding, Gradients, Question, RingSegment
from taihu.core.wire.links.connection import PlainConnection
from taihu.core.wire.links.inbox import Inbox, Origin, Sink
from taihu.core.wire.links.outbox import Outbox
from taihu.core.wire.links.pipe import Pipe, PipeEvents
from taihu.core.wire.links.socket_pipe import SocketPipe
from taihu.core.wire.links.stream_pipe import StreamPipe

WORKER = Origin("worker 0", Sender(1, 0), "server 0")
SERVER = Origin("server 0", Sender(0), "worker 0")


@dataclass
class Taken:
    """All that an end has taken, and its ending."""

    frames: list[tuple[FrameHeader, bytes]] = field(default_factory=list)
    told: SimpleQueue[TaihuError | None] = field(default_factory=SimpleQueue)

    def sink(self) -> Sink:
        return Sink((Gradients, Question), places=lambda _: None, take=self._take, take_frame=self._take_frame)

    def events(self) -> PipeEvents:
        return PipeEvents(self.told.put, lambda: self.told.put(None))

    def _take(self, header: FrameHeader, values: Sequence[NDArray[Any]], in_place: bool) -> None:
        self.frames.append((header, b"".join(each.tobytes() for each in values)))

    def _take_frame(self, frame: Frame) -> None:
        self.frames.append((frame.header, frame.values.tobytes() + frame.sections.tobytes()))


Ends = tuple[Pipe, Taken]


def by_socket(first: Taken, second: Taken, faults: FrameFaults | None) -> tuple[Pipe, Pipe]:
    near, far = socket.socketpair()
    return (
        SocketPipe(
            PlainConnection(near), Outbox("server 0", faults=faults), Inbox(SERVER, first.sink()), first.events()
        ),
        SocketPipe(PlainConnection(far), Outbox("worker 0"), Inbox(WORKER, second.sink()), second.events()),
    )


def by_memory(first: Taken, second: Taken, faults: FrameFaults | None) -> tuple[Pipe, Pipe]:
    ends = (
        MemoryPipe(Outbox("server 0", faults=faults), Inbox(SERVER, first.sink()), first.events()),
        MemoryPipe(Outbox("worker 0"), Inbox(WORKER, second.sink()), second.events()),
    )
    join_by_memory(*ends)
    return ends


def by_stream(first: Taken, second: Taken, faults: FrameFaults | None) -> tuple[Pipe, Pipe]:
    """A real stream; its server and channel end with the process, and each end's thread tells of its end."""
    near = StreamPipe(Outbox("server 0", faults=faults), Inbox(SERVER, first.sink()))
    far = StreamPipe(Outbox("worker 0"), Inbox(WORKER, second.sink()))

    def answer(requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        threading.Thread(target=_read, args=(far, requests, second), daemon=True).start()
        yield from far.out.messages()

    def messages() -> Iterator[bytes]:
        try:
            yield from near.out.messages()
        except TaihuError as error:
            first.told.put(error)

    server = grpc.server(ThreadPoolExecutor(4))
    handlers: dict[str, grpc.RpcMethodHandler[Any, Any]] = {"Exchange": grpc.stream_stream_rpc_method_handler(answer)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test", handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    channel = grpc.insecure_channel(f"127.0.0.1:{port}")
    call: grpc.StreamStreamMultiCallable[bytes, bytes] = channel.stream_stream("/test/Exchange")
    answers = call(messages(), wait_for_ready=True)
    threading.Thread(target=_read, args=(near, answers, first), daemon=True).start()
    _SERVED.append((server, channel))
    return near, far


_SERVED: list[tuple[grpc.Server, grpc.Channel]] = []


def _read(pipe: StreamPipe, messages: Iterator[bytes], taken: Taken) -> None:
    try:
        pipe.take(messages)
    except TaihuError as error:
        taken.told.put(error)
    except grpc.RpcError:
        taken.told.put(MemberLostError(f"{pipe.inbox.origin.name} was lost: its connection broke"))
    else:
        taken.told.put(None)


PIPES = {"socket": by_socket, "memory": by_memory, "stream": by_stream}
piped = pytest.mark.parametrize("kind", PIPES)


@contextmanager
def joined(kind: str, faults: FrameFaults | None = None) -> Iterator[tuple[Ends, Ends]]:
    first, second = Taken(), Taken()
    near, far = PIPES[kind](first, second, faults)
    yield (near, first), (far, second)
    near.close()
    far.close()
    while _SERVED:
        server, channel = _SERVED.pop()
        channel.close()
        server.stop(0).wait()


def frame(offset: int, count: int = 3) -> tuple[FrameHeader, list[NDArray[np.float32]]]:
    header = header_of(1, 1, 1, 0, offset, count, 0)
    return header, [np.full(count, 1.0 + offset, dtype=np.float32)]


def asked(offset: int) -> tuple[FrameHeader, tuple[()]]:
    return header_of(1, 1, 1, 0, offset, 9, 0, encoding=Encoding.NONE, kind=Question()), ()


def bytes_of(sent: Sequence[tuple[FrameHeader, Sequence[NDArray[Any]]]]) -> list[tuple[FrameHeader, bytes]]:
    return [(header, b"".join(piece.tobytes() for piece in pieces)) for header, pieces in sent]


@piped
def test_frames_come_in_their_order_and_once(kind: str) -> None:
    sent = [frame(0), asked(1), asked(1), frame(2, 100_000), frame(2, 100_000), frame(3, 0)]
    with joined(kind) as ((near, _), (_, second)):
        for each in sent:
            near.out.send(*each)
        near.out.end()
        assert second.told.get(timeout=120) is None
        assert second.frames == bytes_of(sent)


@piped
def test_both_directions_are_counted(kind: str) -> None:
    with joined(kind) as ((near, first), (far, second)):
        for count in (1, 50):
            near.out.send(*frame(0, count))
        far.out.send(header_of(0, 1, 1, 0, 5, 7), [np.ones(7, dtype=np.float32)])
        near.out.end()
        assert second.told.get(timeout=120) is None
        far.out.end()
        assert first.told.get(timeout=120) is None
        assert near.out.sent_bytes == far.inbox.received_bytes == 2 * 80 + 4 * 51
        assert far.out.sent_bytes == near.inbox.received_bytes == 80 + 28
        assert first.frames[0][0].sender == SERVER.sender
        assert second.frames[0][0].sender == WORKER.sender


@piped
def test_urgent_frames_overtake_what_has_not_begun(kind: str) -> None:
    begun, queued = threading.Event(), threading.Event()
    seen: list[str] = []

    def hold() -> None:
        begun.set()
        assert queued.wait(120)

    with joined(kind) as ((near, _), (_, second)):
        near.out.after(hold)
        assert begun.wait(120)
        near.out.send(*frame(1))
        near.out.after(partial(seen.append, "others"))
        near.out.send(*asked(2), urgent=True)
        near.out.after(partial(seen.append, "urgent"), urgent=True)
        queued.set()
        near.out.end()
        assert second.told.get(timeout=120) is None
        assert [header.address.offset for header, _ in second.frames] == [2, 1]
        assert seen == ["urgent", "others"]


def test_a_callback_comes_behind_frames_of_the_outbox_that_was_before() -> None:
    former, out = Outbox("server 0"), Outbox("server 0")
    seen: list[str] = []
    former.send(*frame(0))
    out.follow(former)
    out.send(*frame(1))
    out.after(partial(seen.append, "read"))
    out.send(*frame(2))
    going = out.messages()
    next(going)
    assert not seen
    former.end()
    assert len([*former.messages()]) == 1
    assert not seen
    out.send(*frame(3))
    assert len([next(going) for _ in range(2)]) == 2
    assert seen == ["read"]
    # Nothing of the former is on its way any more: what comes now waits for the own frames alone.
    out.after(partial(seen.append, "again"))
    out.end()
    assert [*going] == []
    assert seen == ["read", "again"]


@piped
def test_arrays_may_be_written_to_behind_their_callback(kind: str) -> None:
    header, (values,) = frame(0, 300_000)
    expected = values.tobytes()
    read = threading.Event()
    with joined(kind) as ((near, _), (_, second)):
        near.out.send(header, [values])
        near.out.after(read.set)
        assert read.wait(120)
        values[:] = -1.0
        near.out.end()
        assert second.told.get(timeout=120) is None
        assert second.frames == [(header, expected)]


@piped
def test_a_frame_of_a_kind_that_is_not_expected_ends_the_pipe(kind: str) -> None:
    header = header_of(1, 1, 1, 0, 0, 3, 0, kind=RingSegment(1))
    with joined(kind) as ((near, _), (_, second)):
        near.out.send(*frame(0))
        near.out.send(header, frame(0)[1])
        near.out.send(*frame(1))
        error = second.told.get(timeout=120)
        assert isinstance(error, FrameError)
        assert str(error) == "worker 0 sent a segment of a ring: expected gradients or a question"
        assert second.frames == bytes_of([frame(0)])


def due(at: Pipe, faults: FaultyFrames, word: str) -> Callable[[], None]:
    return lambda: None if faults.takes(fault_from(f"{word} worker 0 at push")) else pytest.fail("not taken")


@piped
@pytest.mark.parametrize("offset", [0, 1])
def test_a_frame_that_comes_twice_is_taken_once(kind: str, offset: int) -> None:
    faults = FaultyFrames()
    sent = [frame(0), asked(1), frame(2)]
    with joined(kind, faults) as ((near, _), (_, second)):
        for number, each in enumerate(sent):
            if number == offset:
                near.out.after(due(near, faults, "duplicate"))
            near.out.send(*each)
        near.out.end()
        assert second.told.get(timeout=120) is None
        assert second.frames == bytes_of(sent)
        assert not faults.is_due


@piped
@pytest.mark.parametrize("number", [0, 1])
def test_a_frame_that_comes_damaged_ends_the_pipe_and_names_the_link(kind: str, number: int) -> None:
    faults = FaultyFrames()
    sent = [frame(0), asked(1)]
    before = [values.copy() for _, pieces in sent for values in pieces]
    with joined(kind, faults) as ((near, _), (_, second)):
        for at, each in enumerate(sent):
            if at == number:
                near.out.after(due(near, faults, "corrupt"))
            near.out.send(*each)
        error = second.told.get(timeout=120)
        assert isinstance(error, DamagedFrameError)
        assert str(error).startswith(f"the link from worker 0 to server 0: frame {number} came damaged: ")
        assert second.frames == bytes_of(sent[:number])
    assert all(map(np.array_equal, before, [values for _, pieces in sent for values in pieces]))


@piped
def test_a_frame_that_is_broken_off_is_a_loss_on_both_sides(kind: str) -> None:
    faults = FaultyFrames()
    with joined(kind, faults) as ((near, first), (_, second)):
        near.out.send(*frame(0))
        near.out.after(due(near, faults, "truncate"))
        near.out.send(*frame(1))
        told = first.told.get(timeout=120)
        assert isinstance(told, MemberLostError)
        assert str(told) == "server 0 was lost: its connection broke"
        seen = second.told.get(timeout=120)
        # gRPC shows an end alone, from which whoever runs the stream makes the error.
        assert seen is None if kind == "stream" else str(seen) == "worker 0 was lost: its connection broke"
        assert second.frames == bytes_of([frame(0)])


@piped
def test_whoever_waits_is_told_when_the_other_side_has_left(kind: str) -> None:
    told = threading.Event()
    with joined(kind) as ((near, _), (_, second)):
        near.out.end()
        assert second.told.get(timeout=120) is None
        near.out.give_up(is_over=kind == "stream")
        near.out.send(*frame(0))
        near.out.after(told.set)
        assert told.wait(120)
