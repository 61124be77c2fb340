"""A pipe in the stream of a gRPC call, for either side of the call."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from taihu.core.wire.links.inbox import Inbox
from taihu.core.wire.links.outbox import Outbox


@dataclass(frozen=True)
class StreamPipe:
    """Frames in a stream: gRPC asks `out.messages` for those that go, and `take` gets those that come.

    Whoever runs the stream tells of its end (`Pipe`): the thread that calls `take` sees it there.
    """

    out: Outbox
    inbox: Inbox

    def take(self, messages: Iterable[bytes]) -> None:
        """Take all frames until the other side ends its direction.

        Raises:
            grpc.RpcError: the stream broke, or the other side ended it with an error.
            TaihuError: see `Inbox.take_message`.
        """
        for message in messages:
            self.inbox.take_message(message)

    def stop(self) -> None:
        """End the stream before what is to go; returns at once."""
        self.out.stop()

    def close(self) -> None:
        """As `stop`: the stream ends with its call."""
        self.out.stop()
