"""Finding who is late, or calls something else: who waits tells its call in torch's store, and reads the others'."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, Final

import torch.distributed as dist

from taihu.errors import ExchangeError
from taihu.torch.group.calls import Call, Said
from taihu.torch.group.place import Place
from taihu.words import listed

__all__ = ["RollCall", "differing"]

_LOOK_AGAIN_S: Final = 0.05
_LONGEST_S: Final = 1.0
_AT_A_FAILURE_S: Final = 0.3


def differing(own: Said, others: dict[int, Said], *, with_sizes: bool = False) -> dict[int, Said]:
    """The calls of other ranks, by rank, that should be the `own` one by their numbers, and are not."""
    return {
        rank: call
        for rank, call in others.items()
        if call.number == own.number and (call.words != own.words or (with_sizes and call.sizes != own.sizes))
    }


class RollCall:
    """The calls that ranks of a group wait for.

    `store` is the group's part of torch's, which may have keys of former groups; `word` is this group's alone.
    """

    def __init__(self, store: Any, place: Place, word: str) -> None:
        self._store = store
        self._keys = f"waits/{word}"
        self._place = place

    def missing(self, call: Call) -> list[int]:
        """The ranks that do not wait for `call`, as this one does; none where that is not known."""
        own = call.said()
        heard = self._ask(own, lambda others: self._is_whole(others, own), _LONGEST_S)
        if heard is None:
            return []
        return [rank for rank in self._others if rank not in heard or heard[rank].number < call.number]

    def other_calls(self, call: Call) -> ExchangeError | None:
        """The error of a call in whose place another rank waits for something else now; None where none does."""
        own = call.said()
        return self._told(own, differing(own, self._ask(own, lambda _: True, 0.0) or {}))

    def after_failure(self, call: Call) -> ExchangeError | None:
        """As `other_calls`, when the call has failed: the others have failed, too, and are about to say where."""
        own = call.said()

        def is_known(others: dict[int, Said]) -> bool:
            return self._is_whole(others, own) or bool(differing(own, others, with_sizes=True))

        heard = self._ask(own, is_known, _AT_A_FAILURE_S) or {}
        return self._told(own, differing(own, heard) or differing(own, heard, with_sizes=True))

    def late(self, what: str, timeout_s: float, missing: list[int]) -> ExchangeError:
        """The error of an operation that has not ended in time."""
        who = listed([f"worker {rank}" for rank in missing]) or "a worker, nobody knows which,"
        have = "have" if len(missing) > 1 else "has"
        return ExchangeError(
            f"{who} {have} not come to {what}: Timed out after {timeout_s:g} s; see what it does, or give "
            "init_process_group a longer timeout"
        )

    def _told(self, own: Said, others: dict[int, Said]) -> ExchangeError | None:
        if not others:
            return None
        calls = sorted({self._place.rank: own, **others}.items())
        said = listed([f"worker {rank} calls {call}" for rank, call in calls])
        return ExchangeError(
            f"{said}, as operation {own.number} of the group; expected the same operations in the same order, with "
            "the same types and sizes, on all ranks"
        )

    def _is_whole(self, others: dict[int, Said], own: Said) -> bool:
        return all(rank in others and others[rank].number >= own.number for rank in self._others)

    @property
    def _others(self) -> list[int]:
        return [rank for rank in range(self._place.size) if rank != self._place.rank]

    def _ask(self, own: Said, is_enough: Callable[[dict[int, Said]], bool], limit_s: float) -> dict[int, Said] | None:
        """Say that this rank waits for `own`; the others' calls, as soon as they are enough, or after `limit_s`."""
        found: list[dict[int, Said]] = []

        def ask() -> None:
            deadline = time.monotonic() + min(limit_s, self._place.timeout_s)
            try:
                self._store.set(f"{self._keys}/{self._place.rank}", own.text())
                heard = self._heard()
                while not is_enough(heard) and time.monotonic() < deadline:
                    threading.Event().wait(_LOOK_AGAIN_S)
                    heard = self._heard()
            except dist.DistError:
                return
            found.append(heard)

        # A store whose host has stopped answers nothing, and nobody shall wait for it.
        asking = threading.Thread(target=ask, name="roll-call", daemon=True)
        asking.start()
        asking.join(limit_s + _LONGEST_S)
        return found[0] if found else None

    def _heard(self) -> dict[int, Said]:
        keys = {rank: f"{self._keys}/{rank}" for rank in self._others}
        said = {rank: key for rank, key in keys.items() if self._store.check([key])}
        return {rank: Said.read(bytes(self._store.get(key)).decode()) for rank, key in said.items()}
