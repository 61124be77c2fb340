"""Workers that exchange with each other, all in this process, over real gRPC on free ports."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from types import TracebackType
from typing import Self, TypeVar

from taihu.allreduce.communicator import Communicator
from taihu.allreduce.order.fence import EARLY_BYTES
from taihu.allreduce.peer_service import PEER_SERVICE
from taihu.core.wire.frames.identity import WorkerIdentity
from taihu.core.wire.links.direct_connection import DirectListener
from taihu.core.wire.serving.server import RpcServer

T = TypeVar("T")


class Peers:
    """The communicators of `size` workers, connected to a ring or to a `mesh`; a context manager.

    Rank `silent` connects to nobody: its way to others is free for a test.
    """

    def __init__(
        self,
        size: int,
        *,
        timeout_s: float | None = 30.0,
        direct: bool = True,
        mesh: bool = False,
        silent: int | None = None,
        early_bytes: int = EARLY_BYTES,
    ) -> None:
        self._mesh = mesh
        self._silent = silent
        self._direct = direct
        self.communicators = [
            Communicator(
                WorkerIdentity("job", rank, 1000 + rank),
                size,
                timeout_s=timeout_s,
                listener=DirectListener("127.0.0.1"),
                early_bytes=early_bytes,
            )
            for rank in range(size)
        ]
        self.servers: list[RpcServer] = []
        self.addresses: list[str] = []
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        for communicator in self.communicators:
            server = RpcServer.create(threads=8)
            communicator.register(server.grpc_server)
            self.addresses.append(f"127.0.0.1:{server.listen('127.0.0.1:0')}")
            server.start((PEER_SERVICE,))
            self._stack.callback(server.stop, 0.0)
            self.servers.append(server)
        for communicator in self.communicators:
            communicator.admit([1000 + rank for rank in range(len(self.communicators))], mesh=self._mesh)
        for communicator in self.communicators:
            if communicator.rank != self._silent:
                communicator.connect(self.addresses, mesh=self._mesh, carrier="tcp" if self._direct else "grpc")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        with ThreadPoolExecutor(len(self.communicators)) as pool:
            list(pool.map(Communicator.close, self.communicators))
        self._stack.close()

    def run(self, work: Callable[[Communicator], T]) -> list[T]:
        """Let every worker do its part, in a thread of its own; returns what came of it, by rank."""
        with ThreadPoolExecutor(len(self.communicators)) as pool:
            return [future.result(timeout=120) for future in [pool.submit(work, c) for c in self.communicators]]
