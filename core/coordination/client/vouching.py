"""Members let in those of whom the coordinator says that they are members, in the life that they tell."""

from __future__ import annotations

from collections.abc import Callable

from taihu.core.coordination.membership.members import MemberId, Role
from taihu.core.wire.frames.identity import WorkerIdentity

Vouch = Callable[[WorkerIdentity], None]
"""Returns for a worker that is a member; raises StaleError for anybody else."""


def vouched_once(ask: Callable[[MemberId, int], None]) -> Vouch:
    """A check of workers by `ask(member, incarnation)`, which is asked once for each that it lets in.

    Any thread may call. Strangers are asked for each time, and nothing is kept of them.
    """
    known: set[WorkerIdentity] = set()

    def check(worker: WorkerIdentity) -> None:
        if worker not in known:
            ask(MemberId(Role.WORKER, worker.rank), worker.incarnation)
            known.add(worker)

    return check
