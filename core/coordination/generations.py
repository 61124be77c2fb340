"""Generations of a run's members: when one is lost, all begin again from a checkpoint, in the processes they have.

A generation begins with joining and ends with the run, or with the loss of a member. Who lives on gives up all that
belonged to the generation (connections, arenas, shards), keeps its process with what that has loaded and compiled,
and asks the coordinator for the next one. A process that was started in the place of a lost one asks alike.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Final, TypeVar

import structlog

from taihu.core.base.errors import CheckpointError, FinishedError, RecoveringError, TaihuError
from taihu.core.checkpoint.keepers import (
    checkpoint_folder,
    ended_run,
    going_on,
    kept_compression,
    newest_of,
    recovers,
)
from taihu.core.checkpoint.run_memory import discard_memory, have_memory, leave_memory, memory_of, prepare_memory
from taihu.core.checkpoint.salvage import OwnSteps, are_all_here, salvage
from taihu.core.checkpoint.store import CheckpointStore
from taihu.core.coordination.agents.hosting import Agents
from taihu.core.coordination.client.client import CoordinatorClient, coordinator_address, told_of
from taihu.core.coordination.coordinator.gatherer import gather
from taihu.core.coordination.coordinator.parties import Parties
from taihu.core.coordination.coordinator.past import Past
from taihu.core.coordination.coordinator.service import new_incarnation
from taihu.core.coordination.membership.members import Begun, MemberId, Role
from taihu.core.coordination.membership.stopping import PendingStop
from taihu.core.coordination.plans.choosing import Choosing, trial
from taihu.core.coordination.restarts import Restarts
from taihu.core.coordination.servers.hosting import JoinedServers
from taihu.core.job import Job
from taihu.core.job.chosen import table_of, with_compression
from taihu.core.job.sizes import with_servers
from taihu.core.process.entry import LeavingError
from taihu.core.system.clocks import monotonic, sleep
from taihu.core.system.memory import collect_garbage
from taihu.core.wire.serving.server import RpcServer

T = TypeVar("T")

# Processes that are lost again and again are held back by who starts them.
_FIRST_PAUSE_S: Final = 0.1
_LONGEST_PAUSE_S: Final = 2.0


@dataclass(frozen=True)
class Generation:
    """The generation that a member takes part in.

    Attributes:
        begun: the generation, as those who ask are told of it.
        recovers: whether another one may follow; for the member that hosts the coordinator.
        choosing: chooses, in a trial of the member that hosts the coordinator.
        parties: agents of the run, and servers that join it, for the member that hosts the coordinator.
        pending: the stop that an earlier generation was asked for; for that member, too.
        past: the generations before it; for that member, too.
    """

    begun: Begun = field(default_factory=lambda: Begun(0))
    recovers: bool = False
    choosing: Choosing | None = None
    parties: Parties | None = None
    pending: PendingStop | None = None
    past: Past = Past(1)  # noqa: RUF009 - it cannot be changed

    @property
    def agents(self) -> Agents | None:
        """Those of the run, for the member that hosts the coordinator."""
        return None if self.parties is None else self.parties.agents

    @property
    def joined(self) -> JoinedServers | None:
        """The servers that joined the run, for the member that hosts the coordinator."""
        return None if self.parties is None else self.parties.joined

    @property
    def number(self) -> int:
        """The number that members join by, drawn at random; 0 in a run that does not recover."""
        return self.begun.generation

    @property
    def step(self) -> int:
        """The step of the checkpoint in the run's own folder from which it begins; 0 for none."""
        return self.begun.step


ONLY: Final = Generation()
"""That of a run that does not recover."""


