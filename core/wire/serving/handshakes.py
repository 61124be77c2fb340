"""Handshakes of TLS that came to nothing: of who has shown no certificate that holds here, or speaks no TLS.

gRPC tells that a handshake begins, and neither how it ends nor of whom it is. So whoever has made no call in a while
is counted, and told of.
"""

from __future__ import annotations

from collections import OrderedDict
from contextlib import ExitStack
from functools import partial
from typing import Final

from taihu.core.security.security import Refusals
from taihu.core.system.threads import RLock
from taihu.core.wire.base.clock import Clock
from taihu.core.wire.base.room import SILENT_PLACES, Room
from taihu.core.wire.serving.refusal_log import RefusalLog

_PEERS: Final = 1024


class Handshakes:
    """Handshakes that have begun, each with `within_s` for its first call; any thread may call.

    Args:
        refusals: are told of those that begin, and of those that came to nothing.
        within_s: the time that a handshake and a call take at most.
        log: tells of those that came to nothing.
    """

    def __init__(
        self, refusals: Refusals, within_s: float, clock: Clock | None = None, log: RefusalLog | None = None
    ) -> None:
        self._refusals = refusals
        self._log = log or RefusalLog(clock)
        self._room = Room(SILENT_PLACES, within_s, clock)
        # Whoever takes the last place sends the first one away, by the same thread.
        self._lock = RLock()
        self._number = 0
        self._waiting: OrderedDict[int, ExitStack] = OrderedDict()
        self._peers: OrderedDict[str, None] = OrderedDict()

    def begun(self) -> None:
        """Somebody has connected."""
        self._refusals.handshake()
        with self._lock:
            self._number += 1
            number = self._number
            place = self._waiting[number] = ExitStack()
            place.enter_context(self._room.place(partial(self._came_to_nothing, number)))

    def called(self, peer: str) -> None:
        """There is a call of `peer`, an address; if it is the first one, some handshake has led to it."""
        with self._lock:
            if peer in self._peers:
                return
            self._peers[peer] = None
            if len(self._peers) > _PEERS:
                self._peers.popitem(last=False)
            if self._waiting:
                self._waiting.popitem(last=False)[1].close()

    def close(self) -> None:
        """Watch no more."""
        self._room.close()

    def _came_to_nothing(self, number: int) -> None:
        with self._lock:
            if self._waiting.pop(number, None) is None:
                return
        self._refusals.handshake_refused()
        self._log.tell(
            "a handshake came to nothing",
            "handshake",
            reason="no certificate that holds here, or no TLS; GRPC_VERBOSITY=INFO has gRPC tell its own reason",
        )
