"""Finding who is late, or calls something else: who waits tells its call in torch's store, and reads the others'."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import torch.distributed as dist

from taihu.core.base.errors import ExchangeError
from taihu.core.base.words import listed
from taihu.core.system.clocks import monotonic
from taihu.core.system.threads import Event, spawn
from taihu.torch.group.meeting.place import GroupPlace
from taihu.torch.group.operations.calls import Call, Said, read_calls, text_of

_LOOK_AGAIN_S: Final = 0.05
_LONGEST_S: Final = 1.0
_AT_A_LOSS_S: Final = 0.3
_AT_A_FAILURE_S: Final = 5.0


def differing(
    own: Sequence[Said], others: Mapping[int, Sequence[Said]], *, with_sizes: bool = False
) -> tuple[Said, dict[int, Said]] | None:
    """The first own call in whose place other ranks have called something else, and these calls by rank."""
    for call in own:
        found = {
            rank: other
            for rank, said in others.items()
            for other in said
            if other.number == call.number
            and (other.words != call.words or (with_sizes and other.sizes != call.sizes))
        }
        if found:
            return call, found
    return None


class RollCall:
    """The calls that ranks of a group wait for.

    `store` is the group's part of torch's, which may have keys of former groups; `word` is this group's alone.
    """

    def __init__(self, store: Any, place: GroupPlace, word: str) -> None:
        self._store = store
        self._keys = f"waits/{word}"
        self._place = place

    def missing(self, calls: Sequence[Call]) -> list[int]:
        """The ranks that do not wait for the last of `calls`, as this one does; none where that is not known."""
        own = _said(calls)
        heard = self._ask(own, lambda others: self._is_whole(others, own), _LONGEST_S)
        if heard is None:
            return []
        number = calls[-1].number
        return [rank for rank in self._others if rank not in heard or heard[rank][-1].number < number]

    def other_calls(self, calls: Sequence[Call]) -> ExchangeError | None:
        """The error of one of the last calls, in whose place another rank has called something else; None of none."""
        own = _said(calls)
        return self._told(differing(own, self._ask(own, lambda _: True, 0.0) or {}))

    def after_failure(self, calls: Sequence[Call], *, is_lost: bool) -> ExchangeError | None:
        """As `other_calls`, when the last has failed: the others have failed, too, and are about to say where.

        Where one is lost (`is_lost`) nobody waits for it for long; others may be slow on a busy machine.
        """
        own = _said(calls)

        def is_known(others: dict[int, list[Said]]) -> bool:
            return self._is_whole(others, own) or bool(differing(own, others, with_sizes=True))

        heard = self._ask(own, is_known, _AT_A_LOSS_S if is_lost else _AT_A_FAILURE_S) or {}
        return self._told(differing(own, heard) or differing(own[-1:], heard, with_sizes=True))

    def late(self, what: str, timeout_s: float, missing: list[int]) -> ExchangeError:
        """The error of an operation that has not ended in time."""
        who = listed([f"worker {rank}" for rank in missing]) or "a worker, nobody knows which,"
        have = "have" if len(missing) > 1 else "has"
        return ExchangeError(
            f"{who} {have} not come to {what}: Timed out after {timeout_s:g} s; see what it does, or give "
            "init_process_group a longer timeout"
        )

    def _told(self, found: tuple[Said, dict[int, Said]] | None) -> ExchangeError | None:
        if found is None:
            return None
        own, others = found
        calls = sorted({self._place.rank: own, **others}.items())
        said = listed([f"worker {rank} calls {call}" for rank, call in calls])
        return ExchangeError(
            f"{said}, as operation {own.number} of the group; expected the same operations in the same order, with "
            "the same types and sizes, on all ranks"
        )

    def _is_whole(self, others: Mapping[int, Sequence[Said]], own: Sequence[Said]) -> bool:
        return all(rank in others and others[rank][-1].number >= own[-1].number for rank in self._others)

    @property
    def _others(self) -> list[int]:
        return [rank for rank in range(self._place.size) if rank != self._place.rank]

    def _ask(
        self, own: Sequence[Said], is_enough: Callable[[dict[int, list[Said]]], bool], limit_s: float
    ) -> dict[int, list[Said]] | None:
        """Say what this rank has called; the others' calls, as soon as they are enough, or after `limit_s`."""
        found: list[dict[int, list[Said]]] = []

        def ask() -> None:
            deadline = monotonic() + min(limit_s, self._place.timeout_s)
            try:
                self._store.set(f"{self._keys}/{self._place.rank}", text_of(own))
                heard = self._heard()
                while not is_enough(heard) and monotonic() < deadline:
                    Event().wait(_LOOK_AGAIN_S)
                    heard = self._heard()
            except dist.DistError:
                return
            found.append(heard)

        # A store whose host has stopped answers nothing, and nobody shall wait for it.
        asking = spawn("roll-call", ask)
        asking.join(limit_s + _LONGEST_S)
        return found[0] if found else None

    def _heard(self) -> dict[int, list[Said]]:
        keys = {rank: f"{self._keys}/{rank}" for rank in self._others}
        told = {rank: bytes(self._store.get(key)).decode() for rank, key in keys.items() if self._store.check([key])}
        return {rank: read_calls(text) for rank, text in told.items()}


def _said(calls: Sequence[Call]) -> list[Said]:
    return [call.said() for call in calls]
