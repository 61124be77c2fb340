"""Members for whom a run waits, in words: pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from taihu.core.base.words import listed
from taihu.core.coordination.control.looking import RunStatus
from taihu.core.coordination.membership.members import MemberId, Role

_MOST = 8


def missing_of(status: RunStatus) -> list[MemberId]:
    """The members that have not joined, servers first."""
    joined = {entry.member for entry in status.members}
    sizes = {Role.SERVER: status.servers, Role.WORKER: status.workers}
    everyone = (MemberId(role, rank) for role, size in sizes.items() for rank in range(size))
    return [member for member in everyone if member not in joined]


def awaited_in_words(missing: Sequence[MemberId]) -> str:
    """`server 1 and workers 1, 2`; nothing when nobody is missing."""
    return listed([words for role in Role if (words := _of_role(role, missing))])


def pauses_s() -> Iterator[float]:
    """Seconds between two lines that say the same: soon at first, then ever more seldom, up to a minute."""
    pause = 2.0
    while True:
        yield pause
        pause = min(60.0, 2 * pause)


def _of_role(role: Role, missing: Sequence[MemberId]) -> str:
    ranks = [member.rank for member in missing if member.role is role]
    if not ranks:
        return ""
    shown = ", ".join(map(str, ranks[:_MOST]))
    more = f" and {len(ranks) - _MOST} more" if len(ranks) > _MOST else ""
    return f"{role.value}{'s' if len(ranks) > 1 else ''} {shown}{more}"
