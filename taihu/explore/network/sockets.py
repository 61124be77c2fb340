"""Stand-in for `socket`: sockets of TCP in memory."""

from __future__ import annotations

import errno
import ipaddress
import socket as real_socket
from collections import deque
from collections.abc import Iterable
from typing import Any, Final, NoReturn, Self, cast

from taihu.explore.network.connections import End, Kind
from taihu.explore.network.network import Network
from taihu.explore.network.streams import FOREVER, Patience, Stream, error
from taihu.explore.scheduler import RUNNING
from taihu.explore.stand_ins.waiting import Waiting
from taihu.explore.tasks import Process

__all__ = ["Address", "Socket", "resolved"]

_PEEK: Final = int(real_socket.MSG_PEEK)
_WAITALL: Final = int(real_socket.MSG_WAITALL)
_DONTWAIT: Final = int(real_socket.MSG_DONTWAIT)
_OWN_HOST: Final = "127.0.0.1"
# A kernel gives up a connection that nobody answers after about two minutes.
_CONNECT_S: Final = 130.0

Address = tuple[Any, ...]
"""Host and port."""


class _Listening:
    """A port that takes connections in, and those that nobody has accepted yet."""

    kind: Kind = "tcp"

    def __init__(self, process: Process, backlog: int) -> None:
        self.process = process
        self.waiting = Waiting("a connection")
        self.come: deque[Stream] = deque()
        self.is_closed = False
        self._backlog = backlog

    def accept(self, end: End) -> bool:
        """Take a connection in."""
        if self.is_closed or len(self.come) > self._backlog:
            return False
        self.come.append(Stream(end))
        self.waiting.wake()
        return True

    def close(self, network: Network) -> None:
        """Take no more; those that nobody has accepted are lost."""
        self.is_closed = True
        network.stop_listening(self)
        while self.come:
            self.come.popleft().end.reset()
        self.waiting.wake()


