"""Keys of torch's store by which a group's processes tell each other something before they are connected."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final, TypeVar

import torch.distributed as dist

from taihu.core.base.errors import PeerUnreachableError
from taihu.core.base.words import counted, listed
from taihu.torch.group.agreement import Host, Life, Roster
from taihu.torch.group.place import GroupPlace

__all__ = ["Board"]

_FIRST_LOOK_S: Final = 0.0005
_LAST_LOOK_S: Final = 0.02

T = TypeVar("T")


class Board:
    """A group's part of the store, which outlives groups: every key is written anew for each group of this name.

    Args:
        store: the group's part of torch's.
        place: of this process; what is waited for has to come within its timeout from now on.
    """

    def __init__(self, store: Any, place: GroupPlace) -> None:
        self._store = store
        self._place = place
        self._deadline = time.monotonic() + place.timeout_s
        self._known: set[str] = set()

    def host(self, life: Life, new_word: Callable[[], str]) -> Roster:
        """Agree on the group as its rank 0; returns the lives of all ranks.

        Raises:
            PeerUnreachableError: a rank has not come in time; it is named.
        """
        self._set("hello", life.text())
        host = Host(self._place.size, new_word)

        def agreed() -> bool:
            lives = [Life.read(text) if text else None for text in self._texts("hello")]
            if host.see(lives):
                self._store.set("roster", host.roster.text())
                self._set("word", host.roster.word)
            return host.roster.is_whole and host.is_agreed(self._texts("word"))

        self._until(agreed, lambda: self._late(host.roster))
        self._store.set("go", host.roster.word)
        return host.roster

    def join(self, life: Life) -> Roster:
        """Agree on the group as another rank than 0; see `host`."""
        self._set("hello", life.text())
        found: list[Roster] = []

        def agreed() -> bool:
            roster = self._roster()
            if roster is None or not roster.has(self._place.rank, life):
                return False
            if [roster] != found:
                found[:] = [roster]
                if roster.is_whole:
                    self._set("word", roster.word)
            return roster.is_whole and self._text("go") == roster.word

        self._until(agreed, lambda: self._late(found[0]) if found else [0])
        return found[0]

    def wait_for_all(self, what: str, roster: Roster) -> None:
        """Return when all ranks of this group have called this with the same `what`.

        Raises:
            PeerUnreachableError: one has not in time; it is named.
        """
        self._set(what, roster.word)
        self._until(
            lambda: not roster.silent(self._texts(what)),
            lambda: roster.silent(self._texts(what)),
        )

    def _late(self, roster: Roster) -> list[int]:
        """The ranks that have not come yet, as far as `roster` shows it."""
        return roster.absent() or roster.silent(self._texts("word")) or [0]

    def _roster(self) -> Roster | None:
        text = self._text("roster")
        return Roster.read(text) if text else None

    def _set(self, kind: str, text: str) -> None:
        self._store.set(f"{kind}/{self._place.rank}", text)

    def _text(self, key: str) -> str:
        """The value of a key; "" where there is none yet."""
        if key not in self._known and not self._store.check([key]):
            return ""
        self._known.add(key)
        return bytes(self._store.get(key)).decode()

    def _texts(self, kind: str) -> list[str]:
        """The values of all ranks' keys of a kind, "" where there is none yet."""
        keys = [f"{kind}/{rank}" for rank in range(self._place.size)]
        if self._known.issuperset(keys) or self._store.check(keys):
            self._known.update(keys)
            return [bytes(value).decode() for value in self._store.multi_get(keys)]
        return [self._text(key) for key in keys]

    def _until(self, done: Callable[[], bool], late: Callable[[], list[int]]) -> None:
        """Return when `done()`; raise PeerUnreachableError with the ranks that are `late()` when the time is over."""
        pause = _FIRST_LOOK_S
        try:
            while not done():
                if time.monotonic() > self._deadline:
                    raise self._unreachable(late())
                time.sleep(pause)
                pause = min(1.5 * pause, _LAST_LOOK_S)
        except dist.DistError as error:
            raise PeerUnreachableError(
                f"group {self._place.name!r}: the store that the processes meet at has gone "
                f"({error.__class__.__name__}); see what rank 0, or who has started the processes, does"
            ) from None

    def _unreachable(self, ranks: list[int]) -> PeerUnreachableError:
        who = listed([f"rank {rank}" for rank in ranks])
        have = "have" if len(ranks) > 1 else "has"
        return PeerUnreachableError(
            f"group {self._place.name!r}: {who} {have} not come within {self._place.timeout_s:g} s; start all "
            f"{counted(self._place.size, 'process')}, or give a longer timeout"
        )
