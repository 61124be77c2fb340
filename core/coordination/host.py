"""The coordinator in the process that hosts it: server 0 or, in a run without servers, worker 0."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Final

import structlog

from taihu.core.base.errors import ModelError
from taihu.core.checkpoint.ended import EndedRun, keep_end
from taihu.core.checkpoint.keepers import checkpoint_folder, recovers, resumed_from, used_up
from taihu.core.coordination.coordinator.checkpointing import Checkpointing
from taihu.core.coordination.coordinator.coordinator import Coordinator
from taihu.core.coordination.coordinator.desk import Desk
from taihu.core.coordination.coordinator.service import CoordinatorServicer
from taihu.core.coordination.generations import ONLY, Generation
from taihu.core.coordination.membership.liveness import TICK_S
from taihu.core.coordination.membership.members import RunState
from taihu.core.coordination.membership.membership import Membership
from taihu.core.coordination.membership.outcome import Terms
from taihu.core.coordination.plans.choosing import Choosing
from taihu.core.coordination.plans.planning import Planning
from taihu.core.job import Job, settled
from taihu.core.job.signs_of_life import seconds_between_signs
from taihu.core.model.layout import Layout
from taihu.core.system.threads import Event, spawn
from taihu.core.wire.base.address import is_loopback
from taihu.core.wire.base.clock import SystemClock
from taihu.core.wire.serving.server import RpcServer
from taihu.kernels import group_search

_AGAIN: Final = "the same commands and --resume auto"


@contextmanager
def hosted_coordinator(job: Job, rpc: RpcServer, generation: Generation = ONLY) -> Iterator[Desk]:
    """The desk of a coordinator of `job`, on `rpc`, which is started afterwards.

    Leaving waits until the others know the end.
    """
    cluster = job.cluster
    terms = Terms(
        recovers=generation.recovers,
        remedy=used_up(job, _AGAIN) if recovers(job) and not generation.recovers else "",
        keeps_end=recovers(job),
        has_steps=generation.step > 0,
    )
    membership = Membership.of(job, terms, generation.number, generation.pending)
    # The planner is needed for the first time after some steps, in which its kernels can be compiled.
    spawn("warm-up", group_search.warm_up)
    clock = SystemClock()
    checkpointing = Checkpointing.of(job, clock)
    coordinator = Coordinator(
        membership,
        lambda layout: _planning(job, layout, membership, generation.choosing),
        clock,
        checkpointing,
        partial(_keep_end, job, generation.number),
        choosing=generation.choosing,
    )
    parties = generation.parties
    desk = Desk(
        coordinator, generation.begun, agents=generation.agents, joined=generation.joined, past=generation.past
    )
    CoordinatorServicer(desk).register(rpc.grpc_server)
    closed = Event()
    watch = spawn("membership", _let_time_pass, coordinator, generation, closed)
    try:
        yield desk
    finally:
        with coordinator.changing() as (members, _):
            has_failed = members.outcome.state is RunState.FAILED
        # Who has done its part, and is cut off, asks for as long, over new connections.
        patience_s = job.patience.answer_s if has_failed else cluster.lost_after_s
        if not coordinator.wait_for(lambda m: m.outcome.over(), patience_s + seconds_between_signs(job)):
            # Nobody finds the end of this run anywhere else: who was cut off begins again, and asks for as long.
            coordinator.wait_for(lambda m: m.outcome.over() or m.outcome.end_is_kept, cluster.connect_timeout_s)
        coordinator.close(cluster.lost_after_s)
        if parties is not None:
            parties.tell_end(coordinator, cluster.lost_after_s)
            parties.joined.ends(coordinator)
            parties.closes()
        closed.set()
        watch.join()


def _keep_end(job: Job, generation: int, parameters_sha256: str) -> str | None:
    """Keep the end of a run, where it has a folder for that; the reason where it cannot be kept."""
    folder = checkpoint_folder(job)
    if folder is None:
        return None
    ended = EndedRun(generation=generation, settings=dict(job.shared_settings), parameters_sha256=parameters_sha256)
    try:
        keep_end(folder, ended)
    except OSError as error:
        return f"{folder}: {error}"
    return None


def _planning(job: Job, layout: Layout, membership: Membership, choosing: Choosing | None) -> Planning:
    one_host = _on_one_host(membership)
    if choosing is not None:
        choosing.look(layout.elements, one_host=one_host)
    job = settled(job, membership.alike.updates)
    begun = resumed_from(job)
    spreads = job.exchange.fc != "data"
    if begun is not None and (difference := begun.difference(layout, spreads=spreads)):
        raise ModelError(f"checkpoint.resume {begun.folder} is of another model: {difference}")
    planning = Planning(
        job,
        layout,
        one_host=one_host,
        length=membership.alike.length,
        updates=membership.alike.updates,
        begun_after=0 if begun is None else begun.step,
        on_measured=None if choosing is None else choosing.measured,
    )
    if choosing is not None and choosing.costs is not None:
        # Of the trial before, which had the same layers and links; each trial begins at step 1.
        planning.adopt(0, choosing.costs, choosing.costs.carriage or planning.plan.carriage)
    return planning


def _on_one_host(membership: Membership) -> bool:
    """Whether the addresses that members exchange at mean something on this machine only."""
    addresses = membership.roster.peer_addresses()
    return addresses is not None and all(map(is_loopback, addresses))


def _let_time_pass(coordinator: Coordinator, generation: Generation, closed: Event) -> None:
    said, parties = "", generation.parties
    if parties is not None:
        parties.opens(coordinator)
    while not closed.wait(TICK_S):
        with coordinator.changing() as (members, now):
            members.liveness.look(now)
            if parties is not None:
                parties.look(members, now, moves=not generation.begun.is_trial)
            stall = members.liveness.stall
        if stall and not said:
            structlog.get_logger().warning("stall", seen=stall)
        said = stall
