"""TCP connections that values take beside gRPC: negotiated and authorised by it.

gRPC copies a message several times more than the kernel does, mostly while it holds Python's lock. So where it can be
had, the values between two processes take a connection of their own: a service's `OpenConnection` gives a port and a
token that is good once; who says the token is told that it is welcome. Where that fails (a firewall that lets one
port through), values stay in the gRPC stream.

Under TLS a connection is two sockets, one for each direction, since a socket under TLS is for one thread at a time.
Who opens them says the token on either: first on that which it writes to later.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from hmac import compare_digest
from typing import Final

import grpc
import structlog

from taihu.core.base.errors import ConfigError, ExchangeError
from taihu.core.security.sealing import SealedSocket, Sealing
from taihu.core.system.chance import random_bytes
from taihu.core.system.clocks import monotonic
from taihu.core.system.sockets import (
    AF_INET6,
    IPPROTO_TCP,
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
from taihu.core.wire.links.connection import Connection, PlainConnection, SealedConnection
from taihu.core.wire.links.inbox import Origin
from taihu.protos import connection_pb2 as pb

TOKEN_BYTES: Final = 16
_PAUSE_S: Final = 0.2
_WELCOME: Final = b"\x01"


OnConnection = Callable[[Connection], None]


@dataclass(frozen=True)
class _Expected:
    """Whoever is to say a token: its rank, what takes its connection, and under TLS that half which has come."""

    rank: int
    on_connection: OnConnection
    first: SealedSocket | None = None

    def forget(self) -> None:
        """Nobody is expected any more."""
        if self.first is not None:
            self.first.close()


class DirectListener:
    """Accepts one connection for every token that `expect` gave out.

    Args:
        host: to listen on; "" and the wildcard addresses mean every interface.
        port: 0 takes a free one when the first token is given out; another one is taken at once.
        patience: with those who connect.
        sealing: the way into TLS, which all take; None for plain text.

    Raises:
        ConfigError: the port is in use, or the host is not this machine's.
    """

    def __init__(
        self, host: str = "", port: int = 0, patience: Patience | None = None, sealing: Sealing | None = None
    ) -> None:
        self._host = host
        self.patience = patience or Patience()
        self._lock = Lock()
        self._sealing = sealing
        self._expected: dict[bytes, _Expected] = {}
        self._socket: Socket | None = None
        self._thread: Thread | None = None
        self._closed = Event()
        self._strangers = Room(SILENT_PLACES, self.patience.answer_s)
        if port:
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
            former = [known for known, each in self._expected.items() if each.rank == rank]
            for known in former:
                self._expected.pop(known).forget()
            self._expected[token] = _Expected(rank, on_connection)
            return listening.getsockname()[1], token

    def close(self) -> None:
        """Stop listening; connections that were handed on stay."""
        self._strangers.close()
        with self._lock:
            self._closed.set()
            for expected in self._expected.values():
                expected.forget()
            self._expected.clear()
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

    def _greet(self, stranger: Socket) -> None:
        """Hear what a stranger says, and hand its connection on where all of it is there."""
        connection, welcome = stranger, None
        try:
            connection = stranger if self._sealing is None else self._sealing.answer(stranger)
            with self._strangers.place(partial(Socket.shutdown, connection, SHUT_RDWR)):
                if isinstance(connection, SealedSocket):
                    connection.settimeout(self.patience.answer_s)
                    connection.do_handshake()
                said = _hear_token(connection, self.patience.answer_s)
                _make_ready(connection, self.patience)
                welcome = self._claim(said, connection)
        except OSError:
            pass
        except ConfigError as error:
            structlog.get_logger().warning("a direct connection cannot be taken", reason=str(error))
        if welcome is None:
            connection.close()
            return
        with suppress(OSError):
            welcome()

    def _claim(self, said: bytes, connection: Socket) -> Callable[[], None] | None:
        """The welcome of who has `said` a token; None where it has none."""
        with self._lock:
            known = next((token for token in self._expected if compare_digest(token, said)), None)
            if known is None:
                return None
            expected = self._expected.pop(known)
            if not isinstance(connection, SealedSocket):
                return partial(_hand_on, expected, connection)
            if expected.first is not None:
                made = SealedConnection(expected.first, connection)
                return partial(_hand_on_sealed, expected, made, connection)
            # Here, since another thread may hand it on as soon as the other side knows.
            connection.sendall(_WELCOME)
            self._expected[known] = replace(expected, first=connection)
            return lambda: None


def open_connection(
    channel: grpc.Channel,
    service: str,
    address: str,
    identity: WorkerIdentity,
    peer: Origin,
    *,
    for_ring: bool = False,
    sealing: Sealing | None = None,
    track: Callable[[grpc.Call], None] = lambda _: None,
) -> Connection | None:
    """A connection to the host of `service`, which `channel` reaches at `address`; None where there cannot be one.

    It takes frames, or is `for_ring`; with `sealing` it is under TLS. `track` is told of the call that asks for it,
    so that it can be cut.
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
        host = split_address(address)[0]
        return connect_directly(host, answer.port, answer.token, peer.patience, sealing)
    except grpc.FutureCancelledError:  # whoever asked has closed the link
        return None
    except (grpc.RpcError, OSError, ConfigError) as error:
        reason = error.details() if isinstance(error, grpc.Call) else str(error)
        structlog.get_logger().warning("values go over gRPC", peer=peer.name, reason=reason)
        return None


def connect_directly(
    host: str, port: int, token: bytes, patience: Patience | None = None, sealing: Sealing | None = None
) -> Connection:
    """A connection on which `token` has been said and taken, with `sealing` under TLS.

    Raises:
        OSError: it cannot be opened.
        ConfigError: a file of certificates is of no use.
    """
    patience = patience or Patience()
    if sealing is None:
        connection = _say_token(create_connection((host, port), timeout=patience.answer_s), token)
        _make_ready(connection, patience)
        return PlainConnection(connection)
    outgoing = sealing.ask(create_connection((host, port), timeout=patience.answer_s))
    _say_token(outgoing, token)
    try:
        incoming = sealing.ask(create_connection((host, port), timeout=patience.answer_s))
        _say_token(incoming, token)
    except (OSError, ConfigError):
        outgoing.close()
        raise
    for half in (outgoing, incoming):
        _make_ready(half, patience)
    return SealedConnection(incoming, outgoing)


def _say_token(connection: Socket, token: bytes) -> Socket:
    """The connection, on which the token was taken; it is closed where it was not."""
    try:
        connection.sendall(token)
        if connection.recv(len(_WELCOME)) != _WELCOME:
            raise ConnectionRefusedError("the token was not taken")
    except OSError:
        connection.close()
        raise
    return connection


def _hand_on(expected: _Expected, connection: Socket) -> None:
    """Hand it on, and only then tell the other side, which may be asked for it at once."""
    expected.on_connection(PlainConnection(connection))
    connection.sendall(_WELCOME)


def _hand_on_sealed(expected: _Expected, made: SealedConnection, outgoing: SealedSocket) -> None:
    """As `_hand_on`; whoever writes to it waits until the welcome is out, since one thread at a time may."""
    with made.writing:
        expected.on_connection(made)
        outgoing.sendall(_WELCOME)


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
