"""TCP connections that values take beside gRPC: negotiated and authorised by it.

gRPC copies a message several times more than the kernel does, mostly while it holds Python's lock. So where it can be
had, the values between two processes take a connection of their own: a service's `OpenConnection` gives a port and a
token that is good once; who says the token is told that it is welcome. Where that fails (a firewall that lets one
port through), values stay in the gRPC stream.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from hmac import compare_digest
from typing import Final

import grpc
import structlog

from taihu.core.base.errors import ConfigError, ExchangeError
from taihu.core.system.chance import random_bytes
from taihu.core.system.clocks import monotonic
from taihu.core.system.sockets import (
    AF_INET6,
    IPPROTO_TCP,
    MSG_DONTWAIT,
    MSG_PEEK,
    SHUT_RDWR,
    SO_KEEPALIVE,
    SOL_SOCKET,
    TCP_KEEPIDLE,
    TCP_KEEPINTVL,
    TCP_NODELAY,
    TCP_NOTSENT_LOWAT,
    TCP_USER_TIMEOUT,
    Socket,
    create_connection,
    create_server,
    family_of,
    has_dualstack_ipv6,
)
from taihu.core.system.threads import Event, Lock, Thread, spawn
from taihu.core.wire.base.address import is_every_host, join_address, split_address
from taihu.core.wire.base.patience import Patience
from taihu.core.wire.base.room import SILENT_PLACES, Room
from taihu.core.wire.frames.identity import WorkerIdentity
from taihu.core.wire.frames.limits import MOST_UNSENT_BYTES
from taihu.core.wire.links.inbox import Origin
from taihu.protos import connection_pb2 as pb

TOKEN_BYTES: Final = 16
_PAUSE_S: Final = 0.2
_WELCOME: Final = b"\x01"


OnConnection = Callable[[Socket], None]


class DirectListener:
    """Accepts one connection for every token that `expect` gave out.

    Args:
        host: to listen on; "" and the wildcard addresses mean every interface.
        port: 0 takes a free one when the first token is given out; another one is taken at once.
        patience: with those who connect.
        is_closed: nobody may connect, because everything has to travel under TLS, which these connections do not.

    Raises:
        ConfigError: the port is in use, or the host is not this machine's.
    """

    def __init__(
        self, host: str = "", port: int = 0, patience: Patience | None = None, *, is_closed: bool = False
    ) -> None:
        self._host = host
        self.patience = patience or Patience()
        self._lock = Lock()
        self._expected: dict[bytes, tuple[int, OnConnection]] = {}
        self._socket: Socket | None = None
        self._thread: Thread | None = None
        self._closed = Event()
        self._strangers = Room(SILENT_PLACES, self.patience.answer_s)
        if is_closed:
            self._closed.set()
        elif port:
            self._listen(port)

    def _listen(self, port: int) -> Socket:
        listening = self._socket = _bound(self._host, port)
        self._thread = spawn("direct-accept", self._accept, listening)
        return listening

    def expect(self, rank: int, on_connection: OnConnection) -> tuple[int, bytes]:
        """The port, and a token for `rank`; the first connection that says it is handed to `on_connection`.

        A rank has one token at a time: an older one that nobody has said is good no more.

        Raises:
            ExchangeError: it is closed.
            ConfigError: it cannot listen.
        """
        token = random_bytes(TOKEN_BYTES)
        with self._lock:
            if self._closed.is_set():
                raise ExchangeError("no connections are taken any more")
            listening = self._socket or self._listen(0)
            others = {known: each for known, each in self._expected.items() if each[0] != rank}
            self._expected = {**others, token: (rank, on_connection)}
            return listening.getsockname()[1], token

    def close(self) -> None:
        """Stop listening; connections that were handed on stay."""
        self._strangers.close()
        with self._lock:
            self._closed.set()
        if self._socket is not None:
            with suppress(OSError):
                self._socket.shutdown(SHUT_RDWR)
            self._socket.close()
        if self._thread is not None:
            self._thread.join()

    def _accept(self, listening: Socket) -> None:
        while not self._closed.is_set():
            try:
                connection, _ = listening.accept()
            except OSError:
                # Closed, or out of descriptors, which others may give back.
                self._closed.wait(_PAUSE_S)
                continue
            # A stranger that says nothing must not keep others waiting.
            try:
                spawn("direct-greet", self._greet, connection)
            except RuntimeError:  # out of threads
                connection.close()

    def _greet(self, connection: Socket) -> None:
        on_connection = None
        with suppress(OSError), self._strangers.place(partial(connection.shutdown, SHUT_RDWR)):
            on_connection = self._claim(_hear_token(connection, self.patience.answer_s))
        if on_connection is None:
            connection.close()
            return
        _make_ready(connection, self.patience)
        on_connection(connection)
        with suppress(OSError):
            connection.sendall(_WELCOME)

    def _claim(self, said: bytes) -> OnConnection | None:
        with self._lock:
            known = [token for token in self._expected if compare_digest(token, said)]
            return self._expected.pop(known[0])[1] if known and not self._closed.is_set() else None


def open_connection(
    channel: grpc.Channel,
    service: str,
    address: str,
    identity: WorkerIdentity,
    peer: Origin,
    *,
    for_ring: bool = False,
    track: Callable[[grpc.Call], None] = lambda _: None,
) -> Socket | None:
    """A connection to the host of `service`, which `channel` reaches at `address`; None where there cannot be one.

    It takes frames, or is `for_ring`. `track` is told of the call that asks for it, so that it can be cut.
    """
    ask = channel.unary_unary(
        f"/{service}/OpenConnection", pb.OpenConnectionRequest.SerializeToString, pb.OpenConnectionResponse.FromString
    )
    request = pb.OpenConnectionRequest(
        job=identity.job, rank=identity.rank, incarnation=identity.incarnation, for_ring=for_ring
    )
    try:
        asked = ask.future(request, timeout=peer.patience.still_after_s, wait_for_ready=True)
        track(asked)
        answer = asked.result()
        return connect_directly(split_address(address)[0], answer.port, answer.token, peer.patience)
    except grpc.FutureCancelledError:  # whoever asked has closed the link
        return None
    except (grpc.RpcError, OSError) as error:
        reason = error.details() if isinstance(error, grpc.Call) else str(error)
        structlog.get_logger().warning("values go over gRPC", peer=peer.name, reason=reason)
        return None


def connect_directly(host: str, port: int, token: bytes, patience: Patience | None = None) -> Socket:
    """A connection on which `token` has been said and taken; raises OSError when it cannot be opened."""
    patience = patience or Patience()
    connection = create_connection((host, port), timeout=patience.answer_s)
    try:
        connection.sendall(token)
        if connection.recv(len(_WELCOME)) != _WELCOME:
            raise ConnectionRefusedError("the token was not taken")
    except OSError:
        connection.close()
        raise
    _make_ready(connection, patience)
    return connection


def is_open(connection: Socket) -> bool:
    """Whether the other side has neither ended the connection nor cut it."""
    try:
        return connection.recv(1, MSG_PEEK | MSG_DONTWAIT) != b""
    except BlockingIOError:
        return True
    except OSError:
        return False


def _bound(host: str, port: int) -> Socket:
    every = is_every_host(host)
    both = every and has_dualstack_ipv6()
    family = AF_INET6 if both else family_of(host)
    try:
        return create_server(("" if every else host, port), family=family, dualstack_ipv6=both, backlog=64)
    except OSError as error:
        reason = error.strerror or error
        raise ConfigError(
            f"cannot listen on {join_address(host, port)} for direct connections: {reason}; choose another port with "
            "--direct-port, 0 takes a free one"
        ) from None


def _hear_token(connection: Socket, within_s: float) -> bytes:
    """The token that a stranger says first, in a time that it cannot stretch."""
    deadline = monotonic() + within_s
    said = b""
    while len(said) < TOKEN_BYTES and (left := deadline - monotonic()) > 0:
        connection.settimeout(left)
        part = connection.recv(TOKEN_BYTES - len(said))
        if not part:
            break
        said += part
    return said


def _make_ready(connection: Socket, patience: Patience) -> None:
    connection.setsockopt(SOL_SOCKET, SO_KEEPALIVE, 1)
    # An idle connection says that it is alive, or some firewall forgets it; bytes that nobody takes break it.
    options = {
        TCP_KEEPIDLE: math.ceil(patience.ping_s),
        TCP_KEEPINTVL: math.ceil(patience.ping_s),
        TCP_USER_TIMEOUT: math.ceil(1000.0 * patience.still_after_s),
        TCP_NODELAY: 1,
        TCP_NOTSENT_LOWAT: MOST_UNSENT_BYTES,
    }
    for option, value in options.items():
        connection.setsockopt(IPPROTO_TCP, option, value)
    connection.settimeout(None)
