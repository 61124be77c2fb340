"""The coordinator between two generations: what members of several hosts held becomes a checkpoint.

The member that hosts it answers at the coordinator's address, since others ask there, and tell there that the last
generation is over for them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final, NoReturn

import structlog

from taihu.core.base.errors import CheckpointError, RecoveringError, RunError, StaleError, TaihuError
from taihu.core.base.words import listed
from taihu.core.checkpoint.copies import Copies
from taihu.core.checkpoint.gathering import Gathering, WrittenPart
from taihu.core.checkpoint.held_steps import Label
from taihu.core.checkpoint.keepers import keepers
from taihu.core.checkpoint.manifest import parse_manifest
from taihu.core.checkpoint.salvage import OwnSteps, commit, tell_lost, write_copy
from taihu.core.coordination.client.waiting import telling_who_is_awaited
from taihu.core.coordination.coordinator.coordinator import Coordinator
from taihu.core.coordination.coordinator.desk import Desk
from taihu.core.coordination.coordinator.parties import Parties
from taihu.core.coordination.coordinator.service import COORDINATOR_SERVICE, CoordinatorServicer, new_incarnation
from taihu.core.coordination.membership.liveness import Waits
from taihu.core.coordination.membership.members import RunState
from taihu.core.coordination.membership.membership import Membership
from taihu.core.coordination.membership.outcome import Terms
from taihu.core.coordination.membership.stopping import PendingStop
from taihu.core.coordination.servers.hosting import JoinedServers
from taihu.core.job import Job
from taihu.core.job.sizes import are_of_one_run
from taihu.core.model.layout import Layout
from taihu.core.wire.base.clock import SystemClock
from taihu.core.wire.serving.absent import AbsentServices
from taihu.core.wire.serving.server import RpcServer

# Of the time that members wait for others: who is not there by then may be on its way for as long again.
_SHARE: Final = 0.5


def gather(job: Job, member: str, rpc: RpcServer, parties: Parties, pending: PendingStop) -> None:
    """Have the newest step that all members hold written as a checkpoint, if there is one.

    Returns when it counts; when there is none, for somebody holds nothing or cannot write it; or when nobody has said
    or written anything for half of `cluster.connect_timeout_s`. `member` hosts the coordinator, on `rpc`; workers of
    lost agents of the `parties` get others meanwhile, servers that joined and are gone have others in their place or
    are given up, and a stop is `pending` until the next generation makes it.

    Raises:
        RunError: somebody has ended the run meanwhile.
    """
    gathering = Gathering(keepers(job), Waits.of(job).replaced_after_s, parties.agents.copies)
    own, life = OwnSteps(job, member), new_incarnation()
    membership = Membership.of(job, Terms(recovers=True, has_steps=True), new_incarnation(), pending)
    coordinator = Coordinator(membership, _no_plan, SystemClock())
    desk = Desk(coordinator, gathered=gathering, agents=parties.agents, joined=parties.joined)
    CoordinatorServicer(desk).register(rpc.grpc_server)
    rpc.grpc_server.add_generic_rpc_handlers((AbsentServices(RecoveringError("all members begin again")),))
    with coordinator.changing() as (_, now):
        gathering.holds(member, life, own.labels(), now)
    rpc.start((COORDINATOR_SERVICE,), with_reflection=job.cluster.reflection)
    with telling_who_is_awaited(lambda: listed(gathering.missing)), parties.watched(coordinator):
        _await_parts(_Gathered(job, coordinator, gathering, parties.joined), own, life)
    with coordinator.changing():
        if membership.outcome.state is RunState.FAILED:
            raise RunError(membership.outcome.reason)
        parts = gathering.parts
    rpc.retire()
    if parts is not None:
        _commit(job, parts)


@dataclass(frozen=True)
class _Gathered:
    """The gathering of a run's steps, who may ask about it, and servers that may be given up."""

    job: Job
    coordinator: Coordinator
    gathering: Gathering
    joined: JoinedServers

    def await_news(self, moves: int) -> bool:
        """Wait until somebody has said something new; False where all that are waited for are given up."""
        self.coordinator.wait_for(
            lambda m: self.gathering.moves != moves or m.outcome.state.is_final or self.joined.are_given_up,
            _SHARE * self.job.cluster.connect_timeout_s,
        )
        with self.coordinator.changing() as (membership, _):
            return self.gathering.moves != moves or membership.outcome.state.is_final


def _await_parts(gathered: _Gathered, own: OwnSteps, life: int) -> None:
    """Write what this host has to, and wait until it is over, or nobody has said anything new for long."""
    coordinator, gathering = gathered.coordinator, gathered.gathering
    while True:
        with coordinator.changing() as (membership, _):
            moves, wanted = gathering.moves, gathering.wanted_of(own.member, life)
            if gathering.is_over or membership.outcome.state.is_final:
                return
            here = gathering.wanted_here
        if wanted is not None:
            part = _written(wanted, partial(own.write, wanted))
            with coordinator.changing():
                if part is None:
                    gathering.left_out(own.member, life, wanted)
                else:
                    gathering.written(own.member, life, part)
        elif here is not None:
            part = _written(here[1], partial(_write_copy, gathered.job, gathering.copies, *here))
            with coordinator.changing():
                if part is None:
                    gathering.give_up(here[1])
                else:
                    gathering.written_here(here[0], part)
        elif not gathered.await_news(moves):
            structlog.get_logger().warning("held steps are lost", reason=f"nothing of {listed(gathering.awaited)}")
            return


def _written(label: Label, write: Callable[[], WrittenPart]) -> WrittenPart | None:
    """A part of a step as `write` has written it; None where it cannot be."""
    try:
        return write()
    except (OSError, TaihuError) as error:
        tell_lost(label.step, error)
        return None


def _write_copy(job: Job, copies: Copies, member: str, label: Label) -> WrittenPart:
    return write_copy(job, member, label, copies.state_of(member, label))


def _commit(job: Job, parts: Mapping[str, WrittenPart]) -> None:
    """Have the parts count, where they are of a run with the job's settings."""
    first = parts[keepers(job)[0]]
    step = first.label.step
    try:
        run = parse_manifest(first.run)
        if run.servers == job.servers and are_of_one_run(run.settings, job.shared_settings):
            commit(job, run, step, {member: part.file for member, part in parts.items()})
    except (OSError, CheckpointError) as error:
        tell_lost(step, error)


def _no_plan(layout: Layout) -> NoReturn:
    raise StaleError("the members of the run begin again: there is no plan yet")
