"""Connections to processes that are about to make a group, which break at once when one of them dies."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Final, Self

from taihu.core.system.polls import is_readable
from taihu.core.system.sockets import SO_ERROR, SOL_SOCKET, Socket, family_of
from taihu.core.system.threads import Event, Lock, Thread, spawn
from taihu.core.wire.base.address import split_address

_LOOK_S: Final = 0.05
_UNDER_WAY: Final = (0, errno.EINPROGRESS)


class Vigil:
    """Watches the ranks that it is told to; a context manager, any thread may call.

    Nothing is sent: who listens takes a connection in, or has not yet, and may cut it. A rank has gone when its
    address refuses one, which the system does for it as soon as the process has ended. A machine that answers
    nothing is not told from a slow one.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._watched: dict[int, _Watched] = {}
        self._gone: set[int] = set()
        self._tell: Callable[[int], None] = lambda _: None
        self._closed = Event()
        self._thread: Thread | None = None

    def watch(self, rank: int, address: str) -> None:
        """Watch `rank`, which listens at `host:port`; nothing changes where that is so already."""
        with self._lock:
            if self._closed.is_set() or (rank in self._watched and self._watched[rank].address == address):
                return
            self._forget(rank)
            self._watched[rank] = _Watched(address)
            if self._thread is None:
                self._thread = spawn("taihu-vigil", self._run)

    @property
    def gone(self) -> list[int]:
        """The ranks that have gone."""
        with self._lock:
            return sorted(self._gone)

    @contextmanager
    def telling(self, tell: Callable[[int], None]) -> Iterator[None]:
        """Have `tell` called with each rank that goes while the block runs, or has gone before."""
        with self._lock:
            self._tell, gone = tell, list(self._gone)
        for rank in gone:
            tell(rank)
        try:
            yield
        finally:
            with self._lock:
                self._tell = lambda _: None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closed.set()
        if self._thread is not None:
            self._thread.join()
        with self._lock:
            for rank in list(self._watched):
                self._forget(rank)

    def _forget(self, rank: int) -> None:
        watched = self._watched.pop(rank, None)
        self._gone.discard(rank)
        if watched is not None:
            watched.close()

    def _run(self) -> None:
        while not self._closed.wait(_LOOK_S):
            with self._lock:
                gone = [rank for rank, each in self._watched.items() if rank not in self._gone and each.has_gone()]
                self._gone.update(gone)
                tell = self._tell
            for rank in gone:
                tell(rank)


class _Watched:
    """An address to which a connection is held."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._socket: Socket | None = None

    def has_gone(self) -> bool:
        """Whether nobody listens there any more; never waits for an answer."""
        if self._socket is None:
            return self._refuses()
        if not is_readable(self._socket, 0.0):
            return False
        # It was refused or cut, by a process that has ended or by one that lives: another attempt shows it.
        error = self._socket.getsockopt(SOL_SOCKET, SO_ERROR)
        self.close()
        return error == errno.ECONNREFUSED or self._refuses()

    def _refuses(self) -> bool:
        host, port = split_address(self.address)
        connection = Socket(family_of(host))
        connection.setblocking(False)
        try:
            result = connection.connect_ex((host, port))
        except OSError:  # a name that has no address now
            result = errno.EHOSTUNREACH
        if result in _UNDER_WAY:
            self._socket = connection
            return False
        connection.close()
        return result == errno.ECONNREFUSED

    def close(self) -> None:
        """Give the connection up."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None
