"""Keys of torch's store by which a group's processes tell each other something before they are connected."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final, TypeVar

import torch.distributed as dist

from taihu.core.base.errors import MemberLostError, PeerUnreachableError
from taihu.core.base.words import listed
from taihu.core.system.clocks import monotonic, sleep
from taihu.torch.group.meeting.agreement import Host, Life, Roster
from taihu.torch.group.meeting.place import GroupPlace
from taihu.torch.group.meeting.vigil import Vigil

_FIRST_LOOK_S: Final = 0.0005
_LAST_LOOK_S: Final = 0.02

T = TypeVar("T")


class Board:
    """A group's part of the store, which outlives groups: every key is written anew for each group of this name.

    Args:
        store: the group's part of torch's.
        place: of this process; what is waited for has to come within its timeout from now on.
        vigil: watches the ranks that are of this group for certain.
    """

    def __init__(self, store: Any, place: GroupPlace, vigil: Vigil) -> None:
        self._store = store
        self._place = place
        self._vigil = vigil
        # Of this meeting alone: the number of rank 0's life, once it is known.
        self._meeting: int | None = None
        self._deadline = monotonic() + place.timeout_s
        self._known: set[str] = set()

    def host(self, life: Life, new_word: Callable[[], str]) -> Roster:
        """Agree on the group as its rank 0; returns the lives of all ranks.

        Raises:
            PeerUnreachableError: a rank has not come in time; it is named.
            MemberLostError: a rank that had come has gone, or has failed in this; it is named.
        """
        self._meeting = life.incarnation
        self._set("hello", life.text())
        host = Host(self._place.size, new_word)

        def agreed() -> bool:
            lives = [Life.read(text) if text else None for text in self._texts("hello")]
            if host.see(lives, self._texts("word")):
                self._store.set("roster", host.roster.text())
                self._set("word", host.roster.word)
                self._watch(host.roster, host.roster.met)
            return host.is_agreed(self._texts("word"))

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
                if roster.lives[0] is not None:
                    self._meeting = roster.lives[0].incarnation
                self._set("word", roster.word)
                # Rank 0 has seen this life: it is of the same group.
                self._watch(roster, (0, *roster.met))
            return roster.is_whole and self._text("go") == roster.word

        self._until(agreed, lambda: self._late(found[0]) if found else [0])
        return found[0]

    def _watch(self, roster: Roster, ranks: Sequence[int]) -> None:
        for rank in ranks:
            life = roster.lives[rank]
            if life is not None and rank != self._place.rank:
                self._vigil.watch(rank, life.address)

    def give_up(self, reason: str) -> None:
        """Tell those who meet in this group that it will not be made."""
        if self._meeting is not None:
            with suppress(dist.DistError):
                self._store.set(f"end/{self._meeting}", reason)

    def lost(self, rank: int) -> MemberLostError:
        """The error of `rank`, which has gone, or of what it has told before."""
        reason = f"worker {rank} was lost while the group was made"
        if self._meeting is not None:
            with suppress(dist.DistError):
                reason = self._text(f"end/{self._meeting}") or reason
        return MemberLostError(reason)

    def wait_for_all(self, what: str, roster: Roster) -> None:
        """Return when all ranks of this group have called this with the same `what`.

        Raises:
            PeerUnreachableError, MemberLostError: as `host`.
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
        """Return when `done()`.

        Raises:
            PeerUnreachableError: the time is over: the ranks that are `late()` have not come.
            MemberLostError: a rank has gone.
        """
        pause = _FIRST_LOOK_S
        while True:
            # Who has gone in good order has done its part before.
            gone = self._vigil.gone
            if done():
                return
            if gone:
                raise self.lost(gone[0])
            if monotonic() > self._deadline:
                raise self._unreachable(late())
            sleep(pause)
            pause = min(1.5 * pause, _LAST_LOOK_S)

    def _unreachable(self, ranks: list[int]) -> PeerUnreachableError:
        who = listed([f"worker {rank}" for rank in ranks])
        have = "have" if len(ranks) > 1 else "has"
        return PeerUnreachableError(
            f"{who} {have} not come within {self._place.timeout_s:g} s; start all {self._place.size} processes, or "
            "give a longer timeout"
        )
