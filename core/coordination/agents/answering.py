"""Answers to agents, by the coordinator."""

from __future__ import annotations

from typing import Final

from taihu.core.base.errors import ConfigError, StaleError
from taihu.core.coordination.agents.hosting import Agents
from taihu.core.coordination.control.asks import Assigned, Attend
from taihu.core.coordination.control.control import Call
from taihu.core.coordination.control.held_call import HeldCall
from taihu.core.coordination.membership.membership import Membership
from taihu.core.coordination.membership.shared import SharedMembership

NEEDED_BY_AGENTS: Final = "agents need checkpoint.dir, a folder that all machines share, and checkpoint.restarts"


def attend(coordinator: SharedMembership, agents: Agents, ask: Attend, caller: Call) -> Assigned:
    """Note that an agent is there; answer as soon as it is to run other ranks or the run has ended, or in a while.

    Raises:
        StaleError: it belongs to another job.
        ConfigError: it has other settings, or as many agents are there as may be.
    """
    life, runs = ask.agent, tuple(sorted(ask.runs))
    with coordinator.changing() as (membership, now):
        if ask.job != membership.roster.job:
            raise StaleError(f"this is job {membership.roster.job!r}, not {ask.job!r}; check the address")
        if ask.settings_digest != agents.digest:
            raise ConfigError(f"agent {ask.name}: its job has other settings than the run's; give it the same")
        with agents.changing() as attendance:
            call = attendance.attends(life, ask.name, runs, leaves=ask.leaves, now=now)
        agents.look(membership, now)

    def hung_up(now: float) -> None:
        with agents.changing() as attendance:
            attendance.hung_up(life, call, now)

    def has_news(membership: Membership) -> bool:
        with agents.changing() as attendance:
            return attendance.ranks_of(life) != runs or membership.outcome.state.is_final

    held = HeldCall(coordinator, caller, hung_up)
    held.hold(has_news, agents.held_s)
    with held.answered() as membership, agents.changing() as attendance:
        outcome = membership.outcome
        if outcome.state.is_over:
            attendance.hears_end(life)
        return Assigned(attendance.ranks_of(life), outcome.state, outcome.reason, attendance.awaited)
