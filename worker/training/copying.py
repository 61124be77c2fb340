"""Copies of what a worker alone has, brought to the coordinator behind each step: its host may be lost."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import structlog

from taihu.core.base.errors import TaihuError
from taihu.core.checkpoint.copies import MOST_BYTES
from taihu.core.checkpoint.files import part_bytes
from taihu.core.checkpoint.held_steps import Label
from taihu.core.checkpoint.part import Part, State
from taihu.core.process.background import TaskThread
from taihu.core.system.threads import Semaphore

Bring = Callable[[Label, bytes, bool], None]


class Copying:
    """Brings the last steps of one member, in a thread beside; the one that trains waits for the step before at most.

    Args:
        member: whose part it is.
        generation: that it takes part in.
        bring: a part of a step; the last argument says whether it stays for later ones.
        tasks: the thread.
    """

    def __init__(self, member: str, generation: int, bring: Bring, tasks: TaskThread) -> None:
        self._member = member
        self._generation = generation
        self._bring = bring
        self._tasks = tasks
        self._idle = Semaphore()
        self._is_done = False

    def hold(self, step: int, state: State) -> None:
        """Bring `state` behind a step; what has no arrays stays as it is, and what is large is not brought."""
        if self._is_done:
            return
        self._is_done = not state.own or state.size_bytes > MOST_BYTES // 2
        if state.size_bytes > MOST_BYTES // 2:
            structlog.get_logger().info("not copied: where this host is lost, steps since the last checkpoint are")
            return
        part = part_bytes(Part(self._member, step, state))
        self._idle.acquire()
        self._tasks.put(lambda: self._send(Label(self._generation, step), part, stays=not state.own))

    def _send(self, label: Label, part: bytes, *, stays: bool) -> None:
        is_brought = False
        try:
            self._bring(label, part, stays)
            is_brought = True
        except TaihuError as error:  # the coordinator is lost: all begin again
            structlog.get_logger().info("not copied", step=label.step, reason=str(error))
        finally:
            # Behind what goes wrong the thread may carry out nothing more: nobody is to wait for it.
            self._is_done |= not is_brought
            self._idle.release()


@contextmanager
def copying(member: str, generation: int, bring: Bring | None) -> Iterator[Copying | None]:
    """Bring copies during the block; None where there is nobody to bring them to."""
    if bring is None:
        yield None
        return
    tasks = TaskThread("copies", lambda error: structlog.get_logger().warning("not copied", reason=str(error)))
    tasks.start()
    try:
        yield Copying(member, generation, bring, tasks)
    finally:
        tasks.close()
