"""Groups whose members find each other by handles, which a script carries from process to process.

That is PyTorch's interface for going on without lost ranks, or with more, from torch 2.14 on:
`init_process_group(enable_reconfigure=True)` and `_reconfigure`. Handles say where their processes listen, so that no
store is needed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import torch.distributed as dist

from taihu.core.coordination.listener import Listener
from taihu.core.system.chance import random_bits
from taihu.torch.group.meeting.agreement import Life, Roster
from taihu.torch.group.meeting.meeting import Meeting, listen, meet_by_roster
from taihu.torch.group.meeting.place import GroupPlace

_MEMBERS: Final = 64


@dataclass(frozen=True)
class Invitation:
    """A process's place among those that some handles name, each of which calls `meet`."""

    place: GroupPlace
    roster: Roster
    listener: Listener

    def meet(self) -> Meeting:
        """Connect; raises MemberLostError, which names a process that has gone."""
        return meet_by_roster(self.roster, self.place, self.listener)


class Handles:
    """The handles of one process, one after the other: each is good for one group.

    `store` is torch's, which this machine reaches by the address that the handles tell.
    """

    def __init__(self, store: Any) -> None:
        self._store = store
        self._used: set[int] = set()
        self._own: tuple[Life, Listener] | None = None

    def own(self, place: GroupPlace) -> str:
        """The present handle: the same until it is used."""
        if self._own is None:
            # Nobody knows yet how many will come: there may be threads for so many.
            listener = listen(self._store, replace(place, size=max(place.size, _MEMBERS)))
            self._own = Life(random_bits(62), listener.address), listener
        return self._own[0].text()

    def use(self, uuid: int, handles: Collection[str], place: GroupPlace) -> Invitation:
        """The own place, which is `place` but for rank and size, among those that the handles name.

        A list gives ranks in its order, a set in the order of its handles as texts.

        Raises:
            DistBackendError: the number `uuid` has been used.
            ValueError: this process's present handle is not among them, or one of them is none.
        """
        ordered: Sequence[str] = sorted(handles) if isinstance(handles, set | frozenset) else list(handles)
        if uuid in self._used:
            raise dist.DistBackendError(
                f"taihu reconfigure: uuid {uuid} was already used; expected a new one each time"
            )
        if self._own is None or self._own[0].text() not in ordered:
            raise ValueError(
                "taihu reconfigure: this process's handle is not among the handles; expected the present one, which "
                "get_reconfigure_handle gives, and a new one for each reconfigure"
            )
        life, listener = self._own
        digest = hashlib.sha256("\n".join([str(uuid), *ordered]).encode()).hexdigest()
        roster = Roster(f"torch-{digest[:16]}", tuple(Life.read(text) for text in ordered))
        self._used.add(uuid)
        self._own = None
        own = replace(place, rank=ordered.index(life.text()), size=len(ordered))
        return Invitation(own, roster, listener)

    def close(self) -> None:
        """Listen no more for those who have the present handle."""
        if self._own is not None:
            self._own[1].close(grace_s=0.0)
            self._own = None
