"""The members of a group: at first those that torch's store brings together, and later others, where they change."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

import torch.distributed as dist

from taihu.core.base.errors import ConfigError, TaihuError
from taihu.core.system.threads import Lock, spawn
from taihu.torch.group.connected import Connected
from taihu.torch.group.meeting.handles import Handles, Invitation
from taihu.torch.group.meeting.meeting import Meeting, meet
from taihu.torch.group.meeting.place import GroupPlace
from taihu.torch.group.operations.calls import Words
from taihu.torch.group.operations.exchange import GroupExchange
from taihu.torch.group.operations.work import GroupWork

_REVOKED_AFTER_S: Final = 0.5
"""The time that operations have to end when the members change."""


class Members:
    """A process among the members of its group; any thread may call.

    Args:
        store: the group's part of torch's store.
        place: of this process.
        global_ranks: the group's ranks in the whole run, in order.
        is_reconfigurable: nobody is connected before `change`.

    Attributes:
        place: of this process now.
        name: of the group, in messages.

    Raises:
        DistBackendError: the members do not find each other, or one of them is lost; it is named.
        ConfigError: this machine has no address at which others reach it.
    """

    def __init__(
        self, store: Any, place: GroupPlace, global_ranks: Sequence[int], *, is_reconfigurable: bool
    ) -> None:
        self._store = store
        self.place = place
        self.name = place.name
        self._global_ranks = tuple(global_ranks) or tuple(range(place.size))
        self._process = os.getpid()
        self._changing = Lock()
        self._has_left = False
        self._handles = Handles(store) if is_reconfigurable else None
        self._connected: Connected | None = None
        if not is_reconfigurable:
            try:
                self._connected = self._among(meet(store, place), place)
            except ConfigError:
                raise
            except TaihuError as error:
                raise self.explain("init", error) from None

    def _among(self, meeting: Meeting, place: GroupPlace) -> Connected:
        return Connected(GroupExchange(meeting, self._store, place), place, self.explain)

    def now(self, what: str) -> Connected:
        """The group as it is now, for `what`; raises DistBackendError where it is none, or in a fork."""
        self.check_process(what)
        if self._connected is None:
            raise self.explain(what, RuntimeError("the group is not connected; call reconfigure, and wait for it"))
        return self._connected

    @property
    def are_of_this_process(self) -> bool:
        """Whether this process made the group: a fork has neither its threads nor its place."""
        return os.getpid() == self._process

    def check_process(self, what: str) -> None:
        """Raise DistBackendError in a fork of the process that made the group."""
        if not self.are_of_this_process:
            rank = self._global_rank(self.place.rank)
            raise dist.DistBackendError(
                f"taihu group {self.name!r}, {what}: this process is a fork of rank {rank}, and has no connection to "
                f"the others; let rank {rank} call it"
            )

    def explain(self, what: str, error: BaseException) -> BaseException:
        """The error as PyTorch's scripts expect it; the group's numbers of ranks become those of the whole run."""
        said = f"taihu group {self.name!r}, {what}: {str(error) or repr(error)}"
        named = re.sub(r"\bworker ([0-9]+)\b", lambda match: f"rank {self._global_rank(int(match[1]))}", said)
        failed: BaseException = dist.DistBackendError(named)
        return failed

    def _global_rank(self, rank: int) -> int:
        return self._global_ranks[rank] if rank < len(self._global_ranks) else rank

    @property
    def are_reconfigurable(self) -> bool:
        """Whether they may `change`."""
        return self._handles is not None

    def handle(self) -> str:
        """This process's for the next change; raises DistBackendError where there is none."""
        return self._own_handles().own(self.place)

    def change(self, uuid: int, handles: Collection[str], timeout_s: float) -> GroupWork:
        """Leave, and connect with those of other handles; returns at once, see `Handles.use` for its errors."""
        invitation = self._own_handles().use(uuid, handles, replace(self.place, timeout_s=timeout_s))
        work = GroupWork("reconfigure", [])
        former, self._connected = self._connected, None
        spawn("taihu-reconfigure", self._change, former, invitation, work)
        return work

    def _change(self, former: Connected | None, invitation: Invitation, work: GroupWork) -> None:
        error = None
        place = invitation.place
        try:
            if former is not None:
                former.leave(_REVOKED_AFTER_S)
            self._global_ranks = tuple(range(place.size))
            connected = self._among(invitation.meet(), place)
            try:
                # Nobody may leave while others are about to connect to it.
                exchange = connected.exchange
                exchange.carry_out(Words(work.what), partial(exchange.meet, work.what, place.timeout_s))
                self._take(connected, place)
            except BaseException as raised:
                connected.exchange.fail(raised)
                connected.leave()
                raise
        except BaseException as raised:
            error = self.explain(work.what, raised)
        tell = work.end(error)
        if tell is not None:
            tell()

    def _take(self, connected: Connected, place: GroupPlace) -> None:
        with self._changing:
            if self._has_left:
                raise RuntimeError("the group has been destroyed")
            self.place, self._connected = place, connected

    def _own_handles(self) -> Handles:
        self.check_process("reconfigure")
        if self._handles is None:
            raise dist.DistBackendError(
                f"taihu group {self.name!r}: cannot be reconfigured; make it by "
                "init_process_group(enable_reconfigure=True)"
            )
        return self._handles

    def give_up(self, reason: str) -> None:
        """End every operation on all ranks with an error that says that this rank `reason`."""
        if self.are_of_this_process and self._connected is not None:
            self._connected.give_up(reason)

    def part(self) -> None:
        """Leave those of now; `change` may follow."""
        if self.are_of_this_process and self._connected is not None:
            self._connected.leave()

    def leave(self) -> None:
        """Leave for good."""
        with self._changing:
            self._has_left = True
        if self._handles is not None:
            self._handles.close()
        self.part()
