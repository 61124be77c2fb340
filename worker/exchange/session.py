"""A worker's part in a run: joined, its exchange open, its heartbeats sent, and its failure reported."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from typing import Final

from taihu.allreduce.communicator import Communicator
from taihu.allreduce.rendezvous import Meeting, listen_for_peers, meet
from taihu.core.base.errors import TaihuError
from taihu.core.chaos.points import Chaos, NoChaos, Point
from taihu.core.compression import Outcome
from taihu.core.coordination.client.client import CoordinatorClient, coordinator_address, failure_reported
from taihu.core.coordination.client.heartbeats import HeartbeatThread
from taihu.core.coordination.coordinator.coordinator import Coordinator
from taihu.core.coordination.coordinator.service import new_incarnation
from taihu.core.coordination.generations import ONLY, Generation
from taihu.core.coordination.listener import Listener, listen_options
from taihu.core.coordination.membership.members import MemberId, Progress, Role, RunState, error_of
from taihu.core.coordination.membership.stopping import StopNotice
from taihu.core.coordination.plans.plan import Plan
from taihu.core.history.recording import Recorder
from taihu.core.job import Job, settled
from taihu.core.job.update_rules import UpdateRules
from taihu.core.model.layout import Layout
from taihu.core.model.run_length import RunLength
from taihu.core.trace import Tracer
from taihu.core.wire.frames.identity import WorkerIdentity
from taihu.worker.exchange.base.holding import Hold, hold_nothing
from taihu.worker.exchange.making import Beside, between_workers, through_servers
from taihu.worker.exchange.shell import Exchange
from taihu.worker.memory.arenas import Arenas
from taihu.worker.memory.initial_parameters import InitialParameters


@dataclass(frozen=True)
class Session:
    """The part of a worker in a run; the parameter arena holds the job's initial parameters."""

    client: CoordinatorClient
    exchange: Exchange
    communicator: Communicator | None = None

    @property
    def awaited(self) -> str:
        """The cause of this worker's wait, in words; "" where it waits for nobody."""
        between = "" if self.communicator is None else self.communicator.awaited
        return self.exchange.awaited or between


@dataclass(frozen=True)
class Exchanged:
    """Arenas that a worker exchanges, which hold `layout.elements` values each.

    `initialize(i)` writes the initial parameters of layer i, where the arena cannot hold all layers at once.
    `updates` is the optimizer of a script that servers update by. `hold` makes what holds the steps.
    """

    layout: Layout
    arenas: Arenas
    initialize: Callable[[int], None] = lambda _: None
    updates: UpdateRules | None = None
    hold: Hold = hold_nothing


@dataclass(frozen=True)
class Reporting:
    """Receivers of what happens in a session; `hosting` is told of the coordinator, by the worker that hosts it.

    `ended` gets the error by which the run, or this generation of its members, has ended elsewhere.

    `stop` is told of a stop of the run, and says that this worker wants one. `recorder` gets the exchange's history.
    `chaos` is asked at each point.
    """

    progress: Callable[[], Progress] = Progress
    on_compressed: Callable[[Outcome], None] = lambda _: None
    tracer: Tracer | None = None
    ended: Callable[[TaihuError], None] = lambda _: None
    hosting: Callable[[Coordinator], None] = lambda _: None
    stop: StopNotice = field(default_factory=StopNotice)
    recorder: Recorder = field(default_factory=Recorder.off)
    chaos: Chaos = field(default_factory=NoChaos)


@dataclass(frozen=True)
class Joining:
    """The way in which a worker joins.

    Attributes:
        listener: where the other workers reach this one, in a run without servers.
        length: of the run by this worker's data, which all must have alike.
        generation: of the members.
    """

    listener: Listener | None = None
    length: RunLength | None = None
    generation: Generation = ONLY


ALONE: Final = Joining()
"""A worker without data, in the only generation of a run."""


@contextmanager
def take_part(
    job: Job,
    rank: int,
    exchanged: Exchanged,
    reporting: Reporting,
    joining: Joining = ALONE,
) -> Iterator[Session]:
    """Take part in `job`'s run as worker `rank` during the block, which ends by finishing with `client.finish`.

    Worker 0 brings its parameters, the others get theirs. Shared memory has no name any more at the end, however far
    this came.

    Raises:
        TaihuError: what went wrong; the coordinator has been told.
    """
    with ExitStack() as ending:
        ending.callback(exchanged.arenas.forget_name)
        if job.servers:
            yield ending.enter_context(
                _through_servers(job, rank, exchanged, reporting, joining.length, joining.generation)
            )
            return
        listener = joining.listener or listen_for_peers(job, rank, listen_options(job, "worker", rank))
        met = _meet(
            job,
            rank,
            exchanged.layout,
            reporting,
            listener=listener,
            length=joining.length,
            generation=joining.generation,
        )
        meeting = ending.enter_context(met)
        reporting.chaos.passes(Point.JOIN)
        plan = meeting.client.get_plan(job.cluster.connect_timeout_s)
        yield ending.enter_context(_between_workers(job, plan, meeting, exchanged, reporting))


@contextmanager
def take_part_after_meeting(
    job: Job,
    rank: int,
    prepare: Callable[[Communicator], Exchanged],
    reporting: Reporting,
    joining: Joining = ALONE,
) -> Iterator[Session]:
    """Like `take_part`, where what is exchanged is known only once the workers have met, and `prepare`."""
    met = meet_workers(
        job, rank, reporting, listener=joining.listener, length=joining.length, generation=joining.generation
    )
    with (
        met as meeting,
        exchange_after_meeting(job, meeting, prepare(meeting.communicator), reporting) as session,
    ):
        yield session


