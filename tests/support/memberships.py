"""Memberships of a job `demo`."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from taihu.core.coordination.membership.agreement import Agreement
from taihu.core.coordination.membership.liveness import Waits
from taihu.core.coordination.membership.membership import Membership
from taihu.core.coordination.membership.outcome import Terms
from taihu.core.coordination.membership.roster import Roster
from taihu.core.coordination.membership.stopping import PendingStop


def make_membership(
    servers: int,
    workers: int,
    waits: Waits | None = None,
    terms: Terms | None = None,
    *,
    digest: str = "",
    settings: Mapping[str, str] = MappingProxyType({}),
    workers_meet: bool = False,
    generation: int = 0,
    pending: PendingStop | None = None,
) -> Membership:
    """A membership whose members are lost after 5 s and have 30 s to join, if `waits` says nothing else."""
    roster = Roster("demo", servers=servers, workers=workers, workers_meet=workers_meet)
    return Membership(
        roster,
        Agreement(str(roster.host), digest, settings),
        waits or Waits(5.0, 30.0),
        terms or Terms(),
        generation=generation,
        layout_follows=workers_meet,
        pending=pending,
    )
