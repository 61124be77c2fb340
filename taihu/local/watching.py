"""A run's progress, as its coordinator tells it, on a display."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from taihu.coordination.awaited import awaited_in_words, missing_of
from taihu.coordination.membership import Role
from taihu.coordination.messages import member_from_message, progress_from_message
from taihu.coordination.status import fetch_status
from taihu.errors import TaihuError
from taihu.local.display import Display, RunView, view_of
from taihu.process.background import in_background

__all__ = ["Watched", "show_status", "watching"]

_STATUS_S = 0.5


def show_status(coordinator: str, display: Display, elapsed_s: float) -> RunView | None:
    """Show the run's status, when its coordinator still answers and every worker has made a step.

    Another process may have its port, once it has ended.
    """
    try:
        status = fetch_status(coordinator, timeout_s=_STATUS_S)
    except TaihuError:
        return None
    workers = [
        progress_from_message(member.progress)
        for member in status.members
        if member_from_message(member.member)[0].role is Role.WORKER
    ]
    missing = missing_of(status)
    if missing:
        display.wait(awaited_in_words(missing), elapsed_s)
        return None
    view = view_of(workers)
    if view is not None:
        display.update(view, elapsed_s)
    return view


@dataclass
class Watched:
    """The run as it was seen last; None before every worker has made a step."""

    view: RunView | None = None


@contextmanager
def watching(coordinator: str, display: Display) -> Iterator[Watched]:
    """Show the run's status twice a second during the block, from a thread."""
    start, watched = time.monotonic(), Watched()

    def watch(over: threading.Event) -> None:
        while not over.wait(_STATUS_S):
            watched.view = show_status(coordinator, display, time.monotonic() - start) or watched.view

    with in_background(watch, "watching"):
        yield watched