class Socket:
    """`socket.socket`."""

    def __init__(
        self,
        family: int = real_socket.AF_INET,
        type: int = real_socket.SOCK_STREAM,  # noqa: A002 - its name in the module
        proto: int = 0,
        fileno: int | None = None,
    ) -> None:
        if fileno is not None:
            raise NotImplementedError("a simulated process has no descriptors of sockets")
        self.family = real_socket.AF_INET if family == -1 else real_socket.AddressFamily(family)
        self.type = real_socket.SOCK_STREAM if type == -1 else real_socket.SocketKind(type)
        self.proto = proto
        self._network = RUNNING().find(Network)
        self._timeout_s: float | None = None
        self._own: Address = ("0.0.0.0", 0)  # noqa: S104 - nothing is bound yet
        self._peer: Address | None = None
        self._stream: Stream | None = None
        self._listening: _Listening | None = None
        self._options: dict[tuple[int, int], Any] = {}
        self._is_closed = False
        # How many sockets there are of the same connection: `dup` makes more.
        self._copies = [1]

    def _open(self) -> Stream:
        if self._is_closed:
            raise error(errno.EBADF)
        if self._stream is None:
            raise error(errno.ENOTCONN)
        return self._stream

    def _use(self, stream: Stream, own: Address, peer: Address) -> None:
        self._stream, self._own, self._peer = stream, own, peer
        self._apply_options()

    # -- options and names

    def setsockopt(self, level: int, optname: int, value: Any, optlen: int | None = None) -> None:
        """As `socket.socket.setsockopt`; those of keepalive count."""
        self._options[level, optname] = value
        self._apply_options()

    def getsockopt(self, level: int, optname: int, buflen: int = 0) -> Any:
        """As `socket.socket.getsockopt`."""
        if optname == real_socket.SO_ACCEPTCONN and level == real_socket.SOL_SOCKET:
            return int(self._listening is not None)
        return self._options.get((level, optname), 0)

    def _apply_options(self) -> None:
        if self._stream is None or not self._options.get((real_socket.SOL_SOCKET, real_socket.SO_KEEPALIVE)):
            return
        tcp = real_socket.IPPROTO_TCP
        idle_s = self._options.get((tcp, real_socket.TCP_KEEPIDLE), 7200)
        between_s = self._options.get((tcp, real_socket.TCP_KEEPINTVL), 75)
        times = self._options.get((tcp, real_socket.TCP_KEEPCNT), 9)
        user_ms = self._options.get((tcp, real_socket.TCP_USER_TIMEOUT), 0)
        self._stream.end.silence_s = user_ms / 1000.0 if user_ms else float(idle_s + between_s * times)

    def settimeout(self, value: float | None) -> None:
        """As `socket.socket.settimeout`."""
        if value is not None and value < 0:
            raise ValueError("Timeout value out of range")
        self._timeout_s = value

    def gettimeout(self) -> float | None:
        """As `socket.socket.gettimeout`."""
        return self._timeout_s

    def setblocking(self, flag: bool) -> None:
        """As `socket.socket.setblocking`."""
        self._timeout_s = None if flag else 0.0

    def getsockname(self) -> Address:
        """As `socket.socket.getsockname`."""
        return self._own

    def getpeername(self) -> Address:
        """As `socket.socket.getpeername`."""
        if self._peer is None:
            raise error(errno.ENOTCONN)
        return self._peer

    def fileno(self) -> int:
        """-1: simulated sockets have no descriptors."""
        return -1

    # -- listening and connecting

    def bind(self, address: Address) -> None:
        """As `socket.socket.bind`."""
        host, port = resolved(address[0]), int(address[1])
        if port and self._network.listening(host, port) is not None:
            raise error(errno.EADDRINUSE)
        self._own = (host, port or self._network.free_port(host))

    def listen(self, backlog: int = 128) -> None:
        """As `socket.socket.listen`."""
        listening = self._listening = _Listening(RUNNING().current.process, backlog)
        host, port = self._own[0], self._own[1]
        self._own = (host, self._network.listen(host, port, listening))

    def accept(self) -> tuple[Socket, Address]:
        """As `socket.socket.accept`."""
        listening = self._listening
        if self._is_closed or listening is None:
            raise error(errno.EBADF if self._is_closed else errno.EINVAL)
        RUNNING().point("accept")
        if not listening.waiting.wait_until(lambda: bool(listening.come) or listening.is_closed, self._timeout_s):
            raise TimeoutError("timed out") if self._timeout_s else error(errno.EAGAIN)
        if not listening.come:
            raise error(errno.EINVAL)
        stream = listening.come.popleft()
        accepted = Socket(self.family)
        connection = stream.end.connection
        accepted._use(stream, (_OWN_HOST, connection.port), (_OWN_HOST, connection.own_port))
        return accepted, (_OWN_HOST, connection.own_port)

    def connect(self, address: Address) -> None:
        """As `socket.socket.connect`."""
        if self._is_closed:
            raise error(errno.EBADF)
        host, port = resolved(address[0]), int(address[1])
        if self.type == real_socket.SOCK_DGRAM:
            self._own, self._peer = (_OWN_HOST, self._network.free_port(host)), (host, port)
            return
        scheduler = RUNNING()
        answers: list[tuple[End | None, str]] = []
        waiting = Waiting("a connection")

        def answered(end: End | None, why: str) -> None:
            if end is not None:
                Stream(end)
            answers.append((end, why))
            waiting.wake()

        attempt = self._network.connect("tcp", scheduler.current.process, host, port, answered)
        if not waiting.wait_until(lambda: bool(answers), _CONNECT_S if self._timeout_s is None else self._timeout_s):
            attempt.abandon()
            raise TimeoutError("timed out") if self._timeout_s is not None else error(errno.ETIMEDOUT)
        end, why = answers[0]
        if end is None:
            raise error(errno.ECONNREFUSED if "refused" in why else errno.ECONNRESET)
        self._use(cast(Stream, end.handler), (_OWN_HOST, end.connection.own_port), (host, port))
        scheduler.point("connect")

    # -- sending and receiving

    def send(self, data: Any, flags: int = 0) -> int:
        """As `socket.socket.send`."""
        return self._open().send(bytes(data), self._patience(flags), all_of_it=False)

    def sendall(self, data: Any, flags: int = 0) -> None:
        """As `socket.socket.sendall`."""
        self._open().send(bytes(data), self._patience(flags), all_of_it=True)

    def sendmsg(self, buffers: Iterable[Any], ancdata: Any = (), flags: int = 0, address: Any = None) -> int:
        """As `socket.socket.sendmsg`."""
        return self._open().send(b"".join(buffers), self._patience(flags), all_of_it=False)

    def recv(self, bufsize: int, flags: int = 0) -> bytes:
        """As `socket.socket.recv`."""
        place = bytearray(bufsize)
        return bytes(place[: self._receive(memoryview(place), flags)])

    def recv_into(self, buffer: Any, nbytes: int = 0, flags: int = 0) -> int:
        """As `socket.socket.recv_into`."""
        place = memoryview(buffer).cast("B")
        return self._receive(place[:nbytes] if nbytes else place, flags)

    def recvmsg_into(
        self, buffers: Iterable[Any], ancbufsize: int = 0, flags: int = 0
    ) -> tuple[int, list[Any], int, Any]:
        """As `socket.socket.recvmsg_into`."""
        places = [place for each in buffers if len(place := memoryview(each).cast("B"))]
        if len(places) == 1:
            return self._receive(places[0], flags), [], 0, None
        got = memoryview(bytearray(sum(map(len, places))))
        size = self._receive(got, flags)
        begin = 0
        for place in places:
            part = got[begin : min(begin + len(place), size)]
            place[: len(part)] = part
            begin += len(part)
        return size, [], 0, None

    def _receive(self, place: memoryview, flags: int) -> int:
        return self._open().receive(
            place,
            self._patience(flags),
            all_of_it=bool(flags & _WAITALL),
            peeks=bool(flags & _PEEK),
        )

    def _patience(self, flags: int) -> Patience:
        if self._timeout_s is None and not flags & _DONTWAIT:
            return FOREVER
        # Where there is a timeout, Python waits before it asks the kernel, whose flags say nothing then.
        return Patience(RUNNING().deadline(self._timeout_s) if self._timeout_s else 0.0)

    # -- ending

    def shutdown(self, how: int) -> None:
        """As `socket.socket.shutdown`."""
        if self._is_closed:
            raise error(errno.EBADF)
        if self._listening is not None:
            self._listening.close(self._network)
            return
        if self._stream is None or not self._stream.is_connected:
            raise error(errno.ENOTCONN)
        if how in (real_socket.SHUT_RD, real_socket.SHUT_RDWR):
            self._stream.end_receiving()
        if how in (real_socket.SHUT_WR, real_socket.SHUT_RDWR):
            self._stream.end_sending()
        RUNNING().point("shut down")

    def dup(self) -> Socket:
        """As `socket.socket.dup`."""
        if self._is_closed:
            raise error(errno.EBADF)
        other = Socket(self.family, self.type, self.proto)
        other._timeout_s, other._own, other._peer = self._timeout_s, self._own, self._peer
        other._stream, other._listening, other._options = self._stream, self._listening, self._options
        other._copies = self._copies
        self._copies[0] += 1
        return other

    def close(self) -> None:
        """As `socket.socket.close`."""
        if self._is_closed or RUNNING().is_over:
            return
        self._is_closed = True
        self._copies[0] -= 1
        if self._copies[0]:
            return
        if self._listening is not None:
            self._listening.close(self._network)
        if self._stream is not None:
            self._stream.close()

    def detach(self) -> NoReturn:
        """There is no descriptor that could be given away."""
        raise NotImplementedError("a simulated process has no descriptors of sockets")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def resolved(host: str) -> str:
    """The address of a name; raises socket.gaierror where it has none."""
    if host in ("", "0.0.0.0"):  # noqa: S104
        return "0.0.0.0"  # noqa: S104
    if host == "localhost":
        return _OWN_HOST
    try:
        return str(ipaddress.ip_address(host))
    except ValueError:
        raise real_socket.gaierror(real_socket.EAI_NONAME, "Name or service not known") from None
