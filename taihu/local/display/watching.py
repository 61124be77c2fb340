"""A run's progress, as its coordinator tells it, on a display."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from taihu.core.base.errors import PeerUnreachableError, TaihuError
from taihu.core.coordination.client.awaited import awaited_in_words, missing_of
from taihu.core.coordination.control.looking import RunStatus
from taihu.core.coordination.membership.members import Role
from taihu.core.coordination.status import fetch_status
from taihu.core.process.background import in_background
from taihu.core.security.security import Security
from taihu.core.system.threads import Event
from taihu.local.display.display import Display, RunView, view_of

_STATUS_S = 0.5


class StatusWatch:
    """Shows the status that a run's coordinator tells whoever `security` says; what is wrong with it is said once.

    `missing` are the members that had not joined then; None where the coordinator did not answer.
    """

    def __init__(self, coordinator: str, display: Display, security: Security | None = None) -> None:
        self._security = security
        self._coordinator = coordinator
        self._display = display
        self._told = False
        self._problem = self._stall = ""
        self.missing: list[str] | None = None

    def show(self) -> RunView | None:
        """Show the status; returns it when every worker has made a step.

        Nothing is said of a coordinator that does not answer: it is busy, or has ended.
        """
        self.missing = None
        try:
            status = fetch_status(self._coordinator, _STATUS_S, self._security)
        except PeerUnreachableError:
            return None
        except TaihuError as error:
            if not self._told:
                self._display.warn(f"the run's progress cannot be shown: {error}")
            self._told = True
            return None
        self.missing = list(map(str, missing_of(status)))
        if status.checkpoint_problem and not self._problem:
            self._display.warn(f"{status.checkpoint_problem}; the run goes on without it")
        self._problem = status.checkpoint_problem
        if status.stall and not self._stall:
            self._display.say(f"waiting: {status.stall}")
        self._stall = status.stall
        return _show(status, self._display)


def _show(status: RunStatus, display: Display) -> RunView | None:
    workers = [each.progress for each in status.members if each.member.role is Role.WORKER]
    missing = missing_of(status)
    if missing:
        display.wait(awaited_in_words(missing))
        return None
    view = view_of(workers)
    if view is not None:
        display.update(view)
    return view


@dataclass
class Watched:
    """The run as it was seen last; None before every worker has made a step."""

    view: RunView | None = None


@contextmanager
def watching(coordinator: str, display: Display, security: Security | None = None) -> Iterator[Watched]:
    """Show the run's status twice a second during the block, from a thread; ask for it as `security` says."""
    watched, status = Watched(), StatusWatch(coordinator, display, security)

    def watch(over: Event) -> None:
        while not over.wait(_STATUS_S):
            watched.view = status.show() or watched.view

    with in_background(watch, "watching"):
        yield watched
