"""Connections of workers beside gRPC, until the exchange that each is for takes it."""

from __future__ import annotations

from taihu.core.wire.frames.identity import WorkerIdentity
from taihu.core.wire.links.connection import Connection


class UntakenConnections:
    """The last connection of each worker that has come before its exchange. Not thread-safe.

    Attributes:
        closed: whether whatever comes now is closed.
    """

    def __init__(self) -> None:
        self.closed = False
        self._by_rank: dict[int, tuple[WorkerIdentity, Connection]] = {}

    def keep(self, identity: WorkerIdentity, connection: Connection) -> None:
        """Keep a connection in the place of a former one of the same rank."""
        if self.closed:
            connection.close()
            return
        _, former = self._by_rank.pop(identity.rank, (None, None))
        self._by_rank[identity.rank] = (identity, connection)
        if former is not None:
            former.close()

    def take(self, identity: WorkerIdentity) -> Connection | None:
        """The connection that the worker has opened, unless it has given it up since."""
        owner, connection = self._by_rank.pop(identity.rank, (None, None))
        if connection is None or (owner == identity and connection.is_open()):
            return connection
        connection.close()
        return None

    def close(self) -> None:
        """Close all of them, and whatever comes later."""
        self.closed = True
        for _, connection in self._by_rank.values():
            connection.close()
        self._by_rank.clear()
