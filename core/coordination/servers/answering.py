"""Answers to servers that join, by the coordinator."""

from __future__ import annotations

from typing import Final

from taihu.core.base.errors import ConfigError, StaleError
from taihu.core.checkpoint.keepers import recovers
from taihu.core.coordination.control.asks import Seat, Seated
from taihu.core.coordination.control.control import Call
from taihu.core.coordination.control.held_call import HeldCall
from taihu.core.coordination.membership.membership import Membership
from taihu.core.coordination.membership.shared import SharedMembership
from taihu.core.coordination.servers.hosting import JoinedServers
from taihu.core.job import Job
from taihu.core.job.sizes import tied_to_servers

_NEEDED: Final = "servers that join need checkpoint.dir, a folder that all machines share, and checkpoint.restarts"

NO_RUN_TO_JOIN: Final = f"a lost server ends this run; {_NEEDED}"


def check_joins(job: Job) -> None:
    """Accept a job whose servers may come and go.

    Raises:
        ConfigError: it has none, its bits depend on their number, or a lost one ends the run.
    """
    if not job.servers:
        raise ConfigError("exchange.kind 'ring' has no servers: nobody joins as one")
    if why := tied_to_servers(job):
        raise ConfigError(f"the bits of this job depend on the number of its servers, so that none joins: {why}")
    if not recovers(job):
        raise ConfigError(_NEEDED)


def seat(coordinator: SharedMembership, servers: JoinedServers, ask: Seat, caller: Call) -> Seated:
    """Note that a server is there; answer as soon as it has another place or the run has ended, or in a while.

    Raises:
        StaleError: it belongs to another job.
        ConfigError: it has other settings, no server may join, or as many have as may.
    """
    life = ask.life
    check_joins(servers.chosen)
    with coordinator.changing() as (membership, now):
        if ask.job != membership.roster.job:
            raise StaleError(f"this is job {membership.roster.job!r}, not {ask.job!r}; check the address")
        if ask.settings_digest != servers.job.digest:
            raise ConfigError(f"server {ask.name}: its job has other settings than the run's; give it the same")
        with servers.changing() as seats:
            call = seats.attends(life, ask.name, ask.index, now)
        servers.look(membership, now, moves=False)

    def hung_up(now: float) -> None:
        with servers.changing() as seats:
            seats.hung_up(life, call, now)

    def has_news(membership: Membership) -> bool:
        with servers.changing() as seats:
            state = membership.outcome.state
            # Until all is over in a generation that is, a call stays held: whoever dies then hangs up.
            ends = state.is_over
            return seats.index_of(life) != ask.index or seats.is_over or ends

    held = HeldCall(coordinator, caller, hung_up)
    held.hold(has_news, servers.held_s)
    with held.answered() as membership, servers.changing() as seats:
        outcome = membership.outcome
        if outcome.state.is_over:
            seats.hears_end(life)
        return Seated(seats.index_of(life), outcome.state, outcome.reason)
