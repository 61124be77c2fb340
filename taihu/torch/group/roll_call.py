"""Finding who is late: all ranks that wait for an operation say so in torch's store, and the others are named."""

from __future__ import annotations

import threading
import time
from typing import Any, Final

import torch.distributed as dist

from taihu.errors import ExchangeError
from taihu.torch.group.place import Place
from taihu.words import listed

__all__ = ["RollCall"]

_LOOK_AGAIN_S: Final = 0.05
_LONGEST_S: Final = 1.0


class RollCall:
    """The ranks of a group that wait for the same operation.

    `store` is the group's part of torch's, which may have keys of former groups; `word` is this group's alone.
    """

    def __init__(self, store: Any, place: Place, word: str) -> None:
        self._store = store
        self._keys = f"waits/{word}"
        self._place = place

    def missing(self, number: int) -> list[int]:
        """The ranks that do not wait for operation `number`, as this one does; none where that is not known."""
        found: list[int] = []
        # A store whose host has stopped answers nothing, and nobody shall wait for it.
        asking = threading.Thread(target=self._ask, args=(number, found), name="roll-call", daemon=True)
        asking.start()
        asking.join(2.0 * _LONGEST_S)
        return [] if asking.is_alive() else found

    def late(self, what: str, timeout_s: float, missing: list[int]) -> ExchangeError:
        """The error of an operation that has not ended in time."""
        who = listed([f"worker {rank}" for rank in missing]) or "a worker, nobody knows which,"
        have = "have" if len(missing) > 1 else "has"
        return ExchangeError(
            f"{who} {have} not come to {what}: Timed out after {timeout_s:g} s; see what it does, or give "
            "init_process_group a longer timeout"
        )

    def _ask(self, number: int, found: list[int]) -> None:
        others = [rank for rank in range(self._place.size) if rank != self._place.rank]
        deadline = time.monotonic() + min(_LONGEST_S, self._place.timeout_s)
        try:
            self._store.set(f"{self._keys}/{number}/{self._place.rank}", "")
            while time.monotonic() < deadline and others:
                others = [rank for rank in others if not self._store.check([f"{self._keys}/{number}/{rank}"])]
                threading.Event().wait(_LOOK_AGAIN_S)
        except dist.DistError:
            return
        found += others
