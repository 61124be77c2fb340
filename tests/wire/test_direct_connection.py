"""Connections beside gRPC: who knows the token gets one, strangers get nothing, and without any there is gRPC."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from queue import SimpleQueue

import grpc
import pytest

from taihu.core.base.errors import ConfigError, ExchangeError
from taihu.core.wire.frames.identity import Sender, WorkerIdentity
from taihu.core.wire.links.connection import Connection, PlainConnection
from taihu.core.wire.links.direct_connection import (
    TOKEN_BYTES,
    DirectListener,
    connect_directly,
    open_connection,
)
from taihu.core.wire.links.inbox import Origin
from taihu.core.wire.serving.channel import open_channel
from taihu.core.wire.serving.server import RpcServer
from taihu.protos import connection_pb2 as pb

IDENTITY = WorkerIdentity("job", 3, 77)


@pytest.mark.parametrize("said", [b"", b"short", b"\0" * TOKEN_BYTES])
def test_who_does_not_know_the_token_is_shown_the_door(said: bytes) -> None:
    connections: SimpleQueue[Connection] = SimpleQueue()
    listener = DirectListener()
    port, token = listener.expect(3, connections.put)
    with socket.create_connection(("127.0.0.1", port), timeout=120) as stranger:
        stranger.sendall(said)
        stranger.shutdown(socket.SHUT_WR)
        assert stranger.recv(1) == b""
    connect_directly("127.0.0.1", port, token).close()
    connections.get_nowait().close()
    # A token is good once.
    with pytest.raises(ConnectionRefusedError, match="the token was not taken"):
        connect_directly("127.0.0.1", port, token)
    listener.close()
    assert connections.empty()
    assert not [thread for thread in threading.enumerate() if thread.name == "direct-accept"]


def test_a_closed_listener_gives_no_tokens() -> None:
    listener = DirectListener()
    listener.close()
    with pytest.raises(ExchangeError, match="no connections are taken any more"):
        listener.expect(3, lambda connection: None)


def test_a_listener_takes_the_address_that_it_is_given() -> None:
    with socket.create_server(("127.0.0.2", 0)) as probe:
        port = probe.getsockname()[1]
    connections: SimpleQueue[Connection] = SimpleQueue()
    with closing(DirectListener("127.0.0.2", port)) as listener:
        with pytest.raises(ConfigError, match=rf"cannot listen on 127\.0\.0\.2:{port} for direct.*in use"):
            DirectListener("127.0.0.2", port)
        given, token = listener.expect(3, connections.put)
        assert given == port
        with pytest.raises(OSError, match="refused"):
            connect_directly("127.0.0.1", port, token)
        connect_directly("127.0.0.2", port, token).close()
        connections.get_nowait().close()


@contextmanager
def answering(port: int, token: bytes) -> Iterator[tuple[grpc.Channel, str]]:
    """A service whose `OpenConnection` answers `port` and `token`."""
    rpc = RpcServer.create(threads=2)
    handler = grpc.unary_unary_rpc_method_handler(
        lambda request, context: pb.OpenConnectionResponse(port=port, token=token),
        pb.OpenConnectionRequest.FromString,
        pb.OpenConnectionResponse.SerializeToString,
    )
    rpc.grpc_server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler("service", {"OpenConnection": handler}),)
    )
    address = f"127.0.0.1:{rpc.listen('127.0.0.1:0')}"
    rpc.start(())
    with open_channel(address) as channel:
        yield channel, address
    rpc.stop()


def test_a_service_that_gives_a_token_is_connected_to() -> None:
    connections: SimpleQueue[Connection] = SimpleQueue()
    with (
        closing(DirectListener()) as listener,
        answering(*listener.expect(3, connections.put)) as (channel, address),
    ):
        near = open_connection(channel, "service", address, IDENTITY, Origin("server 0", Sender(0)))
        assert near is not None
        with closing(near), closing(connections.get_nowait()) as far:
            near.write([b"hel", b"lo"])
            heard = bytearray(5)
            assert far.read_into([memoryview(heard)])
            assert heard == b"hello"


@pytest.mark.parametrize("reason", ["nobody listens", "token refused", "no such call"])
def test_where_there_is_no_connection_values_stay_in_grpc(reason: str) -> None:
    with closing(DirectListener()) as listener, socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1] if reason == "nobody listens" else listener.expect(3, lambda _: None)[0]
        service = "other" if reason == "no such call" else "service"
        with answering(port, b"\0" * TOKEN_BYTES) as (channel, address):
            assert open_connection(channel, service, address, IDENTITY, Origin("server 0", Sender(0))) is None


def test_a_rank_has_one_token_at_a_time() -> None:
    connections: SimpleQueue[Connection] = SimpleQueue()
    with closing(DirectListener()) as listener:
        port, old = listener.expect(3, connections.put)
        _, other = listener.expect(4, connections.put)
        _, new = listener.expect(3, connections.put)
        with pytest.raises(ConnectionRefusedError, match="the token was not taken"):
            connect_directly("127.0.0.1", port, old)
        for token in (new, other):
            connect_directly("127.0.0.1", port, token).close()
            connections.get_nowait().close()


def test_a_listener_outlives_a_moment_without_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    start, failures = threading.Thread.start, iter([True])

    def start_later(thread: threading.Thread) -> None:
        if thread.name == "direct-greet" and next(failures, False):
            raise RuntimeError("can't start new thread")
        start(thread)

    connections: SimpleQueue[Connection] = SimpleQueue()
    with closing(DirectListener()) as listener:
        port, token = listener.expect(3, connections.put)
        monkeypatch.setattr(threading.Thread, "start", start_later)
        with pytest.raises(OSError, match=r"token was not taken|reset"):
            connect_directly("127.0.0.1", port, token)
        connect_directly("127.0.0.1", port, token).close()
        connections.get_nowait().close()


def test_what_the_other_side_has_closed_is_not_open() -> None:
    near, other = socket.socketpair()
    with closing(PlainConnection(other)) as far:
        assert far.is_open()
        near.sendall(b"more to come")
        assert far.is_open()
        near.close()
        assert far.is_open()
        far.skip(memoryview(bytearray(100)))
        assert not far.is_open()
