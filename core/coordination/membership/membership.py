"""The members of a run, the way in, their signs of life, and the end: pure objects, time comes in as an argument."""

from __future__ import annotations

from typing import Self

from taihu.core.coordination.membership.admission import Admission
from taihu.core.coordination.membership.agreement import Agreement
from taihu.core.coordination.membership.liveness import Liveness, Waits
from taihu.core.coordination.membership.outcome import Outcome, Terms
from taihu.core.coordination.membership.roster import Roster
from taihu.core.coordination.membership.stopping import PendingStop
from taihu.core.job import Job


class Membership:
    """The members of one run or, where it recovers, of one generation of them.

    Args:
        roster: of the run's places.
        alike: what all members must have alike.
        waits: the times that they are waited for.
        terms: the meaning of a loss and of an end.
        generation: the number of this generation.
        layout_follows: workers join without their layers and bring them later.
        pending: the stop that an earlier generation was asked for.

    Attributes:
        roster: the places and who has them.
        alike: the layers, length and updates of all.
        outcome: the state of the run, and how it ends.
        admission: the way in.
        liveness: signs of life, and who is missed.
    """

    def __init__(
        self,
        roster: Roster,
        alike: Agreement,
        waits: Waits,
        terms: Terms = Terms(),  # noqa: B008 - it cannot be changed
        *,
        generation: int = 0,
        layout_follows: bool = False,
        pending: PendingStop | None = None,
    ) -> None:
        self.roster = roster
        self.alike = alike
        self.outcome = Outcome(roster, terms, pending or PendingStop())
        self.admission = Admission(
            roster,
            self.outcome,
            alike,
            generation=generation,
            replaced_after_s=waits.replaced_after_s,
            layout_follows=layout_follows,
        )
        self.liveness = Liveness(roster, self.admission, self.outcome, waits)

    @classmethod
    def of(cls, job: Job, terms: Terms, generation: int, pending: PendingStop | None = None) -> Self:
        """The places of a job's members, which nobody has taken yet."""
        world = job.world
        roster = Roster(job.name, servers=world.servers, workers=world.workers, workers_meet=job.workers_meet)
        return cls(
            roster,
            Agreement(str(roster.host), job.digest, job.shared_settings),
            Waits.of(job),
            terms,
            generation=generation,
            layout_follows=job.layout_follows,
            pending=pending,
        )