def in_generations(
    job: Job,
    member: MemberId,
    live: Callable[[Job, Generation], T],
    between: Callable[[], AbstractContextManager[RpcServer]],
    *,
    agent: int = 0,
    check: Callable[[], None] = lambda: None,
) -> T:
    """Call `live` for one generation after another; returns its result of the one in which the run ends.

    It is given the job as it goes on from the generation's checkpoint. A job that chooses its compression begins with
    a generation whose steps are measured. `between` generations the member that hosts the coordinator has a server at
    its address, too. `agent` is the life of that one which runs this process, or of this server where it joined, and
    else 0; `check` raises where this server's place in the run has become another one.

    Raises:
        TaihuError: what ended the run otherwise.
    """
    chooses = job.compression.method.is_chosen
    if not (recovers(job) or job.checkpoint.resumes_auto or chooses):
        return live(job, ONLY)
    hosts = member == MemberId(Role.SERVER if job.servers else Role.WORKER, 0)
    restarts = Restarts(job.checkpoint.restarts, first_s=_FIRST_PAUSE_S, longest_s=_LONGEST_PAUSE_S)
    choosing = Choosing(job) if chooses else None
    parties, pending, past = Parties.of(job), PendingStop(), Past()

    def prepare(own: Job) -> int:
        may_be_held = prepare_memory(own)
        own = with_servers(own, parties.joined.servers)
        salvage(own)
        if may_be_held and not are_all_here(own):
            with between() as rpc:
                gather(own, str(member), rpc, parties, pending)
        return parties.joined.settle()

    while True:
        if hosts and choosing is not None:
            own, generation = _next_chosen(job, restarts, choosing, prepare)
        elif hosts:
            own, generation = _next_hosted(job, restarts, prepare)
        else:
            own, generation = _asked_for(job, member, agent, check)
        if hosts:
            past = past.began(generation.step)
            begun = replace(generation.begun, follows=past.follows)
            generation = replace(generation, begun=begun, parties=parties, pending=pending, past=past)
        own = parties.joined.chosen = with_servers(own, generation.begun.servers)
        memory = have_memory(own)
        try:
            result = live(going_on(own, generation.step), generation)
        except RecoveringError as error:
            structlog.get_logger().warning("all members begin again", reason=str(error))
            past = past.ended(str(error))
        except TaihuError as error:
            # In the place of one that leaves another one comes.
            if hosts and not isinstance(error, LeavingError):
                discard_memory(own)
            raise
        else:
            if hosts:
                discard_memory(own)
            leave_memory(memory)
            return result
        # Arenas and shared memory of the last generation hang in cycles: they go before as much is taken again.
        collect_garbage()
        # Machines that join, leave or are lost are no failures that come again.
        have_changed = parties.settle()
        if hosts and not generation.begun.is_trial and not have_changed:
            sleep(restarts.pause_s(monotonic(), generation.step) or 0.0)


def _next_chosen(
    job: Job, restarts: Restarts, choosing: Choosing, prepare: Callable[[Job], int]
) -> tuple[Job, Generation]:
    """The next generation of a run that chooses its compression: a trial as long as there is no choice.

    Raises:
        CheckpointError, FinishedError: see `_next_hosted`.
    """
    because = ""
    if kept := kept_compression(job):
        own = with_compression(job, kept)
    elif choosing.choice is not None:
        own, because = choosing.choice.way.job, choosing.choice.reason
    else:
        table = {} if choosing.tried is None else table_of(choosing.tried.job.compression)
        begun = Begun(new_incarnation(), compression=table, is_trial=True)
        return choosing.begin(), Generation(begun, recovers=True, choosing=choosing)
    own, generation = _next_hosted(own, restarts, prepare)
    begun = replace(generation.begun, compression=table_of(own.compression), because=because)
    return own, replace(generation, begun=begun)


def _next_hosted(job: Job, restarts: Restarts, prepare: Callable[[Job], int]) -> tuple[Job, Generation]:
    """The job, and its generation that begins from the newest checkpoint that is whole and has steps left.

    Where the run goes on by itself, that is the newest that is whole: this process decides for all. What members held
    is one when `prepare` returns, with the number of servers that take part from there on.

    Raises:
        CheckpointError: there are some, damaged or of another job: to begin anew would lose them.
        FinishedError: the process in whose place this one is has finished the run.
    """
    if (ended := ended_run(job)) is not None:
        raise FinishedError(told_of(ended, job))
    servers = prepare(job)
    folder, found = checkpoint_folder(job), None
    if job.checkpoint.resumes_auto:
        found = newest_of(job)
        structlog.get_logger().info(
            "going on" if found else "beginning: no checkpoint is complete there",
            checkpoint=str(found.folder if found else folder),
        )
    else:
        try:
            found = None if folder is None else CheckpointStore(folder).going_on(job.shared_settings)
        except CheckpointError:
            if job.checkpoint.resume is None:
                raise
    step = 0 if found is None else found.step
    return job, Generation(Begun(new_incarnation(), step, servers=servers), restarts.left(monotonic()) > 0)


def _asked_for(job: Job, member: MemberId, agent: int, check: Callable[[], None]) -> tuple[Job, Generation]:
    """The job, with the compression that was chosen for it, and the generation that the coordinator tells of."""
    if job.compression.method.is_chosen:
        job = with_compression(job, kept_compression(job))
    with CoordinatorClient.at(coordinator_address(job), job, member, new_incarnation()) as client:
        memory = memory_of(job)
        try:
            begun = client.begin(OwnSteps(job, str(member)), agent, check)
        except FinishedError:
            leave_memory(memory)
            raise
    own = with_compression(job, begun.compression)
    return trial(own) if begun.is_trial else own, Generation(begun)
