"""A link's stream against a service of plain gRPC."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from queue import SimpleQueue

import grpc
import numpy as np
import pytest

from taihu.core.base.errors import TaihuError
from taihu.core.wire.frames.headers import Address, At, FrameHeader
from taihu.core.wire.frames.identity import Sender, WorkerIdentity
from taihu.core.wire.frames.kinds import RingSegment
from taihu.core.wire.links.connection import PlainConnection
from taihu.core.wire.links.frame_link import FrameLink, LinkEnd
from taihu.core.wire.links.inbox import Inbox, Origin, Sink
from taihu.core.wire.links.outbox import Outbox, OutgoingFrame
from taihu.core.wire.links.pipe import PipeEvents
from taihu.core.wire.links.socket_pipe import SocketPipe

_FRAME = FrameHeader(Sender(0, 0), Address(At(1, 1), 0, 0, 3), RingSegment(0))
_VALUES = [np.ones(3, dtype=np.float32)]
_NOTHING = Sink((), places=lambda _: None, take=lambda *_: None, take_frame=lambda _: None)


class _OneFrame(grpc.GenericRpcHandler):
    """Reads one frame of a stream, and ends it well."""

    def service(self, _: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[bytes, bytes]:
        def exchange(messages: Iterator[bytes], _: grpc.ServicerContext) -> Iterator[bytes]:
            next(messages)
            return iter(())

        return grpc.stream_stream_rpc_method_handler(exchange)


@contextmanager
def _service() -> Iterator[str]:
    server = grpc.server(ThreadPoolExecutor(1), handlers=[_OneFrame()])
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield f"127.0.0.1:{port}"
    server.stop(0).wait()


def test_who_waits_for_frames_that_are_never_read_hears_when_the_other_side_ends_well() -> None:
    """A neighbour that has all it needs may leave before gRPC asks for what is queued behind the last frame."""
    lost: list[TaihuError] = []
    ended, first, late = threading.Event(), threading.Event(), threading.Event()

    def until_it_ends() -> None:
        ended.wait(120)

    with _service() as address:
        end = LinkEnd("taihu.Test", address, Origin("worker 1", Sender(0, 1)))
        link = FrameLink(end, WorkerIdentity("job", 0, 1), _NOTHING, PipeEvents(lost.append, ended.set))
        link.open()
        link.send(_FRAME, _VALUES)
        link.after(until_it_ends)
        link.send(_FRAME, _VALUES)
        link.after(first.set)
        assert first.wait(120)
        assert ended.wait(120)
        link.after(late.set)
        assert late.wait(120)
        link.close()
    assert not lost


class _CallUnderWay:
    """A call that goes on until it is cut."""

    def __init__(self) -> None:
        self._over = threading.Event()

    def cancel(self) -> bool:
        self._over.set()
        return True

    def is_active(self) -> bool:
        return not self._over.is_set()


def test_who_gives_up_a_link_waits_for_no_connection_of_it() -> None:
    """The other side may have been killed while it was asked for one: nobody would answer, and for a minute."""
    end = LinkEnd("taihu.Test", "127.0.0.1:1", Origin("worker 1", Sender(0, 1)))
    link = FrameLink(end, WorkerIdentity("job", 0, 1), _NOTHING, PipeEvents(lambda _: None, lambda: None))
    link.prepare("tcp")
    settled = threading.Thread(target=link.settle, daemon=True)
    settled.start()
    link.fail(OutgoingFrame(_FRAME, _VALUES))
    settled.join(30)
    assert not settled.is_alive()
    link.close()


def test_a_link_given_up_while_it_is_opened_waits_for_no_thread_that_has_not_begun(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A connection that was asked for before `open` may break, and the link be given up, while the stream opens."""
    lost: list[TaihuError] = []
    raised: list[BaseException | None] = []
    near, far = socket.socketpair()
    begin = threading.Thread.start

    def begin_late(thread: threading.Thread) -> None:
        if thread.name == "link":
            link.fail(OutgoingFrame(_FRAME, _VALUES))
            near.close()
            for receiving in [each for each in threading.enumerate() if each.name == "direct-receive"]:
                receiving.join(60)
        begin(thread)

    monkeypatch.setattr("taihu.core.wire.links.frame_link.open_connection", lambda *_, **__: PlainConnection(far))
    monkeypatch.setattr(threading, "excepthook", lambda what: raised.append(what.exc_value))
    with _service() as address:
        end = LinkEnd("taihu.Test", address, Origin("worker 1", Sender(0, 1)))
        link = FrameLink(end, WorkerIdentity("job", 0, 1), _NOTHING, PipeEvents(lost.append, lambda: None))
        link.prepare("tcp")
        link.settle()
        monkeypatch.setattr(threading.Thread, "start", begin_late)
        link.open()
        link.close()
    assert not raised
    assert not lost


def test_who_abandons_a_link_cuts_all_of_its_calls() -> None:
    """A stopped server answers neither the call that came last nor the stream before it: both would be waited for."""
    end = LinkEnd("taihu.Test", "127.0.0.1:1", Origin("server 1", Sender(0, 1)))
    link = FrameLink(end, WorkerIdentity("job", 0, 1), _NOTHING, PipeEvents(lambda _: None, lambda: None))
    calls = [_CallUnderWay() for _ in range(3)]
    for call in calls[:2]:
        link.track(call)
    link.abandon()
    link.track(calls[2])
    assert not any(call.is_active() for call in calls)


def test_a_last_word_that_comes_after_the_other_side_has_gone_is_no_loss() -> None:
    """A peer ends its direction, and cuts the connection as soon as it has been read: nothing waits for a word."""
    near, far = socket.socketpair()
    lost: list[TaihuError] = []
    ended = threading.Event()
    inbox = Inbox(Origin("worker 1", Sender(0, 1)), _NOTHING)
    connection = SocketPipe(PlainConnection(far), Outbox("worker 1"), inbox, PipeEvents(lost.append, ended.set))
    near.shutdown(socket.SHUT_WR)
    assert ended.wait(120)
    near.close()
    connection.out.send(_FRAME, _VALUES)
    connection.finish()
    assert not lost
    connection.close()


def test_who_cannot_send_to_a_side_that_has_not_ended_has_lost_it() -> None:
    near, far = socket.socketpair()
    lost: SimpleQueue[TaihuError] = SimpleQueue()
    inbox = Inbox(Origin("worker 1", Sender(0, 1)), _NOTHING)
    connection = SocketPipe(PlainConnection(far), Outbox("worker 1"), inbox, PipeEvents(lost.put))
    near.shutdown(socket.SHUT_RD)
    connection.out.send(_FRAME, _VALUES)
    assert str(lost.get(timeout=120)) == "worker 1 was lost: its connection broke"
    near.close()
    connection.close()