@contextmanager
def meet_workers(
    job: Job,
    rank: int,
    reporting: Reporting,
    *,
    listener: Listener | None = None,
    length: RunLength | None = None,
    generation: Generation = ONLY,
    mesh: bool = False,
) -> Iterator[Meeting]:
    """The first half of `take_part_after_meeting`: the workers are connected, and nothing is exchanged yet.

    With `mesh` they move parts, whatever the job says; all of them ask for it alike.
    """
    listener = listener or listen_for_peers(job, rank, listen_options(job, "worker", rank))
    met = _meet(job, rank, None, reporting, listener=listener, length=length, generation=generation, mesh=mesh)
    with met as meeting:
        reporting.chaos.passes(Point.JOIN)
        yield meeting


@contextmanager
def exchange_after_meeting(
    job: Job, meeting: Meeting, exchanged: Exchanged, reporting: Reporting
) -> Iterator[Session]:
    """The second half of `take_part_after_meeting`: what is exchanged is known to all, and the exchange is open."""
    with ExitStack() as ending:
        ending.callback(exchanged.arenas.forget_name)
        job = settled(job, exchanged.updates)
        meeting.client.bring_layout(exchanged.layout, exchanged.updates)
        plan = meeting.client.get_plan(job.cluster.connect_timeout_s)
        if not job.servers:
            with _between_workers(job, plan, meeting, exchanged, reporting) as session:
                yield session
            return
        exchange = through_servers(
            job,
            plan,
            meeting.servers,
            meeting.identity,
            exchanged.arenas,
            _beside(exchanged, reporting, meeting.client.tell_of_loss),
        )
        meeting.also_fail.append(exchange.fail)
        # The failure is reported first, see below.
        with exchange, failure_reported(meeting.client):
            exchange.start()
            yield Session(meeting.client, exchange, meeting.communicator)


@contextmanager
def exchange_by_plan(
    job: Job, plan: Plan, meeting: Meeting, exchanged: Exchanged, reporting: Reporting
) -> Iterator[Session]:
    """An exchange between workers that follows another one of their meeting, by a plan that all have made alike."""
    with ExitStack() as ending:
        ending.callback(exchanged.arenas.forget_name)
        yield ending.enter_context(_between_workers(job, plan, meeting, exchanged, reporting))


def _meet(
    job: Job,
    rank: int,
    layout: Layout | None,
    reporting: Reporting,
    *,
    listener: Listener,
    length: RunLength | None,
    generation: Generation,
    mesh: bool = False,
) -> AbstractContextManager[Meeting]:
    return meet(
        job,
        rank,
        layout,
        listener,
        length=length,
        progress=reporting.progress,
        hosting=reporting.hosting,
        ended=reporting.ended,
        stop=reporting.stop,
        generation=generation,
        faults=reporting.chaos.frames,
        mesh=mesh,
    )


@contextmanager
def _between_workers(
    job: Job, plan: Plan, meeting: Meeting, exchanged: Exchanged, reporting: Reporting
) -> Iterator[Session]:
    exchange = between_workers(job, plan, meeting.communicator, exchanged.arenas, _beside(exchanged, reporting))
    # Not as a context: a failure is reported first, and then told to the neighbours by the communicator.
    with closing(exchange):
        exchange.start()
        yield Session(meeting.client, exchange, meeting.communicator)


@contextmanager
def _through_servers(  # noqa: PLR0917 - what `take_part` is given
    job: Job,
    rank: int,
    exchanged: Exchanged,
    reporting: Reporting,
    length: RunLength | None,
    generation: Generation,
) -> Iterator[Session]:
    incarnation = new_incarnation()
    with CoordinatorClient.at(coordinator_address(job), job, MemberId(Role.WORKER, rank), incarnation) as client:
        addresses = client.join(layout=exchanged.layout, length=length, begun=generation.begun)
        reporting.chaos.passes(Point.JOIN)
        with failure_reported(client):
            plan = client.get_plan(job.cluster.connect_timeout_s)
        identity = WorkerIdentity(job.name, rank, incarnation)
        beside = _beside(exchanged, reporting, client.tell_of_loss)
        exchange = through_servers(job, plan, addresses, identity, exchanged.arenas, beside)

        def on_end(state: RunState, reason: str) -> None:
            if (error := error_of(state, reason)) is not None:
                exchange.fail(error)
                reporting.ended(error)

        # The failure is reported while the streams are open: a stream that breaks first would become the reason.
        heartbeats = HeartbeatThread(client, job, reporting.progress, on_end, stop=reporting.stop)
        with exchange, heartbeats, failure_reported(client):
            exchange.start()
            yield Session(client, exchange)


def _beside(
    exchanged: Exchanged, reporting: Reporting, on_failure: Callable[[TaihuError], None] = lambda _: None
) -> Beside:
    pages = exchanged.arenas.parameter_pages
    # There is no room for all initial parameters at once.
    initial = None if pages is None else InitialParameters(exchanged.layout, pages, exchanged.initialize)
    return Beside(
        initial,
        reporting.on_compressed,
        reporting.tracer,
        on_failure,
        reporting.recorder,
        reporting.chaos,
        exchanged.hold,
    )
